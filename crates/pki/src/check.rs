//! Checks of what people and configurations hand over: pairs, authorities, bundles.

use jiff::Timestamp;

use crate::{CertInfo, PkiError, PrivateKey};

/// Checks that a certificate and a key belong together and are valid at `now`.
pub fn pair(crt: impl AsRef<[u8]>, key: impl AsRef<[u8]>, now: Timestamp) -> Result<CertInfo, PkiError> {
    let info = CertInfo::parse(crt)?;
    matches(&info, &PrivateKey::from_pem(key)?)?;
    info.check_time(now)?;
    Ok(info)
}

/// Checks that a certificate is an authority that is valid at `now`; with a key, that they match.
pub fn authority(crt: impl AsRef<[u8]>, key: Option<&[u8]>, now: Timestamp) -> Result<CertInfo, PkiError> {
    let info = CertInfo::parse(crt)?;
    if let Some(key) = key {
        matches(&info, &PrivateKey::from_pem(key)?)?;
    }
    if !info.is_ca {
        return Err(PkiError::NotAuthority);
    }
    info.check_time(now)?;
    Ok(info)
}

/// Checks that every certificate of a bundle is an authority; says how many there are.
pub fn bundle(pem: impl AsRef<[u8]>) -> Result<usize, PkiError> {
    let all = CertInfo::parse_all(pem)?;
    if all.iter().all(|info| info.is_ca) { Ok(all.len()) } else { Err(PkiError::NotAuthority) }
}

pub(crate) fn matches(info: &CertInfo, key: &PrivateKey) -> Result<(), PkiError> {
    if info.spki == key.spki() { Ok(()) } else { Err(PkiError::KeyMismatch) }
}
