//! The DHCP message format (RFC 2131, options of RFC 2132 and RFC 3396). No I/O here.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

const FIXED: usize = 236;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// Servers and relays may drop what is shorter than a BOOTP message.
const LENGTH_MIN: usize = 300;
const FLAG_BROADCAST: u16 = 0x8000;

/// Option numbers.
pub mod option {
    #![allow(missing_docs)]
    pub const SUBNET_MASK: u8 = 1;
    pub const ROUTER: u8 = 3;
    pub const DNS: u8 = 6;
    pub const HOSTNAME: u8 = 12;
    pub const DOMAIN: u8 = 15;
    pub const MTU: u8 = 26;
    pub const NTP: u8 = 42;
    pub const REQUESTED_ADDRESS: u8 = 50;
    pub const LEASE_TIME: u8 = 51;
    pub const OVERLOAD: u8 = 52;
    pub const MESSAGE_TYPE: u8 = 53;
    pub const SERVER_ID: u8 = 54;
    pub const PARAMETER_LIST: u8 = 55;
    pub const MAX_SIZE: u8 = 57;
    pub const RENEWAL_TIME: u8 = 58;
    pub const REBINDING_TIME: u8 = 59;
    pub const CLIENT_ID: u8 = 61;
    pub const BOOT_FILE: u8 = 67;
    pub const DOMAIN_SEARCH: u8 = 119;
    pub const CLASSLESS_ROUTES: u8 = 121;
}

const PAD: u8 = 0;
const END: u8 = 255;

/// What a message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A client looks for servers.
    Discover,
    /// A server offers an address.
    Offer,
    /// A client asks for an address, or for more time with it.
    Request,
    /// A client refuses an address that is in use.
    Decline,
    /// A server grants.
    Ack,
    /// A server refuses.
    Nak,
    /// A client gives its address back.
    Release,
}

impl Kind {
    /// The number on the wire.
    pub fn number(self) -> u8 {
        match self {
            Self::Discover => 1,
            Self::Offer => 2,
            Self::Request => 3,
            Self::Decline => 4,
            Self::Ack => 5,
            Self::Nak => 6,
            Self::Release => 7,
        }
    }

    fn parse(number: u8) -> Option<Self> {
        [Self::Discover, Self::Offer, Self::Request, Self::Decline, Self::Ack, Self::Nak, Self::Release]
            .into_iter()
            .find(|kind| kind.number() == number)
    }
}

/// A DHCP message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Set in answers of servers.
    pub is_reply: bool,
    /// Number that ties answers to questions.
    pub transaction: u32,
    /// Seconds since the client began.
    pub seconds: u16,
    /// Answers must be broadcast: the client has no address yet.
    pub broadcast: bool,
    /// The client's address, when it has one and may use it.
    pub client: Ipv4Addr,
    /// "Your" address: the one given to the client.
    pub your: Ipv4Addr,
    /// Address of the next server.
    pub server: Ipv4Addr,
    /// Address of the relay.
    pub relay: Ipv4Addr,
    /// The client's ethernet address.
    pub hardware: [u8; 6],
    /// Options by number, parts of long ones joined.
    pub options: BTreeMap<u8, Vec<u8>>,
}

/// Why bytes are not a DHCP message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// Shorter than the fixed part.
    #[error("message of {0} bytes is too short")]
    Short(usize),
    /// The mark before the options is missing.
    #[error("not a dhcp message")]
    Cookie,
    /// Not for ethernet.
    #[error("hardware address of {0} bytes")]
    Hardware(u8),
    /// An option runs over the end.
    #[error("option {0} is cut off")]
    Option(u8),
}

impl Message {
    /// A message of a client without any options but its type.
    pub fn request(kind: Kind, transaction: u32, hardware: [u8; 6]) -> Self {
        Self {
            is_reply: false,
            transaction,
            seconds: 0,
            broadcast: false,
            client: Ipv4Addr::UNSPECIFIED,
            your: Ipv4Addr::UNSPECIFIED,
            server: Ipv4Addr::UNSPECIFIED,
            relay: Ipv4Addr::UNSPECIFIED,
            hardware,
            options: BTreeMap::from([(option::MESSAGE_TYPE, vec![kind.number()])]),
        }
    }

    /// What the message says; `None` when it has no (known) type.
    pub fn kind(&self) -> Option<Kind> {
        Kind::parse(*self.options.get(&option::MESSAGE_TYPE)?.first()?)
    }

    /// A single address option.
    pub fn address(&self, number: u8) -> Option<Ipv4Addr> {
        self.addresses(number).into_iter().next()
    }

    /// A list of addresses; a trailing part is ignored.
    pub fn addresses(&self, number: u8) -> Vec<Ipv4Addr> {
        let bytes = self.options.get(&number).map_or(&[][..], Vec::as_slice);
        bytes.as_chunks::<4>().0.iter().map(|b| Ipv4Addr::from(*b)).collect()
    }

    /// A 32-bit option.
    pub fn u32(&self, number: u8) -> Option<u32> {
        let bytes = self.options.get(&number)?.as_slice().try_into().ok()?;
        Some(u32::from_be_bytes(bytes))
    }

    /// A 16-bit option.
    pub fn u16(&self, number: u8) -> Option<u16> {
        let bytes = self.options.get(&number)?.as_slice().try_into().ok()?;
        Some(u16::from_be_bytes(bytes))
    }

    /// A text option, without trailing NULs; `None` when empty or not printable text.
    pub fn text(&self, number: u8) -> Option<String> {
        let text = std::str::from_utf8(self.options.get(&number)?).ok()?;
        let text = text.trim_end_matches('\0');
        let clean = !text.is_empty() && !text.chars().any(char::is_control);
        clean.then(|| text.to_owned())
    }

    /// Writes the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(LENGTH_MIN);
        out.extend_from_slice(&[if self.is_reply { 2 } else { 1 }, 1, 6, 0]);
        out.extend_from_slice(&self.transaction.to_be_bytes());
        out.extend_from_slice(&self.seconds.to_be_bytes());
        out.extend_from_slice(&if self.broadcast { FLAG_BROADCAST } else { 0 }.to_be_bytes());
        for address in [self.client, self.your, self.server, self.relay] {
            out.extend_from_slice(&address.octets());
        }
        out.extend_from_slice(&self.hardware);
        out.resize(FIXED, 0);
        out.extend_from_slice(&COOKIE);

        // The type first, as readers of packet captures (and some servers) like it.
        let first = self.options.get_key_value(&option::MESSAGE_TYPE);
        let others = self.options.iter().filter(|(n, _)| **n != option::MESSAGE_TYPE);
        for (number, value) in first.into_iter().chain(others) {
            if value.is_empty() {
                out.extend_from_slice(&[*number, 0]);
            }
            for part in value.chunks(255) {
                out.extend_from_slice(&[*number, part.len() as u8]);
                out.extend_from_slice(part);
            }
        }
        out.push(END);
        out.resize(out.len().max(LENGTH_MIN), PAD);
        out
    }

    /// Reads a message.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadMessage> {
        if bytes.len() < FIXED + COOKIE.len() {
            return Err(BadMessage::Short(bytes.len()));
        }
        if bytes[FIXED..FIXED + 4] != COOKIE {
            return Err(BadMessage::Cookie);
        }
        if bytes[1] != 1 || bytes[2] != 6 {
            return Err(BadMessage::Hardware(bytes[2]));
        }
        let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let ip_at = |at: usize| Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
        let mut hardware = [0; 6];
        hardware.copy_from_slice(&bytes[28..34]);

        let mut options = BTreeMap::new();
        read_options(&bytes[FIXED + 4..], &mut options)?;
        // The file name (bit 0) and server name (bit 1) fields may hold more options.
        let overload = options.get(&option::OVERLOAD).and_then(|v| v.first().copied()).unwrap_or(0);
        if overload & 1 != 0 {
            read_options(&bytes[108..FIXED], &mut options)?;
        }
        if overload & 2 != 0 {
            read_options(&bytes[44..108], &mut options)?;
        }

        Ok(Self {
            is_reply: bytes[0] == 2,
            transaction: u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            seconds: u16_at(8),
            broadcast: u16_at(10) & FLAG_BROADCAST != 0,
            client: ip_at(12),
            your: ip_at(16),
            server: ip_at(20),
            relay: ip_at(24),
            hardware,
            options,
        })
    }
}

fn read_options(mut rest: &[u8], into: &mut BTreeMap<u8, Vec<u8>>) -> Result<(), BadMessage> {
    while let Some((&number, after)) = rest.split_first() {
        match number {
            PAD => rest = after,
            END => return Ok(()),
            _ => {
                let cut = BadMessage::Option(number);
                let (&length, after) = after.split_first().ok_or(cut)?;
                let value = after.get(..usize::from(length)).ok_or(cut)?;
                into.entry(number).or_default().extend_from_slice(value);
                rest = &after[usize::from(length)..];
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Message {
        let mut message = Message::request(Kind::Request, 0xdead_beef, [2, 0, 0, 0, 0, 1]);
        message.seconds = 7;
        message.broadcast = true;
        message.client = Ipv4Addr::new(10, 0, 0, 2);
        message.options.insert(option::PARAMETER_LIST, vec![1, 3, 6]);
        message.options.insert(option::CLASSLESS_ROUTES, vec![7; 600]);
        message
    }

    #[test]
    fn a_message_reads_back_with_long_options_joined() {
        let message = sample();
        assert_eq!(Message::decode(&message.encode()), Ok(message));
    }

    #[test]
    fn options_in_the_name_fields_are_found() {
        let mut message = sample();
        message.options.insert(option::OVERLOAD, vec![3]);
        let mut bytes = message.encode();
        bytes[44..48].copy_from_slice(&[option::MTU, 2, 5, 0xdc]);
        bytes[48] = END;
        bytes[108..113].copy_from_slice(&[option::HOSTNAME, 2, b'a', 0, END]);
        let read = Message::decode(&bytes).unwrap();
        assert_eq!(read.u16(option::MTU), Some(1500));
        assert_eq!(read.text(option::HOSTNAME).as_deref(), Some("a"));
    }

    #[test]
    fn every_cut_is_an_error_or_a_shorter_message_and_never_a_panic() {
        let bytes = sample().encode();
        for cut in 0..bytes.len() {
            let read = Message::decode(&bytes[..cut]);
            assert!(cut >= FIXED + 4 || read.is_err(), "cut at {cut}");
        }
        let mut cut = bytes[..FIXED + 4].to_vec();
        cut.extend_from_slice(&[12, 200, 1]);
        assert_eq!(Message::decode(&cut), Err(BadMessage::Option(12)));
    }
}
