//! The kernel command line as specs.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use ichor_cosi::{Context, ControllerError, Input, weak};
use ichor_net::cmdline::{LinkArg, NetworkArgs};
use ichor_resource::network::{
    ADSelect, ARPAllTargets, ARPValidate, AddressFlags, AddressSpec, BondMasterSpec, BondMode,
    BondXmitHashPolicy, ConfigLayer, DHCP4OperatorSpec, FailOverMAC, LACPRate, LinkSpec, LinkStatus,
    LinkType, OperatorSpec, PrimaryReselect, RouteProtocol, RouteSpec, RouteType, RoutingTable, Scope,
    VLANProtocol, VLANSpec,
};
use ipnet::IpNet;

use crate::ids::{self, DEFAULT_METRIC};
use crate::link_name::vlan_name;

/// The command line with every link named.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Resolved {
    args: NetworkArgs,
    links: Vec<(String, LinkArg)>,
}

impl Resolved {
    /// Gives links without a name the name `first`. When there is none yet, they are left out.
    pub fn new(args: &NetworkArgs, first: Option<&str>) -> Self {
        let vlan = args.vlan.as_ref();
        let links = args.links.iter().filter_map(|arg| {
            let name = arg.device.as_deref().or(first)?;
            // A VLAN may be referred to by the name it was given, and is made under its own.
            let name = match vlan {
                Some(vlan) if vlan.name == *name => vlan_name(&vlan.parent, vlan.id),
                _ => name.to_owned(),
            };
            Some((name, arg.clone()))
        });
        Self { links: links.collect(), args: args.clone() }
    }

    /// Names of all links the command line speaks of.
    pub fn link_names(&self) -> impl Iterator<Item = &str> {
        self.links.iter().map(|(name, _)| name.as_str())
    }

    /// Links to leave alone.
    pub fn ignored(&self) -> &[String] {
        &self.args.ignored
    }

    /// Host name, as given.
    pub fn hostname(&self) -> Option<&str> {
        self.args.hostname.as_deref()
    }

    /// Name servers.
    pub fn dns(&self) -> &[IpAddr] {
        &self.args.dns
    }

    /// Time servers.
    pub fn ntp(&self) -> &[IpAddr] {
        &self.args.ntp
    }

    /// Addresses.
    pub fn addresses(&self) -> Vec<AddressSpec> {
        let spec = |(name, arg): &(String, LinkArg)| {
            arg.address.map(|prefix| address_spec(name, prefix, 0, ConfigLayer::Cmdline))
        };
        self.links.iter().filter_map(spec).collect()
    }

    /// A default route per gateway, and the way to a gateway outside of the prefix.
    pub fn routes(&self) -> Vec<RouteSpec> {
        let mut routes = Vec::new();
        for (name, arg) in &self.links {
            let Some(gateway) = arg.gateway else { continue };
            let mut route = RouteSpec {
                family: ids::family_of(gateway),
                gateway: gateway.into(),
                out_link_name: name.clone(),
                table: RoutingTable::MAIN,
                priority: DEFAULT_METRIC + arg.position,
                r#type: RouteType::UNICAST,
                protocol: RouteProtocol::BOOT,
                layer: ConfigLayer::Cmdline,
                ..RouteSpec::default()
            };
            ids::normalize(&mut route);
            let outside = arg.address.is_some_and(|prefix| !prefix.contains(&gateway));
            if outside && gateway.is_ipv4() {
                routes.push(way_to(gateway, &route));
            }
            routes.push(route);
        }
        routes
    }

    /// Links: those spoken of are up; the bond and the VLAN are made.
    pub fn links(&self) -> Vec<LinkSpec> {
        let up = |name: &str| LinkSpec {
            name: name.to_owned(),
            up: true,
            layer: ConfigLayer::Cmdline,
            ..LinkSpec::default()
        };
        let mut links: Vec<LinkSpec> = Vec::new();
        if let Some(bond) = &self.args.bond {
            links.push(LinkSpec {
                logical: true,
                kind: "bond".to_owned(),
                r#type: LinkType::ETHER,
                mtu: bond.mtu,
                bond_master: bond_master(&bond.options),
                ..up(&bond.name)
            });
            for (index, member) in (0_i64..).zip(&bond.members) {
                let mut link = up(member);
                link.bond_slave.master_name = bond.name.clone();
                link.bond_slave.slave_index = index;
                links.push(link);
            }
        }
        if let Some(vlan) = &self.args.vlan {
            links.push(LinkSpec {
                logical: true,
                kind: "vlan".to_owned(),
                r#type: LinkType::ETHER,
                parent_name: vlan.parent.clone(),
                vlan: VLANSpec { vlan_id: vlan.id, vlan_protocol: VLANProtocol::DOT1Q },
                ..up(&vlan_name(&vlan.parent, vlan.id))
            });
            if !links.iter().any(|link| link.name == vlan.parent) {
                links.push(up(&vlan.parent));
            }
        }
        for name in self.link_names() {
            if !links.iter().any(|link| link.name == name) {
                links.push(up(name));
            }
        }
        links
    }

    /// DHCP clients.
    pub fn operators(&self) -> Vec<OperatorSpec> {
        let with_dhcp = self.links.iter().filter(|(_, arg)| arg.dhcp);
        let spec = |(name, _): &(String, LinkArg)| OperatorSpec {
            link_name: name.clone(),
            require_up: true,
            dhcp4: DHCP4OperatorSpec { route_metric: DEFAULT_METRIC, ..DHCP4OperatorSpec::default() },
            layer: ConfigLayer::Cmdline,
            ..OperatorSpec::default()
        };
        with_dhcp.map(spec).collect()
    }
}

/// The command line as controllers see it: links without a name get the first that was ever seen, so that a
/// link that appears later does not take over.
#[derive(Debug, Clone, Default)]
pub struct CmdlineSource {
    args: Arc<NetworkArgs>,
    first: Arc<OnceLock<String>>,
}

impl CmdlineSource {
    /// From the parsed command line.
    pub fn new(args: NetworkArgs) -> Self {
        Self { args: Arc::new(args), first: Arc::default() }
    }

    /// The links, for those who need them to know the first.
    pub(crate) fn inputs(&self) -> Option<Input> {
        let unnamed = self.args.links.iter().any(|arg| arg.device.is_none());
        unnamed.then(weak::<LinkStatus>)
    }

    /// The command line, for those to whom links do not matter.
    pub(crate) fn unresolved(&self) -> Resolved {
        Resolved::new(&self.args, None)
    }

    /// The command line with all links named that can be.
    pub(crate) fn resolve(&self, ctx: &Context) -> Result<Resolved, ControllerError> {
        if self.first.get().is_none() && self.inputs().is_some() {
            let links = ctx.list::<LinkStatus>()?;
            if let Some(name) = first_link(links.iter().map(|link| (link.id().as_str(), link.spec()))) {
                // Lost races are fine: another controller came to the same view first.
                let _ = self.first.set(name.to_owned());
            }
        }
        Ok(Resolved::new(&self.args, self.first.get().map(String::as_str)))
    }
}

/// The first ethernet link by name; devices come before virtual ones.
fn first_link<'a>(links: impl Iterator<Item = (&'a str, &'a LinkStatus)>) -> Option<&'a str> {
    links
        .filter(|(_, link)| link.r#type == LinkType::ETHER)
        .min_by_key(|(name, link)| (!link.kind.is_empty(), *name))
        .map(|(name, _)| name)
}

/// A permanent address of a link.
pub(crate) fn address_spec(link: &str, prefix: IpNet, priority: u32, layer: ConfigLayer) -> AddressSpec {
    AddressSpec {
        address: prefix.into(),
        link_name: link.to_owned(),
        family: ids::family_of(prefix.addr()),
        scope: if prefix.addr().is_loopback() { Scope::HOST } else { Scope::GLOBAL },
        flags: AddressFlags::PERMANENT,
        priority,
        layer,
        ..AddressSpec::default()
    }
}

/// The route on the link itself that leads to a gateway outside of all prefixes.
pub(crate) fn way_to(gateway: IpAddr, route: &RouteSpec) -> RouteSpec {
    let mut way = RouteSpec {
        dst: ids::host_prefix(gateway).into(),
        gateway: ichor_resource::value::Ip::UNSET,
        ..route.clone()
    };
    ids::normalize(&mut way);
    way
}

/// Bond options by their kernel names. The parser lets only known names through; a value that does not
/// parse leaves the default.
fn bond_master(options: &[(String, String)]) -> BondMasterSpec {
    let mut bond = BondMasterSpec { use_carrier: true, ..BondMasterSpec::default() };
    for (key, value) in options {
        let number = value.parse::<u32>().unwrap_or(0);
        let small = u8::try_from(number).unwrap_or(u8::MAX);
        match key.as_str() {
            "mode" => bond.mode = BondMode::from_text(value).unwrap_or_default(),
            "xmit_hash_policy" => {
                bond.xmit_hash_policy = BondXmitHashPolicy::from_text(value).unwrap_or_default();
            }
            "lacp_rate" => bond.lacp_rate = LACPRate::from_text(value).unwrap_or_default(),
            "arp_validate" => bond.arp_validate = ARPValidate::from_text(value).unwrap_or_default(),
            "arp_all_targets" => bond.arp_all_targets = ARPAllTargets::from_text(value).unwrap_or_default(),
            "primary_reselect" => {
                bond.primary_reselect = PrimaryReselect::from_text(value).unwrap_or_default();
            }
            "fail_over_mac" => bond.fail_over_mac = FailOverMAC::from_text(value).unwrap_or_default(),
            "ad_select" => bond.ad_select = ADSelect::from_text(value).unwrap_or_default(),
            "miimon" => bond.miimon = number,
            "updelay" => bond.updelay = number,
            "downdelay" => bond.downdelay = number,
            "arp_interval" => bond.arp_interval = number,
            "arp_ip_target" => {
                bond.arp_ip_targets = value.split(';').filter_map(|ip| ip.parse().ok()).collect();
            }
            "resend_igmp" => bond.resend_igmp = number,
            "min_links" => bond.min_links = number,
            "lp_interval" => bond.lp_interval = number,
            "packets_per_slave" => bond.packets_per_slave = number,
            "num_grat_arp" | "num_unsol_na" => bond.num_peer_notif = small,
            "all_slaves_active" => bond.all_slaves_active = small,
            "use_carrier" => bond.use_carrier = number != 0,
            _ => {}
        }
    }
    bond
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use ichor_types::Cmdline;

    use super::*;

    #[track_caller]
    fn check(cmdline: &str, first: Option<&str>, expect: Expect) {
        let args = NetworkArgs::parse(&Cmdline::parse(cmdline)).unwrap();
        let resolved = Resolved::new(&args, first);
        let mut lines = Vec::new();
        for link in resolved.links() {
            let kind = if link.kind.is_empty() { "device" } else { &link.kind };
            lines.push(format!("link {} {kind} up={} on {:?}", link.name, link.up, link.parent_name));
        }
        for address in resolved.addresses() {
            lines.push(format!("address {} on {} {}", address.address, address.link_name, address.flags));
        }
        for route in resolved.routes() {
            lines.push(format!("route {} {} {}", ids::route_spec(&route), route.scope, route.protocol));
        }
        for operator in resolved.operators() {
            lines.push(format!("{} on {}", operator.operator, operator.link_name));
        }
        expect.assert_eq(&lines.join("\n"));
    }

    #[test]
    fn a_static_address_without_a_link_takes_the_first() {
        check(
            "ip=10.5.0.2::10.5.0.1:24:node-1",
            Some("eth0"),
            expect![[r#"
                link eth0 device up=true on ""
                address 10.5.0.2/24 on eth0 permanent
                route inet4/10.5.0.1//1024 global boot"#]],
        );
        check("ip=10.5.0.2::10.5.0.1:24", None, expect![[""]]);
    }

    #[test]
    fn a_gateway_outside_of_the_prefix_gets_a_way_to_it() {
        check(
            "ip=10.5.0.2:::32::eth0 ip=10.6.0.2::10.9.9.9:24::eth1",
            None,
            expect![[r#"
                link eth0 device up=true on ""
                link eth1 device up=true on ""
                address 10.5.0.2/32 on eth0 permanent
                address 10.6.0.2/24 on eth1 permanent
                route inet4//10.9.9.9/32/1025 link boot
                route inet4/10.9.9.9//1025 global boot"#]],
        );
    }

    #[test]
    fn a_vlan_is_made_under_its_own_name() {
        check(
            "vlan=vlan7:eth0 ip=10.7.0.2:::24::vlan7:off",
            Some("eth0"),
            expect![[r#"
                link eth0.7 vlan up=true on "eth0"
                link eth0 device up=true on ""
                address 10.7.0.2/24 on eth0.7 permanent"#]],
        );
    }

    #[test]
    fn dhcp_on_a_named_link() {
        check(
            "ip=eth3:dhcp",
            Some("eth0"),
            expect![[r#"
                link eth3 device up=true on ""
                dhcp4 on eth3"#]],
        );
    }
}
