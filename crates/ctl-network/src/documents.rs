//! From configuration documents to [`Settings`].

use std::collections::BTreeMap;

use ichor_config::Documents;
use ichor_cosi::{Context, ControllerError, Input, weak};
use ichor_ctl::Configuration;
use ichor_resource::network::DeviceConfigSpec;
use ichor_types::subnet::parse_prefix_or_addr;

use crate::settings::{LinkSetting, Settings};

pub mod devices;
mod kinds;
mod legacy;

/// Pod network of a cluster that names none.
const POD_SUBNET: &str = "10.244.0.0/16";
/// Service network of a cluster that names none.
const SERVICE_SUBNET: &str = "10.96.0.0/12";

/// The active machine configuration.
pub(crate) fn input() -> Input {
    ichor_ctl::active_input()
}

/// Interface entries of the configuration with their selectors resolved.
pub(crate) fn devices_input() -> Input {
    weak::<DeviceConfigSpec>()
}

/// What the active configuration says about the network; `None` without one. For controllers to whom links
/// do not matter.
pub(crate) fn settings(ctx: &Context) -> Result<Option<Settings>, ControllerError> {
    let config = Configuration::active(ctx)?;
    Ok(config.map(|config| read(&config, &Selected::default())))
}

/// As [`settings`], with links that are chosen by selectors; needs [`devices_input`].
pub(crate) fn settings_with_devices(ctx: &Context) -> Result<Option<Settings>, ControllerError> {
    let Some(config) = Configuration::active(ctx)? else { return Ok(None) };
    let devices = ctx.list::<DeviceConfigSpec>()?;
    let selected = Selected::of(devices.iter().map(|device| (device.id().as_str(), device.spec())));
    Ok(Some(read(&config, &selected)))
}

/// What selectors have chosen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selected {
    /// Links, by the position of their entry.
    pub links: BTreeMap<usize, Vec<String>>,
    /// Members of bonds, by the name of the bond.
    pub members: BTreeMap<String, Vec<String>>,
}

impl Selected {
    /// What the entries say, each with its id.
    pub fn of<'a>(devices: impl Iterator<Item = (&'a str, &'a DeviceConfigSpec)>) -> Self {
        let mut selected = Self::default();
        for (id, device) in devices {
            // `<link>/<position>/<match>`: the position leads back to the entry.
            let parts: Vec<_> = id.split('/').collect();
            if let [link, position, _] = parts[..]
                && let Ok(position) = position.parse()
            {
                selected.links.entry(position).or_default().push(link.to_owned());
            }
            if let Some(members) = devices::members(&device.device) {
                selected.members.insert(parts[0].to_owned(), members);
            }
        }
        selected
    }
}

/// Collects settings of links by name, in order of appearance.
#[derive(Debug, Default)]
struct Links {
    list: Vec<LinkSetting>,
}

impl Links {
    fn entry(&mut self, name: &str) -> &mut LinkSetting {
        let position = self.list.iter().position(|link| link.name == name).unwrap_or_else(|| {
            self.list.push(LinkSetting { name: name.to_owned(), ..LinkSetting::default() });
            self.list.len() - 1
        });
        &mut self.list[position]
    }
}

pub(crate) fn read(documents: &Documents, selected: &Selected) -> Settings {
    let mut settings = Settings::default();
    let mut links = Links::default();
    if let Some(root) = documents.root() {
        if let Some(machine) = &root.machine {
            legacy::read_machine(machine, selected, &mut links, &mut settings);
        }
        if let Some(cluster) = &root.cluster {
            let network = cluster.network.as_ref();
            let pods = network.map_or(&[][..], |n| &n.pod_subnets);
            let services = network.map_or(&[][..], |n| &n.service_subnets);
            for (subnets, fallback) in [(pods, POD_SUBNET), (services, SERVICE_SUBNET)] {
                let named = subnets.iter().map(String::as_str);
                let fallback = subnets.is_empty().then_some(fallback);
                let nets = named.chain(fallback).filter_map(parse_prefix_or_addr);
                settings.kubernetes_subnets.extend(nets);
            }
        }
    }
    for document in documents.iter() {
        kinds::read(document, &mut links, &mut settings);
    }
    settings.links = links.list;
    settings
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use ichor_resource::network::AddressSortAlgorithm;

    use super::*;
    use crate::settings::{AutoHostname, LinkKind};

    fn parse(yaml: &str) -> Settings {
        let selected = Selected {
            links: BTreeMap::from([(1, vec!["ens1".to_owned(), "ens2".to_owned()])]),
            members: BTreeMap::from([("bond9".to_owned(), vec!["ens8".to_owned()])]),
        };
        read(&Documents::load(yaml.as_bytes()).unwrap(), &selected)
    }

    #[track_caller]
    fn check_links(yaml: &str, expect: Expect) {
        let settings = parse(yaml);
        let mut text = format!("explicit={}\n", settings.explicit_links);
        for link in &settings.links {
            let kind = match &link.kind {
                LinkKind::Device => "device".to_owned(),
                LinkKind::Dummy => "dummy".to_owned(),
                LinkKind::Vlan(parent, vlan) => format!("vlan {} on {parent}", vlan.vlan_id),
                LinkKind::Bridge(bridge) => format!("bridge stp={}", bridge.stp.enabled),
                LinkKind::Bond(bond) => format!("bond {}", bond.mode),
                LinkKind::Wireguard(wg) => format!("wireguard {} peers", wg.peers.len()),
            };
            text.push_str(&format!("{}: {kind}", link.name));
            for (flag, word) in
                [(link.ignore, "ignore"), (link.dhcp4.is_some(), "dhcp4"), (link.dhcp6.is_some(), "dhcp6")]
            {
                if flag {
                    text.push_str(&format!(" {word}"));
                }
            }
            if link.mtu != 0 {
                text.push_str(&format!(" mtu={}", link.mtu));
            }
            if let Some((bond, index)) = &link.bond {
                text.push_str(&format!(" in {bond} at {index}"));
            }
            if let Some(bridge) = &link.bridge {
                text.push_str(&format!(" in {bridge}"));
            }
            for address in &link.addresses {
                text.push_str(&format!(" {}", address.prefix));
            }
            for route in &link.routes {
                let to = route.destination.map_or_else(|| "default".to_owned(), |d| d.to_string());
                let via = route.gateway.map_or_else(|| "-".to_owned(), |g| g.to_string());
                text.push_str(&format!(" [{to} via {via} metric {}]", route.metric));
            }
            text.push('\n');
        }
        expect.assert_eq(&text);
    }

    #[test]
    fn interfaces_of_the_older_form() {
        check_links(
            r"
machine:
    network:
        interfaces:
            - interface: eth0
              addresses: [10.5.0.2/24, 10.5.0.3]
              mtu: 9000
              routes:
                  - network: 0.0.0.0/0
                    gateway: 10.5.0.1
              vlans:
                  - vlanId: 7
                    addresses: [10.7.0.2/24]
                    dhcp: true
            - deviceSelector: {driver: virtio*}
              dhcp: true
              dhcpOptions: {routeMetric: 50, ipv6: true}
            - interface: br0
              bridge:
                  interfaces: [eth5, eth6]
                  stp: {enabled: true}
            - interface: bond0
              bond:
                  interfaces: [eth7, eth8]
                  mode: 802.3ad
            - interface: bond9
              bond:
                  deviceSelectors: [{hardwareAddr: '02:*'}]
              vip: {ip: 10.5.0.9}
            - interface: dummy0
              dummy: true
            - interface: eth9
              ignore: true
",
            expect![[r#"
                explicit=false
                eth0: device mtu=9000 10.5.0.2/24 10.5.0.3/32 [0.0.0.0/0 via 10.5.0.1 metric 0]
                eth0.7: vlan 7 on eth0 dhcp4 10.7.0.2/24
                ens1: device dhcp4 dhcp6
                ens2: device dhcp4 dhcp6
                br0: bridge stp=true
                eth5: device in br0
                eth6: device in br0
                bond0: bond 802.3ad
                eth7: device in bond0 at 0
                eth8: device in bond0 at 1
                bond9: bond balance-rr
                ens8: device in bond9 at 0
                dummy0: dummy
                eth9: device ignore
            "#]],
        );
    }

    #[test]
    fn documents_of_their_own() {
        check_links(
            r"
apiVersion: v1alpha1
kind: LinkConfig
name: eth0
mtu: 1400
addresses:
    - address: 10.5.0.2/24
      routePriority: 100
routes:
    - gateway: 10.5.0.1
---
apiVersion: v1alpha1
kind: VLANConfig
name: lab
vlanID: 9
parent: eth0
---
apiVersion: v1alpha1
kind: BridgeConfig
name: br0
links: [eth1]
---
apiVersion: v1alpha1
kind: DHCPv4Config
name: eth2
---
apiVersion: v1alpha1
kind: DummyLinkConfig
name: dummy0
",
            expect![[r#"
                explicit=true
                eth0: device mtu=1400 10.5.0.2/24 [default via 10.5.0.1 metric 0]
                lab: vlan 9 on eth0
                br0: bridge stp=false
                eth1: device in br0
                eth2: device dhcp4
                dummy0: dummy
            "#]],
        );
    }

    #[test]
    fn names_resolvers_time_and_hosts_come_from_either_form() {
        let older = parse(
            r"
machine:
    network:
        hostname: node-1.example.org
        nameservers: [10.0.0.1]
        searchDomains: [example.org]
        disableSearchDomain: true
        extraHostEntries:
            - ip: 10.0.0.9
              aliases: [a, b]
    time: {servers: [ntp.example.org], disabled: true}
    features:
        nodeAddressSortAlgorithm: v2
        hostDNS: {enabled: true, forwardKubeDNSToHost: true}
cluster:
    network: {podSubnets: [10.1.0.0/16]}
",
        );
        assert_eq!(older.hostname.as_deref(), Some("node-1.example.org"));
        assert_eq!(older.auto_hostname, AutoHostname::FromAddress);
        assert_eq!(older.nameservers, ["10.0.0.1".parse::<std::net::IpAddr>().unwrap()]);
        assert_eq!((older.search_domains.len(), older.disable_default_search), (1, true));
        assert_eq!((older.time_servers[0].as_str(), older.time_disabled), ("ntp.example.org", true));
        assert_eq!(older.extra_hosts[0].1, ["a", "b"]);
        assert_eq!(older.sort_algorithm, AddressSortAlgorithm::V2);
        assert!(older.host_dns.enabled && older.host_dns.forward_kube_dns);
        let nets: Vec<_> = older.kubernetes_subnets.iter().map(ToString::to_string).collect();
        assert_eq!(nets, ["10.1.0.0/16", "10.96.0.0/12"]);

        let newer = parse(
            r"
apiVersion: v1alpha1
kind: HostnameConfig
auto: stable
---
apiVersion: v1alpha1
kind: ResolverConfig
nameservers:
    - address: 10.0.0.2
searchDomains: {domains: [x.org], disableDefault: true}
---
apiVersion: v1alpha1
kind: TimeSyncConfig
ntp: {servers: [t.example.org]}
---
apiVersion: v1alpha1
kind: StaticHostConfig
name: 10.0.0.9
hostnames: [c]
",
        );
        assert_eq!((newer.hostname, newer.auto_hostname), (None, AutoHostname::Stable));
        assert_eq!(newer.nameservers, ["10.0.0.2".parse::<std::net::IpAddr>().unwrap()]);
        assert!(newer.disable_default_search && newer.search_domains == ["x.org"]);
        assert_eq!(newer.time_servers, ["t.example.org"]);
        assert_eq!(newer.extra_hosts[0].1, ["c"]);
        assert!(!newer.explicit_links);
    }
}
