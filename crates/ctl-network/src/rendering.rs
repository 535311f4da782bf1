//! What the machine configuration and the kernel command line make of the network: the same decisions and merges as the
//! controllers', without a state. Pure.
//!
//! What only a running machine learns (leases, the platform, neighbours) is not in it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ichor_config::Documents;
use ichor_net::cmdline::NetworkArgs;
use ichor_resource::network::{
    AddressSpec, HostnameSpec, LinkSpec, OperatorSpec, ResolverSpec, RouteSpec, TimeServerSpec,
};
use ichor_types::Cmdline;

use crate::documents::{self, Selected};
use crate::ids;
use crate::merge::Layered;
use crate::source::cmdline::Resolved;
use crate::source::{address, hostname, link, operator, resolver, route, time_server, vip};

/// What is known of the machine.
#[derive(Debug, Clone, Default)]
pub struct NetworkFacts {
    /// The kernel command line.
    pub cmdline: Cmdline,
    /// Names of its devices.
    pub links: Vec<String>,
    /// What selectors of the configuration have chosen.
    pub selected: Selected,
    /// The identity of the node.
    pub node_id: Option<String>,
    /// The address that a host name is made from where the configuration names none.
    pub default_address: Option<IpAddr>,
}

/// The wanted network, merged, by the ids of the resources.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NetworkRendering {
    /// The host name, unless only a running machine can know it.
    pub hostname: Option<HostnameSpec>,
    /// Links.
    pub links: BTreeMap<String, LinkSpec>,
    /// Addresses.
    pub addresses: BTreeMap<String, AddressSpec>,
    /// Routes.
    pub routes: BTreeMap<String, RouteSpec>,
    /// DHCP clients and shared addresses.
    pub operators: BTreeMap<String, OperatorSpec>,
    /// Name servers and search domains.
    pub resolvers: Option<ResolverSpec>,
    /// Time servers.
    pub time_servers: Option<TimeServerSpec>,
    /// What is left out, and why.
    pub notes: Vec<String>,
}

/// Renders the network of a configuration.
pub fn render(config: &Documents, facts: &NetworkFacts) -> NetworkRendering {
    let mut notes = Vec::new();
    let args = NetworkArgs::parse(&facts.cmdline).unwrap_or_else(|error| {
        notes.push(format!("network arguments of the kernel command line are ignored: {error}"));
        NetworkArgs::default()
    });
    let settings = documents::read(config, &facts.selected);
    let settings = Some(&settings);
    let mut devices: Vec<&str> = facts.links.iter().map(String::as_str).collect();
    devices.sort_unstable();
    let named = Resolved::new(&args, devices.first().copied());
    let unnamed = Resolved::new(&args, None);

    let (names, bad) = hostname::decide(&unnamed, settings, facts.node_id.as_deref(), facts.default_address);
    notes.extend(bad.iter().map(|error| format!("host name not taken: {error}")));
    let names = merged(names, |spec| ids::layered(spec.layer, ids::HOSTNAME));
    let name = names.into_values().next();

    let links = link::decide(&named, settings, devices.iter().copied());
    let configured = operator::configured(links.iter());
    let mut operators = operator::decide(&named, settings, devices.iter().copied(), &configured);
    operators.extend(settings.into_iter().flat_map(|settings| vip::decide(settings, unnamed.ignored())));
    let domain = name.as_ref().map_or("", |name| name.domainname.as_str());
    let resolvers = resolver::decide(&unnamed, settings, domain);
    let time_servers = time_server::decide(&unnamed, settings);
    NetworkRendering {
        links: merged(links, |spec| ids::layered(spec.layer, &spec.name)),
        addresses: merged(address::decide(&named, settings), |spec| {
            ids::layered(spec.layer, &ids::address(&spec.link_name, spec.address))
        }),
        routes: merged(route::decide(&named, settings), |spec| {
            ids::layered(spec.layer, &ids::route_spec(spec))
        }),
        operators: merged(operators, |spec| ids::layered(spec.layer, &ids::operator_spec(spec))),
        resolvers: merged(resolvers, |spec| ids::layered(spec.layer, ids::RESOLVERS)).into_values().next(),
        time_servers: merged(time_servers, |spec| ids::layered(spec.layer, ids::TIME_SERVERS))
            .into_values()
            .next(),
        hostname: name,
        notes,
    }
}

/// As the merge controllers do it: by the ids of the unmerged specs, of equal ones the last.
fn merged<T: Layered>(specs: Vec<T>, id: impl Fn(&T) -> String) -> BTreeMap<String, T> {
    let unmerged: BTreeMap<String, T> = specs.into_iter().map(|spec| (id(&spec), spec)).collect();
    T::merge(unmerged.into_values().collect())
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    #[track_caller]
    fn check(config: &str, cmdline: &str, expect: Expect) {
        let facts = NetworkFacts {
            cmdline: Cmdline::parse(cmdline),
            links: vec!["eth1".to_owned(), "eth0".to_owned()],
            default_address: Some("10.5.0.2".parse().unwrap()),
            ..NetworkFacts::default()
        };
        let found = render(&Documents::load(config.as_bytes()).unwrap(), &facts);
        let mut lines = Vec::new();
        lines.extend(found.hostname.iter().map(|name| format!("name {} {}", name.hostname, name.domainname)));
        lines.extend(found.links.values().map(|link| format!("link {} mtu {}", link.name, link.mtu)));
        lines.extend(found.addresses.keys().map(|id| format!("address {id}")));
        lines.extend(found.routes.keys().map(|id| format!("route {id}")));
        lines.extend(found.operators.keys().map(|id| format!("operator {id}")));
        if let Some(resolvers) = &found.resolvers {
            let servers: Vec<String> = resolvers.dns_servers.iter().map(ToString::to_string).collect();
            lines.push(format!("dns {} / {}", servers.join(" "), resolvers.search_domains.join(" ")));
        }
        lines.extend(found.time_servers.iter().map(|time| format!("ntp {}", time.time_servers.join(" "))));
        lines.extend(found.notes.iter().map(|note| format!("note {note}")));
        expect.assert_eq(&lines.join("\n"));
    }

    #[test]
    fn a_machine_without_network_settings_runs_dhcp_on_its_devices() {
        check(
            "version: v1alpha1\nmachine: {type: worker}\n",
            "",
            expect![[r#"
                name talos-10-5-0-2 
                link eth0 mtu 0
                link eth1 mtu 0
                link lo mtu 0
                address lo/127.0.0.1/8
                operator dhcp4/eth0
                operator dhcp4/eth1
                dns 1.1.1.1 8.8.8.8 / 
                ntp time.cloudflare.com"#]],
        );
    }

    #[test]
    fn configuration_wins_over_the_command_line_and_both_over_defaults() {
        check(
            "version: v1alpha1
machine:
  type: controlplane
  network:
    hostname: cp-1.example.org
    nameservers: [10.5.0.1]
    interfaces:
      - interface: eth0
        mtu: 1400
        addresses: [10.5.0.2/24]
        routes: [{network: 0.0.0.0/0, gateway: 10.5.0.1}]
        vip: {ip: 10.5.0.9}
  time: {servers: [t.example.org]}
",
            "ip=10.6.0.2::10.6.0.1:24:other:eth1",
            expect![[r#"
                name cp-1 example.org
                link eth0 mtu 1400
                link eth1 mtu 0
                link lo mtu 0
                address eth0/10.5.0.2/24
                address eth1/10.6.0.2/24
                address lo/127.0.0.1/8
                route inet4/10.5.0.1//1024
                route inet4/10.6.0.1//1024
                operator vip/eth0/10.5.0.9
                dns 10.5.0.1 / example.org
                ntp t.example.org"#]],
        );
    }

    #[test]
    fn what_cannot_be_a_host_name_is_noted() {
        let config = format!(
            "version: v1alpha1\nmachine: {{type: worker, network: {{hostname: {}}}}}\n",
            "a".repeat(70)
        );
        let found = render(&Documents::load(config.as_bytes()).unwrap(), &NetworkFacts::default());
        assert!(found.hostname.is_none());
        assert!(found.notes[0].starts_with("host name not taken: bad host name"), "{:?}", found.notes);
    }
}
