//! Links: list, create, change, remove.
//!
//! The functions are `async` for their callers' sake; the kernel answers within the call.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use ipnet::IpNet;

use crate::address::{self, Address};
use crate::error::{KernelError, NetError};
use crate::netlink::Netlink;
use crate::netlink::wire::{self, Attributes, Message, u16_at, u32_at, u32_of};

pub mod ethtool;
pub mod vxlan;

const IFLA_ADDRESS: u16 = 1;
const IFLA_BROADCAST: u16 = 2;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_QDISC: u16 = 6;
const IFLA_MASTER: u16 = 10;
const IFLA_OPERSTATE: u16 = 16;
const IFLA_LINKINFO: u16 = 18;
const IFLA_IFALIAS: u16 = 20;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_CARRIER: u16 = 33;
const IFLA_PROP_LIST: u16 = 52;
const IFLA_ALT_IFNAME: u16 = 53;
const IFLA_PERM_ADDRESS: u16 = 54;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_INFO_SLAVE_KIND: u16 = 4;
const IFLA_VLAN_ID: u16 = 1;
const IFLA_VLAN_PROTOCOL: u16 = 5;
const IFLA_BR_STP_STATE: u16 = 5;
const IFLA_BR_VLAN_FILTERING: u16 = 7;
const VETH_INFO_PEER: u16 = 1;
/// Leave the counters out of answers: three quarters of a link's size.
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;

const HEADER: usize = 16;
const NAME_MAX: usize = 15;

/// `IFF_UP` of [`Link::flags`].
pub const FLAG_UP: u32 = libc::IFF_UP as u32;
/// `IFF_LOWER_UP` of [`Link::flags`]: there is a carrier.
pub const FLAG_LOWER_UP: u32 = libc::IFF_LOWER_UP as u32;
/// `IFF_MULTICAST` of [`Link::flags`].
pub const FLAG_MULTICAST: u32 = libc::IFF_MULTICAST as u32;
/// Hardware type of an ethernet link (`ARPHRD_ETHER`).
pub const TYPE_ETHER: u16 = libc::ARPHRD_ETHER;
/// Hardware type of the loopback link (`ARPHRD_LOOPBACK`).
pub const TYPE_LOOPBACK: u16 = libc::ARPHRD_LOOPBACK;

/// A link as the kernel shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// The kernel's number for it, unique in its namespace.
    pub index: u32,
    /// The name.
    pub name: String,
    /// Hardware type, `ARPHRD_...`.
    pub hardware_type: u16,
    /// `IFF_...` flags.
    pub flags: u32,
    /// Current hardware address.
    pub hardware_addr: Vec<u8>,
    /// Hardware address burnt into the device; empty where there is none.
    pub permanent_addr: Vec<u8>,
    /// Broadcast hardware address.
    pub broadcast_addr: Vec<u8>,
    /// Largest packet in bytes.
    pub mtu: u32,
    /// Queueing discipline.
    pub qdisc: String,
    /// Index of the link this one sits on (VLAN) or of its peer (veth); 0 for none.
    pub parent_index: u32,
    /// Index of the bridge or bond this link is a member of; 0 for none.
    pub master_index: u32,
    /// `IF_OPER_...`: 0 unknown, 2 down, 6 up.
    pub oper_state: u8,
    /// Kind of a virtual link (`bridge`, `veth`, `vlan`); empty for devices.
    pub kind: String,
    /// Kind of the master this link is a member of.
    pub slave_kind: String,
    /// There is a carrier.
    pub carrier: bool,
    /// Alias given by an administrator.
    pub alias: String,
    /// Further names.
    pub alt_names: Vec<String>,
    /// VLAN settings, for VLANs.
    pub vlan: Option<Vlan>,
    /// Bridge settings, for bridges.
    pub bridge: Option<Bridge>,
}

/// Settings of a VLAN link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vlan {
    /// VLAN number.
    pub id: u16,
    /// Ethernet protocol: 0x8100 (802.1q) or 0x88a8 (802.1ad).
    pub protocol: u16,
}

/// Settings of a bridge.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bridge {
    /// Spanning tree runs.
    pub stp: bool,
    /// VLAN filtering is on.
    pub vlan_filtering: bool,
}

impl Link {
    /// The administrator wants it up.
    pub fn is_up(&self) -> bool {
        self.flags & FLAG_UP != 0
    }

    /// A real device (or what passes for one): ethernet without a kind.
    pub fn is_physical(&self) -> bool {
        self.hardware_type == TYPE_ETHER && self.kind.is_empty()
    }
}

/// All links, in the kernel's order.
pub async fn list(netlink: &Netlink) -> Result<Vec<Link>, NetError> {
    list_now(netlink).map_err(refused("list", String::from("links")))
}

/// One link by name, or `None`.
pub async fn find(netlink: &Netlink, name: &str) -> Result<Option<Link>, NetError> {
    check_name(name)?;
    let mut message = Message::new(libc::RTM_GETLINK, 0, &header(0, 0, 0));
    message.text(IFLA_IFNAME, name);
    message.u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
    let mut found = None;
    match netlink.get(message, &mut |kind, payload| found = parse(kind, payload)) {
        Ok(()) => Ok(found),
        Err(error) if error.errno() == libc::ENODEV => Ok(None),
        Err(error) => Err(refused("look up link", name.to_owned())(error)),
    }
}

/// The index of a link, or the error that there is none.
pub async fn index(netlink: &Netlink, name: &str) -> Result<u32, NetError> {
    match find(netlink, name).await? {
        Some(link) => Ok(link.index),
        None => Err(NetError::NoLink { link: name.to_owned() }),
    }
}

/// Creates a bridge. It is down and has no members.
pub async fn create_bridge(netlink: &Netlink, name: &str) -> Result<(), NetError> {
    create(netlink, name, "bridge", |_| {}, |_| {})
}

/// Creates a pair of connected virtual ethernet links; `peer_netns` says where the second end appears.
pub async fn create_veth_pair(
    netlink: &Netlink,
    name: &str,
    peer: &str,
    peer_netns: Option<BorrowedFd<'_>>,
) -> Result<(), NetError> {
    check_name(peer)?;
    create(
        netlink,
        name,
        "veth",
        |_| {},
        |data| {
            data.nested(VETH_INFO_PEER, |inner| {
                inner.raw(&header(0, 0, 0));
                inner.text(IFLA_IFNAME, peer);
                if let Some(netns) = peer_netns {
                    inner.u32(IFLA_NET_NS_FD, netns.as_raw_fd().cast_unsigned());
                }
            });
        },
    )
}

/// Creates a dummy link.
pub async fn create_dummy(netlink: &Netlink, name: &str) -> Result<(), NetError> {
    create(netlink, name, "dummy", |_| {}, |_| {})
}

/// Creates a VLAN on top of another link.
pub async fn create_vlan(netlink: &Netlink, name: &str, parent: &str, vlan: Vlan) -> Result<(), NetError> {
    let parent = index(netlink, parent).await?;
    create(
        netlink,
        name,
        "vlan",
        |link| link.u32(IFLA_LINK, parent),
        |data| {
            data.attribute(IFLA_VLAN_ID, &vlan.id.to_ne_bytes());
            data.attribute(IFLA_VLAN_PROTOCOL, &vlan.protocol.to_be_bytes());
        },
    )
}

/// Removes a virtual link (and the other end of a veth pair with it).
pub async fn delete(netlink: &Netlink, name: &str) -> Result<(), NetError> {
    check_name(name)?;
    let mut message = Message::new(libc::RTM_DELLINK, 0, &header(0, 0, 0));
    message.text(IFLA_IFNAME, name);
    netlink.request(message).map_err(refused("delete link", name.to_owned()))
}

/// Brings a link up or down.
pub async fn set_up(netlink: &Netlink, name: &str, up: bool) -> Result<(), NetError> {
    let flags = if up { FLAG_UP } else { 0 };
    let operation = if up { "bring up link" } else { "bring down link" };
    change(netlink, name, operation, header(0, flags, FLAG_UP), |_| {})
}

/// Turns a link's multicast flag on or off.
pub async fn set_multicast(netlink: &Netlink, name: &str, on: bool) -> Result<(), NetError> {
    let flags = if on { FLAG_MULTICAST } else { 0 };
    change(netlink, name, "set multicast of link", header(0, flags, FLAG_MULTICAST), |_| {})
}

/// Sets the largest packet size in bytes.
pub async fn set_mtu(netlink: &Netlink, name: &str, mtu: u32) -> Result<(), NetError> {
    change(netlink, name, "set mtu of link", header(0, 0, 0), |m| m.u32(IFLA_MTU, mtu))
}

/// Sets the hardware address.
pub async fn set_hardware_addr(netlink: &Netlink, name: &str, address: &[u8]) -> Result<(), NetError> {
    change(netlink, name, "set hardware address of link", header(0, 0, 0), |m| {
        m.attribute(IFLA_ADDRESS, address);
    })
}

/// Makes a link a member of a bridge or bond, or frees it with `None`.
pub async fn set_master(netlink: &Netlink, name: &str, master: Option<&str>) -> Result<(), NetError> {
    let master = match master {
        Some(master) => index(netlink, master).await?,
        None => 0,
    };
    change(netlink, name, "set master of link", header(0, 0, 0), |m| m.u32(IFLA_MASTER, master))
}

/// Sets what a bridge does.
pub async fn set_bridge(netlink: &Netlink, name: &str, bridge: Bridge) -> Result<(), NetError> {
    check_name(name)?;
    let mut message = Message::new(libc::RTM_NEWLINK, 0, &header(0, 0, 0));
    message.text(IFLA_IFNAME, name);
    message.nested(IFLA_LINKINFO, |info| {
        info.attribute(IFLA_INFO_KIND, b"bridge");
        info.nested(IFLA_INFO_DATA, |data| {
            data.u32(IFLA_BR_STP_STATE, bridge.stp.into());
            data.attribute(IFLA_BR_VLAN_FILTERING, &[bridge.vlan_filtering.into()]);
        });
    });
    netlink.request(message).map_err(refused("set bridge", name.to_owned()))
}

/// Sets or, when empty, removes the alias of a link.
pub async fn set_alias(netlink: &Netlink, name: &str, alias: &str) -> Result<(), NetError> {
    change(netlink, name, "set alias of link", header(0, 0, 0), |m| {
        m.attribute(IFLA_IFALIAS, alias.as_bytes())
    })
}

/// Gives a link another name; it must be down.
pub async fn rename(netlink: &Netlink, name: &str, to: &str) -> Result<(), NetError> {
    check_name(to)?;
    let number = index(netlink, name).await?;
    let mut message = Message::new(libc::RTM_SETLINK, 0, &header(number, 0, 0));
    message.text(IFLA_IFNAME, to);
    netlink.request(message).map_err(refused("rename link", format!("{name} to {to}")))
}

/// Moves a link into another network namespace.
pub async fn move_to(netlink: &Netlink, name: &str, netns: BorrowedFd<'_>) -> Result<(), NetError> {
    change(netlink, name, "move link", header(0, 0, 0), |m| {
        m.u32(IFLA_NET_NS_FD, netns.as_raw_fd().cast_unsigned());
    })
}

/// Assigns an address with the kernel's defaults; see [`address::add`] for all settings.
pub async fn add_address(netlink: &Netlink, name: &str, prefix: IpNet) -> Result<(), NetError> {
    let link_index = index(netlink, name).await?;
    let scope = if prefix.addr().is_loopback() { address::SCOPE_HOST } else { 0 };
    let broadcast = address::broadcast_of(prefix).map(IpAddr::V4);
    let wanted = Address { prefix, link_index, scope, broadcast, ..Address::new(prefix) };
    address::add(netlink, name, &wanted).await
}

pub(crate) fn list_now(netlink: &Netlink) -> Result<Vec<Link>, KernelError> {
    let mut message = Message::new(libc::RTM_GETLINK, 0, &header(0, 0, 0));
    message.u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
    netlink.dump(&message, parse)
}

fn create(
    netlink: &Netlink,
    name: &str,
    kind: &str,
    link: impl FnOnce(&mut Message),
    data: impl FnOnce(&mut Message),
) -> Result<(), NetError> {
    check_name(name)?;
    let mut message = Message::new(libc::RTM_NEWLINK, wire::CREATE, &header(0, 0, 0));
    message.text(IFLA_IFNAME, name);
    link(&mut message);
    message.nested(IFLA_LINKINFO, |info| {
        info.attribute(IFLA_INFO_KIND, kind.as_bytes());
        info.nested(IFLA_INFO_DATA, data);
    });
    netlink.request(message).map_err(refused("create link", format!("{name} of kind {kind}")))
}

fn change(
    netlink: &Netlink,
    name: &str,
    operation: &'static str,
    header: [u8; HEADER],
    fill: impl FnOnce(&mut Message),
) -> Result<(), NetError> {
    check_name(name)?;
    let mut message = Message::new(libc::RTM_SETLINK, 0, &header);
    message.text(IFLA_IFNAME, name);
    fill(&mut message);
    netlink.request(message).map_err(|source| match source.errno() {
        libc::ENODEV => NetError::NoLink { link: name.to_owned() },
        _ => refused(operation, name.to_owned())(source),
    })
}

pub(crate) fn refused(operation: &'static str, subject: String) -> impl FnOnce(KernelError) -> NetError {
    move |source| NetError::Request { operation, subject, source }
}

fn check_name(name: &str) -> Result<(), NetError> {
    let fits = (1..=NAME_MAX).contains(&name.len());
    let clean = name.bytes().all(|b| b.is_ascii_graphic() && b != b'/') && name != "." && name != "..";
    if fits && clean { Ok(()) } else { Err(NetError::BadName { name: name.to_owned() }) }
}

/// `struct ifinfomsg`.
fn header(index: u32, flags: u32, change: u32) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[4..8].copy_from_slice(&index.to_ne_bytes());
    bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
    bytes[12..16].copy_from_slice(&change.to_ne_bytes());
    bytes
}

pub(crate) fn parse(kind: u16, payload: &[u8]) -> Option<Link> {
    if kind != libc::RTM_NEWLINK {
        return None;
    }
    let mut link = Link {
        hardware_type: u16_at(payload, 2)?,
        index: u32_at(payload, 4)?,
        flags: u32_at(payload, 8)?,
        ..Link::default()
    };
    link.carrier = link.flags & FLAG_LOWER_UP != 0;
    for (kind, value) in Attributes::after(payload, HEADER) {
        match kind {
            IFLA_ADDRESS => link.hardware_addr = value.to_vec(),
            IFLA_BROADCAST => link.broadcast_addr = value.to_vec(),
            IFLA_PERM_ADDRESS => link.permanent_addr = value.to_vec(),
            IFLA_IFNAME => link.name = wire::text_of(value),
            IFLA_QDISC => link.qdisc = wire::text_of(value),
            IFLA_IFALIAS => link.alias = wire::text_of(value),
            IFLA_MTU => link.mtu = u32_of(value),
            IFLA_LINK => link.parent_index = u32_of(value),
            IFLA_MASTER => link.master_index = u32_of(value),
            IFLA_OPERSTATE => link.oper_state = value.first().copied().unwrap_or(0),
            IFLA_CARRIER => link.carrier = value.first() == Some(&1),
            IFLA_PROP_LIST => {
                link.alt_names = Attributes::new(value)
                    .filter(|(kind, _)| *kind == IFLA_ALT_IFNAME)
                    .map(|(_, name)| wire::text_of(name))
                    .collect();
            }
            IFLA_LINKINFO => parse_info(&mut link, value),
            _ => {}
        }
    }
    Some(link)
}

fn parse_info(link: &mut Link, info: &[u8]) {
    let mut data: &[u8] = &[];
    for (kind, value) in Attributes::new(info) {
        match kind {
            IFLA_INFO_KIND => link.kind = wire::text_of(value),
            IFLA_INFO_SLAVE_KIND => link.slave_kind = wire::text_of(value),
            IFLA_INFO_DATA => data = value,
            _ => {}
        }
    }
    match link.kind.as_str() {
        "vlan" => {
            let mut vlan = Vlan { id: 0, protocol: 0x8100 };
            for (kind, value) in Attributes::new(data) {
                match kind {
                    IFLA_VLAN_ID => vlan.id = u16_at(value, 0).unwrap_or(0),
                    IFLA_VLAN_PROTOCOL => vlan.protocol = u16_at(value, 0).map_or(0, u16::from_be),
                    _ => {}
                }
            }
            link.vlan = Some(vlan);
        }
        "bridge" => {
            let mut bridge = Bridge::default();
            for (kind, value) in Attributes::new(data) {
                match kind {
                    IFLA_BR_STP_STATE => bridge.stp = u32_of(value) != 0,
                    IFLA_BR_VLAN_FILTERING => bridge.vlan_filtering = value.first() == Some(&1),
                    _ => {}
                }
            }
            link.bridge = Some(bridge);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_before_the_kernel_sees_them() {
        for good in ["eth0", "br-lan", "a", "123456789012345"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a b", "1234567890123456", "ä"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
