//! The network configuration of a platform as YAML: what META holds on metal, and what is kept from one boot to the
//! next. Pure.

use std::str::FromStr;

use ichor_resource::network::{
    ADLACPActive, ADSelect, ARPAllTargets, ARPValidate, AddressFlags, AddressSpec, BondMasterSpec, BondMode,
    BondXmitHashPolicy, ClientIdentifier, ClientIdentifierSpec, ConfigLayer, DHCP4OperatorSpec,
    DHCP6OperatorSpec, FailOverMAC, Family, HostnameSpec, LACPRate, LinkSpec, LinkType, Operator,
    OperatorSpec, PlatformConfig, PrimaryReselect, ProbeSpec, ResolverSpec, RouteFlags, RouteProtocol,
    RouteSpec, RouteType, RoutingTable, Scope, TCPProbeSpec, TimeServerSpec, VLANProtocol, VLANSpec,
    WireguardPeer, WireguardSpec,
};
use ichor_resource::runtime::PlatformMetadata;
use ichor_types::{GoDuration, HardwareAddr};
use ichor_yaml::Node;

use crate::ids;

/// A text that is no such configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPlatformConfig {
    /// Not YAML.
    #[error("platform network configuration: {0}")]
    Yaml(String),
    /// A value that cannot be.
    #[error("platform network configuration: {key}: bad value {value:?}")]
    Value {
        /// Where.
        key: String,
        /// What is there.
        value: String,
    },
}

/// A mapping, and the first mistake found in it.
struct Map<'a> {
    node: &'a Node,
    mistake: Option<BadPlatformConfig>,
}

impl<'a> Map<'a> {
    fn text(&self, key: &str) -> &'a str {
        self.node.get(key).filter(|node| !node.is_null()).and_then(Node::as_str).unwrap_or_default()
    }

    /// A value by its text; the default when it is absent.
    fn value<T: Default>(&mut self, key: &str, parse: impl FnOnce(&str) -> Option<T>) -> T {
        let text = self.text(key);
        if text.is_empty() {
            return T::default();
        }
        parse(text).unwrap_or_else(|| {
            let mistake = BadPlatformConfig::Value { key: key.to_owned(), value: text.to_owned() };
            self.mistake.get_or_insert(mistake);
            T::default()
        })
    }

    fn number<T: Default + FromStr>(&mut self, key: &str) -> T {
        self.value(key, |text| text.parse().ok())
    }

    fn flag(&mut self, key: &str) -> bool {
        self.value(key, |text| text.parse().ok())
    }

    fn duration(&mut self, key: &str) -> GoDuration {
        self.value(key, |text| text.parse().ok())
    }

    fn part<T: Default>(&mut self, key: &str, read: impl FnOnce(&mut Map<'a>) -> T) -> T {
        let Some(node) = self.node.get(key).filter(|node| !node.is_null()) else { return T::default() };
        let mut map = Map { node, mistake: None };
        let value = read(&mut map);
        if let Some(mistake) = map.mistake {
            self.mistake.get_or_insert(mistake);
        }
        value
    }

    fn list<T>(&mut self, key: &str, mut read: impl FnMut(&mut Map<'a>) -> T) -> Vec<T> {
        let items = self.node.get(key).and_then(Node::as_seq).unwrap_or_default();
        let mut found = Vec::with_capacity(items.len());
        for node in items {
            let mut map = Map { node, mistake: None };
            found.push(read(&mut map));
            if let Some(mistake) = map.mistake {
                self.mistake.get_or_insert(mistake);
            }
        }
        found
    }

    fn texts<T>(&mut self, key: &str, parse: impl Fn(&str) -> Option<T>) -> Vec<T> {
        let items = self.node.get(key).and_then(Node::as_seq).unwrap_or_default();
        let mut found = Vec::with_capacity(items.len());
        for text in items.iter().filter_map(Node::as_str) {
            match parse(text) {
                Some(value) => found.push(value),
                None => {
                    let mistake = BadPlatformConfig::Value { key: key.to_owned(), value: text.to_owned() };
                    self.mistake.get_or_insert(mistake);
                }
            }
        }
        found
    }
}

/// Reads a configuration. Keys that are not known are passed over, as a newer platform may write them.
pub fn parse(text: &str) -> Result<PlatformConfig, BadPlatformConfig> {
    let documents = ichor_yaml::parse(text).map_err(|error| BadPlatformConfig::Yaml(error.to_string()))?;
    let Some(document) = documents.first() else { return Ok(PlatformConfig::default()) };
    let mut map = Map { node: &document.root, mistake: None };
    let config = PlatformConfig {
        addresses: map.list("addresses", address),
        links: map.list("links", link),
        routes: map.list("routes", route),
        hostnames: map.list("hostnames", |m| HostnameSpec {
            hostname: m.text("hostname").to_owned(),
            domainname: m.text("domainname").to_owned(),
            layer: layer(m),
        }),
        resolvers: map.list("resolvers", |m| ResolverSpec {
            dns_servers: m.texts("dnsServers", |text| text.parse().ok()),
            search_domains: m.texts("searchDomains", |text| Some(text.to_owned())),
            layer: layer(m),
        }),
        time_servers: map.list("timeServers", |m| TimeServerSpec {
            time_servers: m.texts("timeServers", |text| Some(text.to_owned())),
            layer: layer(m),
        }),
        operators: map.list("operators", operator),
        external_ips: map.texts("externalIPs", |text| text.parse().ok()),
        probes: map.list("probes", |m| ProbeSpec {
            interval: m.duration("interval"),
            failure_threshold: m.number("failureThreshold"),
            tcp: m.part("tcp", |m| TCPProbeSpec {
                endpoint: m.text("endpoint").to_owned(),
                timeout: m.duration("timeout"),
            }),
            layer: layer(m),
        }),
        metadata: map.part("metadata", |m| Some(metadata(m))),
    };
    map.mistake.map_or(Ok(config), Err)
}

/// Flags by their names, joined with commas; `name` shows the name of one bit.
fn flags(text: &str, name: impl Fn(u32) -> String) -> Option<u32> {
    let words = text.split([',', '|']).map(str::trim).filter(|word| !word.is_empty());
    words.map(|word| (0..u32::BITS).map(|bit| 1 << bit).find(|bit| name(*bit) == word)).sum()
}

fn layer(map: &mut Map<'_>) -> ConfigLayer {
    map.value("layer", ConfigLayer::from_text)
}

fn address(map: &mut Map<'_>) -> AddressSpec {
    let mut spec = AddressSpec {
        address: map.number("address"),
        link_name: map.text("linkName").to_owned(),
        family: map.value("family", Family::from_text),
        scope: map.value("scope", Scope::from_text),
        flags: AddressFlags(map.value("flags", |text| flags(text, |bits| AddressFlags(bits).to_string()))),
        announce_with_arp: map.flag("announceWithARP"),
        priority: map.number("priority"),
        layer: layer(map),
    };
    if let (true, Some(prefix)) = (spec.family == Family::default(), spec.address.get()) {
        spec.family = ids::family_of(prefix.addr());
    }
    spec
}

fn route(map: &mut Map<'_>) -> RouteSpec {
    RouteSpec {
        family: map.value("family", Family::from_text),
        dst: map.number("dst"),
        src: map.number("src"),
        gateway: map.number("gateway"),
        out_link_name: map.text("outLinkName").to_owned(),
        table: map.value("table", |text| {
            RoutingTable::from_text(text).or_else(|| text.parse().ok().map(RoutingTable))
        }),
        priority: map.number("priority"),
        scope: map.value("scope", Scope::from_text),
        r#type: map.value("type", RouteType::from_text),
        flags: RouteFlags(map.value("flags", |text| flags(text, |bits| RouteFlags(bits).to_string()))),
        protocol: map.value("protocol", RouteProtocol::from_text),
        layer: layer(map),
        mtu: map.number("mtu"),
    }
}

fn link(map: &mut Map<'_>) -> LinkSpec {
    let mut spec = LinkSpec {
        name: map.text("name").to_owned(),
        logical: map.flag("logical"),
        up: map.flag("up"),
        mtu: map.number("mtu"),
        kind: map.text("kind").to_owned(),
        r#type: map.value("type", LinkType::from_text),
        hardware_addr: map.number::<HardwareAddr>("hardwareAddr"),
        parent_name: map.text("parentName").to_owned(),
        vlan: map.part("vlan", |m| VLANSpec {
            vlan_id: m.number("vlanID"),
            vlan_protocol: m.value("vlanProtocol", VLANProtocol::from_text),
        }),
        bond_master: map.part("bondMaster", bond),
        wireguard: map.part("wireguard", wireguard),
        multicast: map.value("multicast", |text| text.parse().ok().map(Some)),
        layer: layer(map),
        ..LinkSpec::default()
    };
    spec.bond_slave.master_name = map.text("masterName").to_owned();
    spec.bond_slave.slave_index = map.number("slaveIndex");
    spec.bridge_slave.master_name = map.part("bridgeSlave", |m| m.text("masterName").to_owned());
    spec.bridge_master.stp.enabled = map.part("bridgeMaster", |m| m.part("stp", |m| m.flag("enabled")));
    spec.bridge_master.vlan.filtering_enabled =
        map.part("bridgeMaster", |m| m.part("vlan", |m| m.flag("filteringEnabled")));
    spec
}

fn bond(map: &mut Map<'_>) -> BondMasterSpec {
    BondMasterSpec {
        mode: map.value("mode", BondMode::from_text),
        xmit_hash_policy: map.value("xmitHashPolicy", BondXmitHashPolicy::from_text),
        lacp_rate: map.value("lacpRate", LACPRate::from_text),
        arp_validate: map.value("arpValidate", ARPValidate::from_text),
        arp_all_targets: map.value("arpAllTargets", ARPAllTargets::from_text),
        primary: map.value("primary", |text| text.parse().ok().map(Some)),
        primary_reselect: map.value("primaryReselect", PrimaryReselect::from_text),
        fail_over_mac: map.value("failOverMac", |text| {
            FailOverMAC::from_text(text).or_else(|| text.parse().ok().and_then(FailOverMAC::from_number))
        }),
        ad_select: map.value("adSelect", ADSelect::from_text),
        miimon: map.number("miimon"),
        updelay: map.number("updelay"),
        downdelay: map.number("downdelay"),
        arp_interval: map.number("arpInterval"),
        resend_igmp: map.number("resendIgmp"),
        min_links: map.number("minLinks"),
        lp_interval: map.number("lpInterval"),
        packets_per_slave: map.number("packetsPerSlave"),
        num_peer_notif: map.number("numPeerNotif"),
        tlb_logical_lb: map.number("tlbLogicalLb"),
        all_slaves_active: map.number("allSlavesActive"),
        use_carrier: map.flag("useCarrier"),
        ad_actor_sys_prio: map.number("adActorSysPrio"),
        ad_user_port_key: map.number("adUserPortKey"),
        peer_notify_delay: map.number("peerNotifyDelay"),
        arp_ip_targets: map.texts("arpIpTargets", |text| text.parse().ok()),
        ns_ip6_targets: map.texts("nsIp6Targets", |text| text.parse().ok()),
        ad_lacp_active: map.value("adLacpActive", ADLACPActive::from_text),
        missed_max: map.number("missedMax"),
    }
}

fn wireguard(map: &mut Map<'_>) -> WireguardSpec {
    WireguardSpec {
        private_key: map.text("privateKey").to_owned(),
        public_key: map.text("publicKey").to_owned(),
        listen_port: map.number("listenPort"),
        firewall_mark: map.number("firewallMark"),
        peers: map.list("peers", |m| WireguardPeer {
            public_key: m.text("publicKey").to_owned(),
            preshared_key: m.text("presharedKey").to_owned(),
            endpoint: m.text("endpoint").to_owned(),
            persistent_keepalive_interval: m.duration("persistentKeepaliveInterval"),
            allowed_ips: m.texts("allowedIPs", |text| text.parse().ok()),
        }),
    }
}

fn operator(map: &mut Map<'_>) -> OperatorSpec {
    let identifier = |m: &mut Map<'_>| ClientIdentifierSpec {
        client_identifier: m.value("clientIdentifier", ClientIdentifier::from_text),
        duid_raw_hex: m.text("duidRawHex").to_owned(),
    };
    let mut spec = OperatorSpec {
        operator: map.value("operator", Operator::from_text),
        link_name: map.text("linkName").to_owned(),
        require_up: map.flag("requireUp"),
        dhcp4: map.part("dhcp4", |m| DHCP4OperatorSpec {
            route_metric: m.number("routeMetric"),
            skip_hostname_request: m.flag("skipHostnameRequest"),
            client_identifier: m.part("clientIdentifier", identifier),
        }),
        dhcp6: map.part("dhcp6", |m| DHCP6OperatorSpec {
            route_metric: m.number("routeMetric"),
            skip_hostname_request: m.flag("skipHostnameRequest"),
            client_identifier: m.part("clientIdentifier", identifier),
        }),
        layer: layer(map),
        ..OperatorSpec::default()
    };
    map.part("vip", |m| {
        spec.vip.ip = m.number("ip");
        spec.vip.gratuitous_arp = m.flag("gratuitousARP");
    });
    spec
}

fn metadata(map: &mut Map<'_>) -> PlatformMetadata {
    let tags = map.node.get("tags").and_then(Node::as_map).unwrap_or_default();
    let pair = |(key, value): &(Node, Node)| Some((key.as_str()?.to_owned(), value.as_str()?.to_owned()));
    PlatformMetadata {
        platform: map.text("platform").to_owned(),
        hostname: map.text("hostname").to_owned(),
        region: map.text("region").to_owned(),
        zone: map.text("zone").to_owned(),
        instance_type: map.text("instanceType").to_owned(),
        instance_id: map.text("instanceId").to_owned(),
        provider_id: map.text("providerId").to_owned(),
        spot: map.flag("spot"),
        internal_dns: map.text("internalDNS").to_owned(),
        external_dns: map.text("externalDNS").to_owned(),
        tags: tags.iter().filter_map(pair).collect(),
    }
}

#[cfg(test)]
mod tests {
    use ichor_resource::Spec;
    use ichor_resource::value::{Message, Sampler};

    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut wanted = PlatformConfig::sample_message(&mut Sampler::default());
        // Tokens of clouds are not taken from here.
        for operator in &mut wanted.operators {
            operator.vip.equinix_metal = Default::default();
            operator.vip.hcloud = Default::default();
        }
        let mut text = String::new();
        wanted.encode_yaml(&mut text);
        let read = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let mut again = String::new();
        read.encode_yaml(&mut again);
        assert_eq!(again, text);
    }

    #[test]
    fn little_is_enough_and_mistakes_are_named() {
        let config = parse(
            "addresses:\n    - {address: 10.0.0.2/24, linkName: eth0, layer: platform}\nroutes: []\nnews: 1\n",
        )
        .unwrap();
        assert_eq!(config.addresses[0].family, Family::INET4);
        assert_eq!(parse(""), Ok(PlatformConfig::default()));
        let bad = parse("routes:\n    - {gateway: 10.0.0}\n").unwrap_err();
        assert_eq!(bad.to_string(), "platform network configuration: gateway: bad value \"10.0.0\"");
        assert!(parse("a: [").is_err());
    }
}
