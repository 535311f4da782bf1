//! Addresses of links: list, assign, remove.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use crate::error::NetError;
use crate::link::refused;
use crate::netlink::Netlink;
use crate::netlink::wire::{self, Attributes, Message, u32_at, u32_of};

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const IFA_ANYCAST: u16 = 5;
const IFA_MULTICAST: u16 = 7;
const IFA_FLAGS: u16 = 8;
const IFA_RT_PRIORITY: u16 = 9;
const HEADER: usize = 8;

/// Scope of addresses valid everywhere.
pub const SCOPE_GLOBAL: u8 = 0;
/// Scope of addresses valid on their link.
pub const SCOPE_LINK: u8 = 253;
/// Scope of addresses valid on this machine.
pub const SCOPE_HOST: u8 = 254;
/// Flag of addresses without a lifetime.
pub const FLAG_PERMANENT: u32 = 0x80;
/// Flag of IPv6 addresses that are still checked for duplicates.
pub const FLAG_TENTATIVE: u32 = 0x40;
/// Flag of IPv6 addresses that another machine turned out to have.
pub const FLAG_DAD_FAILED: u32 = 0x08;

/// An address of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Address and prefix length.
    pub prefix: IpNet,
    /// The link that has it.
    pub link_index: u32,
    /// `RT_SCOPE_...`.
    pub scope: u8,
    /// `IFA_F_...`.
    pub flags: u32,
    /// The local address, where it is not `prefix` (point to point).
    pub local: Option<IpAddr>,
    /// IPv4 broadcast address.
    pub broadcast: Option<IpAddr>,
    /// IPv6 anycast address.
    pub anycast: Option<IpAddr>,
    /// IPv6 multicast address.
    pub multicast: Option<IpAddr>,
    /// Metric of the route to the prefix; 0 for the kernel's choice.
    pub priority: u32,
}

impl Address {
    /// A permanent global address, not yet of any link.
    pub fn new(prefix: IpNet) -> Self {
        Self {
            prefix,
            link_index: 0,
            scope: SCOPE_GLOBAL,
            flags: FLAG_PERMANENT,
            local: None,
            broadcast: None,
            anycast: None,
            multicast: None,
            priority: 0,
        }
    }
}

/// The broadcast address of an IPv4 prefix shorter than /31.
pub fn broadcast_of(prefix: IpNet) -> Option<Ipv4Addr> {
    match prefix {
        IpNet::V4(v4) if v4.prefix_len() < 31 => Some(v4.broadcast()),
        IpNet::V4(_) | IpNet::V6(_) => None,
    }
}

/// All addresses of all links.
pub async fn list(netlink: &Netlink) -> Result<Vec<Address>, NetError> {
    let message = Message::new(libc::RTM_GETADDR, 0, &[0; HEADER]);
    netlink.dump(&message, parse).map_err(refused("list", String::from("addresses")))
}

/// Assigns an address to the link with index `address.link_index`; `link` is its name for errors.
pub async fn add(netlink: &Netlink, link: &str, address: &Address) -> Result<(), NetError> {
    let mut message = request(libc::RTM_NEWADDR, wire::CREATE, address);
    if let Some(broadcast) = address.broadcast {
        message.ip(IFA_BROADCAST, broadcast);
    }
    message.u32(IFA_FLAGS, address.flags);
    if address.priority != 0 {
        message.u32(IFA_RT_PRIORITY, address.priority);
    }
    netlink.request(message).map_err(refused("add address", subject(link, address)))
}

/// Takes an address away from the link with index `address.link_index`.
pub async fn remove(netlink: &Netlink, link: &str, address: &Address) -> Result<(), NetError> {
    let message = request(libc::RTM_DELADDR, 0, address);
    netlink.request(message).map_err(refused("remove address", subject(link, address)))
}

fn subject(link: &str, address: &Address) -> String {
    format!("{} on {link}", address.prefix)
}

fn request(kind: u16, flags: u16, address: &Address) -> Message {
    let family = if address.prefix.addr().is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut header = [0; HEADER];
    header[0] = family as u8;
    header[1] = address.prefix.prefix_len();
    header[2] = address.flags as u8;
    header[3] = address.scope;
    header[4..8].copy_from_slice(&address.link_index.to_ne_bytes());
    let mut message = Message::new(kind, flags, &header);
    message.ip(IFA_ADDRESS, address.prefix.addr());
    message.ip(IFA_LOCAL, address.local.unwrap_or(address.prefix.addr()));
    message
}

pub(crate) fn parse(kind: u16, payload: &[u8]) -> Option<Address> {
    if kind != libc::RTM_NEWADDR {
        return None;
    }
    let prefix_len = *payload.get(1)?;
    let mut flags = u32::from(*payload.get(2)?);
    let mut priority = 0;
    let (mut address, mut local, mut broadcast) = (None, None, None);
    let (mut anycast, mut multicast) = (None, None);
    for (kind, value) in Attributes::after(payload, HEADER) {
        match kind {
            IFA_ADDRESS => address = wire::ip_of(value),
            IFA_LOCAL => local = wire::ip_of(value),
            IFA_BROADCAST => broadcast = wire::ip_of(value),
            IFA_ANYCAST => anycast = wire::ip_of(value),
            IFA_MULTICAST => multicast = wire::ip_of(value),
            IFA_FLAGS => flags = u32_of(value),
            IFA_RT_PRIORITY => priority = u32_of(value),
            _ => {}
        }
    }
    Some(Address {
        prefix: IpNet::new(address.or(local)?, prefix_len).ok()?,
        link_index: u32_at(payload, 4)?,
        scope: *payload.get(3)?,
        flags,
        local,
        broadcast,
        anycast,
        multicast,
        priority,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcast_exists_for_prefixes_shorter_than_31() {
        let of = |text: &str| broadcast_of(text.parse().unwrap());
        assert_eq!(of("10.5.0.2/24"), Some(Ipv4Addr::new(10, 5, 0, 255)));
        assert_eq!(of("10.5.0.2/31"), None);
        assert_eq!(of("10.5.0.2/32"), None);
        assert_eq!(of("fd00::1/64"), None);
    }
}
