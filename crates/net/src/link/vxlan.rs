//! VXLAN links: ethernet in UDP.

use std::net::IpAddr;

use super::{
    IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINKINFO, Link, check_name, create, header, parse, refused,
};
use crate::error::NetError;
use crate::netlink::Netlink;
use crate::netlink::wire::{self, Attributes, Message, u16_at, u32_of};

const ID: u16 = 1;
const LINK: u16 = 3;
const LOCAL: u16 = 4;
const LEARNING: u16 = 7;
const PORT: u16 = 15;
const LOCAL6: u16 = 17;
const KIND: &[u8] = b"vxlan";

/// Settings of a VXLAN link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vxlan {
    /// Number of the network.
    pub id: u32,
    /// UDP port of all its members.
    pub port: u16,
    /// Where packets come from.
    pub local: Option<IpAddr>,
    /// Index of the link packets leave by; 0 for any.
    pub parent_index: u32,
    /// Who is where is learnt from packets.
    pub learning: bool,
}

/// Creates a VXLAN link. It is down.
pub async fn add(netlink: &Netlink, name: &str, vxlan: Vxlan) -> Result<(), NetError> {
    create(
        netlink,
        name,
        "vxlan",
        |_| {},
        |data| {
            data.u32(ID, vxlan.id);
            if let Some(local) = vxlan.local {
                data.ip(if local.is_ipv4() { LOCAL } else { LOCAL6 }, local);
            }
            if vxlan.parent_index != 0 {
                data.u32(LINK, vxlan.parent_index);
            }
            data.attribute(LEARNING, &[vxlan.learning.into()]);
            data.attribute(PORT, &vxlan.port.to_be_bytes());
        },
    )
}

/// A link by name, and its settings if it is a VXLAN.
pub async fn find(netlink: &Netlink, name: &str) -> Result<Option<(Link, Option<Vxlan>)>, NetError> {
    check_name(name)?;
    let mut message = Message::new(libc::RTM_GETLINK, 0, &header(0, 0, 0));
    message.text(super::IFLA_IFNAME, name);
    let mut found = None;
    let result = netlink.get(message, &mut |kind, payload| {
        found = parse(kind, payload).map(|link| (link, settings(payload)));
    });
    match result {
        Ok(()) => Ok(found),
        Err(error) if error.errno() == libc::ENODEV => Ok(None),
        Err(error) => Err(refused("look up link", name.to_owned())(error)),
    }
}

fn settings(payload: &[u8]) -> Option<Vxlan> {
    let (_, info) = Attributes::after(payload, super::HEADER).find(|(kind, _)| *kind == IFLA_LINKINFO)?;
    let value = |wanted: u16| Attributes::new(info).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    if value(IFLA_INFO_KIND)?.strip_suffix(&[0]) != Some(KIND) {
        return None;
    }
    let mut vxlan = Vxlan { id: 0, port: 0, local: None, parent_index: 0, learning: false };
    for (kind, value) in Attributes::new(value(IFLA_INFO_DATA)?) {
        match kind {
            ID => vxlan.id = u32_of(value),
            LINK => vxlan.parent_index = u32_of(value),
            LOCAL | LOCAL6 => {
                vxlan.local = wire::ip_of(value).filter(|ip| !ip.is_unspecified()).or(vxlan.local);
            }
            LEARNING => vxlan.learning = value.first() == Some(&1),
            PORT => vxlan.port = u16_at(value, 0).map_or(0, u16::from_be),
            _ => {}
        }
    }
    Some(vxlan)
}
