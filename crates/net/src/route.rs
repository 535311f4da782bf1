//! Routes: list, install, remove.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::error::NetError;
use crate::link::refused;
use crate::netlink::Netlink;
use crate::netlink::wire::{self, Attributes, Message, u32_at, u32_of};

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTA_TABLE: u16 = 15;
const RTAX_MTU: u16 = 2;
const HEADER: usize = 12;

/// The table ordinary lookups use.
pub const TABLE_MAIN: u32 = 254;

/// Which Internet protocol a route or rule belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    pub(crate) fn number(self) -> u8 {
        match self {
            Self::V4 => libc::AF_INET as u8,
            Self::V6 => libc::AF_INET6 as u8,
        }
    }

    pub(crate) fn parse(number: u8) -> Option<Self> {
        match i32::from(number) {
            libc::AF_INET => Some(Self::V4),
            libc::AF_INET6 => Some(Self::V6),
            _ => None,
        }
    }
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Protocol family.
    pub family: Family,
    /// Where it leads; `None` for a default route.
    pub destination: Option<IpNet>,
    /// Preferred source address.
    pub source: Option<IpAddr>,
    /// Next hop.
    pub gateway: Option<IpAddr>,
    /// The link packets leave by; 0 for none.
    pub link_index: u32,
    /// Routing table.
    pub table: u32,
    /// Metric.
    pub priority: u32,
    /// `RT_SCOPE_...`.
    pub scope: u8,
    /// `RTN_...`: 1 unicast, 2 local, 3 broadcast.
    pub kind: u8,
    /// `RTNH_F_...` and `RTM_F_...`.
    pub flags: u32,
    /// Who installed it, `RTPROT_...`: 2 kernel, 3 boot, 4 static.
    pub protocol: u8,
    /// MTU of the route; 0 for the link's.
    pub mtu: u32,
}

impl Route {
    /// A unicast route in the main table.
    pub fn new(family: Family, destination: Option<IpNet>, gateway: Option<IpAddr>) -> Self {
        Self {
            family,
            destination,
            source: None,
            gateway,
            link_index: 0,
            table: TABLE_MAIN,
            priority: 0,
            scope: if gateway.is_none() { libc::RT_SCOPE_LINK } else { libc::RT_SCOPE_UNIVERSE },
            kind: libc::RTN_UNICAST,
            flags: 0,
            protocol: libc::RTPROT_STATIC,
            mtu: 0,
        }
    }

    /// How the route reads in a message.
    fn subject(&self) -> String {
        let destination = self.destination.map_or_else(|| "default".to_owned(), |d| d.to_string());
        match self.gateway {
            Some(gateway) => format!("{destination} via {gateway}"),
            None => format!("{destination} on link {}", self.link_index),
        }
    }
}

/// All routes of all tables, both families.
pub async fn list(netlink: &Netlink) -> Result<Vec<Route>, NetError> {
    let message = Message::new(libc::RTM_GETROUTE, 0, &[0; HEADER]);
    netlink.dump(&message, parse).map_err(refused("list", String::from("routes")))
}

/// Installs a route that must not be there yet.
pub async fn add(netlink: &Netlink, route: &Route) -> Result<(), NetError> {
    netlink
        .request(request(libc::RTM_NEWROUTE, wire::CREATE, route))
        .map_err(refused("add route", route.subject()))
}

/// Installs a route, in place of one with the same destination, metric and table.
pub async fn replace(netlink: &Netlink, route: &Route) -> Result<(), NetError> {
    netlink
        .request(request(libc::RTM_NEWROUTE, wire::REPLACE, route))
        .map_err(refused("replace route", route.subject()))
}

/// Removes a route.
pub async fn remove(netlink: &Netlink, route: &Route) -> Result<(), NetError> {
    netlink.request(request(libc::RTM_DELROUTE, 0, route)).map_err(refused("remove route", route.subject()))
}

fn request(kind: u16, flags: u16, route: &Route) -> Message {
    let table = u8::try_from(route.table).unwrap_or(0);
    let mut header = [0; HEADER];
    header[0] = route.family.number();
    header[1] = route.destination.map_or(0, |d| d.prefix_len());
    header[4] = table;
    header[5] = route.protocol;
    header[6] = route.scope;
    header[7] = route.kind;
    header[8..12].copy_from_slice(&route.flags.to_ne_bytes());

    let mut message = Message::new(kind, flags, &header);
    message.u32(RTA_TABLE, route.table);
    if let Some(destination) = route.destination {
        message.ip(RTA_DST, destination.network());
    }
    if let Some(gateway) = route.gateway {
        message.ip(RTA_GATEWAY, gateway);
    }
    if let Some(source) = route.source {
        message.ip(RTA_PREFSRC, source);
    }
    if route.link_index != 0 {
        message.u32(RTA_OIF, route.link_index);
    }
    if route.priority != 0 {
        message.u32(RTA_PRIORITY, route.priority);
    }
    if route.mtu != 0 {
        message.nested(RTA_METRICS, |metrics| metrics.u32(RTAX_MTU, route.mtu));
    }
    message
}

pub(crate) fn parse(kind: u16, payload: &[u8]) -> Option<Route> {
    if kind != libc::RTM_NEWROUTE {
        return None;
    }
    let family = Family::parse(*payload.first()?)?;
    let prefix_len = *payload.get(1)?;
    let mut route = Route::new(family, None, None);
    route.table = u32::from(*payload.get(4)?);
    route.protocol = *payload.get(5)?;
    route.scope = *payload.get(6)?;
    route.kind = *payload.get(7)?;
    route.flags = u32_at(payload, 8)?;
    for (kind, value) in Attributes::after(payload, HEADER) {
        match kind {
            RTA_DST => route.destination = IpNet::new(wire::ip_of(value)?, prefix_len).ok(),
            RTA_GATEWAY => route.gateway = wire::ip_of(value),
            RTA_PREFSRC => route.source = wire::ip_of(value),
            RTA_OIF => route.link_index = u32_of(value),
            RTA_PRIORITY => route.priority = u32_of(value),
            RTA_TABLE => route.table = u32_of(value),
            RTA_METRICS => {
                route.mtu = Attributes::new(value)
                    .find(|(kind, _)| *kind == RTAX_MTU)
                    .map_or(0, |(_, mtu)| u32_of(mtu));
            }
            _ => {}
        }
    }
    // The kernel leaves the destination out of ::/0 and 0.0.0.0/0, not out of others.
    Some(route)
}
