//! The crypto provider, handed to TLS code that must not name it, and PEM in the shape rustls takes.

use std::sync::{Arc, OnceLock};

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;

use crate::{CertInfo, PkiError, PrivateKey, check, text};

/// The one provider of this project.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider())).clone()
}

/// Makes the provider the default of the process. Calling it again does nothing.
pub fn install_provider() {
    // Fails only when a default is there already.
    let _ = CryptoProvider::install_default(provider().as_ref().clone());
}

/// A certificate chain with its key, ready for a TLS endpoint.
pub fn certified_key(crt: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Result<CertifiedKey, PkiError> {
    let chain = text::certificates(crt.as_ref())?;
    let private = PrivateKey::from_pem(key)?;
    check::matches(&CertInfo::from_der(&chain[0])?, &private)?;
    let signing = provider().key_provider.load_private_key(private.to_rustls()).map_err(PkiError::Tls)?;
    Ok(CertifiedKey::new(chain.into_iter().map(CertificateDer::from).collect(), signing))
}

/// The authorities of `pem` as trust anchors.
pub fn roots(pem: impl AsRef<[u8]>) -> Result<RootCertStore, PkiError> {
    let mut store = RootCertStore::empty();
    for der in text::certificates(pem.as_ref())? {
        store.add(CertificateDer::from(der)).map_err(PkiError::Tls)?;
    }
    Ok(store)
}
