//! The head of a file: who may open it, and the proof that nobody changed that.

use std::io::BufRead;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use ichor_pki::primitive::{ChaChaKey, hkdf_sha256, hmac_sha256, x25519_agree, x25519_public};
use zeroize::Zeroizing;

use super::{AgeError, Identity, MAGIC, Recipient};

/// Larger heads are not read; ours has a hundred bytes a recipient.
const HEADER_MAX: usize = 1 << 20;
const COLUMNS: usize = 64;
const KIND: &str = "X25519";
const INFO: &[u8] = b"age-encryption.org/v1/X25519";

/// The key of a file.
type FileKey = Zeroizing<[u8; 16]>;

/// The head of a file for the recipients.
pub fn make(recipients: &[Recipient], file_key: &FileKey) -> Result<String, AgeError> {
    let mut text = String::from_utf8_lossy(MAGIC).into_owned();
    for recipient in recipients {
        let secret = Zeroizing::new(ichor_pki::random::bytes().map_err(|_| AgeError::Payload)?);
        let share = x25519_public(&secret)?;
        let key = wrapping(&*x25519_agree(&secret, &recipient.0)?, &share, &recipient.0)?;
        let mut body = file_key.to_vec();
        key.seal([0; 12], &mut body)?;
        text += &format!("-> {KIND} {}\n{}\n", BASE64.encode(share), BASE64.encode(body));
    }
    text += "---";
    let mac = BASE64.encode(proof(file_key, text.as_bytes()));
    Ok(text + " " + &mac + "\n")
}

fn wrapping(shared: &[u8; 32], share: &[u8; 32], recipient: &[u8; 32]) -> Result<ChaChaKey, AgeError> {
    Ok(ChaChaKey::new(&hkdf_sha256(shared, &[*share, *recipient].concat(), INFO))?)
}

fn proof(file_key: &FileKey, text: &[u8]) -> [u8; 32] {
    hmac_sha256(&*hkdf_sha256(&**file_key, &[], b"header"), text)
}

/// One of those a file is sealed for.
struct Stanza {
    arguments: Vec<String>,
    body: Vec<u8>,
}

/// The head of a file that was read.
pub struct Header {
    stanzas: Vec<Stanza>,
    /// What the proof is about.
    text: Vec<u8>,
    mac: Vec<u8>,
}

/// Reads a head and nothing behind it.
pub fn read(from: &mut impl BufRead) -> Result<Header, AgeError> {
    let mut lines = Lines { from, text: Vec::new() };
    if lines.next()? != MAGIC[..MAGIC.len() - 1] {
        return Err(AgeError::Header("it does not begin like one"));
    }
    let mut stanzas: Vec<Stanza> = Vec::new();
    loop {
        let line = lines.next()?;
        if let Some(mac) = line.strip_prefix(b"--- ") {
            let mac = BASE64.decode(mac).map_err(|_| AgeError::Header("its proof is no base64"))?;
            let covered = lines.text.len() - (line.len() + 1) + 3;
            lines.text.truncate(covered);
            if stanzas.is_empty() || mac.len() != 32 {
                return Err(AgeError::Header("it has no recipient or no proof"));
            }
            return Ok(Header { stanzas, text: lines.text, mac });
        }
        let words = line.strip_prefix(b"-> ").ok_or(AgeError::Header("a line belongs to nothing"))?;
        let good = |word: &[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_graphic);
        if !words.split(|byte| *byte == b' ').all(good) {
            return Err(AgeError::Header("a recipient has an empty or unreadable part"));
        }
        let words = String::from_utf8_lossy(words).into_owned();
        stanzas
            .push(Stanza { arguments: words.split(' ').map(str::to_owned).collect(), body: lines.body()? });
    }
}

/// Lines of a head, kept as they were.
struct Lines<'r, R> {
    from: &'r mut R,
    text: Vec<u8>,
}

impl<R: BufRead> Lines<'_, R> {
    fn next(&mut self) -> Result<Vec<u8>, AgeError> {
        use std::io::Read as _;
        let start = self.text.len();
        let limit = (HEADER_MAX - start.min(HEADER_MAX)) as u64;
        (&mut *self.from).take(limit).read_until(b'\n', &mut self.text)?;
        match self.text[start..].split_last() {
            Some((b'\n', line)) => Ok(line.to_vec()),
            _ => Err(AgeError::Header("it ends too early")),
        }
    }

    /// Full lines, and a shorter one at the end.
    fn body(&mut self) -> Result<Vec<u8>, AgeError> {
        let mut body = Vec::new();
        loop {
            let line = self.next()?;
            let part = BASE64.decode(&line).map_err(|_| AgeError::Header("a recipient is no base64"))?;
            body.extend(part);
            match line.len() {
                COLUMNS => {}
                ..COLUMNS => return Ok(body),
                _ => return Err(AgeError::Header("a line is too long")),
            }
        }
    }
}

impl Header {
    /// The key of the file, for the first identity that fits.
    pub fn open(&self, identities: &[Identity]) -> Result<FileKey, AgeError> {
        let mut found = None;
        // Every stanza is looked at: one that is broken makes the file a broken one.
        for stanza in self.stanzas.iter().filter(|stanza| stanza.arguments[0] == KIND) {
            for identity in identities {
                let key = stanza.open(identity)?;
                found = found.or(key);
            }
        }
        let key = found.ok_or(AgeError::NoMatch)?;
        if !ichor_pki::random::secrets_equal(&proof(&key, &self.text), &self.mac) {
            return Err(AgeError::Header("its proof does not fit"));
        }
        Ok(key)
    }
}

impl Stanza {
    fn open(&self, identity: &Identity) -> Result<Option<FileKey>, AgeError> {
        let bad = AgeError::Header("a recipient is malformed");
        let [_, share] = self.arguments.as_slice() else { return Err(bad) };
        let share = BASE64.decode(share).ok().and_then(|share| <[u8; 32]>::try_from(share).ok());
        let (Some(share), 32) = (share, self.body.len()) else { return Err(bad) };
        let shared = x25519_agree(&identity.0, &share).map_err(|_| bad)?;
        let key = wrapping(&shared, &share, &x25519_public(&identity.0)?)?;
        let mut body = Zeroizing::new(self.body.clone());
        let opened = key.open([0; 12], &mut body).ok();
        Ok(opened.and_then(|key| <[u8; 16]>::try_from(&*key).ok()).map(Zeroizing::new))
    }
}
