//! The kernel's side: the ends of the overlay, entries and routes.

use std::collections::BTreeSet;

use ichor_net::address::{self, Address};
use ichor_net::link::vxlan::{self, Vxlan};
use ichor_net::neighbour::{self, Entry, Mac};
use ichor_net::route::{self, Family, Route, TABLE_MAIN};
use ichor_net::{NetError, Netlink, link};
use ipnet::IpNet;

use crate::plan::Item;
use crate::uplink::Host;

/// Marks our routes on links that are not ours.
const PROTOCOL: u8 = 76;
/// The next hop is on the link, whatever its address.
const ONLINK: u32 = 4;
const UNICAST: u8 = 1;

/// A connection to the kernel.
#[derive(Debug)]
pub struct Kernel {
    netlink: Netlink,
}

/// Links that items are on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Links {
    /// The end of the overlay over IPv4.
    pub overlay: Option<u32>,
    /// The same over IPv6.
    pub overlay6: Option<u32>,
    /// The link to the other nodes.
    pub uplink: u32,
}

impl Links {
    fn overlay(&self, v6: bool) -> Option<u32> {
        if v6 { self.overlay6 } else { self.overlay }
    }
}

impl Kernel {
    /// Connects.
    pub fn open() -> Result<Self, NetError> {
        Ok(Self { netlink: Netlink::open()? })
    }

    /// What there is.
    pub async fn host(&self) -> Result<Host, NetError> {
        Ok(Host {
            links: link::list(&self.netlink).await?,
            addresses: address::list(&self.netlink).await?,
            routes: route::list(&self.netlink).await?,
        })
    }

    /// Makes an end of the overlay, or makes the one there is as it should be. It keeps its hardware address when it
    /// can, since all other nodes know it.
    pub async fn overlay(
        &self,
        name: &str,
        wanted: Vxlan,
        mtu: u32,
        at: IpNet,
    ) -> Result<(u32, Mac), NetError> {
        let netlink = &self.netlink;
        let found = vxlan::find(netlink, name).await?;
        let fits = found.as_ref().is_some_and(|(_, have)| *have == Some(wanted));
        if found.is_some() && !fits {
            link::delete(netlink, name).await?;
        }
        if !fits {
            vxlan::add(netlink, name, wanted).await?;
        }
        let missing = || NetError::NoLink { link: name.to_owned() };
        let (link, _) = vxlan::find(netlink, name).await?.ok_or_else(missing)?;
        if link.mtu != mtu {
            link::set_mtu(netlink, name, mtu).await?;
        }
        let addresses = address::list(netlink).await?;
        let own = addresses.iter().filter(|address| address.link_index == link.index);
        let is_local = |address: &Address| address.scope == address::SCOPE_LINK;
        let mut there = false;
        for address in own.filter(|address| !is_local(address)) {
            if address.prefix == at {
                there = true;
            } else {
                address::remove(netlink, name, address).await?;
            }
        }
        if !there {
            link::add_address(netlink, name, at).await?;
        }
        if !link.is_up() {
            link::set_up(netlink, name, true).await?;
        }
        let mac = link.hardware_addr.try_into().map(Mac).map_err(|_| missing())?;
        Ok((link.index, mac))
    }

    /// What is there of ours.
    pub async fn items(&self, links: Links) -> Result<BTreeSet<Item>, NetError> {
        let mut items = BTreeSet::new();
        for index in [links.overlay, links.overlay6].into_iter().flatten() {
            let entries = neighbour::list(&self.netlink, index).await?;
            // Multicast neighbours are the kernel's own.
            items.extend(entries.into_iter().filter(is_ours).map(Item::Entry));
        }
        for route in route::list(&self.netlink).await? {
            let (Some(to), Some(via)) = (route.destination, route.gateway) else { continue };
            let overlay = Some(route.link_index) == links.overlay(to.addr().is_ipv6());
            let direct = route.link_index == links.uplink && route.protocol == PROTOCOL;
            if route.table == TABLE_MAIN && route.kind == UNICAST && (overlay || direct) {
                items.insert(Item::Route { to, via, overlay });
            }
        }
        Ok(items)
    }

    /// Removes what is there and not wanted, then adds what is wanted and not there. What cannot be done is told, the
    /// rest is done.
    pub async fn apply(&self, links: Links, wanted: &BTreeSet<Item>) -> Vec<String> {
        let have = match self.items(links).await {
            Ok(have) => have,
            Err(error) => return vec![told(&error)],
        };
        let mut troubles = Vec::new();
        for item in have.difference(wanted) {
            troubles.extend(self.change(links, *item, false).await.err().map(|error| told(&error)));
        }
        for item in wanted.difference(&have) {
            troubles.extend(self.change(links, *item, true).await.err().map(|error| told(&error)));
        }
        troubles
    }

    async fn change(&self, links: Links, item: Item, add: bool) -> Result<(), NetError> {
        let netlink = &self.netlink;
        match item {
            Item::Entry(entry) => {
                let (Entry::Neighbour(ip, _) | Entry::Forward(_, ip)) = entry;
                let Some(index) = links.overlay(ip.is_ipv6()) else { return Ok(()) };
                match add {
                    true => neighbour::set(netlink, index, entry).await,
                    false => neighbour::remove(netlink, index, entry).await,
                }
            }
            Item::Route { to, via, overlay } => {
                let mut route = Route::new(Family::of(via), Some(to), Some(via));
                route.protocol = PROTOCOL;
                if overlay {
                    let Some(index) = links.overlay(to.addr().is_ipv6()) else { return Ok(()) };
                    (route.link_index, route.flags) = (index, ONLINK);
                } else {
                    route.link_index = links.uplink;
                }
                if add {
                    return route::replace(netlink, &route).await;
                }
                // Whoever made it.
                route.protocol = 0;
                match route::remove(netlink, &route).await {
                    Err(error) if error.is_missing() => Ok(()),
                    result => result,
                }
            }
        }
    }
}

fn is_ours(entry: &Entry) -> bool {
    let (Entry::Neighbour(ip, _) | Entry::Forward(_, ip)) = entry;
    !ip.is_multicast()
}

/// An error with its causes.
pub fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
