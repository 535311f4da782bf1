//! Network documents of their own: links, DHCP, host name, resolvers, time, hosts.

use std::net::IpAddr;

use ichor_config::Document;
use ichor_config::kinds::bond::BondConfig;
use ichor_config::kinds::link::{BridgeConfig, CommonLink, VLANConfig, VlanProtocol, WireguardConfig};
use ichor_config::kinds::service::{self, DHCPv4Config};
use ichor_resource::network::{
    ADLACPActive, ADSelect, ARPAllTargets, ARPValidate, BondMasterSpec, BondMode, BondXmitHashPolicy,
    BridgeMasterSpec, ClientIdentifier, ClientIdentifierSpec, FailOverMAC, LACPRate, PrimaryReselect,
    VLANProtocol, VLANSpec, WireguardPeer, WireguardSpec,
};
use ichor_types::HardwareAddr;

use super::Links;
use crate::settings::{
    AddressSetting, AutoHostname, DhcpSetting, LinkKind, LinkSetting, RouteSetting, Settings, VipKind,
    VipSetting,
};

/// Takes one document in, if it is about the network.
pub(super) fn read(document: &Document, links: &mut Links, settings: &mut Settings) {
    let mut explicit = true;
    match document {
        Document::LinkConfig(link) => drop(common(links, &**link)),
        Document::DummyLinkConfig(dummy) => {
            let link = common(links, &**dummy);
            link.kind = LinkKind::Dummy;
            link.hardware_addr = dummy.hardware_addr.clone();
        }
        Document::BridgeConfig(bridge) => read_bridge(bridge, links),
        Document::VLANConfig(vlan) => {
            common(links, &**vlan).kind = LinkKind::Vlan(vlan.parent.clone(), vlan_spec(vlan));
        }
        Document::BondConfig(bond) => read_bond(bond, links),
        Document::WireguardConfig(wireguard) => {
            common(links, &**wireguard).kind = LinkKind::Wireguard(wireguard_spec(wireguard));
        }
        Document::DHCPv4Config(dhcp) => links.entry(&dhcp.name).dhcp4 = Some(dhcp4(dhcp)),
        Document::DHCPv6Config(dhcp) => {
            links.entry(&dhcp.name).dhcp6 = Some(DhcpSetting {
                route_metric: dhcp.route_metric,
                ignore_hostname: dhcp.ignore_hostname.unwrap_or(false),
                client_identifier: client_identifier(dhcp.client_identifier, &dhcp.duid_raw),
            });
        }
        Document::Layer2VIPConfig(vip) => {
            explicit = false;
            add_vip(settings, &vip.link, &vip.name, VipKind::Announced);
        }
        Document::HCloudVIPConfig(vip) => {
            explicit = false;
            add_vip(settings, &vip.link, &vip.name, VipKind::HCloud(vip.api_token.clone()));
        }
        Document::HostnameConfig(_)
        | Document::ResolverConfig(_)
        | Document::StaticHostConfig(_)
        | Document::TimeSyncConfig(_) => {
            explicit = false;
            read_service(document, settings);
        }
        _ => explicit = false,
    }
    settings.explicit_links |= explicit;
}

/// Takes a virtual address in; what is no address was refused before.
pub(super) fn add_vip(settings: &mut Settings, link: &str, address: &str, kind: VipKind) {
    if let Ok(address) = address.parse() {
        settings.vips.push(VipSetting { link: link.to_owned(), address, kind });
    }
}

fn read_service(document: &Document, settings: &mut Settings) {
    match document {
        Document::HostnameConfig(hostname) => {
            settings.hostname = Some(hostname.hostname.clone()).filter(|name| !name.is_empty());
            settings.auto_hostname = match hostname.auto {
                Some(service::AutoHostname::Stable) => AutoHostname::Stable,
                Some(service::AutoHostname::TalosAddr) => AutoHostname::FromAddress,
                Some(service::AutoHostname::Off) | None => AutoHostname::Off,
            };
        }
        Document::ResolverConfig(resolver) => {
            let servers = resolver.nameservers.iter().filter_map(|server| server.address.0);
            settings.nameservers = servers.collect();
            settings.search_domains = resolver.search_domains.domains.to_vec();
            settings.disable_default_search = resolver.search_domains.disable_default.unwrap_or(false);
        }
        Document::StaticHostConfig(host) => {
            if let Ok(address) = host.name.parse::<IpAddr>() {
                settings.extra_hosts.push((address, host.hostnames.to_vec()));
            }
        }
        Document::TimeSyncConfig(time) => {
            settings.time_disabled = time.enabled == Some(false);
            settings.time_boot_timeout = time.boot_timeout;
            let servers = time.ntp.iter().flat_map(|ntp| ntp.servers.iter());
            let devices = time.ptp.iter().flat_map(|ptp| ptp.devices.iter());
            settings.time_servers = servers.chain(devices).cloned().collect();
        }
        _ => {}
    }
}

/// What all links have in common.
fn common<'a>(links: &'a mut Links, from: &dyn CommonLink) -> &'a mut LinkSetting {
    let link = links.entry(from.name());
    link.up = from.up();
    link.mtu = from.mtu();
    link.multicast = from.multicast();
    for address in from.addresses() {
        if let Some(prefix) = address.address.0 {
            let priority = address.route_priority.unwrap_or(0);
            link.addresses.push(AddressSetting { prefix, priority });
        }
    }
    for route in from.routes() {
        link.routes.push(RouteSetting {
            destination: route.destination.0,
            gateway: route.gateway.0,
            source: route.source.0,
            metric: route.metric,
            mtu: route.mtu,
            table: route.table.0,
        });
    }
    link
}

fn read_bridge(bridge: &BridgeConfig, links: &mut Links) {
    let mut spec = BridgeMasterSpec::default();
    spec.stp.enabled = bridge.stp.enabled.unwrap_or(false);
    spec.vlan.filtering_enabled = bridge.vlan.filtering.unwrap_or(false);
    let link = common(links, bridge);
    link.hardware_addr = bridge.hardware_addr.clone();
    link.kind = LinkKind::Bridge(spec);
    for member in bridge.links.iter() {
        links.entry(member).bridge = Some(bridge.name.clone());
    }
}

fn read_bond(bond: &BondConfig, links: &mut Links) {
    let link = common(links, bond);
    link.hardware_addr = bond.hardware_addr.clone();
    link.kind = LinkKind::Bond(Box::new(bond_spec(bond)));
    for (index, member) in (0_i64..).zip(bond.links.iter()) {
        links.entry(member).bond = Some((bond.name.clone(), index));
    }
}

fn bond_spec(bond: &BondConfig) -> BondMasterSpec {
    // Both sides spell the values the same way.
    macro_rules! same {
        ($field:expr, $to:ty) => {
            $field.and_then(|value| <$to>::from_text(value.as_str())).unwrap_or_default()
        };
    }
    let ips = |list: &[ichor_config::values::Addr]| list.iter().filter_map(|a| a.0).map(Into::into).collect();
    BondMasterSpec {
        mode: same!(bond.bond_mode, BondMode),
        xmit_hash_policy: same!(bond.xmit_hash_policy, BondXmitHashPolicy),
        lacp_rate: same!(bond.lacp_rate, LACPRate),
        arp_validate: same!(bond.arp_validate, ARPValidate),
        arp_all_targets: same!(bond.arp_all_targets, ARPAllTargets),
        primary_reselect: same!(bond.primary_reselect, PrimaryReselect),
        fail_over_mac: same!(bond.fail_over_mac.map(|number| number.0), FailOverMAC),
        ad_select: same!(bond.ad_select, ADSelect),
        ad_lacp_active: match bond.ad_lacp_active {
            Some(value) => ADLACPActive::from_text(value.as_str()).unwrap_or_default(),
            None => ADLACPActive::On,
        },
        miimon: bond.miimon.unwrap_or(0),
        updelay: bond.updelay.unwrap_or(0),
        downdelay: bond.downdelay.unwrap_or(0),
        arp_interval: bond.arp_interval.unwrap_or(0),
        resend_igmp: bond.resend_igmp.unwrap_or(0),
        min_links: bond.min_links.unwrap_or(0),
        lp_interval: bond.lp_interval.unwrap_or(0),
        packets_per_slave: bond.packets_per_slave.unwrap_or(0),
        num_peer_notif: bond.num_peer_notif.unwrap_or(0),
        tlb_logical_lb: bond.tlb_logical_lb.unwrap_or(0),
        all_slaves_active: bond.all_slaves_active.unwrap_or(0),
        use_carrier: bond.use_carrier.unwrap_or(true),
        ad_actor_sys_prio: bond.ad_actor_sys_prio.unwrap_or(0),
        ad_user_port_key: bond.ad_user_port_key.unwrap_or(0),
        peer_notify_delay: bond.peer_notif_delay.unwrap_or(0),
        arp_ip_targets: ips(&bond.arp_ip_targets),
        ns_ip6_targets: ips(&bond.ns_ip6_targets),
        missed_max: bond.missed_max.unwrap_or(0),
        ..BondMasterSpec::default()
    }
}

fn vlan_spec(vlan: &VLANConfig) -> VLANSpec {
    let vlan_protocol = match vlan.vlan_mode {
        Some(VlanProtocol::Ad) => VLANProtocol::DOT1AD,
        Some(VlanProtocol::Q) | None => VLANProtocol::DOT1Q,
    };
    VLANSpec { vlan_id: vlan.vlan_id, vlan_protocol }
}

fn wireguard_spec(wireguard: &WireguardConfig) -> WireguardSpec {
    let peers = wireguard.peers.iter().map(|peer| WireguardPeer {
        public_key: peer.public_key.clone(),
        preshared_key: peer.preshared_key.clone(),
        endpoint: peer.endpoint.to_string(),
        persistent_keepalive_interval: peer.persistent_keepalive_interval,
        allowed_ips: peer.allowed_ips.iter().filter_map(|net| net.0).map(Into::into).collect(),
    });
    WireguardSpec {
        private_key: wireguard.private_key.clone(),
        public_key: String::new(),
        listen_port: wireguard.listen_port,
        firewall_mark: wireguard.firewall_mark,
        peers: peers.collect(),
    }
}

fn dhcp4(dhcp: &DHCPv4Config) -> DhcpSetting {
    DhcpSetting {
        route_metric: dhcp.route_metric,
        ignore_hostname: dhcp.ignore_hostname.unwrap_or(false),
        client_identifier: client_identifier(dhcp.client_identifier, &dhcp.duid_raw),
    }
}

fn client_identifier(kind: Option<service::ClientIdentifier>, duid: &HardwareAddr) -> ClientIdentifierSpec {
    let client_identifier = match kind {
        Some(service::ClientIdentifier::None) => ClientIdentifier::None,
        Some(service::ClientIdentifier::Mac) | None => ClientIdentifier::Mac,
        Some(service::ClientIdentifier::Duid) => ClientIdentifier::Duid,
    };
    let duid_raw_hex = if duid.0.is_empty() { String::new() } else { duid.to_string() };
    ClientIdentifierSpec { client_identifier, duid_raw_hex }
}
