//! age v1 files (age-encryption.org/v1) for X25519 recipients, streamed. The format and its cryptography are those of
//! the `age` crate; this module says which keys are accepted and what went wrong.

use std::io::{self, BufRead, Read, Write};

use age::x25519;
use age::{DecryptError, Decryptor, EncryptError, Encryptor};
use zeroize::Zeroizing;

/// What every such file begins with.
pub const MAGIC: &[u8] = b"age-encryption.org/v1\n";

/// Characters of a line in the body of a recipient; a shorter one is the last.
const BODY_COLUMNS: usize = 64;
/// Longer headers are refused: a recipient takes about a hundred bytes, and parsing takes time with its square.
const HEADER_MAX: u64 = 64 << 10;

/// Why a file cannot be encrypted or decrypted.
#[derive(Debug, thiserror::Error)]
pub enum AgeError {
    /// Not a key.
    #[error("{0} is not an age key: {1}")]
    Key(String, &'static str),
    /// Not an age file, or its header was changed.
    #[error("not a valid age file: {0}")]
    Header(&'static str),
    /// It is encrypted for others.
    #[error("no identity matches a recipient of the file")]
    NoMatch,
    /// The payload was changed or cut.
    #[error("the payload is damaged or truncated")]
    Payload,
    /// There was nobody to encrypt for.
    #[error(transparent)]
    Encrypt(EncryptError),
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<DecryptError> for AgeError {
    fn from(error: DecryptError) -> Self {
        match error {
            DecryptError::NoMatchingKeys => Self::NoMatch,
            DecryptError::InvalidMac => Self::Header("header MAC mismatch"),
            DecryptError::UnknownFormat => Self::Header("unknown format"),
            DecryptError::DecryptionFailed => Self::Payload,
            DecryptError::Io(source) => payload(source),
            _ => Self::Header("malformed header"),
        }
    }
}

/// The stream reports damage as an error of reading.
fn payload(error: io::Error) -> AgeError {
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => AgeError::Payload,
        _ => AgeError::Io(error),
    }
}

/// Whom files are encrypted for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipient(x25519::Recipient);

impl Recipient {
    /// Parses `age1…`.
    pub fn parse(text: &str) -> Result<Self, AgeError> {
        text.parse().map(Self).map_err(|why| AgeError::Key(format!("{text:?}"), why))
    }
}

impl std::fmt::Display for Recipient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What decrypts files.
pub struct Identity(x25519::Identity);

impl Identity {
    /// Parses `AGE-SECRET-KEY-1…`. The key itself stays out of messages.
    pub fn parse(text: &str) -> Result<Self, AgeError> {
        text.parse().map(Self).map_err(|why| AgeError::Key("the identity".to_owned(), why))
    }

    /// Parses an identity file: one identity a line, empty lines and comments between them.
    pub fn parse_file(text: &str) -> Result<Vec<Self>, AgeError> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let found = lines.map(Self::parse).collect::<Result<Vec<_>, _>>()?;
        match found.is_empty() {
            true => Err(AgeError::Key("the identity file".to_owned(), "it holds no identity")),
            false => Ok(found),
        }
    }

    /// A new identity.
    pub fn generate() -> Self {
        Self(x25519::Identity::generate())
    }

    /// As identity files hold it.
    pub fn to_text(&self) -> Zeroizing<String> {
        use age::secrecy::ExposeSecret as _;
        Zeroizing::new(self.0.to_string().expose_secret().to_owned())
    }

    /// Whoever encrypts for this identity names this.
    pub fn recipient(&self) -> Recipient {
        Recipient(self.0.to_public())
    }
}

/// Encrypts all of `from` for the recipients.
pub fn encrypt(recipients: &[Recipient], from: &mut impl Read, to: &mut impl Write) -> Result<(), AgeError> {
    let recipients = recipients.iter().map(|recipient| &recipient.0 as &dyn age::Recipient);
    let encryptor = Encryptor::with_recipients(recipients).map_err(AgeError::Encrypt)?;
    let mut out = encryptor.wrap_output(to)?;
    io::copy(from, &mut out)?;
    out.finish()?;
    Ok(())
}

/// Decrypts a file with the first identity that matches. What was written when it fails is not to be used.
pub fn decrypt(
    identities: &[Identity],
    from: &mut impl BufRead,
    to: &mut impl Write,
) -> Result<(), AgeError> {
    let identities = identities.iter().map(|identity| &identity.0 as &dyn age::Identity);
    let header = header(from)?;
    let mut plain = Decryptor::new_buffered(header.chain(from))?.decrypt(identities)?;
    io::copy(&mut plain, to).map_err(payload)?;
    Ok(())
}

/// Reads the header, whose last line begins with three dashes, and nothing behind it. The body of a recipient ends with a
/// line of less than 64 characters; the library takes a body without one for whole.
fn header(from: &mut impl BufRead) -> Result<io::Cursor<Vec<u8>>, AgeError> {
    let (mut text, mut left) = (Vec::new(), HEADER_MAX);
    let mut in_body = false;
    loop {
        let start = text.len();
        let read = from.by_ref().take(left).read_until(b'\n', &mut text)?;
        left -= read as u64;
        if left == 0 {
            return Err(AgeError::Header("header is longer than 64 KiB"));
        }
        let line = &text[start..];
        let ends = read == 0 || line.starts_with(b"---");
        if in_body && (ends || line.starts_with(b"->")) {
            return Err(AgeError::Header("a recipient without the end of its body"));
        }
        if ends {
            return Ok(io::Cursor::new(text));
        }
        in_body = line.starts_with(b"->") || (in_body && line.len() > BODY_COLUMNS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that are encrypted together, and of the tag behind them.
    const CHUNK: usize = 64 << 10;
    const TAG: usize = 16;

    fn sealed(identity: &Identity, content: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encrypt(&[identity.recipient()], &mut &*content, &mut out).unwrap();
        out
    }

    fn opened(identity: &Identity, sealed: &[u8]) -> Result<Vec<u8>, AgeError> {
        let mut out = Vec::new();
        decrypt(std::slice::from_ref(identity), &mut &*sealed, &mut out).map(|()| out)
    }

    #[test]
    fn files_of_every_length_come_back() {
        let identity = Identity::generate();
        for length in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 5] {
            let content: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let file = sealed(&identity, &content);
            assert!(file.starts_with(MAGIC));
            assert_eq!(opened(&identity, &file).unwrap(), content, "{length}");
        }
    }

    #[test]
    fn every_recipient_opens_and_nobody_else() {
        let [first, second, other] = [(); 3].map(|()| Identity::generate());
        let recipients = [first.recipient(), second.recipient()];
        let mut file = Vec::new();
        encrypt(&recipients, &mut &b"content"[..], &mut file).unwrap();
        assert_eq!(opened(&first, &file).unwrap(), b"content");
        assert_eq!(opened(&second, &file).unwrap(), b"content");
        assert!(matches!(opened(&other, &file), Err(AgeError::NoMatch)));
    }

    #[test]
    fn no_byte_may_change_and_none_be_cut() {
        let identity = Identity::generate();
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
    fn a_recipient_without_the_end_of_its_body_is_refused() {
        let identity = Identity::generate();
        for body in [String::new(), format!("{}\n", "A".repeat(64))] {
            let file = [MAGIC, format!("-> grease\n{body}--- mac\n").as_bytes()].concat();
            let error = opened(&identity, &file).unwrap_err();
            assert_eq!(error.to_string(), "not a valid age file: a recipient without the end of its body");
        }
    }

    #[test]
    fn a_header_without_end_is_refused() {
        let identity = Identity::generate();
        let stanza = format!("-> grease\n{}\n", "A".repeat(60));
        for line in [&stanza, "x"] {
            let endless = [MAGIC, line.repeat(100_000).as_bytes()].concat();
            let error = opened(&identity, &endless).unwrap_err();
            assert_eq!(error.to_string(), "not a valid age file: header is longer than 64 KiB");
        }
        // Several hundred recipients fit.
        let mut file = Vec::new();
        let recipients = vec![identity.recipient(); 500];
        encrypt(&recipients, &mut &b"content"[..], &mut file).unwrap();
        assert_eq!(opened(&identity, &file).unwrap(), b"content");
    }

    #[test]
    fn keys_are_read_as_they_are_written() {
        let identity = Identity::generate();
        let text = identity.to_text();
        let again = Identity::parse(&text).unwrap();
        assert_eq!(again.recipient(), identity.recipient());
        let recipient = identity.recipient().to_string();
        assert!(recipient.starts_with("age1") && recipient.len() == 62, "{recipient}");
        assert_eq!(Recipient::parse(&recipient).unwrap(), identity.recipient());
        for bad in ["", "age1", &recipient[..61], &text, &recipient.replace("age1", "agf1")] {
            assert!(Recipient::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(Identity::parse_file(&format!("# created\n\n{}\n", *text)).unwrap().len(), 1);
        assert!(Identity::parse_file("# nothing\n").is_err());
    }

    #[test]
    fn a_published_pair_of_keys_belongs_together() {
        // The example of age's own documentation.
        let identity =
            Identity::parse("AGE-SECRET-KEY-1GFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPQ4EGAEX")
                .unwrap();
        assert_eq!(
            identity.recipient().to_string(),
            "age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj"
        );
    }
}
