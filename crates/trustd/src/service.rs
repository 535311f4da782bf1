//! The daemon: learn the secrets, listen, sign.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use ichor_resource::cluster::Info;
use ichor_resource::secrets::{OSRootSecret, TrustdCertificate};
use ichor_resource::spec::TypedSpec;
use ichor_rpc::budget::{BodyBudget, BodyLimits};
use ichor_rpc::follow::{Watched, follow};
use ichor_rpc::gate::Gate;
use ichor_rpc::http2::Http2Limits;
use ichor_rpc::ledger::Ledger;
use ichor_rpc::server::{Boxed, Grpc, Limits, serve_tls_boxed};
use ichor_rpc::services::Services;
use ichor_rpc::{Channel, Dialer, ServerTls, caller};
use ichor_types::deadlines;
use ichor_wire::securityapi::security_service_server::{SecurityService, SecurityServiceServer};
use ichor_wire::securityapi::{CertificateRequest, CertificateResponse};
use jiff::Timestamp;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};
use tracing::{info, warn};

use crate::discovery;
use crate::gate::{ByToken, CERTIFICATE};
use crate::options::Options;
use crate::signer::{Signed, Signer};

/// A certificate request is a few hundred bytes.
const REQUEST_MAX: usize = 64 * 1024;

/// Every node of the cluster stays in touch for discovery, and a few join at once; everybody else is a stranger.
fn limits() -> Limits {
    Limits {
        connections: 1280,
        handshakes: 64,
        handshake: deadlines::HANDSHAKE,
        preface: deadlines::PREFACE_TRUSTD,
        first_call: Some(deadlines::FIRST_CALL_TRUSTD),
        share: Some(64),
        idle: Duration::from_secs(60),
        drain: deadlines::DRAIN,
        // A node has a watch open and now and then tells of itself.
        http2: Http2Limits {
            streams: 16,
            stream_window: 16 * 1024,
            connection_window: 64 * 1024,
            headers: 8 * 1024,
            send_buffer: 16 * 1024,
        },
        bodies: Some(BodyBudget::new(BodyLimits {
            message: REQUEST_MAX,
            connection: 2 * REQUEST_MAX,
            total: 4 * 1024 * 1024,
            small: 16 * 1024,
            reserve: 2 * 1024 * 1024,
            waiting: 64,
            wait: deadlines::BODY_ROOM_TRUSTD,
            stall: deadlines::BODY_STALL_TRUSTD,
            rate: 64 * 1024,
            deadline: deadlines::BODY_TRUSTD,
        })),
    }
}

/// Why the signer cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustdError {
    /// The port cannot be had.
    #[error("listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The TLS settings are refused.
    #[error("TLS settings")]
    Tls(#[source] ichor_pki::PkiError),
}

/// Serves until `stop`.
pub async fn run(options: Options, stop: CancellationToken) -> Result<(), TrustdError> {
    let tls = ServerTls::new();
    let signer = Arc::new(ArcSwapOption::empty());
    let cluster_id = Arc::new(ArcSwapOption::empty());
    let ready = Rc::new(Notify::new());
    let runtime = Channel::new(Dialer::unix(&options.runtime));
    let ledger = Arc::new(Ledger::default());
    let learning = async {
        tokio::join!(
            learn(runtime.clone(), &tls, &signer, ready.clone()),
            learn_cluster(runtime.clone(), &cluster_id)
        );
    };
    let serving = async {
        tokio::select! {
            () = ready.notified() => {}
            () = stop.cancelled() => return Ok(()),
        }
        let config = tls.server_only().map_err(TrustdError::Tls)?;
        let listener = listen(options.listen).await?;
        info!(address = %options.listen, "signing certificates");
        let service = SecurityServiceServer::new(Trustd { signer: signer.clone(), ledger: ledger.clone() });
        let services = Services::new()
            .with(service.max_decoding_message_size(REQUEST_MAX))
            .with(discovery::service(cluster_id.clone()));
        let gate = Gate::new(services, ByToken::new(signer.clone(), ledger.clone()));
        let make = Box::new(move |peer| Boxed::new(Grpc::new(gate.clone(), peer)));
        serve_tls_boxed(listener, config, limits(), stop.clone(), ledger.clone(), make).await;
        Ok(())
    };
    tokio::select! {
        result = serving => result,
        () = learning => Ok(()),
        () = ledger.tell(runtime.clone()) => Ok(()),
    }
}

/// Listens; without IPv6 the same port of IPv4 is taken.
async fn listen(address: SocketAddr) -> Result<TcpListener, TrustdError> {
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(listener),
        Err(source)
            if address.is_ipv6() && address.ip().is_unspecified() && source.raw_os_error() == Some(97) =>
        {
            let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
            TcpListener::bind(address).await.map_err(|source| TrustdError::Listen { address, source })
        }
        Err(source) => Err(TrustdError::Listen { address, source }),
    }
}

/// Follows the signer's resources; `ready` is told once both are there.
async fn learn(runtime: Channel, tls: &ServerTls, signer: &ArcSwapOption<Signer>, ready: Rc<Notify>) {
    let told = ready.clone();
    let announce = move || {
        if tls.is_ready() && signer.load().is_some() {
            told.notify_one();
        }
    };
    let certificate = follow(runtime.clone(), watched::<TrustdCertificate>("trustd"), |spec| {
        let Some(server) = decode::<TrustdCertificate>(&spec).and_then(|found| found.server) else { return };
        match tls.set_certificate(&server.crt, &server.key) {
            Ok(()) => announce(),
            Err(error) => warn!(%error, "server certificate not used"),
        }
    });
    let root = follow(runtime, watched::<OSRootSecret>("os"), |spec| {
        let Some(root) = decode::<OSRootSecret>(&spec) else { return };
        match Signer::new(&root) {
            Ok(fresh) => {
                signer.store(Some(Arc::new(fresh)));
                announce();
            }
            Err(error) => warn!(%error, "root secrets not used"),
        }
    });
    tokio::join!(certificate, root);
}

/// Follows the id of the cluster.
async fn learn_cluster(runtime: Channel, cluster_id: &ArcSwapOption<String>) {
    follow(runtime, watched::<Info>("current"), |spec| {
        if let Some(info) = decode::<Info>(&spec) {
            cluster_id.store(Some(Arc::new(info.cluster_id)));
        }
    })
    .await;
}

fn watched<T: TypedSpec>(id: &'static str) -> Watched {
    let definition = T::definition();
    Watched { namespace: definition.default_namespace, kind: definition.type_name, id }
}

fn decode<T: TypedSpec>(spec: &[u8]) -> Option<T> {
    T::decode_proto(spec).inspect_err(|error| warn!(%error, "resource not read")).ok()
}

struct Trustd {
    signer: Arc<ArcSwapOption<Signer>>,
    ledger: Arc<Ledger>,
}

impl Trustd {
    fn sign(&self, csr: &[u8]) -> Result<Signed, Status> {
        let signer = self.signer.load_full().ok_or_else(|| Status::unavailable("no root secrets yet"))?;
        signer.sign(csr, Timestamp::now())
    }
}

/// The token was checked by [`ByToken`].
#[tonic::async_trait]
impl SecurityService for Trustd {
    async fn certificate(
        &self,
        request: Request<CertificateRequest>,
    ) -> Result<Response<CertificateResponse>, Status> {
        let peer = ichor_rpc::peer::of(request.extensions());
        let signed = self.sign(&request.get_ref().csr);
        let (code, reason) = match &signed {
            Ok(_) => (Code::Ok, ""),
            Err(status) => (status.code(), status.message()),
        };
        self.ledger.call(&peer.as_deref().map(caller::text).unwrap_or_default(), CERTIFICATE, code, reason);
        let signed = signed?;
        info!(peer = peer.and_then(|peer| peer.address).map(tracing::field::display), "certificate signed");
        Ok(Response::new(CertificateResponse { ca: signed.ca, crt: signed.crt.into_bytes() }))
    }
}
