//! A signer with a state of its own, on the thread of the test.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ichor_cosi::{AllowAll, State, StateService, SystemClock};
use ichor_pki::{Authority, KeyAlgorithm, Leaf, PrivateKey, Request};
use ichor_resource::cluster::Info;
use ichor_resource::secrets::{OSRootSecret, TrustdCertificate};
use ichor_resource::value::PemCertificateAndKey;
use ichor_rpc::server::{Grpc, Limits, serve_unix};
use ichor_rpc::services::Services;
use ichor_rpc::unix::{Access, bind};
use ichor_rpc::{Channel, ClientTls, Dialer, Endpoint};
use ichor_trustd::Options;
use ichor_wire::securityapi::security_service_client::SecurityServiceClient;
use ichor_wire::securityapi::{CertificateRequest, CertificateResponse};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use tonic::Code;

pub(crate) const OWNER: &str = "test";

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

pub(crate) struct Trustd {
    pub authority: Authority,
    pub state: State,
    pub listen: SocketAddr,
    _dir: tempfile::TempDir,
}

/// A signer and its state, on the thread of the test.
pub(crate) async fn start() -> Trustd {
    let now = Timestamp::now();
    let authority =
        Authority::generate(KeyAlgorithm::Ed25519, "talos", now, Authority::TEN_YEARS).expect("authority");
    let dir = tempfile::tempdir().expect("directory");
    let state = State::new(SystemClock);
    state.register::<OSRootSecret>();
    state.register::<TrustdCertificate>();
    state.register::<Info>();
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
    let info = Info { cluster_id: "cluster".to_owned(), ..Info::default() };
    state.create("cluster", "current", info, OWNER).expect("info");
    Trustd { authority, state, listen, _dir: dir }
}

/// A request of a worker.
pub(crate) fn request() -> String {
    let key = PrivateKey::generate(KeyAlgorithm::Ed25519).expect("key");
    Request::make(&key, "worker", &["os:admin".to_owned()], &["worker".to_owned()], &[]).expect("csr")
}

impl Trustd {
    /// A channel to the signer.
    pub(crate) fn channel(&self) -> Channel {
        let tls = ClientTls::verified(self.authority.crt_pem(), None).expect("client TLS");
        Channel::new(Dialer::tls([self.endpoint()], tls))
    }

    /// Where it listens.
    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::new(self.listen.ip().to_string(), self.listen.port())
    }

    /// Waits until it signs.
    pub(crate) async fn ready(&self) -> CertificateResponse {
        let start = Instant::now();
        loop {
            match self.ask("abc.def", &request()).await {
                Ok(signed) => return signed,
                Err(status) => {
                    assert_eq!(status.code(), Code::Unavailable, "{status}");
                    assert!(start.elapsed() < Duration::from_secs(60), "{status}");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    /// Asks for a certificate over a connection of its own.
    pub(crate) async fn ask(&self, token: &str, csr: &str) -> Result<CertificateResponse, tonic::Status> {
        let mut client = SecurityServiceClient::new(self.channel());
        let mut request = tonic::Request::new(CertificateRequest { csr: csr.as_bytes().to_vec() });
        request.metadata_mut().insert("token", token.parse().expect("token"));
        client.certificate(request).await.map(tonic::Response::into_inner)
    }
}
