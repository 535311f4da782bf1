//! The signer from end to end: secrets from a state, TLS, token, certificate.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ichor_cosi::{AllowAll, State, StateService, SystemClock};
use ichor_pki::{Authority, CertInfo, KeyAlgorithm, Leaf, PrivateKey, Request};
use ichor_resource::secrets::{OSRootSecret, TrustdCertificate};
use ichor_resource::value::PemCertificateAndKey;
use ichor_rpc::server::{Grpc, Limits, serve_unix};
use ichor_rpc::services::Services;
use ichor_rpc::unix::{Access, bind};
use ichor_rpc::{Channel, ClientTls, Dialer, Endpoint};
use ichor_trustd::Options;
use ichor_wire::securityapi::CertificateRequest;
use ichor_wire::securityapi::security_service_client::SecurityServiceClient;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use tonic::Code;

const OWNER: &str = "test";

fn pair(pair: ichor_pki::KeyPair) -> PemCertificateAndKey {
    PemCertificateAndKey { crt: pair.crt.into(), key: pair.key.into() }
}

async fn serve_state(path: &Path, state: State) {
    let listener = bind(path, Access::PRIVATE).expect("socket");
    let services = Services::new().with(StateService::new(state, AllowAll));
    let stop = CancellationToken::new();
    serve_unix(listener, Limits::default(), stop, move |peer| Grpc::new(services.clone(), peer)).await;
}

fn free_port() -> u16 {
    let probe = std::net::TcpListener::bind("127.88.0.1:0").expect("probe");
    probe.local_addr().expect("address").port()
}

struct Trustd {
    authority: Authority,
    state: State,
    listen: SocketAddr,
    _dir: tempfile::TempDir,
}

/// A signer and its state, on the thread of the test.
async fn start() -> Trustd {
    let now = Timestamp::now();
    let authority =
        Authority::generate(KeyAlgorithm::Ed25519, "talos", now, Authority::TEN_YEARS).expect("authority");
    let dir = tempfile::tempdir().expect("directory");
    let state = State::new(SystemClock);
    state.register::<OSRootSecret>();
    state.register::<TrustdCertificate>();
    let runtime: PathBuf = dir.path().join("runtime.sock");
    let (path, served) = (runtime.clone(), state.clone());
    tokio::task::spawn_local(async move { serve_state(&path, served).await });
    let listen = SocketAddr::from(([127, 88, 0, 1], free_port()));
    let options = Options { listen, runtime };
    tokio::task::spawn_local(async move {
        ichor_trustd::run(options, CancellationToken::new()).await.expect("signer");
    });
    let server = Leaf::server("cp").with_names([""; 0], [listen.ip()]);
    let server = Some(pair(authority.issue(&server, now).expect("certificate")));
    let spec = TrustdCertificate { server, ..TrustdCertificate::default() };
    state.create("secrets", "trustd", spec, OWNER).expect("certificate");
    let root = OSRootSecret {
        issuing_ca: Some(pair(authority.to_pair())),
        token: "abc.def".to_owned(),
        ..OSRootSecret::default()
    };
    state.create("secrets", "os", root, OWNER).expect("root");
    Trustd { authority, state, listen, _dir: dir }
}

impl Trustd {
    async fn ask(
        &self,
        token: &str,
        csr: &str,
    ) -> Result<ichor_wire::securityapi::CertificateResponse, tonic::Status> {
        let tls = ClientTls::verified(self.authority.crt_pem(), None).expect("client TLS");
        let endpoint = Endpoint::new(self.listen.ip().to_string(), self.listen.port());
        let mut client = SecurityServiceClient::new(Channel::new(Dialer::tls([endpoint], tls)));
        let mut request = tonic::Request::new(CertificateRequest { csr: csr.as_bytes().to_vec() });
        request.metadata_mut().insert("token", token.parse().expect("token"));
        client.certificate(request).await.map(tonic::Response::into_inner)
    }
}

#[tokio::test]
async fn a_worker_with_the_token_gets_its_certificate() {
    tokio::task::LocalSet::new().run_until(scenario()).await;
}

async fn scenario() {
    let trustd = start().await;
    let key = PrivateKey::generate(KeyAlgorithm::Ed25519).expect("key");
    let csr =
        Request::make(&key, "worker", &["os:admin".to_owned()], &["worker".to_owned()], &[]).expect("csr");
    let start = Instant::now();
    let signed = loop {
        match trustd.ask("abc.def", &csr).await {
            Ok(signed) => break signed,
            Err(status) => {
                assert_eq!(status.code(), Code::Unavailable, "{status}");
                assert!(start.elapsed() < Duration::from_secs(60), "{status}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    let info = CertInfo::parse(&signed.crt).expect("certificate");
    assert_eq!((info.common_name.as_str(), info.organizations.len()), ("worker", 0));
    assert_eq!(signed.ca, trustd.authority.crt_pem().as_bytes());

    let status = trustd.ask("wrong", &csr).await.expect_err("wrong token");
    assert_eq!((status.code(), status.message()), (Code::Unknown, "Unauthenticated"));
    let status = trustd.ask("abc.def", "nonsense").await.expect_err("no request");
    assert_eq!(status.code(), Code::InvalidArgument);

    // A new token counts at once.
    trustd
        .state
        .modify::<OSRootSecret>("secrets", "os", OWNER, |root| root.token = "new.token".to_owned())
        .expect("new token");
    let start = Instant::now();
    while trustd.ask("new.token", &csr).await.is_err() {
        assert!(start.elapsed() < Duration::from_secs(60), "the new token is not taken");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(trustd.ask("abc.def", &csr).await.expect_err("old token").code(), Code::Unknown);
}
