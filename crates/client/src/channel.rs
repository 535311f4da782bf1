//! One HTTP/2 connection to the first endpoint that answers, opened again when it is lost.

use std::future::Future;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use ichor_rpc::ClientTls;
use ichor_rpc::dial::{self, DialError, Endpoint};
use ichor_types::deadlines::{DIAL_ENDPOINT, DIAL_ENDPOINT_STAGGER};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tonic::Status;
use tonic::body::Body;

/// Windows: the connection's much larger than a stream's, so that a stream nobody reads stops no other.
const STREAM_WINDOW: u32 = 2 * 1024 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;

/// No endpoint could be reached; one error each.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct Unreachable(pub Vec<DialError>);

/// A cheap handle to the connection.
#[derive(Clone)]
pub struct Channel {
    inner: Arc<Inner>,
}

struct Inner {
    way: Way,
    // Where the next attempt starts, so that a lost endpoint is not the first to be tried again.
    first: AtomicUsize,
    current: Mutex<Option<Connection>>,
}

/// How the other end is reached.
enum Way {
    /// Over the network, at one of these.
    Network(ClientTls, Vec<Endpoint>),
    /// On this machine.
    Unix(PathBuf),
}

#[derive(Clone)]
struct Connection {
    sender: SendRequest<Body>,
    authority: Authority,
    peer: Arc<str>,
}

impl Channel {
    /// A channel to `endpoints`, tried in this order. Nothing is opened yet.
    pub fn new(tls: ClientTls, endpoints: Vec<Endpoint>) -> Self {
        Self::over(Way::Network(tls, endpoints))
    }

    /// A channel to a socket of this machine. Nothing is opened yet.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self::over(Way::Unix(path.into()))
    }

    fn over(way: Way) -> Self {
        let inner = Inner { way, first: AtomicUsize::new(0), current: Mutex::new(None) };
        Self { inner: Arc::new(inner) }
    }

    /// Opens the connection unless it is open, and tells the address at the other end.
    pub async fn connect(&self) -> Result<String, Unreachable> {
        Ok(self.inner.connection().await?.peer.to_string())
    }

    /// Drops the connection; the next call opens a new one, at the next endpoint.
    pub async fn reset(&self) {
        self.inner.first.fetch_add(1, Ordering::Relaxed);
        *self.inner.current.lock().await = None;
    }
}

impl Inner {
    async fn connection(&self) -> Result<Connection, Unreachable> {
        let mut current = self.current.lock().await;
        if let Some(connection) = current.as_ref() {
            if !connection.sender.is_closed() {
                return Ok(connection.clone());
            }
            self.first.fetch_add(1, Ordering::Relaxed);
        }
        let connection = self.open().await?;
        *current = Some(connection.clone());
        Ok(connection)
    }

    /// Tries the endpoints one after another, the next one also while the one before is silent.
    async fn open(&self) -> Result<Connection, Unreachable> {
        let (tls, endpoints) = match &self.way {
            Way::Network(tls, endpoints) => (tls, endpoints),
            Way::Unix(path) => return open_unix(path).await.map_err(|error| Unreachable(vec![error])),
        };
        let first = self.first.load(Ordering::Relaxed);
        let count = endpoints.len();
        let mut waiting = (0..count).map(|index| &endpoints[(first + index) % count]);
        let mut running = FuturesUnordered::new();
        let mut errors = Vec::new();
        loop {
            match waiting.next() {
                Some(endpoint) => running.push(open_one(tls, endpoint)),
                None if running.is_empty() => return Err(Unreachable(errors)),
                None => {}
            }
            let silent = if waiting.len() == 0 { DIAL_ENDPOINT * 2 } else { DIAL_ENDPOINT_STAGGER };
            match tokio::time::timeout(silent, running.next()).await {
                Ok(Some(Ok(connection))) => return Ok(connection),
                Ok(Some(Err(error))) => errors.push(error),
                Ok(None) | Err(_) => {}
            }
        }
    }
}

async fn open_one(tls: &ClientTls, endpoint: &Endpoint) -> Result<Connection, DialError> {
    let (stream, peer) = match tokio::time::timeout(DIAL_ENDPOINT, dial::stream(endpoint, tls)).await {
        Ok(opened) => opened?,
        Err(_) => return Err(DialError::Timeout { endpoint: endpoint.clone() }),
    };
    let authority = endpoint.to_string().parse().unwrap_or_else(|_| Authority::from_static("localhost"));
    begin(stream, authority, peer.to_string()).await
}

async fn open_unix(path: &Path) -> Result<Connection, DialError> {
    let failed = |source| DialError::Unix { path: path.to_owned(), source };
    let opened = tokio::time::timeout(DIAL_ENDPOINT, UnixStream::connect(path)).await;
    let stream = opened.map_err(|_| failed(ErrorKind::TimedOut.into()))?.map_err(failed)?;
    begin(stream, Authority::from_static("localhost"), path.display().to_string()).await
}

/// Begins HTTP/2. No pings: servers of the original take frequent ones for an attack. TCP finds dead peers.
async fn begin<S>(stream: S, authority: Authority, peer: String) -> Result<Connection, DialError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, driver) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|source| DialError::Http2 { source })?;
    // The driver ends with the last sender; its error reaches every call that was running.
    tokio::spawn(async move { drop(driver.await) });
    Ok(Connection { sender, authority, peer: peer.into() })
}

impl tower::Service<Request<Body>> for Channel {
    type Response = Response<Incoming>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Status>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let mut connection =
                inner.connection().await.map_err(|error| Status::unavailable(error.to_string()))?;
            *request.uri_mut() = absolute(request.uri(), &connection.authority);
            connection.sender.ready().await.map_err(|error| lost(&error))?;
            connection.sender.send_request(request).await.map_err(|error| lost(&error))
        })
    }
}

fn lost(error: &hyper::Error) -> Status {
    Status::unavailable(format!("connection lost: {}", full_text(error)))
}

fn absolute(uri: &Uri, authority: &Authority) -> Uri {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(Scheme::HTTPS);
    parts.authority = Some(authority.clone());
    parts.path_and_query = uri.path_and_query().cloned().or_else(|| Some(PathAndQuery::from_static("/")));
    Uri::from_parts(parts).unwrap_or_default()
}

/// An error and its causes on one line.
pub(crate) fn full_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
