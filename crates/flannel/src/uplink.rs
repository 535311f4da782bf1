//! The link that leads to the other nodes. Pure.

use std::net::IpAddr;

use ichor_net::address::Address;
use ichor_net::link::Link;
use ichor_net::route::{Route, TABLE_MAIN};
use ipnet::IpNet;

/// What the kernel has.
#[derive(Debug, Clone, Default)]
pub struct Host {
    /// Links.
    pub links: Vec<Link>,
    /// Addresses.
    pub addresses: Vec<Address>,
    /// Routes.
    pub routes: Vec<Route>,
}

/// The link, and the addresses that others reach it at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uplink {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Largest packet.
    pub mtu: u32,
    /// Its address.
    pub v4: Option<IpAddr>,
    /// Its address of the other family.
    pub v6: Option<IpAddr>,
    /// Networks it is in.
    pub neighbourhood: Vec<IpNet>,
}

/// Chooses the link: one of those named (by name or address), else the one with the source address that leads to where
/// we must get, else the one of the default route, else one with an address that the node is known by.
pub fn choose(
    host: &Host,
    named: &[String],
    source: Option<IpAddr>,
    known: &[IpAddr],
) -> Result<Uplink, String> {
    let by_address = |ip: IpAddr| host.addresses.iter().find(|a| a.prefix.addr() == ip).map(|a| a.link_index);
    let by_name = |name: &str| host.links.iter().find(|link| link.name == name).map(|link| link.index);
    let index = if !named.is_empty() {
        let found = named.iter().find_map(|name| match name.parse() {
            Ok(ip) => by_address(ip),
            Err(_) => by_name(name),
        });
        found.ok_or_else(|| format!("there is no link {}", named.join(" or ")))?
    } else if let Some(source) = source {
        by_address(source).ok_or_else(|| format!("no link has {source}"))?
    } else {
        let defaults = host.routes.iter().filter(|route| {
            route.destination.is_none_or(|net| net.prefix_len() == 0)
                && route.table == TABLE_MAIN
                && route.kind == 1
        });
        let default =
            defaults.filter(|route| route.link_index != 0).min_by_key(|route| (route.family, route.priority));
        default.map(|route| route.link_index).or_else(|| known.iter().find_map(|ip| by_address(*ip))).ok_or(
            "there is no default route, and no link has an address of this node; name one with --iface",
        )?
    };
    let link = host.links.iter().find(|link| link.index == index).ok_or("the link is gone")?;
    let global = host.addresses.iter().filter(|a| a.link_index == index && a.scope == 0);
    let global: Vec<IpNet> = global.map(|address| address.prefix).collect();
    let pick = |v6: bool| {
        let mut own = global.iter().filter(|net| net.addr().is_ipv6() == v6);
        let preferred = own.clone().find(|net| known.contains(&net.addr()));
        // A lone address is often one that wanders between nodes.
        let whole = own.clone().find(|net| net.prefix_len() < net.max_prefix_len());
        preferred.or(whole).or_else(|| own.next()).map(IpNet::addr)
    };
    Ok(Uplink {
        index,
        name: link.name.clone(),
        mtu: link.mtu,
        v4: pick(false),
        v6: pick(true),
        neighbourhood: global.iter().map(IpNet::trunc).collect(),
    })
}

#[cfg(test)]
mod tests {
    use ichor_net::route::Family;

    use super::*;

    fn host() -> Host {
        let link = |index, name: &str| Link { index, name: name.into(), mtu: 1500, ..Link::default() };
        let address =
            |index, text: &str| Address { link_index: index, ..Address::new(text.parse().unwrap()) };
        let mut default = Route::new(Family::V4, None, Some("10.5.0.1".parse().unwrap()));
        default.link_index = 2;
        Host {
            links: vec![link(1, "lo"), link(2, "eth0"), link(3, "eth1")],
            addresses: vec![
                address(2, "10.5.0.100/32"),
                address(2, "10.5.0.2/24"),
                address(2, "10.5.0.3/24"),
                address(3, "192.168.0.2/24"),
            ],
            routes: vec![default],
        }
    }

    #[track_caller]
    fn check(host: &Host, named: &[&str], source: Option<&str>, known: &[&str], expect: &str) {
        let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
        let known: Vec<IpAddr> = known.iter().map(|ip| ip.parse().unwrap()).collect();
        let found = match choose(host, &named, source.map(|ip| ip.parse().unwrap()), &known) {
            Ok(link) => format!("{} {}", link.name, link.v4.unwrap()),
            Err(error) => error,
        };
        assert_eq!(found, expect);
    }

    #[test]
    fn the_default_route_decides_unless_somebody_says_otherwise() {
        let host = host();
        check(&host, &[], None, &[], "eth0 10.5.0.2");
        check(&host, &[], None, &["10.5.0.3"], "eth0 10.5.0.3");
        check(&host, &["eth7", "eth1"], None, &[], "eth1 192.168.0.2");
        check(&host, &["192.168.0.2"], None, &[], "eth1 192.168.0.2");
        check(&host, &[], Some("192.168.0.2"), &[], "eth1 192.168.0.2");
        check(&host, &["eth7"], None, &[], "there is no link eth7");
    }

    #[test]
    fn without_a_default_route_the_address_of_the_node_decides() {
        let host = Host { routes: Vec::new(), ..host() };
        check(&host, &[], None, &["192.168.0.2"], "eth1 192.168.0.2");
        let says =
            "there is no default route, and no link has an address of this node; name one with --iface";
        check(&host, &[], None, &["10.9.9.9"], says);
    }
}
