//! Signatures that stand apart from what they sign (PKCS#7 SignedData), as firmware wants them.

use jiff::Timestamp;

use crate::{CertInfo, KeyFamily, PkiError, PrivateKey, check, der, digest::sha256, oid, text, usage};

/// Signs `content` with SHA-256 and an RSA key; the certificate goes along, the content does not. There is no
/// outer ContentInfo.
pub fn detached(
    content: &[u8],
    certificate: impl AsRef<[u8]>,
    key: &PrivateKey,
    now: Timestamp,
) -> Result<Vec<u8>, PkiError> {
    let certificate = text::certificates(certificate.as_ref())?.swap_remove(0);
    check::matches(&CertInfo::from_der(&certificate)?, key)?;
    if key.family() != KeyFamily::Rsa {
        return Err(PkiError::FamilyMismatch { authority: KeyFamily::Rsa });
    }
    let object = |kind: &[u8]| der::element(der::OID, kind);
    let with_null = |kind: &[u8]| der::nest(der::SEQUENCE, &[object(kind), der::element(der::NULL, &[])]);
    let attribute = |kind: &[u8], value: Vec<u8>| {
        der::nest(der::SEQUENCE, &[object(kind), der::nest(der::SET, &[value])])
    };
    let attributes = der::set_of(vec![
        attribute(oid::CONTENT_TYPE, object(oid::PKCS7_DATA)),
        attribute(oid::SIGNING_TIME, usage::time(now)?),
        attribute(oid::MESSAGE_DIGEST, der::element(der::OCTET_STRING, &sha256(content))),
    ]);
    let signature = key.sign_rsa_sha256(&attributes)?;
    // Inside, the same bytes carry another tag.
    let mut inner = attributes;
    inner[0] = der::context(0);
    let signer = der::nest(
        der::SEQUENCE,
        &[
            der::unsigned(&[1]),
            issuer_and_serial(&certificate).ok_or(PkiError::BadCertificate)?,
            with_null(oid::SHA256),
            inner,
            with_null(oid::RSA),
            der::element(der::OCTET_STRING, &signature),
        ],
    );
    Ok(der::nest(
        der::SEQUENCE,
        &[
            der::unsigned(&[1]),
            der::nest(der::SET, &[with_null(oid::SHA256)]),
            der::nest(der::SEQUENCE, &[object(oid::PKCS7_DATA)]),
            der::nest(der::context(0), &[certificate]),
            der::nest(der::SET, &[signer]),
        ],
    ))
}

/// Who signed a certificate, and its number there.
fn issuer_and_serial(certificate: &[u8]) -> Option<Vec<u8>> {
    let (_, certificate, _) = der::split(certificate)?;
    let (_, tbs, _) = der::split(certificate)?;
    let (_, _, rest) = der::split(tbs)?;
    let (_, serial, rest) = der::split(rest)?;
    let (_, _, rest) = der::split(rest)?;
    let (_, issuer, _) = der::split(rest)?;
    let parts = [der::element(der::SEQUENCE, issuer), der::element(der::INTEGER, serial)];
    Some(der::nest(der::SEQUENCE, &parts))
}

/// The first certificate of `pem` as DER.
pub fn certificate_der(pem: impl AsRef<[u8]>) -> Result<Vec<u8>, PkiError> {
    Ok(text::certificates(pem.as_ref())?.swap_remove(0))
}
