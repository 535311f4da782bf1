//! Servers of gRPC services of any type, in one copy.
//!
//! HTTP/2 for one type of service is a hundred kilobytes, compiled as small or as fast as the crate that names the
//! type. Here it is compiled once, in this crate, for speed; a call pays two allocations for it.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryFutureExt;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::Service;
use rustls::ServerConfig;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;

use super::{BoxError, Limits, serve_tls_telling, serve_unix};
use crate::ledger::Ledger;
use crate::peer::PeerIdentity;

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

/// The service of one connection, of any type.
pub struct Boxed(Box<dyn Fn(Request<Incoming>) -> Answer + Send>);

impl Boxed {
    /// Hides the type of `service`.
    pub fn new<S, B>(service: S) -> Self
    where
        S: Service<Request<Incoming>, Response = Response<B>> + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Box::new(move |request| {
            let answer = service.call(request);
            Box::pin(answer.map_ok(|response| response.map(Body::new)).map_err(Into::into))
        }))
    }
}

impl Service<Request<Incoming>> for Boxed {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Answer;

    fn call(&self, request: Request<Incoming>) -> Answer {
        (self.0)(request)
    }
}

/// Makes the service of a connection.
pub type Make = Box<dyn Fn(Arc<PeerIdentity>) -> Boxed + Send + Sync>;

/// As [`serve_tls_telling`].
pub async fn serve_tls_boxed(
    listener: TcpListener,
    config: Arc<ServerConfig>,
    limits: Limits,
    stop: CancellationToken,
    ledger: Arc<Ledger>,
    make: Make,
) {
    serve_tls_telling(listener, config, limits, stop, ledger, make).await;
}

/// As [`serve_unix`].
pub async fn serve_unix_boxed(listener: UnixListener, limits: Limits, stop: CancellationToken, make: Make) {
    serve_unix(listener, limits, stop, make).await;
}
