//! PEM blocks and their labels.

use pem::{EncodeConfig, LineEnding, Pem};

use crate::PkiError;

pub(crate) const CERTIFICATE: &str = "CERTIFICATE";
pub(crate) const CERTIFICATE_REQUEST: &str = "CERTIFICATE REQUEST";
pub(crate) const ED25519_PRIVATE_KEY: &str = "ED25519 PRIVATE KEY";
pub(crate) const ED25519_PUBLIC_KEY: &str = "ED25519 PUBLIC KEY";
pub(crate) const EC_PRIVATE_KEY: &str = "EC PRIVATE KEY";
pub(crate) const EC_PUBLIC_KEY: &str = "EC PUBLIC KEY";
pub(crate) const RSA_PRIVATE_KEY: &str = "RSA PRIVATE KEY";
pub(crate) const PRIVATE_KEY: &str = "PRIVATE KEY";
pub(crate) const PUBLIC_KEY: &str = "PUBLIC KEY";

/// More than any bundle a node holds; keeps hostile input from costing much.
const INPUT_MAX: usize = 1 << 20;

/// Writes one block, lines of 64 characters.
pub(crate) fn encode(label: &str, der: &[u8]) -> String {
    pem::encode_config(&Pem::new(label, der), EncodeConfig::new().set_line_ending(LineEnding::LF))
}

/// The first block of `input`.
pub(crate) fn first(input: &[u8], expected: &'static str) -> Result<Pem, PkiError> {
    if input.len() > INPUT_MAX {
        return Err(PkiError::TooLarge { expected, limit: INPUT_MAX });
    }
    pem::parse(input).map_err(|_| PkiError::NoPem { expected })
}

/// The first block of `input` that is no certificate, or a certificate where there is nothing else.
pub(crate) fn key(input: &[u8]) -> Result<Pem, PkiError> {
    let block = first(input, "private key")?;
    if block.tag() != CERTIFICATE {
        return Ok(block);
    }
    let others = pem::parse_many(input).unwrap_or_default();
    Ok(others.into_iter().find(|other| other.tag() != CERTIFICATE).unwrap_or(block))
}

/// All certificates of `input`, in order. Other blocks are skipped.
pub(crate) fn certificates(input: &[u8]) -> Result<Vec<Vec<u8>>, PkiError> {
    if input.len() > INPUT_MAX {
        return Err(PkiError::TooLarge { expected: "certificate", limit: INPUT_MAX });
    }
    let blocks = pem::parse_many(input).map_err(|_| PkiError::NoPem { expected: "certificate" })?;
    let wanted = blocks.into_iter().filter(|block| block.tag() == CERTIFICATE);
    let found: Vec<Vec<u8>> = wanted.map(Pem::into_contents).collect();
    if found.is_empty() { Err(PkiError::NoPem { expected: "certificate" }) } else { Ok(found) }
}
