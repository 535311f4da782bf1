//! The port to the trust service, which signs for machines that hold no authority.

use std::future::Future;
use std::net::IpAddr;

use bytes::Bytes;

/// A certificate request and whom to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignRequest {
    /// Addresses of control plane machines, sorted; any will do.
    pub endpoints: Vec<IpAddr>,
    /// PEM of the authorities that may vouch for them.
    pub accepted_cas: Bytes,
    /// The token that lets this machine in.
    pub token: String,
    /// The request, as PEM.
    pub csr: String,
}

/// What the trust service answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// PEM of all authorities to accept from now on.
    pub ca: Bytes,
    /// The certificate, as PEM.
    pub crt: Bytes,
}

/// Why no control plane machine signed.
#[derive(Debug, thiserror::Error)]
#[error("no control plane machine signed the certificate: {0}")]
pub struct SignError(pub String);

/// Asks the trust service on port 50001 of the control plane machines.
///
/// One call is one round: endpoints in turn, ten seconds each at most. The controller repeats failed rounds
/// with a growing pause, and drops a call whose inputs have changed.
pub trait TrustService: Send + Sync + 'static {
    /// Has a request signed.
    fn sign(&self, request: SignRequest) -> impl Future<Output = Result<Signed, SignError>> + Send;
}
