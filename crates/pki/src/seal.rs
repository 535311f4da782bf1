//! Symmetric encryption: what members of a cluster seal with a key they share.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::cipher::{AES_256, DecryptingKey, DecryptionContext, EncryptingKey, UnboundCipherKey};
use zeroize::Zeroizing;

/// The block of the deterministic form.
const BLOCK: usize = 16;

/// Why something cannot be sealed or opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The key has the wrong length.
    #[error("the key has {0} bytes; it must have 32")]
    Key(usize),
    /// Not sealed with this key, or changed since.
    #[error("not sealed with this key, or damaged")]
    Open,
    /// Longer than the form allows, or not whole blocks.
    #[error("{0} bytes are not a length that can be sealed so")]
    Length(usize),
    /// The provider failed.
    #[error("the cryptographic library refused")]
    Provider,
}

/// A key of 256 bits.
#[derive(Clone)]
pub struct SealKey(Zeroizing<[u8; 32]>);

impl SealKey {
    /// A key from its bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, SealError> {
        bytes.try_into().map(|bytes| Self(Zeroizing::new(bytes))).map_err(|_| SealError::Key(bytes.len()))
    }

    /// AES-256-GCM: nonce, ciphertext, tag.
    pub fn seal(&self, plain: &[u8]) -> Result<Vec<u8>, SealError> {
        let mut nonce = [0; NONCE_LEN];
        aws_lc_rs::rand::fill(&mut nonce).map_err(|_| SealError::Provider)?;
        self.seal_with(nonce, plain)
    }

    fn seal_with(&self, nonce: [u8; NONCE_LEN], plain: &[u8]) -> Result<Vec<u8>, SealError> {
        let mut body = plain.to_vec();
        let sealed = Nonce::assume_unique_for_key(nonce);
        self.gcm()?
            .seal_in_place_append_tag(sealed, Aad::empty(), &mut body)
            .map_err(|_| SealError::Provider)?;
        Ok([&nonce[..], &body].concat())
    }

    /// Opens what [`seal`](Self::seal) made.
    pub fn open(&self, sealed: &[u8]) -> Result<Vec<u8>, SealError> {
        let (nonce, body) = sealed.split_at_checked(NONCE_LEN).ok_or(SealError::Open)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError::Open)?;
        let mut body = body.to_vec();
        let plain = self.gcm()?.open_in_place(nonce, Aad::empty(), &mut body).map_err(|_| SealError::Open)?;
        Ok(plain.to_vec())
    }

    /// The same bytes always give the same result (AES-256-ECB over a length byte, the bytes and zeros), so that
    /// somebody without the key can tell equals apart from others. Only for short, public-ish values.
    pub fn seal_same(&self, plain: &[u8]) -> Result<Vec<u8>, SealError> {
        let length = u8::try_from(plain.len()).map_err(|_| SealError::Length(plain.len()))?;
        let mut block = Vec::with_capacity((plain.len() + 1).next_multiple_of(BLOCK));
        block.push(length);
        block.extend_from_slice(plain);
        block.resize(block.len().next_multiple_of(BLOCK), 0);
        let key = EncryptingKey::ecb(self.cipher()?).map_err(|_| SealError::Provider)?;
        key.encrypt(&mut block).map_err(|_| SealError::Provider)?;
        Ok(block)
    }

    /// Opens what [`seal_same`](Self::seal_same) made. Nothing in that form proves that the key was the right one.
    pub fn open_same(&self, sealed: &[u8]) -> Result<Vec<u8>, SealError> {
        if sealed.is_empty() || !sealed.len().is_multiple_of(BLOCK) {
            return Err(SealError::Length(sealed.len()));
        }
        let mut block = sealed.to_vec();
        let key = DecryptingKey::ecb(self.cipher()?).map_err(|_| SealError::Provider)?;
        let plain = key.decrypt(&mut block, DecryptionContext::None).map_err(|_| SealError::Provider)?;
        let length = usize::from(plain[0]);
        plain.get(1..=length).map(<[u8]>::to_vec).ok_or(SealError::Open)
    }

    fn gcm(&self) -> Result<LessSafeKey, SealError> {
        UnboundKey::new(&AES_256_GCM, &*self.0).map(LessSafeKey::new).map_err(|_| SealError::Provider)
    }

    fn cipher(&self) -> Result<UnboundCipherKey, SealError> {
        UnboundCipherKey::new(&AES_256, &*self.0).map_err(|_| SealError::Provider)
    }
}

impl std::fmt::Debug for SealKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SealKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SealKey {
        SealKey::new(&(0..32).collect::<Vec<u8>>()).unwrap()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn unhex(text: &str) -> Vec<u8> {
        (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn the_sealed_form_is_the_known_one() {
        let sealed = key().seal_with([0; NONCE_LEN], &unhex("0a066e6f64652d61")).unwrap();
        assert_eq!(hex(&sealed), "00000000000000000000000004badbb1d149aedc656ca371c9f4cdcbc6cd98118b7eb2b2");
        assert_eq!(key().open(&sealed).unwrap(), unhex("0a066e6f64652d61"));
    }

    #[test]
    fn the_deterministic_form_is_the_known_one() {
        let plain = unhex("0a040a05000210ec9403");
        let sealed = key().seal_same(&plain).unwrap();
        assert_eq!(hex(&sealed), "3c6dad0772028a24a3635360916dc138");
        assert_eq!(key().open_same(&sealed).unwrap(), plain);
    }

    #[test]
    fn what_is_damaged_or_foreign_does_not_open() {
        let mut sealed = key().seal(b"secret").unwrap();
        assert_ne!(sealed, key().seal(b"secret").unwrap());
        sealed[20] ^= 1;
        assert_eq!(key().open(&sealed), Err(SealError::Open));
        assert_eq!(key().open(b"short"), Err(SealError::Open));
        let other = SealKey::new(&[9; 32]).unwrap();
        assert_eq!(other.open(&key().seal(b"secret").unwrap()), Err(SealError::Open));
        assert_eq!(key().open_same(&[1; 15]), Err(SealError::Length(15)));
        assert_eq!(key().seal_same(&[0; 256]), Err(SealError::Length(256)));
        assert_eq!(SealKey::new(&[0; 16]).unwrap_err(), SealError::Key(16));
    }
}
