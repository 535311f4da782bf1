//! Checks of what people and configurations hand over: pairs, authorities, bundles.

use jiff::Timestamp;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use crate::{CertInfo, PkiError, PrivateKey, Request, request, text};

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

/// Whether one of the authorities signed this certificate with its key. Times are not looked at.
pub fn issued_by(crt: impl AsRef<[u8]>, authorities: impl AsRef<[u8]>) -> Result<bool, PkiError> {
    let read = |der: &[u8], with: &mut dyn FnMut(&X509Certificate<'_>) -> bool| {
        X509Certificate::from_der(der).map(|(_, found)| with(&found)).map_err(|_| PkiError::BadCertificate)
    };
    let leaf = text::certificates(crt.as_ref())?.swap_remove(0);
    for authority in text::certificates(authorities.as_ref())? {
        let (mut key, mut name) = (Vec::new(), Vec::new());
        read(&authority, &mut |authority| {
            key = authority.public_key().subject_public_key.data.to_vec();
            name = authority.subject().as_raw().to_vec();
            true
        })?;
        let signed = read(&leaf, &mut |leaf| {
            let algorithm = leaf.signature_algorithm.algorithm.as_bytes();
            leaf.issuer().as_raw() == name
                && request::signed(algorithm, &key, leaf.tbs_certificate.as_ref(), &leaf.signature_value.data)
        })?;
        if signed {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Checks that a certificate answers a request: it is for the request's key and one of `authorities` signed it.
pub fn answer(
    crt: impl AsRef<[u8]>,
    request: &Request,
    authorities: impl AsRef<[u8]>,
) -> Result<CertInfo, PkiError> {
    let info = CertInfo::parse(&crt)?;
    if info.spki != request.spki() {
        return Err(PkiError::KeyMismatch);
    }
    if !issued_by(crt, authorities)? {
        return Err(PkiError::UnknownAuthority);
    }
    Ok(info)
}

pub(crate) fn matches(info: &CertInfo, key: &PrivateKey) -> Result<(), PkiError> {
    if info.spki == key.spki() { Ok(()) } else { Err(PkiError::KeyMismatch) }
}
