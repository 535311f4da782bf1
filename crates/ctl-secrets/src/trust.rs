//! The port to the trust service, which signs for machines that hold no authority.

use std::future::Future;
use std::net::IpAddr;

use bytes::Bytes;
use ichor_pki::{CertInfo, PkiError, Request, check};

/// A certificate request and whom to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignRequest {
    /// Addresses of control plane machines, each once: those of the configuration first, then those Kubernetes names,
    /// then those that members of the cluster claim to have.
    pub endpoints: Vec<IpAddr>,
    /// PEM of the authorities of the machine configuration. They vouch for the control plane machines, and no
    /// certificate of another authority is taken.
    pub accepted_cas: Bytes,
    /// The token that lets this machine in.
    pub token: String,
    /// The request, as PEM.
    pub csr: String,
}

impl SignRequest {
    /// Checks that a certificate is for the key of this request and was signed by an accepted authority.
    pub fn check(&self, crt: &[u8]) -> Result<CertInfo, PkiError> {
        check::answer(crt, &Request::from_pem(&self.csr)?, &self.accepted_cas)
    }
}

/// A certificate, as PEM. Whatever else the trust service returns is ignored: which authorities a node accepts is up
/// to its own configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed(pub Bytes);

/// Why no control plane machine signed.
#[derive(Debug, thiserror::Error)]
#[error("no control plane machine signed the certificate: {0}")]
pub struct SignError(pub String);

/// Asks the trust service on port 50001 of the control plane machines.
///
/// One call is one round: endpoints side by side, each with a few seconds. An answer that does not
/// [`check`](SignRequest::check) is no answer. The controller repeats failed rounds with a growing pause, and drops a
/// call whose inputs have changed.
pub trait TrustService: Send + Sync + 'static {
    /// Has a request signed.
    fn sign(&self, request: SignRequest) -> impl Future<Output = Result<Signed, SignError>> + Send;
}
