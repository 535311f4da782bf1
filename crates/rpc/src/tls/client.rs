//! The client side: verified by authorities, with or without a certificate of its own, or, towards a
//! machine that has no configuration yet, unverified or pinned to a fingerprint.

use std::sync::Arc;

use ichor_pki::{CertInfo, PkiError, certified_key, provider, roots};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, SignatureScheme,
    WantsVerifier,
};

use super::ALPN;

/// A TLS client configuration that cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientTlsError {
    /// Bad authorities.
    #[error("certificate authorities")]
    Authorities(#[source] PkiError),
    /// A bad certificate or key of the client.
    #[error("client certificate")]
    Identity(#[source] PkiError),
    /// The provider refused the settings.
    #[error("TLS settings")]
    Settings(#[source] Error),
}

/// How a client connects. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ClientTls(Arc<ClientConfig>);

impl ClientTls {
    /// Servers must chain to `authorities` (a PEM bundle); the client shows `identity` (certificate
    /// and key as PEM) if there is one.
    pub fn verified(
        authorities: impl AsRef<[u8]>,
        identity: Option<(&[u8], &[u8])>,
    ) -> Result<Self, ClientTlsError> {
        let roots = Arc::new(roots(authorities).map_err(ClientTlsError::Authorities)?);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider())
            .build()
            .map_err(|_| ClientTlsError::Authorities(PkiError::NoPem { expected: "certificate" }))?;
        let builder = builder()?.with_webpki_verifier(verifier);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some((crt, key)) => {
                let key = certified_key(crt, key).map_err(ClientTlsError::Identity)?;
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key)))
            }
        };
        Ok(finish(config))
    }

    /// Any server is taken, or, with fingerprints (base64 of SHA-256 of the public key), only one of those.
    pub fn insecure(fingerprints: impl IntoIterator<Item = String>) -> Result<Self, ClientTlsError> {
        let verifier = Arc::new(Pinned { fingerprints: fingerprints.into_iter().collect() });
        let config = builder()?.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        Ok(finish(config))
    }

    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        self.0.clone()
    }
}

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, ClientTlsError> {
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(ClientTlsError::Settings)
}

fn finish(mut config: ClientConfig) -> ClientTls {
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    ClientTls(Arc::new(config))
}

#[derive(Debug)]
struct Pinned {
    fingerprints: Vec<String>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.fingerprints.is_empty() {
            return Ok(ServerCertVerified::assertion());
        }
        let info = CertInfo::from_der(end_entity).map_err(|_| CertificateError::BadEncoding)?;
        if self.fingerprints.contains(&info.spki_fingerprint) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(Error::General(format!(
                "server certificate fingerprint {} is not one of those given",
                info.spki_fingerprint
            )))
        }
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
