//! The secrets of a cluster, and the search for them: as they are, in base64, in base64 of base64.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};

use super::sweep::Found;

/// The shortest thing that is looked for; shorter ones are found by chance.
const SHORTEST: usize = 12;
/// The first bytes, by which places worth a closer look are found.
const HEAD: usize = 8;
/// Base64 inside of base64 inside of base64.
const DEPTH_MAX: usize = 4;
/// The bytes of a line of PEM.
const LINE_BYTES: usize = 48;
/// The shortest run of characters that is decoded.
const RUN_MIN: usize = 16;

pub(super) fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Where in a key its secret is. Keys of elliptic curves end with the public key, which every certificate has; of others the
/// first bytes only say of what kind they are.
fn secret_part(der: &[u8]) -> Range<usize> {
    // Version 1 and an octet string: the number that is the key.
    const BEFORE: [u8; 4] = [2, 1, 1, 4];
    let number = der.windows(BEFORE.len()).position(|bytes| bytes == BEFORE).map(|at| at + BEFORE.len());
    let curve = |at: usize| {
        let length = usize::from(*der.get(at)?);
        matches!(length, 32 | 48 | 66)
            .then_some(at + 1..at + 1 + length)
            .filter(|range| range.end <= der.len())
    };
    number.and_then(curve).unwrap_or(der.len() / 2..der.len())
}

/// Secrets by the bytes that give them away.
pub(super) struct Needles {
    /// Which two bytes a secret begins with, so that most places are passed over at once.
    begins: Vec<bool>,
    by_head: HashMap<[u8; HEAD], Vec<(Vec<u8>, String)>>,
    names: BTreeSet<String>,
    found: RefCell<BTreeSet<String>>,
}

impl Default for Needles {
    fn default() -> Self {
        let begins = vec![false; 1 << 16];
        Self { begins, by_head: HashMap::new(), names: BTreeSet::new(), found: RefCell::default() }
    }
}

fn pair(bytes: &[u8]) -> usize {
    usize::from(bytes[0]) << 8 | usize::from(bytes[1])
}

impl Needles {
    /// One more, as bytes or text.
    pub(super) fn add(&mut self, name: &str, bytes: &[u8]) {
        let bytes = bytes.trim_ascii();
        assert!(bytes.len() >= SHORTEST, "{name} is too short to be found");
        let head = bytes[..HEAD].try_into().unwrap();
        self.begins[pair(bytes)] = true;
        let entry: &mut Vec<_> = self.by_head.entry(head).or_default();
        if entry.iter().all(|(known, _)| known != bytes) {
            entry.push((bytes.to_vec(), name.to_owned()));
            self.names.insert(name.to_owned());
        }
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    pub(super) fn names(&self) -> &BTreeSet<String> {
        &self.names
    }

    /// Every private key in an answer, wherever it is in it.
    pub(super) fn private_keys(&mut self, found: &Found) {
        for bytes in layers(&found.bytes) {
            let text = String::from_utf8_lossy(&bytes);
            for block in text.split("-----BEGIN ").skip(1) {
                let Some((kind, rest)) = block.split_once("-----") else { continue };
                let Some((body, _)) = rest.split_once("-----END ") else { continue };
                if kind.ends_with("PRIVATE KEY") {
                    self.key(kind, body);
                }
            }
        }
    }

    /// A key by its numbers, and by every line of its text.
    fn key(&mut self, kind: &str, body: &str) {
        // Text inside of JSON has its newlines spelled out.
        let lines: Vec<String> = body
            .replace("\\n", "\n")
            .lines()
            .map(|line| line.trim().to_owned())
            .filter(|line| !line.is_empty())
            .collect();
        let Ok(der) = STANDARD.decode(lines.concat()) else { return };
        let digest: String =
            ichor_pki::sha256(&der).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        let name = format!("{} {digest}", kind.to_lowercase());
        let secret = secret_part(&der);
        self.add(&name, &der[secret.clone()]);
        for (number, line) in lines.iter().enumerate() {
            // A line is 64 characters for 48 bytes; where it has enough of the secret, that is looked for as text.
            let first = number * LINE_BYTES;
            let from = secret.start.max(first) - first;
            let to = secret.end.min(first + line.len() / 4 * 3).saturating_sub(first);
            let (from, to) = (from.div_ceil(3) * 4, to / 3 * 4);
            if to >= from + 16 {
                self.add(&name, &line.as_bytes()[from..to]);
            }
        }
    }

    /// The tokens and keys of a machine's configuration.
    pub(super) fn configuration(&mut self, text: &str) {
        let mut section = "";
        for line in text.lines() {
            if let Some(name) = line.strip_suffix(':').filter(|name| !name.starts_with([' ', '#'])) {
                section = if name == "machine" { "machine" } else { "cluster" };
            }
            let Some((key, value)) = line.trim().split_once(": ") else { continue };
            let value = value.split(" #").next().unwrap_or_default().trim().trim_matches('"');
            match key {
                // The first half of a bootstrap token is its name.
                "token" if section == "cluster" => {
                    self.add("bootstrap token", value.split('.').next_back().unwrap().as_bytes());
                    self.add("bootstrap token, whole", value.as_bytes());
                }
                "token" => self.add("token of trustd", value.as_bytes()),
                "secret" if section == "cluster" => self.add("key of discovery", value.as_bytes()),
                "secretboxEncryptionSecret" => self.both("secretbox key", value),
                "aescbcEncryptionSecret" => self.both("AES-CBC key", value),
                "key" => {
                    let pem = STANDARD.decode(value).unwrap_or_default();
                    self.private_keys(&Found { name: String::new(), bytes: pem });
                }
                _ => {}
            }
        }
    }

    /// A key as it is written, and what it stands for.
    fn both(&mut self, name: &str, text: &str) {
        self.add(name, text.as_bytes());
        self.add(&format!("{name}, decoded"), &STANDARD.decode(text).unwrap());
    }

    /// The names of the secrets in an answer.
    pub(super) fn search(&self, answer: &Found) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for bytes in layers(&answer.bytes) {
            for at in 0..bytes.len().saturating_sub(HEAD) {
                if !self.begins[pair(&bytes[at..])] {
                    continue;
                }
                let head: [u8; HEAD] = bytes[at..at + HEAD].try_into().unwrap();
                for (needle, name) in self.by_head.get(&head).into_iter().flatten() {
                    if bytes[at..].starts_with(needle) {
                        found.insert(name.clone());
                    }
                }
            }
        }
        self.found.borrow_mut().extend(found.iter().cloned());
        found
    }

    /// Those that no search has found so far.
    pub(super) fn never_found(&self) -> Vec<String> {
        self.names.difference(&self.found.borrow()).cloned().collect()
    }
}

/// The bytes themselves, and everything in them that is base64, and everything in that.
fn layers(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut all = vec![bytes.to_vec()];
    let mut level = vec![bytes.to_vec()];
    for _ in 0..DEPTH_MAX {
        let mut next = Vec::new();
        for bytes in &level {
            for run in runs(bytes) {
                // The length of a text in protobuf may look like its first character.
                next.extend((0..4).filter_map(|skip| decode(run.get(skip..)?)));
            }
        }
        all.extend(next.iter().cloned());
        level = next;
    }
    all
}

/// Runs of characters that may be base64.
fn runs(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/-_=".contains(byte);
    bytes.split(move |byte| !is_base64(byte)).filter(|run| run.len() >= RUN_MIN)
}

/// What a run stands for, if that is long enough to hold a secret.
fn decode(run: &[u8]) -> Option<Vec<u8>> {
    let plain: Vec<u8> = run.iter().copied().take_while(|byte| *byte != b'=').collect();
    let whole = &plain[..plain.len() - usize::from(plain.len() % 4 == 1)];
    let decoded = STANDARD_NO_PAD.decode(whole).or_else(|_| URL_SAFE_NO_PAD.decode(whole)).ok();
    // The last characters of a run that was cut may not be a whole byte.
    let decoded = decoded.or_else(|| STANDARD_NO_PAD.decode(&whole[..whole.len() / 4 * 4]).ok());
    decoded.filter(|bytes| bytes.len() >= SHORTEST)
}
