//! `network-config`, versions 1 and 2.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use ichor_resource::network::{
    ADLACPActive, BondMasterSpec, BondMode, BondXmitHashPolicy, ConfigLayer, DHCP4OperatorSpec,
    DHCP6OperatorSpec, LACPRate, LinkSpec, LinkType, Operator, OperatorSpec, PlatformConfig, ResolverSpec,
    RouteProtocol, RouteSpec, RouteType, RoutingTable, VLANProtocol, VLANSpec,
};
use ichor_resource::value::{Ip, IpPrefix};
use ichor_types::HardwareAddr;
use ichor_yaml::Node;
use ipnet::IpNet;

use super::{KnownLink, NoCloudError, bad, document};
use crate::ids::{self, DEFAULT_METRIC};
use crate::source::cmdline::{address_spec, way_to};

const FILE: &str = "network-config";
const LAYER: ConfigLayer = ConfigLayer::Platform;
/// The metric of IPv6 routes whose source does not name one.
const DEFAULT_METRIC_6: u32 = 2 * DEFAULT_METRIC;
/// What is taken of each list; more is no configuration of a machine.
const ITEMS_MAX: usize = 1024;

/// The network that the file describes, on a machine with these links.
pub(super) fn parse(text: &str, links: &[KnownLink]) -> Result<PlatformConfig, NoCloudError> {
    let Some(root) = document(FILE, text)? else { return Ok(PlatformConfig::default()) };
    let root = root.get("network").unwrap_or(&root);
    let mut network = Network { known: links, ..Network::default() };
    match text_at(root, "version") {
        "1" => network.version_1(root)?,
        "2" => network.version_2(root)?,
        other => return Err(bad(FILE, format!("version {other:?}; there are 1 and 2"))),
    }
    Ok(network.finish())
}

/// A configuration that is being put together.
#[derive(Default)]
struct Network<'a> {
    known: &'a [KnownLink],
    /// Names of links by what the file calls them.
    names: BTreeMap<String, String>,
    config: PlatformConfig,
    servers: Vec<IpAddr>,
}

impl Network<'_> {
    fn version_1(&mut self, root: &Node) -> Result<(), NoCloudError> {
        for item in items(root, "config") {
            let name = text_at(item, "name");
            match text_at(item, "type") {
                "physical" => {
                    let link = self.device(name, text_at(item, "mac_address"))?;
                    self.mtu(&link, item)?;
                    self.subnets(&link, item)?;
                }
                "bond" => {
                    let params = item.get("params").cloned().unwrap_or_else(Node::null);
                    let keys = ["bond-mode", "bond-xmit-hash-policy", "bond-lacp-rate", "bond-miimon"];
                    self.bond(name, &texts(item, "bond_interfaces"), &params, keys)?;
                    self.mtu(name, item)?;
                    self.subnets(name, item)?;
                }
                "vlan" => {
                    self.vlan(name, text_at(item, "vlan_link"), number(item, "vlan_id")?)?;
                    self.mtu(name, item)?;
                    self.subnets(name, item)?;
                }
                "nameserver" => self.nameservers(&texts(item, "address"))?,
                other => return Err(bad(FILE, format!("a device of type {other:?} is not known"))),
            }
        }
        Ok(())
    }

    fn version_2(&mut self, root: &Node) -> Result<(), NoCloudError> {
        for (name, item) in sorted(root, "ethernets") {
            let mac = item.get("match").map(|found| text_at(found, "macaddress")).unwrap_or_default();
            let link = self.device(name, mac)?;
            self.addresses(&link, item)?;
        }
        for (name, item) in sorted(root, "bonds") {
            let params = item.get("parameters").cloned().unwrap_or_else(Node::null);
            let keys = ["mode", "transmit-hash-policy", "lacp-rate", "mii-monitor-interval"];
            self.bond(name, &texts(item, "interfaces"), &params, keys)?;
            self.addresses(name, item)?;
        }
        for (name, item) in sorted(root, "vlans") {
            self.vlan(name, text_at(item, "link"), number(item, "id")?)?;
            self.addresses(name, item)?;
        }
        Ok(())
    }

    /// A physical link: the one with this hardware address, or of this name where none has it yet.
    fn device(&mut self, name: &str, mac: &str) -> Result<String, NoCloudError> {
        let mut link = name.to_owned();
        if !mac.is_empty() {
            let wanted = HardwareAddr::parse_mac(mac).map_err(|error| bad(FILE, error.to_string()))?;
            let matches = |known: &&KnownLink| match known.permanent.0.is_empty() {
                true => known.current == wanted,
                false => known.permanent == wanted,
            };
            if let Some(found) = self.known.iter().find(matches) {
                link.clone_from(&found.name);
            }
        }
        if link.is_empty() {
            return Err(bad(FILE, "a device without a name"));
        }
        self.names.insert(name.to_owned(), link.clone());
        self.link(&link);
        Ok(link)
    }

    /// The link of this name, which is up.
    fn link(&mut self, name: &str) -> &mut LinkSpec {
        let at = self.config.links.iter().position(|link| link.name == name).unwrap_or_else(|| {
            let up = LinkSpec { name: name.to_owned(), up: true, layer: LAYER, ..LinkSpec::default() };
            self.config.links.push(up);
            self.config.links.len() - 1
        });
        &mut self.config.links[at]
    }

    /// What a link is called on this machine.
    fn name_of(&self, name: &str) -> String {
        self.names.get(name).map_or_else(|| name.to_owned(), Clone::clone)
    }

    fn mtu(&mut self, link: &str, item: &Node) -> Result<(), NoCloudError> {
        let mtu = number(item, "mtu")?;
        if mtu > 0 {
            self.link(link).mtu = mtu;
        }
        Ok(())
    }

    fn bond(
        &mut self,
        name: &str,
        members: &[&str],
        params: &Node,
        [mode, policy, rate, monitor]: [&str; 4],
    ) -> Result<(), NoCloudError> {
        let mut bond = BondMasterSpec {
            mode: value(params, mode, BondMode::from_text)?.unwrap_or_default(),
            xmit_hash_policy: value(params, policy, BondXmitHashPolicy::from_text)?.unwrap_or_default(),
            lacp_rate: value(params, rate, LACPRate::from_text)?.unwrap_or_default(),
            miimon: number(params, monitor)?,
            updelay: number(params, "up-delay")?,
            downdelay: number(params, "down-delay")?,
            use_carrier: true,
            ..BondMasterSpec::default()
        };
        if bond.mode == BondMode::Ieee8023Ad {
            bond.ad_lacp_active = ADLACPActive::On;
        }
        let link = self.link(name);
        link.logical = true;
        link.kind = "bond".to_owned();
        link.r#type = LinkType::ETHER;
        link.bond_master = bond;
        for (index, member) in (0_i64..).zip(members) {
            let member = self.name_of(member);
            let slave = &mut self.link(&member).bond_slave;
            slave.master_name = name.to_owned();
            slave.slave_index = index;
        }
        Ok(())
    }

    fn vlan(&mut self, name: &str, parent: &str, id: u16) -> Result<(), NoCloudError> {
        if parent.is_empty() || !(1..=4094).contains(&id) {
            return Err(bad(FILE, format!("VLAN {name:?} needs a link and a number from 1 to 4094")));
        }
        let parent = self.name_of(parent);
        let link = self.link(name);
        link.logical = true;
        link.kind = "vlan".to_owned();
        link.r#type = LinkType::ETHER;
        link.parent_name = parent;
        link.vlan = VLANSpec { vlan_id: id, vlan_protocol: VLANProtocol::DOT1Q };
        Ok(())
    }

    fn subnets(&mut self, link: &str, item: &Node) -> Result<(), NoCloudError> {
        for subnet in items(item, "subnets") {
            match text_at(subnet, "type") {
                "dhcp" | "dhcp4" => self.dhcp(link, Operator::Dhcp4),
                "ipv6_dhcpv6-stateful" => self.dhcp(link, Operator::Dhcp6),
                "static" | "static6" => {
                    let address = prefix(text_at(subnet, "address"), text_at(subnet, "netmask"))?;
                    self.config.addresses.push(address_spec(link, address, 0, LAYER));
                    self.gateway(link, text_at(subnet, "gateway"))?;
                }
                // What routers announce is taken in any case.
                "manual" | "ipv6_slaac" | "ipv6_dhcpv6-stateless" => {}
                other => return Err(bad(FILE, format!("a subnet of type {other:?} is not known"))),
            }
        }
        Ok(())
    }

    fn addresses(&mut self, link: &str, item: &Node) -> Result<(), NoCloudError> {
        self.mtu(link, item)?;
        for (key, operator) in [("dhcp4", Operator::Dhcp4), ("dhcp6", Operator::Dhcp6)] {
            if matches!(text_at(item, key), "true" | "yes" | "on") {
                self.dhcp(link, operator);
            }
        }
        let mut first = None;
        for text in texts(item, "addresses") {
            let address = prefix(text, "")?;
            first.get_or_insert(address.addr());
            self.config.addresses.push(address_spec(link, address, 0, LAYER));
        }
        for key in ["gateway4", "gateway6"] {
            self.gateway(link, text_at(item, key))?;
        }
        for route in items(item, "routes") {
            self.route(link, route, first)?;
        }
        if let Some(servers) = item.get("nameservers") {
            self.nameservers(&texts(servers, "addresses"))?;
        }
        Ok(())
    }

    fn dhcp(&mut self, link: &str, operator: Operator) {
        let mut spec = OperatorSpec {
            operator,
            link_name: link.to_owned(),
            require_up: true,
            layer: LAYER,
            ..OperatorSpec::default()
        };
        match operator {
            Operator::Dhcp6 => {
                spec.dhcp6 = DHCP6OperatorSpec { route_metric: DEFAULT_METRIC_6, ..Default::default() };
            }
            _ => spec.dhcp4 = DHCP4OperatorSpec { route_metric: DEFAULT_METRIC, ..Default::default() },
        }
        self.config.operators.push(spec);
    }

    fn gateway(&mut self, link: &str, gateway: &str) -> Result<(), NoCloudError> {
        if !gateway.is_empty() {
            let gateway = address(gateway)?;
            let mut route = route_spec(link, Some(gateway), gateway);
            ids::normalize(&mut route);
            self.config.routes.push(route);
        }
        Ok(())
    }

    fn route(&mut self, link: &str, item: &Node, source: Option<IpAddr>) -> Result<(), NoCloudError> {
        let via = text_at(item, "via");
        let gateway = if via.is_empty() { None } else { Some(address(via)?) };
        let to = match text_at(item, "to") {
            "default" | "0.0.0.0/0" | "::/0" => None,
            text => Some(prefix(text, "")?),
        };
        let family = gateway.or(to.map(|to| to.addr()));
        let family = family.ok_or_else(|| bad(FILE, "a default route needs a gateway (via)"))?;
        let mut route = route_spec(link, gateway, family);
        route.dst = IpPrefix(to.map(|to| to.trunc()));
        let metric: u32 = number(item, "metric")?;
        if metric > 0 && !(family.is_ipv6() && metric == DEFAULT_METRIC) {
            route.priority = metric;
        }
        let table: i32 = number(item, "table")?;
        if table > 0 {
            route.table = RoutingTable(table);
        }
        ids::normalize(&mut route);
        if let (Some(gateway), "true" | "yes" | "on") = (gateway, text_at(item, "on-link")) {
            let mut way = way_to(gateway, &route);
            way.src = ip(source.filter(|source| source.is_ipv4() == gateway.is_ipv4()));
            self.config.routes.push(way);
        }
        self.config.routes.push(route);
        Ok(())
    }

    fn nameservers(&mut self, texts: &[&str]) -> Result<(), NoCloudError> {
        for text in texts {
            let server = address(text)?;
            if !self.servers.contains(&server) {
                self.servers.push(server);
            }
        }
        Ok(())
    }

    fn finish(mut self) -> PlatformConfig {
        if !self.servers.is_empty() {
            let dns_servers = self.servers.into_iter().map(Into::into).collect();
            self.config.resolvers.push(ResolverSpec { dns_servers, layer: LAYER, ..ResolverSpec::default() });
        }
        self.config
    }
}

/// A route to everywhere, of the family of `like`.
fn route_spec(link: &str, gateway: Option<IpAddr>, like: IpAddr) -> RouteSpec {
    RouteSpec {
        family: ids::family_of(like),
        gateway: ip(gateway),
        out_link_name: link.to_owned(),
        table: RoutingTable::MAIN,
        priority: if like.is_ipv4() { DEFAULT_METRIC } else { DEFAULT_METRIC_6 },
        r#type: RouteType::UNICAST,
        protocol: RouteProtocol::STATIC,
        layer: LAYER,
        ..RouteSpec::default()
    }
}

fn ip(address: Option<IpAddr>) -> Ip {
    address.map_or(Ip::UNSET, Into::into)
}

fn text_at<'a>(node: &'a Node, key: &str) -> &'a str {
    node.get(key).filter(|value| !value.is_null()).and_then(Node::as_str).unwrap_or_default()
}

fn items<'a>(node: &'a Node, key: &str) -> &'a [Node] {
    let all = node.get(key).and_then(Node::as_seq).unwrap_or_default();
    &all[..all.len().min(ITEMS_MAX)]
}

/// A list of texts, or a single one.
fn texts<'a>(node: &'a Node, key: &str) -> Vec<&'a str> {
    match node.get(key).and_then(Node::as_str) {
        Some(text) => vec![text],
        None => items(node, key).iter().filter_map(Node::as_str).collect(),
    }
}

/// Entries of a mapping, in the order of their names.
fn sorted<'a>(node: &'a Node, key: &str) -> BTreeMap<&'a str, &'a Node> {
    let entries = node.get(key).and_then(Node::as_map).unwrap_or_default().iter().take(ITEMS_MAX);
    entries.filter_map(|(name, value)| Some((name.as_str()?, value))).collect()
}

fn value<T>(
    node: &Node,
    key: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, NoCloudError> {
    match text_at(node, key) {
        "" => Ok(None),
        text => parse(text).map(Some).ok_or_else(|| bad(FILE, format!("{key}: bad value {text:?}"))),
    }
}

fn number<T: Default + std::str::FromStr>(node: &Node, key: &str) -> Result<T, NoCloudError> {
    Ok(value(node, key, |text| text.parse().ok())?.unwrap_or_default())
}

fn address(text: &str) -> Result<IpAddr, NoCloudError> {
    text.trim().parse().map_err(|_| bad(FILE, format!("{text:?} is not an address")))
}

/// An address with its prefix, or with a mask beside it.
fn prefix(text: &str, mask: &str) -> Result<IpNet, NoCloudError> {
    let wrong = || bad(FILE, format!("{text:?} is not an address with a prefix, as in 10.0.0.2/24"));
    if let Ok(net) = text.parse() {
        return Ok(net);
    }
    let address: IpAddr = text.parse().map_err(|_| wrong())?;
    let bits = match mask.parse::<Ipv4Addr>() {
        Ok(mask) => ipnet::ipv4_mask_to_prefix(mask).map_err(|_| wrong())?,
        Err(_) => match mask.parse::<std::net::Ipv6Addr>() {
            Ok(mask) => ipnet::ipv6_mask_to_prefix(mask).map_err(|_| wrong())?,
            Err(_) => mask.parse().map_err(|_| wrong())?,
        },
    };
    IpNet::new(address, bits).map_err(|_| wrong())
}

#[cfg(test)]
mod tests;
