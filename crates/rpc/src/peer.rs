//! Who is at the other end of a connection.

use std::net::SocketAddr;
use std::sync::Arc;

use ichor_pki::{CertInfo, RoleSet};
use rustls::pki_types::CertificateDer;

/// The process behind a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Process id, where the kernel knows it.
    pub pid: Option<i32>,
}

/// The other end of a connection, as far as the transport knows it.
///
/// Servers of this crate put it into the extensions of every request as `Arc<PeerIdentity>`.
#[derive(Clone, Debug, Default)]
pub struct PeerIdentity {
    /// Roles from the client certificate; none without one.
    pub roles: RoleSet,
    /// Common name of the client certificate; empty without one.
    pub common_name: String,
    /// The start of the certificate's SHA-256 fingerprint, in hexadecimal; empty without one.
    pub fingerprint: String,
    /// The address of a TCP peer.
    pub address: Option<SocketAddr>,
    /// The process of a Unix peer.
    pub credentials: Option<PeerCredentials>,
}

impl PeerIdentity {
    /// A TCP peer with the certificates it showed, leaf first.
    pub(crate) fn tcp(address: SocketAddr, certificates: Option<&[CertificateDer<'_>]>) -> Self {
        let leaf = certificates.and_then(<[_]>::first);
        // The verifier has read this certificate before; one that cannot be read carries no roles.
        let info = leaf.and_then(|der| CertInfo::from_der(der).ok());
        let fingerprint = leaf.map(|der| fingerprint(der)).unwrap_or_default();
        Self {
            roles: info.as_ref().map(CertInfo::roles).unwrap_or_default(),
            common_name: info.map(|info| info.common_name).unwrap_or_default(),
            fingerprint,
            address: Some(canonical(address)),
            credentials: None,
        }
    }

    /// A Unix peer.
    pub(crate) fn unix(credentials: Option<PeerCredentials>) -> Self {
        Self { credentials, ..Self::default() }
    }
}

/// Enough of the fingerprint to tell the certificates of a cluster apart, and to find one with common tools.
fn fingerprint(der: &[u8]) -> String {
    ichor_pki::sha256(der)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The peer behind a request.
pub fn of(extensions: &http::Extensions) -> Option<Arc<PeerIdentity>> {
    extensions.get::<Arc<PeerIdentity>>().cloned()
}

/// The address of the peer behind a request, where there is one.
pub fn address_of(extensions: &http::Extensions) -> Option<SocketAddr> {
    extensions.get::<Arc<PeerIdentity>>().and_then(|peer| peer.address)
}

/// IPv4 peers of a dual-stack listener as IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
