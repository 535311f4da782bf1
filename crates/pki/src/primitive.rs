//! Building blocks of formats that are written elsewhere: keyed digests, key derivation, X25519 and
//! ChaCha20-Poly1305. Each format knows what it may do with them.

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::agreement::{self, PrivateKey, UnparsedPublicKey, X25519};
use aws_lc_rs::{digest, hmac};
use zeroize::Zeroizing;

use crate::seal::SealError;

/// HMAC-SHA-256.
pub fn hmac_sha256(key: &[u8], message: &[u8]) -> [u8; digest::SHA256_OUTPUT_LEN] {
    let mut out = [0; digest::SHA256_OUTPUT_LEN];
    out.copy_from_slice(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message).as_ref());
    out
}

/// HKDF-SHA-256 with one block of output.
pub fn hkdf_sha256(secret: &[u8], salt: &[u8], info: &[u8]) -> Zeroizing<[u8; 32]> {
    let drawn = Zeroizing::new(hmac_sha256(salt, secret));
    Zeroizing::new(hmac_sha256(&*drawn, &[info, &[1]].concat()))
}

/// The public half of an X25519 secret.
///
/// # Errors
/// When the provider refuses.
pub fn x25519_public(secret: &[u8; 32]) -> Result<[u8; 32], SealError> {
    let key = PrivateKey::from_private_key(&X25519, secret).map_err(|_| SealError::Provider)?;
    let public = key.compute_public_key().map_err(|_| SealError::Provider)?;
    public.as_ref().try_into().map_err(|_| SealError::Provider)
}

/// What both sides of an X25519 exchange arrive at. A public half that leads to zero is refused.
///
/// # Errors
/// [`SealError::Open`] for a public half that is none.
pub fn x25519_agree(secret: &[u8; 32], public: &[u8; 32]) -> Result<Zeroizing<[u8; 32]>, SealError> {
    let key = PrivateKey::from_private_key(&X25519, secret).map_err(|_| SealError::Provider)?;
    let peer = UnparsedPublicKey::new(&X25519, public);
    agreement::agree(&key, peer, SealError::Open, |shared| {
        let shared: [u8; 32] = shared.try_into().map_err(|_| SealError::Open)?;
        if shared == [0; 32] { Err(SealError::Open) } else { Ok(Zeroizing::new(shared)) }
    })
}

/// ChaCha20-Poly1305 with a key for one message or one sequence of them.
pub struct ChaChaKey(LessSafeKey);

impl ChaChaKey {
    /// A key from its bytes.
    ///
    /// # Errors
    /// When the provider refuses.
    pub fn new(key: &[u8; 32]) -> Result<Self, SealError> {
        UnboundKey::new(&CHACHA20_POLY1305, key)
            .map(|key| Self(LessSafeKey::new(key)))
            .map_err(|_| SealError::Provider)
    }

    /// Seals in place; the tag goes behind. A nonce must never come twice with the same key.
    ///
    /// # Errors
    /// When the provider refuses.
    pub fn seal(&self, nonce: [u8; 12], body: &mut Vec<u8>) -> Result<(), SealError> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.0.seal_in_place_append_tag(nonce, Aad::empty(), body).map_err(|_| SealError::Provider)
    }

    /// Opens in place and gives what was sealed.
    ///
    /// # Errors
    /// [`SealError::Open`] when it was not sealed so.
    pub fn open<'b>(&self, nonce: [u8; 12], body: &'b mut [u8]) -> Result<&'b mut [u8], SealError> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.0.open_in_place(nonce, Aad::empty(), body).map_err(|_| SealError::Open)
    }
}

impl std::fmt::Debug for ChaChaKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ChaChaKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn derivation_is_that_of_rfc_5869() {
        let salt: Vec<u8> = (0..13).collect();
        let info: Vec<u8> = (0xf0..0xfa).collect();
        let derived = hkdf_sha256(&[0x0b; 22], &salt, &info);
        assert_eq!(hex(&*derived), "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
        let bare = hkdf_sha256(&[0x0b; 22], &[], &[]);
        assert_eq!(hex(&*bare), "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d");
    }

    #[test]
    fn both_sides_arrive_at_the_same_and_zero_is_refused() {
        let (left, right) = ([1; 32], [2; 32]);
        let shared = x25519_agree(&left, &x25519_public(&right).unwrap()).unwrap();
        assert_eq!(shared, x25519_agree(&right, &x25519_public(&left).unwrap()).unwrap());
        assert!(x25519_agree(&left, &[0; 32]).is_err());
    }

    #[test]
    fn what_was_changed_does_not_open() {
        let key = ChaChaKey::new(&[3; 32]).unwrap();
        let mut body = b"secret".to_vec();
        key.seal([0; 12], &mut body).unwrap();
        assert_eq!(key.open([0; 12], &mut body.clone()).unwrap(), b"secret");
        assert!(key.open([1; 12], &mut body.clone()).is_err());
        body[0] ^= 1;
        assert!(key.open([0; 12], &mut body).is_err());
    }
}
