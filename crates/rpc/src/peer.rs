//! Who is at the other end of a connection.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

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
    /// The address of this machine that a TCP peer connected to.
    pub local: Option<SocketAddr>,
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
            local: None,
            credentials: None,
        }
    }

    /// The same peer, connected to this address of the machine.
    pub(crate) fn at(self, local: Option<SocketAddr>) -> Self {
        Self { local: local.map(canonical), ..self }
    }

    /// A Unix peer.
    pub(crate) fn unix(credentials: Option<PeerCredentials>) -> Self {
        Self { credentials, ..Self::default() }
    }
}

/// Reads what certificates say; who comes twice in a row is known.
#[derive(Default)]
pub(crate) struct Reader(Mutex<Option<(Box<[u8]>, PeerIdentity)>>);

impl Reader {
    /// A TCP peer with the certificates it showed, leaf first.
    pub(crate) fn tcp(
        &self,
        address: SocketAddr,
        certificates: Option<&[CertificateDer<'_>]>,
    ) -> PeerIdentity {
        let Some(leaf) = certificates.and_then(<[_]>::first) else {
            return PeerIdentity::tcp(address, None);
        };
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((der, known)) = &*last
            && **der == **leaf
        {
            return PeerIdentity { address: Some(canonical(address)), ..known.clone() };
        }
        let fresh = PeerIdentity::tcp(address, certificates);
        *last = Some((leaf.as_ref().into(), fresh.clone()));
        fresh
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

/// What a peer without a certificate is counted by: its IPv4 address, or the /64 of its IPv6 address.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

/// IPv4 peers of a dual-stack listener as IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use ichor_pki::{Authority, KeyAlgorithm, Leaf};
    use rustls::pki_types::pem::PemObject;

    use super::*;

    #[test]
    fn who_comes_again_is_who_it_was_and_others_are_not() {
        let now = jiff::Timestamp::now();
        let authority =
            Authority::generate(KeyAlgorithm::Ed25519, "talos", now, Authority::TEN_YEARS).unwrap();
        let certificate = |name: &str, role: &str| {
            let pair = authority.issue(&Leaf::client(name, [role]), now).unwrap();
            CertificateDer::from_pem_slice(pair.crt.as_bytes()).unwrap()
        };
        let (alice, bob) = (certificate("alice", "os:admin"), certificate("bob", "os:reader"));
        let reader = Reader::default();
        let mut port = 0;
        let mut read = |der: &CertificateDer<'_>| {
            port += 1;
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            let peer = reader.tcp(address, Some(std::slice::from_ref(der)));
            assert_eq!(peer.address, Some(address));
            (peer.common_name, peer.roles, peer.fingerprint)
        };
        let first = read(&alice);
        assert_eq!(read(&alice), first);
        let other = read(&bob);
        assert_ne!(other.0, first.0);
        assert_ne!(other.1, first.1);
        assert_ne!(other.2, first.2);
        assert_eq!(read(&alice), first);
        let nobody = reader.tcp(SocketAddr::from(([127, 0, 0, 1], 1)), None);
        assert_eq!((nobody.common_name.as_str(), nobody.roles), ("", RoleSet::default()));
    }
}
