//! The daemon: learn, listen, forward.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::service::service_fn;
use ichor_resource::cluster::Member;
use ichor_resource::k8s::Endpoint;
use ichor_resource::network::{HostnameStatus, NodeAddress};
use ichor_resource::secrets::ApiCertificate;
use ichor_resource::spec::TypedSpec;
use ichor_rpc::follow::{Watched, follow, follow_all};
use ichor_rpc::peer::PeerIdentity;
use ichor_rpc::proxy::{Proxy, ProxyConnection};
use ichor_rpc::server::{Limits, serve_tls_telling, serve_unix};
use ichor_rpc::unix::{self, Access, SocketError};
use ichor_rpc::{Channel, Dialer, ServerTls};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::facts::{Knowledge, apply_certificates};
use crate::options::Options;

/// How long the port may be taken by the maintenance service that is just ending.
const BIND_PATIENCE: Duration = Duration::from_secs(10);
const BIND_PAUSE: Duration = Duration::from_millis(20);
/// A client that connects and says nothing is not looked at before.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// How often idle things are looked at.
const HOUSEKEEPING: Duration = Duration::from_secs(30);

/// Why the gateway cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApidError {
    /// The port cannot be had.
    #[error("listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The socket cannot be had.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The TLS settings are refused.
    #[error("TLS settings")]
    Tls(#[source] ichor_pki::PkiError),
}

/// Serves until `stop`.
pub async fn run(options: Options, stop: CancellationToken) -> Result<(), ApidError> {
    let tls = ServerTls::new();
    let proxy = Proxy::new(Dialer::unix(&options.machine), options.peer_port);
    let ready = Rc::new(Notify::new());
    let runtime = Channel::new(Dialer::unix(&options.runtime));
    let learning = learn(runtime.clone(), &tls, &proxy, ready.clone());
    let serving = async {
        tokio::select! {
            () = ready.notified() => {}
            () = stop.cancelled() => return Ok(()),
        }
        serve(&options, &tls, &proxy, &stop).await
    };
    tokio::select! {
        result = serving => result,
        () = learning => Ok(()),
        () = housekeep(&proxy) => Ok(()),
        () = proxy.ledger().tell(runtime) => Ok(()),
    }
}

async fn serve(
    options: &Options,
    tls: &ServerTls,
    proxy: &Arc<Proxy>,
    stop: &CancellationToken,
) -> Result<(), ApidError> {
    let config = tls.mutual().map_err(ApidError::Tls)?;
    let listener = listen(options.listen).await?;
    let socket = unix::bind(&options.socket, Access { mode: 0o770, uid: None, gid: None })?;
    info!(address = %options.listen, "serving the API");
    let (outer, inner) = (proxy.clone(), proxy.clone());
    let ledger = proxy.ledger().clone();
    let network = serve_tls_telling(listener, config, Limits::default(), stop.clone(), ledger, move |peer| {
        let connection = open(&outer, &peer);
        service_fn(move |request| connection.handle(request))
    });
    let local = serve_unix(socket, Limits::default(), stop.clone(), move |peer| {
        let connection = open(&inner, &peer);
        service_fn(move |request| connection.handle(request))
    });
    tokio::join!(network, local);
    Ok(())
}

/// The gateway's side of one client connection.
fn open(proxy: &Arc<Proxy>, peer: &PeerIdentity) -> Arc<ProxyConnection> {
    let connection = proxy.connection(peer);
    // The machine's side is made while the client's first call is still on its way.
    tokio::spawn(connection.clone().warm());
    connection
}

/// Listens, waiting for a port that is about to be free. Without IPv6 the same port of IPv4 is taken.
async fn listen(address: SocketAddr) -> Result<TcpListener, ApidError> {
    let mut left = BIND_PATIENCE.as_millis() / BIND_PAUSE.as_millis();
    let mut address = address;
    loop {
        let source = match TcpListener::bind(address).await {
            Ok(listener) => {
                // Without it every new client costs one wake-up more.
                let _ = ichor_sys::listener::accept_with_data(&listener, SILENCE_MAX);
                return Ok(listener);
            }
            Err(error) => error,
        };
        match source.kind() {
            io::ErrorKind::AddrInUse if left > 0 => {
                left -= 1;
                sleep(BIND_PAUSE).await;
            }
            _ if address.is_ipv6() && address.ip().is_unspecified() && has_no_ipv6(&source) => {
                address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
            }
            _ => return Err(ApidError::Listen { address, source }),
        }
    }
}

fn has_no_ipv6(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported)
        || error.raw_os_error() == Some(97)
}

/// Follows the gateway's resources; `ready` is told of the first certificate.
async fn learn(runtime: Channel, tls: &ServerTls, proxy: &Arc<Proxy>, ready: Rc<Notify>) {
    let knowledge = RefCell::new(Knowledge::default());
    let mut last = ApiCertificate::default();
    let certificates = follow(runtime.clone(), watched::<ApiCertificate>("api"), |spec| {
        // A new machined says the same again; connections between nodes need not suffer for it.
        let Some(fresh) = decode::<ApiCertificate>(&spec).filter(|fresh| *fresh != last) else { return };
        match apply_certificates(&fresh, tls, proxy) {
            Ok(own) => {
                info!("certificates are in use");
                update(proxy, &knowledge, |known| known.certificate = Some(own));
                last = fresh;
                ready.notify_one();
            }
            Err(error) => warn!(%error, cause = ?std::error::Error::source(&error), "certificates not used"),
        }
    });
    let addresses = follow(runtime.clone(), watched::<NodeAddress>("current"), |spec| {
        if let Some(fresh) = decode::<NodeAddress>(&spec) {
            update(proxy, &knowledge, |known| known.addresses = fresh);
        }
    });
    let host = follow(runtime.clone(), watched::<HostnameStatus>("hostname"), |spec| {
        if let Some(fresh) = decode::<HostnameStatus>(&spec) {
            update(proxy, &knowledge, |known| known.host = fresh);
        }
    });
    let members = all::<Member>(runtime.clone(), |found| {
        update(proxy, &knowledge, |known| known.members = found);
    });
    let endpoints = all::<Endpoint>(runtime, |found| {
        update(proxy, &knowledge, |known| known.endpoints = found.into_values().collect());
    });
    tokio::join!(certificates, addresses, host, members, endpoints);
}

/// Changes what the gateway knows. Everything comes in on one thread, one after the other.
fn update(proxy: &Proxy, knowledge: &RefCell<Knowledge>, change: impl FnOnce(&mut Knowledge)) {
    let mut knowledge = knowledge.borrow_mut();
    change(&mut knowledge);
    proxy.set_facts(knowledge.facts());
    proxy.set_members(knowledge.members());
}

/// Follows all resources of a type; one that cannot be read is left out.
async fn all<T: TypedSpec>(runtime: Channel, changed: impl Fn(BTreeMap<String, T>)) {
    let definition = T::definition();
    follow_all(runtime, definition.default_namespace, definition.type_name, |specs| {
        changed(specs.iter().filter_map(|(id, spec)| Some((id.clone(), decode(spec)?))).collect());
    })
    .await;
}

fn watched<T: TypedSpec>(id: &'static str) -> Watched {
    let definition = T::definition();
    Watched { namespace: definition.default_namespace, kind: definition.type_name, id }
}

fn decode<T: TypedSpec>(spec: &Bytes) -> Option<T> {
    T::decode_proto(spec).inspect_err(|error| warn!(%error, "resource not read")).ok()
}

/// Closes idle connections between nodes, and gives memory back after a burst.
async fn housekeep(proxy: &Proxy) {
    let (mut seen, mut trimmed) = (0, 0);
    loop {
        sleep(HOUSEKEEPING).await;
        proxy.sweep();
        let now = proxy.pulse();
        // Only in a quiet spell: returning pages that are needed at once helps nobody.
        if now == seen && now != trimmed {
            ichor_sys::memory::trim();
            trimmed = now;
        }
        seen = now;
    }
}
