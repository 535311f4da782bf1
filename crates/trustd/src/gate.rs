//! The machine token is checked before anything of a request's body is read.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use arc_swap::ArcSwapOption;
use futures_util::future::Either;
use http::{Request, Response};
use ichor_rpc::ledger::Ledger;
use ichor_rpc::{caller, peer};
use tonic::Status;
use tower::Service;

use crate::signer::Signer;

/// The method that signs.
pub(crate) const CERTIFICATE: &str = "/securityapi.SecurityService/Certificate";

/// The methods that are served, as the audit log names them.
const METHODS: [&str; 6] = [
    CERTIFICATE,
    "/sidero.discovery.server.Cluster/AffiliateDelete",
    "/sidero.discovery.server.Cluster/AffiliateUpdate",
    "/sidero.discovery.server.Cluster/Hello",
    "/sidero.discovery.server.Cluster/List",
    "/sidero.discovery.server.Cluster/Watch",
];

/// Lets calls with the machine token through to `S`.
#[derive(Clone)]
pub(crate) struct TokenGate<S> {
    service: S,
    signer: Arc<ArcSwapOption<Signer>>,
    ledger: Arc<Ledger>,
}

impl<S> TokenGate<S> {
    /// Guards `service` with the token of `signer`; refused calls are told to `ledger`.
    pub(crate) fn new(service: S, signer: Arc<ArcSwapOption<Signer>>, ledger: Arc<Ledger>) -> Self {
        Self { service, signer, ledger }
    }

    fn check<B>(&self, request: &Request<B>) -> Result<(), Status> {
        // Read for every call: a new token counts at once.
        let signer = self.signer.load_full().ok_or_else(|| Status::unavailable("no root secrets yet"))?;
        let refused = signer.admits(request.headers().get("token").map(http::HeaderValue::as_bytes));
        if let Err(status) = &refused {
            let caller = peer::of(request.extensions()).as_deref().map(caller::text).unwrap_or_default();
            let path = request.uri().path();
            let method = METHODS.into_iter().find(|known| *known == path).unwrap_or_default();
            self.ledger.call(&caller, method, status.code(), status.message());
        }
        refused
    }
}

impl<S, B, R> Service<Request<B>> for TokenGate<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Default,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Response<R>, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match self.check(&request) {
            Ok(()) => Either::Left(self.service.call(request)),
            Err(status) => Either::Right(ready(Ok(status.into_http()))),
        }
    }
}
