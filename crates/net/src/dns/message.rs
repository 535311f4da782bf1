//! As much of the DNS wire format (RFC 1035, RFC 6891) as a forwarder needs: the question, result codes and
//! times to live. Records pass through as they are. No I/O here.

/// What a UDP client takes when it does not say.
const PLAIN_SIZE: usize = 512;
/// What we take and send at most.
pub const SIZE_MAX: usize = 4096;
const HEADER: usize = 12;
const FLAG_RESPONSE: u8 = 0x80;
const FLAG_AUTHORITATIVE: u8 = 0x04;
const FLAG_TRUNCATED: u8 = 0x02;
const FLAG_RECURSION_DESIRED: u8 = 0x01;
const FLAG_RECURSION_AVAILABLE: u8 = 0x80;
const TYPE_A: u16 = 1;
const TYPE_SOA: u16 = 6;
const TYPE_AAAA: u16 = 28;
const TYPE_OPT: u16 = 41;
/// The "DNSSEC answers please" bit of an OPT record's TTL.
const DNSSEC_OK: u32 = 0x8000;
/// A name of 255 bytes has no more labels; pointers only lead back.
const LABELS_MAX: usize = 128;
/// Records of one message that are looked at; more do not fit anyway.
const RECORDS_MAX: usize = 512;

/// Result codes.
pub mod code {
    #![allow(missing_docs)]
    pub const NO_ERROR: u8 = 0;
    pub const FORMAT_ERROR: u8 = 1;
    pub const SERVER_FAILURE: u8 = 2;
    pub const NO_SUCH_NAME: u8 = 3;
    pub const NOT_IMPLEMENTED: u8 = 4;
    pub const REFUSED: u8 = 5;
}

/// What answers are remembered by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    /// The question as on the wire, letters in lower case.
    question: Box<[u8]>,
    /// The client speaks EDNS, and wants DNSSEC records.
    edns: bool,
    dnssec: bool,
}

/// A question of a client.
#[derive(Debug, Clone)]
pub struct Query<'a> {
    bytes: &'a [u8],
    question_end: usize,
    /// What the answer is remembered by.
    pub key: Key,
    /// The longest answer the client takes over UDP.
    pub size: usize,
}

/// Bytes that are not a question we can answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadQuery {
    /// Not worth an answer: too short, or itself an answer.
    Ignore,
    /// Answer with this code.
    Code(u8),
}

impl<'a> Query<'a> {
    /// Reads a question.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BadQuery> {
        if bytes.len() < HEADER || bytes[2] & FLAG_RESPONSE != 0 {
            return Err(BadQuery::Ignore);
        }
        if (bytes[2] >> 3) & 0xf != 0 {
            return Err(BadQuery::Code(code::NOT_IMPLEMENTED));
        }
        let malformed = BadQuery::Code(code::FORMAT_ERROR);
        if count(bytes, 4) != 1 {
            return Err(malformed);
        }
        let name_end = skip_name(bytes, HEADER).ok_or(malformed)?;
        let question_end = name_end + 4;
        let question = bytes.get(HEADER..question_end).ok_or(malformed)?;
        let (mut edns, mut dnssec, mut size) = (false, false, PLAIN_SIZE);
        for record in Records::new(bytes, question_end) {
            if record.kind == TYPE_OPT {
                edns = true;
                dnssec = record.ttl & DNSSEC_OK != 0;
                size = usize::from(record.class).clamp(PLAIN_SIZE, SIZE_MAX);
            }
        }
        let question = question.to_ascii_lowercase().into();
        Ok(Self { bytes, question_end, key: Key { question, edns, dnssec }, size })
    }

    /// The question as it came, for an upstream, under another number.
    pub fn with_id(&self, id: u16) -> Vec<u8> {
        let mut bytes = self.bytes.to_vec();
        bytes[..2].copy_from_slice(&id.to_be_bytes());
        bytes
    }

    /// True when `response` answers this question under the number `id`.
    pub fn is_answered_by(&self, response: &[u8], id: u16) -> bool {
        let question = response.get(HEADER..self.question_end);
        response.len() >= HEADER
            && response[..2] == id.to_be_bytes()
            && response[2] & FLAG_RESPONSE != 0
            && count(response, 4) == 1
            && question.is_some_and(|q| q.eq_ignore_ascii_case(&self.bytes[HEADER..self.question_end]))
    }

    /// Turns an answer to the same question into one for this client: its number, its spelling.
    pub fn adopt(&self, response: &mut [u8]) {
        response[..2].copy_from_slice(&self.bytes[..2]);
        if let Some(question) = response.get_mut(HEADER..self.question_end) {
            question.copy_from_slice(&self.bytes[HEADER..self.question_end]);
        }
        response[2] = response[2] & !FLAG_RECURSION_DESIRED | self.bytes[2] & FLAG_RECURSION_DESIRED;
    }

    /// The name in lower case and the record type, when the question is for addresses on the Internet.
    pub fn asks(&self) -> Option<(String, u16)> {
        let question = &self.key.question;
        let (name, rest) = question.split_at(question.len().checked_sub(4)?);
        let (kind, class) = (u16::from_be_bytes([rest[0], rest[1]]), [rest[2], rest[3]]);
        if class != [0, 1] || !matches!(kind, TYPE_A | TYPE_AAAA) {
            return None;
        }
        let mut text = String::new();
        let mut at = 0;
        while let Some(length) = name.get(at).filter(|length| **length != 0) {
            let label = name.get(at + 1..at + 1 + usize::from(*length))?;
            if !text.is_empty() {
                text.push('.');
            }
            text.push_str(std::str::from_utf8(label).ok()?);
            at += 1 + usize::from(*length);
        }
        Some((text, kind))
    }

    /// An answer of our own with these addresses; `None` when none of them is of the family asked for.
    pub fn answer(&self, kind: u16, addresses: &[std::net::IpAddr], ttl: u32) -> Option<Vec<u8>> {
        let mut records = Vec::new();
        let mut number = 0_u16;
        for address in addresses.iter().take(RECORDS_MAX / 8) {
            let bytes = match address {
                std::net::IpAddr::V4(v4) if kind == TYPE_A => v4.octets().to_vec(),
                std::net::IpAddr::V6(v6) if kind == TYPE_AAAA => v6.octets().to_vec(),
                _ => continue,
            };
            // The name is the one of the question.
            records.extend_from_slice(&[0xc0, HEADER as u8]);
            records.extend_from_slice(&kind.to_be_bytes());
            records.extend_from_slice(&[0, 1]);
            records.extend_from_slice(&ttl.to_be_bytes());
            records.extend_from_slice(&[0, bytes.len() as u8]);
            records.extend_from_slice(&bytes);
            number += 1;
        }
        if number == 0 {
            return None;
        }
        let mut out = bare(&self.bytes[..self.question_end], 1, code::NO_ERROR, FLAG_AUTHORITATIVE);
        out[6..8].copy_from_slice(&number.to_be_bytes());
        out.extend_from_slice(&records);
        Some(out)
    }

    /// The answer as it may be sent: over UDP one that is too long is cut to nothing.
    pub fn fit(&self, response: Vec<u8>, over_udp: bool) -> Vec<u8> {
        if over_udp && response.len() > self.size { self.truncated() } else { response }
    }

    /// An answer without records.
    pub fn refuse(&self, code: u8) -> Vec<u8> {
        bare(&self.bytes[..self.question_end], 1, code, 0)
    }

    /// An answer that tells the client to ask again over TCP.
    pub fn truncated(&self) -> Vec<u8> {
        bare(&self.bytes[..self.question_end], 1, code::NO_ERROR, FLAG_TRUNCATED)
    }
}

/// An answer to bytes that are not a question.
pub fn refuse_unread(bytes: &[u8], code: u8) -> Option<Vec<u8>> {
    Some(bare(bytes.get(..HEADER)?, 0, code, 0))
}

fn bare(head: &[u8], questions: u16, code: u8, flags: u8) -> Vec<u8> {
    let mut out = head.to_vec();
    out[2] = FLAG_RESPONSE | (head[2] & (0x78 | FLAG_RECURSION_DESIRED)) | flags;
    out[3] = FLAG_RECURSION_AVAILABLE | code;
    out[4..6].copy_from_slice(&questions.to_be_bytes());
    out[6..HEADER].fill(0);
    out
}

/// The result code of an answer.
pub fn result_code(response: &[u8]) -> u8 {
    response.get(3).map_or(code::FORMAT_ERROR, |byte| byte & 0xf)
}

/// True when the answer was cut to fit.
pub fn is_truncated(response: &[u8]) -> bool {
    response.get(2).is_some_and(|byte| byte & FLAG_TRUNCATED != 0)
}

/// How long an answer may be kept, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// There are records; this is the shortest time to live.
    Positive(u32),
    /// There is no such name or record.
    Negative,
    /// Not at all.
    No,
}

/// Says how long an answer may be kept.
pub fn keep(response: &[u8]) -> Keep {
    if is_truncated(response) {
        return Keep::No;
    }
    let Some(start) = skip_name(response, HEADER).map(|end| end + 4) else { return Keep::No };
    let answers = count(response, 6);
    match result_code(response) {
        code::NO_ERROR if answers > 0 => {
            let records = Records::new(response, start).filter(|r| r.kind != TYPE_OPT);
            records.map(|r| r.ttl).min().map_or(Keep::No, Keep::Positive)
        }
        code::NO_ERROR | code::NO_SUCH_NAME => {
            let soa = Records::new(response, start).any(|r| r.kind == TYPE_SOA);
            if soa || result_code(response) == code::NO_SUCH_NAME { Keep::Negative } else { Keep::No }
        }
        _ => Keep::No,
    }
}

/// Takes seconds off every time to live, down to nothing.
pub fn age(response: &mut [u8], seconds: u32) {
    let Some(start) = skip_name(response, HEADER).map(|end| end + 4) else { return };
    let places: Vec<_> = Records::new(response, start)
        .filter(|record| record.kind != TYPE_OPT)
        .map(|record| (record.ttl_at, record.ttl.saturating_sub(seconds)))
        .collect();
    for (at, ttl) in places {
        response[at..at + 4].copy_from_slice(&ttl.to_be_bytes());
    }
}

struct Record {
    kind: u16,
    class: u16,
    ttl: u32,
    ttl_at: usize,
}

/// Walks all records of a message; ends at the first that does not fit.
struct Records<'a> {
    bytes: &'a [u8],
    at: usize,
    left: usize,
}

impl<'a> Records<'a> {
    fn new(bytes: &'a [u8], at: usize) -> Self {
        let total = [6, 8, 10].iter().map(|place| usize::from(count(bytes, *place))).sum::<usize>();
        Self { bytes, at, left: total.min(RECORDS_MAX) }
    }
}

impl Iterator for Records<'_> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        self.left = self.left.checked_sub(1)?;
        let fixed = skip_name(self.bytes, self.at)?;
        let field = self.bytes.get(fixed..fixed + 10)?;
        let u16_at = |at: usize| u16::from_be_bytes([field[at], field[at + 1]]);
        self.at = fixed + 10 + usize::from(u16_at(8));
        if self.at > self.bytes.len() {
            return None;
        }
        Some(Record {
            kind: u16_at(0),
            class: u16_at(2),
            ttl: u32::from_be_bytes([field[4], field[5], field[6], field[7]]),
            ttl_at: fixed + 4,
        })
    }
}

fn count(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
}

/// Where a name ends.
fn skip_name(bytes: &[u8], mut at: usize) -> Option<usize> {
    for _ in 0..LABELS_MAX {
        match *bytes.get(at)? {
            0 => return Some(at + 1),
            length @ 1..64 => at += 1 + usize::from(length),
            192..=255 => return bytes.get(at + 1).map(|_| at + 2),
            64..192 => return None,
        }
    }
    None
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A question for the A record of a name.
    pub(crate) fn question(id: u16, name: &str) -> Vec<u8> {
        let mut bytes = id.to_be_bytes().to_vec();
        bytes.extend_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        for label in name.split('.') {
            bytes.push(label.len() as u8);
            bytes.extend_from_slice(label.as_bytes());
        }
        bytes.extend_from_slice(&[0, 0, 1, 0, 1]);
        bytes
    }

    /// An answer with one address.
    pub(crate) fn answer(question: &[u8], ttl: u32, address: [u8; 4]) -> Vec<u8> {
        let mut bytes = question.to_vec();
        bytes[2] |= FLAG_RESPONSE;
        bytes[7] = 1;
        bytes.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1]);
        bytes.extend_from_slice(&ttl.to_be_bytes());
        bytes.extend_from_slice(&[0, 4]);
        bytes.extend_from_slice(&address);
        bytes
    }

    #[test]
    fn spelling_does_not_matter_and_is_given_back() {
        let lower = question(1, "example.org");
        let mixed = question(2, "eXample.ORG");
        let first = Query::parse(&lower).unwrap();
        let second = Query::parse(&mixed).unwrap();
        assert_eq!(first.key, second.key);
        let mut response = answer(&lower, 60, [1, 2, 3, 4]);
        assert!(second.is_answered_by(&response, 1));
        assert!(!second.is_answered_by(&response, 2));
        second.adopt(&mut response);
        assert_eq!(response[..2], [0, 2]);
        assert!(response.windows(7).any(|w| w == b"eXample"));
    }

    #[test]
    fn times_to_live_are_found_and_aged() {
        let mut response = answer(&question(1, "example.org"), 300, [1, 2, 3, 4]);
        assert_eq!(keep(&response), Keep::Positive(300));
        age(&mut response, 100);
        assert_eq!(keep(&response), Keep::Positive(200));
        age(&mut response, 1000);
        assert_eq!(keep(&response), Keep::Positive(0));
    }

    #[test]
    fn failures_are_not_kept_and_missing_names_are() {
        let mut response = answer(&question(1, "example.org"), 300, [1, 2, 3, 4]);
        response[3] = code::SERVER_FAILURE;
        assert_eq!(keep(&response), Keep::No);
        response[3] = code::NO_SUCH_NAME;
        assert_eq!(keep(&response), Keep::Negative);
        response[3] = 0;
        response[2] |= FLAG_TRUNCATED;
        assert_eq!(keep(&response), Keep::No);
    }

    #[test]
    fn the_clients_size_comes_from_its_options() {
        let mut bytes = question(1, "example.org");
        assert_eq!(Query::parse(&bytes).unwrap().size, 512);
        bytes[11] = 1;
        bytes.extend_from_slice(&[0, 0, 41, 0x04, 0xd0, 0, 0, 0x80, 0, 0, 0]);
        let query = Query::parse(&bytes).unwrap();
        assert_eq!(query.size, 1232);
        assert!(query.key.edns && query.key.dnssec);
    }

    #[test]
    fn nonsense_is_refused_or_ignored() {
        let good = question(1, "example.org");
        assert_eq!(Query::parse(&good[..11]).unwrap_err(), BadQuery::Ignore);
        let response = answer(&good, 1, [0; 4]);
        assert_eq!(Query::parse(&response).unwrap_err(), BadQuery::Ignore);
        for cut in HEADER..good.len() {
            assert_eq!(Query::parse(&good[..cut]).unwrap_err(), BadQuery::Code(code::FORMAT_ERROR));
        }
        let mut update = good.clone();
        update[2] = 5 << 3;
        assert_eq!(Query::parse(&update).unwrap_err(), BadQuery::Code(code::NOT_IMPLEMENTED));
        for cut in 0..response.len() {
            let _ = keep(&response[..cut]);
            age(&mut response[..cut].to_vec(), 1);
        }
        let refusal = Query::parse(&good).unwrap().refuse(code::SERVER_FAILURE);
        assert_eq!((result_code(&refusal), refusal.len()), (code::SERVER_FAILURE, good.len()));
    }
}
