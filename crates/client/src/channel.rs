//! One HTTP/2 connection to the first endpoint that answers, opened again when it is lost.

use std::future::Future;
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
    tls: ClientTls,
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
    pub fn new(tls: ClientTls, endpoints: Vec<Endpoint>) -> Self {
        let inner = Inner { tls, endpoints, first: AtomicUsize::new(0), current: Mutex::new(None) };
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
            let silent = if waiting.len() == 0 { DIAL_ENDPOINT * 2 } else { DIAL_ENDPOINT_STAGGER };
            match tokio::time::timeout(silent, running.next()).await {
                Ok(Some(Ok(connection))) => return Ok(connection),
                Ok(Some(Err(error))) => errors.push(error),
                Ok(None) | Err(_) => {}
            }
        }
    }

    async fn open_one(&self, endpoint: &Endpoint) -> Result<Connection, DialError> {
        let (stream, peer) =
            match tokio::time::timeout(DIAL_ENDPOINT, dial::stream(endpoint, &self.tls)).await {
                Ok(opened) => opened?,
                Err(_) => return Err(DialError::Timeout { endpoint: endpoint.clone() }),
            };
        // No pings: servers of the original take frequent ones for an attack. TCP finds dead peers.
        let (sender, driver) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|source| DialError::Http2 { source })?;
        // The driver ends with the last sender; its error reaches every call that was running.
        tokio::spawn(async move { drop(driver.await) });
        let authority = endpoint.to_string().parse().unwrap_or_else(|_| Authority::from_static("localhost"));
        Ok(Connection { sender, authority, peer: peer.to_string().into() })
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
