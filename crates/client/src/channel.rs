//! One HTTP/2 connection to the first endpoint that answers, opened again when it is lost.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Mutex;
use tonic::Status;
use tonic::body::Body;

use crate::endpoint::Endpoint;

/// How long one endpoint may take to accept the connection and finish TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an endpoint may be silent before the next one is tried beside it.
const STAGGER: Duration = Duration::from_millis(250);
/// Windows: the connection's much larger than a stream's, so that a stream nobody reads stops no other.
const STREAM_WINDOW: u32 = 2 * 1024 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;

/// A byte stream that HTTP/2 can run on.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A stream and the address at its other end.
pub struct Dialed {
    /// The encrypted stream.
    pub stream: Box<dyn Stream>,
    /// The address that answered, without the port.
    pub peer: String,
}

/// What [`Dial::dial`] gives.
pub type Dialing<'a> = Pin<Box<dyn Future<Output = Result<Dialed, DialError>> + Send + 'a>>;

/// Opens streams to endpoints: the port through which the network is reached.
pub trait Dial: Send + Sync + 'static {
    /// Opens a stream to `endpoint`, TLS included.
    fn dial<'a>(&'a self, endpoint: &'a Endpoint) -> Dialing<'a>;
}

/// Why an endpoint gave no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The name has no address.
    #[error("resolve {host}")]
    Resolve {
        /// The host as written.
        host: String,
        /// What the resolver said.
        #[source]
        source: io::Error,
    },
    /// The address did not accept.
    #[error("connect to {endpoint}")]
    Connect {
        /// The endpoint as written.
        endpoint: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// TLS could not be agreed on.
    #[error("TLS with {endpoint}")]
    Tls {
        /// The endpoint as written.
        endpoint: String,
        /// What the TLS library said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The endpoint took too long.
    #[error("connect to {endpoint}: no answer within {}s", CONNECT_TIMEOUT.as_secs())]
    Timeout {
        /// The endpoint as written.
        endpoint: String,
    },
    /// HTTP/2 did not start.
    #[error("HTTP/2 with {endpoint}")]
    Http {
        /// The endpoint as written.
        endpoint: String,
        /// What the HTTP library said.
        #[source]
        source: hyper::Error,
    },
}

/// No endpoint could be reached; one error each.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(|error| full_text(error)).collect::<Vec<_>>().join("; "))]
pub struct Unreachable(pub Vec<DialError>);

/// A cheap handle to the connection.
#[derive(Clone)]
pub struct Channel {
    inner: Arc<Inner>,
}

struct Inner {
    dial: Box<dyn Dial>,
    endpoints: Vec<Endpoint>,
    // Where the next attempt starts, so that a lost endpoint is not the first to be tried again.
    first: AtomicUsize,
    current: Mutex<Option<Connection>>,
}

#[derive(Clone)]
struct Connection {
    sender: SendRequest<Body>,
    authority: Authority,
    peer: Arc<str>,
}

impl Channel {
    /// A channel to `endpoints`, tried in this order. Nothing is opened yet.
    pub fn new(dial: impl Dial, endpoints: Vec<Endpoint>) -> Self {
        let inner =
            Inner { dial: Box::new(dial), endpoints, first: AtomicUsize::new(0), current: Mutex::new(None) };
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
        let first = self.first.load(Ordering::Relaxed);
        let count = self.endpoints.len();
        let mut waiting = (0..count).map(|index| &self.endpoints[(first + index) % count]);
        let mut running = FuturesUnordered::new();
        let mut errors = Vec::new();
        loop {
            match waiting.next() {
                Some(endpoint) => running.push(self.open_one(endpoint)),
                None if running.is_empty() => return Err(Unreachable(errors)),
                None => {}
            }
            let silent = if waiting.len() == 0 { CONNECT_TIMEOUT * 2 } else { STAGGER };
            match tokio::time::timeout(silent, running.next()).await {
                Ok(Some(Ok(connection))) => return Ok(connection),
                Ok(Some(Err(error))) => errors.push(error),
                Ok(None) | Err(_) => {}
            }
        }
    }

    async fn open_one(&self, endpoint: &Endpoint) -> Result<Connection, DialError> {
        let text = endpoint.to_string();
        let dialed = match tokio::time::timeout(CONNECT_TIMEOUT, self.dial.dial(endpoint)).await {
            Ok(dialed) => dialed?,
            Err(_) => return Err(DialError::Timeout { endpoint: text }),
        };
        let (sender, driver) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(TokioIo::new(dialed.stream))
            .await
            .map_err(|source| DialError::Http { endpoint: text.clone(), source })?;
        // The driver ends with the last sender; its error reaches every call that was running.
        tokio::spawn(async move { drop(driver.await) });
        let authority = text.parse().unwrap_or_else(|_| Authority::from_static("localhost"));
        Ok(Connection { sender, authority, peer: dialed.peer.into() })
    }
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
