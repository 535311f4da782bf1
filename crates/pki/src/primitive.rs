//! Building blocks of formats that are written elsewhere. Each format knows what it may do with them.

use aws_lc_rs::{digest, hmac};

/// HMAC-SHA-256.
pub fn hmac_sha256(key: &[u8], message: &[u8]) -> [u8; digest::SHA256_OUTPUT_LEN] {
    let mut out = [0; digest::SHA256_OUTPUT_LEN];
    out.copy_from_slice(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message).as_ref());
    out
}
