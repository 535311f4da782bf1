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
        Self {
            roles: info.map(|info| info.roles()).unwrap_or_default(),
            address: Some(canonical(address)),
            credentials: None,
        }
    }

    /// A Unix peer.
    pub(crate) fn unix(credentials: Option<PeerCredentials>) -> Self {
        Self { credentials, ..Self::default() }
    }
}

/// The address of the peer behind a request, where there is one.
pub fn address_of(extensions: &http::Extensions) -> Option<SocketAddr> {
    extensions.get::<Arc<PeerIdentity>>().and_then(|peer| peer.address)
}

/// IPv4 peers of a dual-stack listener as IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
