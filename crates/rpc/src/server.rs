//! Servers: accept, identify, speak HTTP/2, with a bound on everything a peer can hold.

mod boxed;
mod register;

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryFutureExt;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::activity::{Activity, Counted, Observed};
use crate::budget::BodyBudget;
use crate::http2::Http2Limits;
use crate::ledger::Ledger;
use crate::peer::{PeerCredentials, PeerIdentity, Reader};
use crate::transport::{Transport, Turns, hold};
use crate::{http2, socket, status};
pub use boxed::{Boxed, Make, serve_tls_boxed, serve_unix_boxed};
use ichor_types::deadlines;
use register::{Register, Ticket};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// One place in so many stays free for the next newcomer.
const RESERVE: usize = 16;
/// Time for the last words to an idle client that has to make room.
const GOODBYE: Duration = Duration::from_millis(200);

/// Bounds of a server.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Established connections, some 40 KiB each while idle. Before the last places are taken, idle ones
    /// have to make room for newcomers; when all are busy, newcomers wait and then are refused.
    pub connections: usize,
    /// Handshakes under way: peers that are nobody yet. One more ends another one.
    pub handshakes: usize,
    /// Time for the TLS handshake.
    pub handshake: Duration,
    /// Time until the first HTTP/2 bytes.
    pub preface: Duration,
    /// Time until the first call that is not refused, where a peer has to make one: this ends connections whose
    /// headers never come to an end.
    pub first_call: Option<Duration>,
    /// Connections of one address that keep their places with running calls when all places are taken; without it
    /// running calls always do.
    pub share: Option<usize>,
    /// Time without any call after which a connection is closed (and at most twice that).
    pub idle: Duration,
    /// Time that running calls get when the server stops.
    pub drain: Duration,
    /// What a peer may make one connection hold.
    pub http2: Http2Limits,
    /// The room for request bodies of [`crate::services::Services`]; none where bodies are passed on as they come.
    pub bodies: Option<BodyBudget>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            handshakes: 256,
            handshake: deadlines::HANDSHAKE,
            preface: deadlines::PREFACE,
            first_call: None,
            share: None,
            idle: Duration::from_secs(30 * 60),
            drain: deadlines::DRAIN,
            http2: Http2Limits::default(),
            bodies: None,
        }
    }
}

/// Serves TLS connections until `stop`; `make` builds the service of each connection.
pub async fn serve_tls<M, S, B>(
    listener: TcpListener,
    config: Arc<ServerConfig>,
    limits: Limits,
    stop: CancellationToken,
    make: M,
) where
    M: Fn(Arc<PeerIdentity>) -> S + Send + Sync + 'static,
    S: Service<Request<Incoming>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    serve_tls_telling(listener, config, limits, stop, Arc::default(), make).await;
}

/// The same; handshakes that come to nothing are told to `ledger`.
pub async fn serve_tls_telling<M, S, B>(
    listener: TcpListener,
    config: Arc<ServerConfig>,
    limits: Limits,
    stop: CancellationToken,
    ledger: Arc<Ledger>,
    make: M,
) where
    M: Fn(Arc<PeerIdentity>) -> S + Send + Sync + 'static,
    S: Service<Request<Incoming>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    socket::tune(&listener);
    let acceptor = TlsAcceptor::from(config);
    let hall = Hall::new(limits, stop);
    let (make, reader) = (Arc::new(make), Arc::new(Reader::default()));
    while let Some((stream, permit)) = hall.accept(|| accept_tcp(&listener)).await {
        let (acceptor, hall, make, ledger) = (acceptor.clone(), hall.clone(), make.clone(), ledger.clone());
        let reader = reader.clone();
        let tasks = hall.tasks.clone();
        tasks.spawn(async move {
            let (stream, address) = stream;
            let handshake = timeout(hall.limits.handshake, permit.hold(acceptor.accept(stream)));
            let tls = match handshake.await {
                Ok(Ok(tls)) => tls,
                Ok(Err(error)) => {
                    ledger.handshake(address.ip(), &error);
                    return debug!(%address, %error, "TLS handshake refused");
                }
                Err(_) => {
                    ledger.handshake(address.ip(), &io::ErrorKind::TimedOut.into());
                    return debug!(%address, "TLS handshake timed out");
                }
            };
            drop(permit);
            let (socket, session) = tls.get_ref();
            let peer = reader.tcp(address, session.peer_certificates()).at(socket.local_addr().ok());
            hall.serve(TokioIo::new(Transport::tls(tls)), Some(address.ip()), make(Arc::new(peer))).await;
        });
    }
    hall.drain().await;
}

/// Serves connections of a Unix socket until `stop`; `make` builds the service of each connection.
pub async fn serve_unix<M, S, B>(listener: UnixListener, limits: Limits, stop: CancellationToken, make: M)
where
    M: Fn(Arc<PeerIdentity>) -> S + Send + Sync + 'static,
    S: Service<Request<Incoming>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let hall = Hall::new(limits, stop);
    while let Some((stream, permit)) = hall.accept(|| accept_unix(&listener)).await {
        drop(permit);
        let credentials = stream.peer_cred().ok().map(|found| PeerCredentials {
            uid: found.uid(),
            gid: found.gid(),
            pid: found.pid(),
        });
        let stream = match Transport::unix(stream) {
            Ok(stream) => TokioIo::new(stream),
            Err(error) => {
                warn!(%error, "connection not taken");
                continue;
            }
        };
        let service = make(Arc::new(PeerIdentity::unix(credentials)));
        let running = hall.clone();
        hall.tasks.spawn(async move { running.serve(stream, None, service).await });
    }
    hall.drain().await;
}

async fn accept_tcp(listener: &TcpListener) -> io::Result<(TcpStream, std::net::SocketAddr)> {
    listener.accept().await
}

async fn accept_unix(listener: &UnixListener) -> io::Result<UnixStream> {
    listener.accept().await.map(|(stream, _)| stream)
}

/// A stream that has just been accepted.
trait Arrived {
    /// Where it comes from, for strangers.
    fn from(&self) -> Option<IpAddr>;
}

impl Arrived for (TcpStream, std::net::SocketAddr) {
    fn from(&self) -> Option<IpAddr> {
        Some(self.1.ip())
    }
}

impl Arrived for UnixStream {
    fn from(&self) -> Option<IpAddr> {
        None
    }
}

/// A tower service (tonic's routes, layers around them) as the service of one connection.
///
/// Every request carries the peer as `Arc<PeerIdentity>` in its extensions.
pub struct Grpc<S> {
    service: TowerToHyperService<S>,
    peer: Arc<PeerIdentity>,
}

impl<S> Grpc<S> {
    /// Wraps `service` for one connection.
    pub fn new(service: S, peer: Arc<PeerIdentity>) -> Self {
        Self { service: TowerToHyperService::new(service), peer }
    }
}

impl<S> Service<Request<Incoming>> for Grpc<S>
where
    TowerToHyperService<S>: Service<Request<Incoming>>,
{
    type Response = <TowerToHyperService<S> as Service<Request<Incoming>>>::Response;
    type Error = <TowerToHyperService<S> as Service<Request<Incoming>>>::Error;
    type Future = <TowerToHyperService<S> as Service<Request<Incoming>>>::Future;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.peer.clone());
        self.service.call(request)
    }
}

/// What the connections of one server share.
#[derive(Clone)]
struct Hall {
    limits: Limits,
    connections: Arc<Semaphore>,
    open: Register,
    handshakes: Register,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Hall {
    fn new(limits: Limits, stop: CancellationToken) -> Self {
        Self {
            connections: Arc::new(Semaphore::new(limits.connections)),
            open: Register::default(),
            handshakes: Register::default(),
            limits,
            stop,
            tasks: TaskTracker::new(),
        }
    }

    /// The next connection with its place among the handshakes; none once the server stops.
    async fn accept<T, F, A>(&self, next: F) -> Option<(T, Ticket)>
    where
        T: Arrived,
        F: Fn() -> A,
        A: Future<Output = io::Result<T>>,
    {
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return None,
                found = self.accept_one(&next) => if found.is_some() { return found },
            }
        }
    }

    async fn accept_one<T, F, A>(&self, next: &F) -> Option<(T, Ticket)>
    where
        T: Arrived,
        F: Fn() -> A,
        A: Future<Output = io::Result<T>>,
    {
        match next().await {
            Ok(stream) => {
                let ticket = self.handshakes.enter(stream.from(), None, self.limits.handshakes, None);
                Some((stream, ticket))
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => None,
            Err(error) => {
                // Out of descriptors or memory: waiting is all that helps.
                warn!(%error, "connection not accepted");
                sleep(Duration::from_millis(100)).await;
                None
            }
        }
    }

    /// Runs one connection to its end.
    async fn serve<I, S, B>(&self, io: I, address: Option<IpAddr>, service: S)
    where
        I: Read + Write + Unpin + Send + 'static,
        S: Service<Request<Incoming>, Response = Response<B>>,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        let activity = Arc::new(Activity::default());
        let most = self.limits.connections - self.limits.connections / RESERVE;
        let ticket = self.open.enter(address, Some(activity.clone()), most, self.limits.share);
        let Ok(Ok(_place)) = timeout(self.limits.handshake, self.connections.acquire()).await else {
            return warn!("connection refused: too many are busy");
        };
        let calls = activity.clone();
        let bodies = self.limits.bodies.as_ref().map(|budget| budget.connection(address));
        let counted = service_fn(move |mut request: Request<Incoming>| {
            let call = calls.enter();
            // Held until the answer begins: by then the handler is done with the request.
            let budget = bodies.as_ref().map(|bodies| bodies.call());
            if let Some(budget) = &budget {
                request.extensions_mut().insert(budget.clone());
            }
            // A combinator, not an async block: that would hold the future twice, and it is moved often.
            service.call(request).map_ok(move |mut response| {
                drop(budget);
                if !status::is_refusal(response.headers()) {
                    call.serve();
                }
                status::shorten(response.headers_mut());
                response.map(|body| Counted::new(body, call))
            })
        });
        let (io, outlet) = hold(io);
        let io = Observed::new(io, activity.clone());
        let connection = pin!(http2::server(self.limits.http2).serve_connection(io, counted));
        self.run(outlet.turns(connection), &activity, &ticket).await;
    }

    async fn run<C>(&self, mut connection: C, activity: &Activity, ticket: &Ticket)
    where
        C: Future<Output = hyper::Result<()>> + GracefulShutdown + Unpin,
    {
        let end = tokio::select! {
            biased;
            result = &mut connection => End::Closed(result),
            () = self.stop.cancelled() => End::Drain,
            end = self.watch(activity) => end,
            () = ticket.left() => End::Crowded,
        };
        match end {
            End::Closed(Ok(())) => {}
            End::Closed(Err(error)) => debug!(error = %crate::status::chain(&error), "connection ended"),
            End::Silent => debug!("connection dropped: no HTTP/2, or no call"),
            End::Crowded if activity.calls() == 0 => debug!("connection dropped: it was of no use"),
            End::Crowded => {
                connection.graceful_shutdown();
                let _ = timeout(GOODBYE, connection).await;
            }
            End::Drain => {
                connection.graceful_shutdown();
                // What has not ended by then is cut.
                let _ = timeout(self.limits.drain, connection).await;
            }
        }
    }

    /// Resolves when the connection has been of no use for too long.
    async fn watch(&self, activity: &Activity) -> End {
        sleep(self.limits.preface).await;
        if !activity.has_spoken() {
            return End::Silent;
        }
        if let Some(limit) = self.limits.first_call {
            sleep(limit.saturating_sub(self.limits.preface)).await;
            if !activity.was_served() && activity.is_quiet() {
                return End::Silent;
            }
        }
        let mut before = activity.calls();
        loop {
            sleep(self.limits.idle).await;
            let now = activity.calls();
            if activity.is_quiet() && now == before {
                return End::Drain;
            }
            before = now;
        }
    }

    /// Waits for the connections to drain.
    async fn drain(&self) {
        self.tasks.close();
        let slack = self.limits.drain + Duration::from_secs(1);
        if timeout(slack, self.tasks.wait()).await.is_err() {
            warn!(connections = self.tasks.len(), "server stopped before its connections");
        }
    }
}

enum End {
    Closed(hyper::Result<()>),
    Silent,
    Crowded,
    Drain,
}

/// Connections that can finish their calls and take no new ones.
trait GracefulShutdown {
    fn graceful_shutdown(&mut self);
}

impl<I, T, S, B, E> GracefulShutdown for Turns<'_, hyper::server::conn::http2::Connection<I, S, E>, T>
where
    S: hyper::service::HttpService<Incoming, ResBody = B>,
    S::Error: Into<BoxError>,
    I: Read + Write + Unpin,
    B: Body + 'static,
    B::Error: Into<BoxError>,
    E: hyper::rt::bounds::Http2ServerConnExec<S::Future, B>,
{
    fn graceful_shutdown(&mut self) {
        self.connection.as_mut().graceful_shutdown();
    }
}
