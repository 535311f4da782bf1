//! Files of age v1 (age-encryption.org/v1), for X25519 recipients: binary, in pieces, never whole in memory.

mod bech32;
mod header;

use std::io::{self, BufRead, Read, Write};

use ichor_pki::primitive::{ChaChaKey, hkdf_sha256, x25519_public};
use ichor_pki::seal::SealError;
use zeroize::Zeroizing;

/// What every such file begins with.
pub const MAGIC: &[u8] = b"age-encryption.org/v1\n";
/// Bytes of content that are sealed together.
const CHUNK: usize = 64 << 10;
const TAG: usize = 16;

/// Why a file cannot be sealed or opened.
#[derive(Debug, thiserror::Error)]
pub enum AgeError {
    /// Not a key.
    #[error("{0} is not a key of age: {1}")]
    Key(String, &'static str),
    /// The file is no such file.
    #[error("not a file of age: {0}")]
    Header(&'static str),
    /// It is sealed for others.
    #[error("none of the identities opens the file")]
    NoMatch,
    /// What is in it was changed or cut.
    #[error("the content is damaged or cut off")]
    Payload,
    /// The provider failed.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Somebody files are sealed for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipient([u8; 32]);

impl Recipient {
    /// Reads `age1…`.
    pub fn parse(text: &str) -> Result<Self, AgeError> {
        let bad = |why| AgeError::Key(format!("{text:?}"), why);
        match bech32::decode(text).map_err(bad)? {
            (prefix, bytes) if prefix == "age" => {
                bytes.try_into().map(Self).map_err(|_| bad("it has the wrong length"))
            }
            _ => Err(bad("a recipient begins with age1")),
        }
    }
}

/// What opens files.
pub struct Identity(Zeroizing<[u8; 32]>);

impl Identity {
    /// Reads `AGE-SECRET-KEY-1…`.
    pub fn parse(text: &str) -> Result<Self, AgeError> {
        // The key itself stays out of messages.
        let bad = |why| AgeError::Key("the identity".to_owned(), why);
        match bech32::decode(text).map_err(bad)? {
            (prefix, bytes) if prefix == "age-secret-key-" && text.starts_with('A') => {
                let bytes = Zeroizing::new(bytes);
                let key = bytes.as_slice().try_into().map_err(|_| bad("it has the wrong length"))?;
                Ok(Self(Zeroizing::new(key)))
            }
            _ => Err(bad("an identity begins with AGE-SECRET-KEY-1")),
        }
    }

    /// Reads a file of identities: one a line, empty lines and comments between them.
    pub fn parse_file(text: &str) -> Result<Vec<Self>, AgeError> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let found = lines.map(Self::parse).collect::<Result<Vec<_>, _>>()?;
        match found.is_empty() {
            true => Err(AgeError::Key("the file of identities".to_owned(), "it has none")),
            false => Ok(found),
        }
    }

    /// A new identity.
    pub fn generate() -> Result<Self, AgeError> {
        let bytes = ichor_pki::random::bytes().map_err(|_| SealError::Provider)?;
        Ok(Self(Zeroizing::new(bytes)))
    }

    /// As files of identities hold it.
    pub fn to_text(&self) -> Zeroizing<String> {
        Zeroizing::new(bech32::encode("age-secret-key-", &*self.0).to_ascii_uppercase())
    }

    /// Who seals for this identity names this.
    pub fn recipient(&self) -> Result<Recipient, AgeError> {
        Ok(Recipient(x25519_public(&self.0)?))
    }
}

impl std::fmt::Display for Recipient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&bech32::encode("age", &self.0))
    }
}

/// Seals all of `from` for the recipients.
pub fn encrypt(recipients: &[Recipient], from: &mut impl Read, to: &mut impl Write) -> Result<(), AgeError> {
    let random = || ichor_pki::random::bytes::<16>().map_err(|_| SealError::Provider);
    let file_key = Zeroizing::new(random()?);
    let nonce = random()?;
    to.write_all(header::make(recipients, &file_key)?.as_bytes())?;
    to.write_all(&nonce)?;
    let key = ChaChaKey::new(&hkdf_sha256(&*file_key, &nonce, b"payload"))?;
    let mut chunk = piece(from, CHUNK)?;
    for count in 0.. {
        // Only an empty file has an empty last piece: whether one follows decides which the last one is.
        let next = if chunk.len() == CHUNK { piece(from, CHUNK)? } else { Vec::new() };
        let last = next.is_empty();
        key.seal(counted(count, last), &mut chunk)?;
        to.write_all(&chunk)?;
        if last {
            break;
        }
        chunk = next;
    }
    Ok(())
}

/// Opens a file with the first identity that fits. What was written when it fails is not to be used.
pub fn decrypt(
    identities: &[Identity],
    from: &mut impl BufRead,
    to: &mut impl Write,
) -> Result<(), AgeError> {
    let file_key = header::read(from)?.open(identities)?;
    let nonce = piece(from, 16)?;
    if nonce.len() != 16 {
        return Err(AgeError::Header("it ends too early"));
    }
    let key = ChaChaKey::new(&hkdf_sha256(&*file_key, &nonce, b"payload"))?;
    let mut chunk = piece(from, CHUNK + TAG)?;
    for count in 0.. {
        let next = if chunk.len() == CHUNK + TAG { piece(from, CHUNK + TAG)? } else { Vec::new() };
        let last = next.is_empty();
        let plain = key.open(counted(count, last), &mut chunk).map_err(|_| AgeError::Payload)?;
        if plain.is_empty() && count > 0 {
            return Err(AgeError::Payload);
        }
        to.write_all(plain)?;
        if last {
            break;
        }
        chunk = next;
    }
    Ok(())
}

/// The nonce of a piece: its number, and whether it is the last.
fn counted(count: u64, last: bool) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[3..11].copy_from_slice(&count.to_be_bytes());
    nonce[11] = u8::from(last);
    nonce
}

/// As many bytes as there are, `size` at most.
fn piece(from: &mut impl Read, size: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(size + TAG);
    from.take(size as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(identity: &Identity, content: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encrypt(&[identity.recipient().unwrap()], &mut &*content, &mut out).unwrap();
        out
    }

    fn opened(identity: &Identity, sealed: &[u8]) -> Result<Vec<u8>, AgeError> {
        let mut out = Vec::new();
        decrypt(std::slice::from_ref(identity), &mut &*sealed, &mut out).map(|()| out)
    }

    #[test]
    fn files_of_every_length_come_back() {
        let identity = Identity::generate().unwrap();
        for length in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 5] {
            let content: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let file = sealed(&identity, &content);
            assert!(file.starts_with(MAGIC));
            assert_eq!(opened(&identity, &file).unwrap(), content, "{length}");
        }
    }

    #[test]
    fn every_recipient_opens_and_nobody_else() {
        let [first, second, other] = [(); 3].map(|()| Identity::generate().unwrap());
        let recipients = [first.recipient().unwrap(), second.recipient().unwrap()];
        let mut file = Vec::new();
        encrypt(&recipients, &mut &b"content"[..], &mut file).unwrap();
        assert_eq!(opened(&first, &file).unwrap(), b"content");
        assert_eq!(opened(&second, &file).unwrap(), b"content");
        assert!(matches!(opened(&other, &file), Err(AgeError::NoMatch)));
    }

    #[test]
    fn no_byte_may_change_and_none_be_cut() {
        let identity = Identity::generate().unwrap();
        let file = sealed(&identity, b"some content");
        for at in 0..file.len() {
            assert!(opened(&identity, &file[..at]).is_err(), "cut at {at}");
            let mut changed = file.clone();
            changed[at] ^= 1;
            assert!(opened(&identity, &changed).is_err(), "changed at {at}");
        }
        assert!(opened(&identity, &[file.as_slice(), b"x"].concat()).is_err());
        // A piece that is missing at the end.
        let long = sealed(&identity, &vec![0; 2 * CHUNK]);
        assert!(opened(&identity, &long[..long.len() - CHUNK - TAG]).is_err());
    }

    #[test]
    fn keys_are_read_as_they_are_written() {
        let identity = Identity::generate().unwrap();
        let text = identity.to_text();
        let again = Identity::parse(&text).unwrap();
        assert_eq!(again.recipient().unwrap(), identity.recipient().unwrap());
        let recipient = identity.recipient().unwrap().to_string();
        assert!(recipient.starts_with("age1") && recipient.len() == 62, "{recipient}");
        assert_eq!(Recipient::parse(&recipient).unwrap(), identity.recipient().unwrap());
        for bad in ["", "age1", &recipient[..61], &text, &recipient.replace("age1", "agf1")] {
            assert!(Recipient::parse(bad).is_err(), "{bad}");
        }
        assert!(Identity::parse(&text.to_ascii_lowercase()).is_err());
        assert_eq!(Identity::parse_file(&format!("# created\n\n{}\n", *text)).unwrap().len(), 1);
        assert!(Identity::parse_file("# nothing\n").is_err());
    }

    #[test]
    fn a_published_pair_of_keys_belongs_together() {
        // The example of age's own documentation.
        let identity =
            Identity::parse("AGE-SECRET-KEY-1GFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPQ4EGAEX")
                .unwrap();
        assert_eq!(*identity.0, [0x42; 32]);
        assert_eq!(
            identity.recipient().unwrap().to_string(),
            "age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj"
        );
    }
}
