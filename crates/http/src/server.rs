//! The server: so many connections at a time, each with a deadline for its requests and for taking the answers.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::body::BoxError;

/// Before a connection is accepted again after that failed: out of descriptors, mostly.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The most headers, and the most bytes, of a request's head.
const HEADERS_MAX: usize = 64;
const HEAD_MAX: usize = 16 << 10;

/// How much a server takes on.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at the same time; more wait to be accepted.
    pub connections: usize,
    /// How long a caller may take to send the head of a request, the wait for it included.
    pub request: Duration,
    /// How long a caller may take nothing of an answer.
    pub stall: Duration,
}

/// Serves until `shutdown` is ready; connections that are open then are closed. `service` makes the service of one
/// connection, `name` is for the log.
pub async fn serve<M, S, B>(
    name: &'static str,
    listener: TcpListener,
    limits: Limits,
    service: M,
    shutdown: impl Future<Output = ()>,
) where
    M: Fn() -> S,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let places = Arc::new(Semaphore::new(limits.connections));
    let mut tasks = tokio::task::JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        let accepted = async {
            let place = places.clone().acquire_owned().await;
            (listener.accept().await, place)
        };
        tokio::select! {
            (accepted, place) = accepted => match accepted {
                Ok((stream, _)) => {
                    let connection = connection(name, stream, limits, service());
                    tasks.spawn(async move {
                        connection.await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(server = name, %error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = tasks.join_next() => {}
            () = &mut shutdown => break,
        }
    }
    tasks.shutdown().await;
}

async fn connection<S, B>(name: &'static str, stream: TcpStream, limits: Limits, service: S)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    // The kernel ends a connection whose peer takes nothing for so long, a window of zero included.
    if let Err(error) = SockRef::from(&stream).set_tcp_user_timeout(Some(limits.stall)) {
        tracing::debug!(server = name, %error, "no deadline for answers");
    }
    let mut server = http1::Builder::new();
    server
        .timer(TokioTimer::new())
        .header_read_timeout(limits.request)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_MAX);
    if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(server = name, %error, "connection ended early");
    }
}
