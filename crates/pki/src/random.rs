//! Random bytes and tokens from the crypto provider, and comparison of secrets.

use aws_lc_rs::{constant_time, rand};

use crate::PkiError;

const TOKEN_ALPHABET: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// Fills `out` with random bytes.
pub fn fill(out: &mut [u8]) -> Result<(), PkiError> {
    rand::fill(out).map_err(|_| PkiError::Random)
}

/// A fixed number of random bytes.
pub fn bytes<const N: usize>() -> Result<[u8; N], PkiError> {
    let mut out = [0; N];
    fill(&mut out)?;
    Ok(out)
}

/// A token `<head>.<tail>` of lower-case letters and digits, each character equally likely.
pub fn token(head: usize, tail: usize) -> Result<String, PkiError> {
    Ok(format!("{}.{}", characters(head)?, characters(tail)?))
}

fn characters(count: usize) -> Result<String, PkiError> {
    // 252 is the largest multiple of 36 in a byte; the four values above it would favour some characters.
    const FAIR_BELOW: u8 = 252;
    let mut text = String::with_capacity(count);
    let mut pool = [0; 32];
    while text.len() < count {
        fill(&mut pool)?;
        let fair = pool.iter().filter(|byte| **byte < FAIR_BELOW);
        let wanted = count - text.len();
        text.extend(fair.take(wanted).map(|byte| char::from(TOKEN_ALPHABET[usize::from(byte % 36)])));
    }
    Ok(text)
}

/// Whether two secrets are equal, in a time that says nothing about where they differ.
pub fn secrets_equal(left: &[u8], right: &[u8]) -> bool {
    constant_time::verify_slices_are_equal(left, right).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_the_asked_shape() {
        let token = token(6, 16).expect("token");
        let (head, tail) = token.split_once('.').expect("dot");
        assert_eq!((head.len(), tail.len()), (6, 16));
        assert!(token.bytes().all(|b| b == b'.' || b.is_ascii_digit() || b.is_ascii_lowercase()));
    }

    #[test]
    fn secrets_differ_by_length_and_by_content() {
        assert!(secrets_equal(b"abc", b"abc"));
        assert!(!secrets_equal(b"abc", b"abd"));
        assert!(!secrets_equal(b"abc", b"abcd"));
    }
}
