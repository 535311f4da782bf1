//! The DHCPv6 message format (RFC 8415 §7 to §21). No I/O here.

use std::net::Ipv6Addr;

/// Option numbers.
pub mod option {
    #![allow(missing_docs)]
    pub const CLIENT_ID: u16 = 1;
    pub const SERVER_ID: u16 = 2;
    pub const IA_NA: u16 = 3;
    pub const IA_ADDRESS: u16 = 5;
    pub const OPTION_REQUEST: u16 = 6;
    pub const PREFERENCE: u16 = 7;
    pub const ELAPSED_TIME: u16 = 8;
    pub const STATUS_CODE: u16 = 13;
    pub const RAPID_COMMIT: u16 = 14;
    pub const DNS: u16 = 23;
    pub const DOMAIN_LIST: u16 = 24;
    pub const CLIENT_FQDN: u16 = 39;
    pub const NTP: u16 = 56;
}

/// Options of one message that are looked at; a datagram that holds more is noise.
const OPTIONS_MAX: usize = 256;

/// What a message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A client looks for servers.
    Solicit = 1,
    /// A server offers.
    Advertise = 2,
    /// A client takes an offer.
    Request = 3,
    /// A client asks its server for more time.
    Renew = 5,
    /// A client asks any server for more time.
    Rebind = 6,
    /// A server grants or refuses.
    Reply = 7,
    /// A client refuses an address that is in use.
    Decline = 9,
}

impl Kind {
    fn parse(number: u8) -> Option<Self> {
        [Self::Solicit, Self::Advertise, Self::Request, Self::Renew, Self::Rebind, Self::Reply, Self::Decline]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }
}

/// A list of options, in the order of the wire.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options(Vec<(u16, Vec<u8>)>);

impl Options {
    /// Reads options; `None` when one runs over the end.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let number = u16_at(bytes, 0)?;
            let length = usize::from(u16_at(bytes, 2)?);
            let value = bytes.get(4..4 + length)?;
            if found.len() < OPTIONS_MAX {
                found.push((number, value.to_vec()));
            }
            bytes = &bytes[4 + length..];
        }
        Some(Self(found))
    }

    /// Writes options.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for (number, value) in &self.0 {
            // Nothing we put in comes near the limit.
            let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
            out.extend_from_slice(&number.to_be_bytes());
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(&value[..usize::from(length)]);
        }
    }

    /// Appends one.
    pub fn push(&mut self, number: u16, value: Vec<u8>) {
        self.0.push((number, value));
    }

    /// The first of a number.
    pub fn get(&self, number: u16) -> Option<&[u8]> {
        self.all(number).next()
    }

    /// All of a number.
    pub fn all(&self, number: u16) -> impl Iterator<Item = &[u8]> {
        self.0.iter().filter(move |(n, _)| *n == number).map(|(_, value)| value.as_slice())
    }
}

/// A DHCPv6 message between client and server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// What it says.
    pub kind: Kind,
    /// Number that ties answers to questions; 24 bits.
    pub transaction: u32,
    /// The rest.
    pub options: Options,
}

impl Message {
    /// Reads a message; `None` for what is not one, or not between client and server.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<4>()?;
        let kind = Kind::parse(head[0])?;
        let transaction = u32::from_be_bytes([0, head[1], head[2], head[3]]);
        Some(Self { kind, transaction, options: Options::decode(rest)? })
    }

    /// Writes the message.
    pub fn encode(&self) -> Vec<u8> {
        let number = self.transaction.to_be_bytes();
        let mut out = vec![self.kind as u8, number[1], number[2], number[3]];
        self.options.encode(&mut out);
        out
    }

    /// The status a server gives for the whole message, when it is not success.
    pub fn failure(&self) -> Option<Status> {
        status(&self.options)
    }
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// RFC 8415 §21.13: 1 unspecified, 2 no addresses, 3 no binding, 4 not on link, 5 use multicast.
    pub code: u16,
    /// The server's words.
    pub text: String,
}

/// The refusal among these options; `None` for success or none.
pub(super) fn status(options: &Options) -> Option<Status> {
    let value = options.get(option::STATUS_CODE)?;
    let code = u16_at(value, 0).filter(|code| *code != 0)?;
    let text: String = String::from_utf8_lossy(&value[2..]).chars().filter(|c| !c.is_control()).collect();
    Some(Status { code, text })
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(super) fn ip_at(bytes: &[u8], at: usize) -> Option<Ipv6Addr> {
    let octets: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
    Some(Ipv6Addr::from(octets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_reads_back_and_every_cut_is_refused() {
        let mut message =
            Message { kind: Kind::Solicit, transaction: 0x00ab_cdef, options: Options::default() };
        message.options.push(option::CLIENT_ID, vec![0, 3, 0, 1, 2, 0, 0, 0, 0, 1]);
        message.options.push(option::RAPID_COMMIT, Vec::new());
        let bytes = message.encode();
        assert_eq!(Message::decode(&bytes), Some(message));
        for cut in 0..bytes.len() {
            let read = Message::decode(&bytes[..cut]);
            assert!(read.is_none() || cut == 4 || cut == 18, "cut at {cut}: {read:?}");
        }
        assert_eq!(Message::decode(&[12, 0, 0, 1]), None, "a relay's message");
    }

    #[test]
    fn a_refusal_keeps_the_servers_words() {
        let mut message = Message { kind: Kind::Reply, transaction: 1, options: Options::default() };
        assert_eq!(message.failure(), None);
        message.options.push(option::STATUS_CODE, b"\x00\x02all\x07 gone".to_vec());
        assert_eq!(message.failure(), Some(Status { code: 2, text: "all gone".into() }));
    }
}
