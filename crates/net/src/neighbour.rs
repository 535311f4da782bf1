//! Who has which hardware address, and behind which machine a hardware address is.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::error::NetError;
use crate::link::refused;
use crate::netlink::Netlink;
use crate::netlink::wire::{self, Attributes, Message, u16_at, u32_at};

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const HEADER: usize = 12;
const PERMANENT: u16 = 0x80;
/// The entry is the link's own, not that of a bridge it is in.
const FLAG_SELF: u8 = 2;

/// A hardware address of ethernet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Not six pairs of hexadecimal digits with colons between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a hardware address")]
pub struct BadMac;

impl FromStr for Mac {
    type Err = BadMac;

    fn from_str(text: &str) -> Result<Self, BadMac> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2).ok_or(BadMac)?;
            *byte = hex(part)?;
        }
        if parts.next().is_some() { Err(BadMac) } else { Ok(Self(bytes)) }
    }
}

fn hex(part: &str) -> Result<u8, BadMac> {
    // A sign would pass for a digit.
    let clean = part.bytes().all(|byte| byte.is_ascii_hexdigit());
    u8::from_str_radix(part, 16).ok().filter(|_| clean).ok_or(BadMac)
}

/// A permanent entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entry {
    /// The neighbour with this address has this hardware address.
    Neighbour(IpAddr, Mac),
    /// Frames for this hardware address go to this machine.
    Forward(Mac, IpAddr),
}

impl Entry {
    fn request(self, kind: u16, flags: u16, link_index: u32) -> Message {
        let (family, own, address, hardware) = match self {
            Self::Neighbour(address @ IpAddr::V4(_), hardware) => (libc::AF_INET, 0, address, hardware),
            Self::Neighbour(address @ IpAddr::V6(_), hardware) => (libc::AF_INET6, 0, address, hardware),
            Self::Forward(hardware, address) => (libc::AF_BRIDGE, FLAG_SELF, address, hardware),
        };
        let mut header = [0; HEADER];
        header[0] = family as u8;
        header[4..8].copy_from_slice(&link_index.to_ne_bytes());
        header[8..10].copy_from_slice(&PERMANENT.to_ne_bytes());
        header[10] = own;
        let mut message = Message::new(kind, flags, &header);
        message.ip(NDA_DST, address);
        message.attribute(NDA_LLADDR, &hardware.0);
        message
    }

    fn subject(self) -> String {
        match self {
            Self::Neighbour(address, hardware) => format!("{address} at {hardware}"),
            Self::Forward(hardware, address) => format!("{hardware} behind {address}"),
        }
    }
}

/// The permanent entries of a link, of all kinds.
pub async fn list(netlink: &Netlink, link_index: u32) -> Result<Vec<Entry>, NetError> {
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6, libc::AF_BRIDGE] {
        let mut header = [0; HEADER];
        header[0] = family as u8;
        let message = Message::new(libc::RTM_GETNEIGH, 0, &header);
        let entries = netlink.dump(&message, |kind, payload| parse(kind, payload, link_index));
        found.extend(entries.map_err(refused("list", String::from("neighbours")))?);
    }
    Ok(found)
}

/// Makes an entry, in place of one for the same neighbour or hardware address.
pub async fn set(netlink: &Netlink, link_index: u32, entry: Entry) -> Result<(), NetError> {
    let message = entry.request(libc::RTM_NEWNEIGH, wire::REPLACE, link_index);
    netlink.request(message).map_err(refused("set neighbour", entry.subject()))
}

/// Removes an entry; one that is not there is no error.
pub async fn remove(netlink: &Netlink, link_index: u32, entry: Entry) -> Result<(), NetError> {
    match netlink.request(entry.request(libc::RTM_DELNEIGH, 0, link_index)) {
        Err(error) if error.errno() == libc::ENOENT => Ok(()),
        result => result.map_err(refused("remove neighbour", entry.subject())),
    }
}

fn parse(kind: u16, payload: &[u8], link_index: u32) -> Option<Entry> {
    let permanent = u16_at(payload, 8)? & PERMANENT != 0;
    if kind != libc::RTM_NEWNEIGH || u32_at(payload, 4)? != link_index || !permanent {
        return None;
    }
    let (mut address, mut hardware) = (None, None);
    for (kind, value) in Attributes::after(payload, HEADER) {
        match kind {
            NDA_DST => address = wire::ip_of(value),
            NDA_LLADDR => hardware = value.try_into().ok().map(Mac),
            _ => {}
        }
    }
    match i32::from(*payload.first()?) {
        libc::AF_BRIDGE => Some(Entry::Forward(hardware?, address?)),
        _ => Some(Entry::Neighbour(address?, hardware?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_addresses_read_as_they_are_written() {
        let mac: Mac = "0a:1B:02:03:04:ff".parse().unwrap();
        assert_eq!((mac.0[1], mac.to_string().as_str()), (0x1b, "0a:1b:02:03:04:ff"));
        for bad in
            ["", "0a:1b:02:03:04", "0a:1b:02:03:04:05:06", "+a:1b:02:03:04:05", "0a1b02030405", "a:b:c:d:e:f"]
        {
            assert_eq!(bad.parse::<Mac>(), Err(BadMac), "{bad}");
        }
    }
}
