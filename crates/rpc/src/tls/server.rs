//! The server side: a certificate and accepted authorities that are looked up per handshake.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use ichor_pki::{CertInfo, PkiError, certified_key, provider, roots};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
};

use super::ALPN;
use super::seen::Seen;

/// The identity of a server and whom it lets in. A cheap handle: clones share one identity.
///
/// Both parts can be replaced at any time; the next handshake uses the new ones.
#[derive(Clone, Debug, Default)]
pub struct ServerTls(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    key: ArcSwapOption<CertifiedKey>,
    accepted: ArcSwapOption<Accepted>,
}

#[derive(Debug)]
struct Accepted {
    verifier: Arc<dyn ClientCertVerifier>,
    /// Other authorities know nobody yet.
    seen: Seen,
}

impl ServerTls {
    /// An identity without a certificate: every handshake fails until there is one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Replaces the certificate (chain, leaf first) and its key, both as PEM.
    pub fn set_certificate(&self, crt: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Result<(), PkiError> {
        self.0.key.store(Some(Arc::new(certified_key(crt, key)?)));
        Ok(())
    }

    /// Replaces the authorities whose client certificates are accepted, as a PEM bundle.
    pub fn set_accepted(&self, bundle: impl AsRef<[u8]>) -> Result<(), PkiError> {
        let roots = Arc::new(roots(bundle)?);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
            .build()
            .map_err(|_| PkiError::NoPem { expected: "certificate" })?;
        self.0.accepted.store(Some(Arc::new(Accepted { verifier, seen: Seen::default() })));
        Ok(())
    }

    /// Whether there is a certificate to serve with.
    pub fn is_ready(&self) -> bool {
        self.0.key.load().is_some()
    }

    /// A configuration that demands a client certificate.
    pub fn mutual(&self) -> Result<Arc<ServerConfig>, PkiError> {
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(PkiError::Tls)?
            .with_client_cert_verifier(Arc::new(Verifier(self.0.clone())))
            .with_cert_resolver(Arc::new(Resolver(self.0.clone())));
        Ok(finish(config))
    }

    /// A configuration that asks for no client certificate.
    pub fn server_only(&self) -> Result<Arc<ServerConfig>, PkiError> {
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(PkiError::Tls)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Resolver(self.0.clone())));
        Ok(finish(config))
    }
}

fn finish(mut config: ServerConfig) -> Arc<ServerConfig> {
    config.alpn_protocols = vec![ALPN.to_vec()];
    // No resumption: a peer shows its key every time, and is checked against the authorities of today.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Arc::new(config)
}

#[derive(Debug)]
struct Resolver(Arc<Shared>);

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.key.load_full()
    }
}

#[derive(Debug)]
struct Verifier(Arc<Shared>);

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // No hints: they could not be borrowed from a list that changes, and clients have one certificate.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let accepted = self.0.accepted.load();
        let Some(accepted) = accepted.as_deref() else {
            return Err(CertificateError::UnknownIssuer.into());
        };
        if intermediates.is_empty() && accepted.seen.holds(end_entity, now) {
            return Ok(ClientCertVerified::assertion());
        }
        let verified = accepted.verifier.verify_client_cert(end_entity, intermediates, now)?;
        let info = CertInfo::from_der(end_entity).map_err(|_| CertificateError::BadEncoding)?;
        // A certificate that may also serve could be a server's key put to another use.
        if !info.is_ca && !info.is_client_only() {
            return Err(CertificateError::InvalidPurpose.into());
        }
        if intermediates.is_empty() {
            accepted.seen.keep(end_entity, &info, now);
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ichor_pki::{Authority, KeyAlgorithm, KeyPair, Leaf};
    use rustls::pki_types::pem::PemObject;

    use super::*;

    fn authority(now: jiff::Timestamp) -> Authority {
        Authority::generate(KeyAlgorithm::Ed25519, "talos", now, Authority::TEN_YEARS).unwrap()
    }

    fn client(authority: &Authority, now: jiff::Timestamp) -> KeyPair {
        authority.issue(&Leaf::client("", ["os:admin"]), now).unwrap()
    }

    #[test]
    fn who_was_let_in_once_is_still_checked_against_time_and_authorities() {
        let now = jiff::Timestamp::from_second(2_000_000_000).unwrap();
        let (ours, others) = (authority(now), authority(now));
        let tls = ServerTls::new();
        tls.set_accepted(ours.crt_pem()).unwrap();
        let verifier = Verifier(tls.0.clone());
        let pair = client(&ours, now);
        let der = CertificateDer::from_pem_slice(pair.crt.as_bytes()).unwrap();
        let ends = CertInfo::parse(&pair.crt).unwrap().not_after.as_second() as u64;
        let check = |der: &CertificateDer<'_>, seconds: u64| {
            let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
            verifier.verify_client_cert(der, &[], time).is_ok()
        };

        assert!(check(&der, ends - 2));
        assert!(check(&der, ends - 1), "from memory");
        assert!(!check(&der, ends + 1), "its time is over");
        assert!(!check(&der, 1_900_000_000), "its time has not come");
        let stranger = client(&others, now);
        let stranger = CertificateDer::from_pem_slice(stranger.crt.as_bytes()).unwrap();
        assert!(!check(&stranger, 2_000_000_001));
        assert!(check(&der, 2_000_000_001));
        tls.set_accepted(others.crt_pem()).unwrap();
        assert!(!check(&der, 2_000_000_001), "its authority is gone");
        assert!(check(&stranger, 2_000_000_001));
    }
}
