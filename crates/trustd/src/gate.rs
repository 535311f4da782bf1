//! The machine token is checked before anything of a request's body is read.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use http::Request;
use ichor_rpc::gate::Admission;
use ichor_rpc::ledger::Ledger;
use ichor_rpc::{caller, peer};
use tonic::Status;

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

/// Admits calls with the machine token.
#[derive(Clone)]
pub(crate) struct ByToken {
    signer: Arc<ArcSwapOption<Signer>>,
    ledger: Arc<Ledger>,
}

impl ByToken {
    /// Compares with the token of `signer`; refused calls are recorded in `ledger`.
    pub(crate) fn new(signer: Arc<ArcSwapOption<Signer>>, ledger: Arc<Ledger>) -> Self {
        Self { signer, ledger }
    }
}

impl Admission for ByToken {
    fn admit<B>(&self, request: &mut Request<B>) -> Result<(), Status> {
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
