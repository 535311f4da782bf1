//! The older form: `machine.network`, `machine.time` and `machine.features`.

use std::net::IpAddr;

use ichor_config::v1alpha1::machine::MachineConfig;
use ichor_config::v1alpha1::network::{Bond, Device, DhcpOptions, NetworkConfig, Route, Vip, Wireguard};
use ichor_resource::network::{
    ADLACPActive, ADSelect, ARPAllTargets, ARPValidate, AddressSortAlgorithm, BondMasterSpec, BondMode,
    BondXmitHashPolicy, BridgeMasterSpec, ClientIdentifier, ClientIdentifierSpec, FailOverMAC, LACPRate,
    PrimaryReselect, VLANProtocol, VLANSpec, WireguardPeer, WireguardSpec,
};
use ichor_types::subnet::parse_prefix_or_addr;

use super::{Links, Selected};
use crate::link_name::vlan_name;
use crate::settings::{
    AddressSetting, AutoHostname, DhcpSetting, HostDnsSetting, LinkKind, LinkSetting, RouteSetting, Settings,
    VipKind,
};

/// Takes the machine section in.
pub(super) fn read_machine(
    machine: &MachineConfig,
    selected: &Selected,
    links: &mut Links,
    settings: &mut Settings,
) {
    if let Some(network) = &machine.network {
        read_network(network, settings);
        for (position, device) in network.interfaces.iter().enumerate() {
            match device.interface.as_str() {
                "" => {
                    for link in selected.links.get(&position).into_iter().flatten() {
                        read_device(link, device, selected, links, settings);
                    }
                }
                name => read_device(name, device, selected, links, settings),
            }
        }
    }
    if let Some(time) = &machine.time {
        settings.time_disabled = time.disabled.unwrap_or(false);
        settings.time_servers = time.servers.to_vec();
        settings.time_boot_timeout = time.boot_timeout;
    }
    if let Some(features) = &machine.features {
        if features.stable_hostname == Some(true) {
            settings.auto_hostname = AutoHostname::Stable;
        }
        let order = AddressSortAlgorithm::from_text(&features.node_address_sort_algorithm);
        settings.sort_algorithm = order.unwrap_or_default();
        if let Some(dns) = &features.host_dns {
            settings.host_dns = HostDnsSetting {
                enabled: dns.enabled.unwrap_or(false),
                forward_kube_dns: dns.forward_kube_dns_to_host.unwrap_or(false),
                resolve_member_names: dns.resolve_member_names.unwrap_or(false),
            };
        }
    }
}

fn read_network(network: &NetworkConfig, settings: &mut Settings) {
    settings.hostname = Some(network.hostname.clone()).filter(|name| !name.is_empty());
    settings.nameservers = network.nameservers.iter().filter_map(|server| server.parse().ok()).collect();
    settings.search_domains = network.search_domains.to_vec();
    settings.disable_default_search = network.disable_search_domain.unwrap_or(false);
    for host in network.extra_host_entries.iter() {
        if let Ok(address) = host.ip.parse::<IpAddr>() {
            settings.extra_hosts.push((address, host.aliases.to_vec()));
        }
    }
}

fn read_device(name: &str, device: &Device, selected: &Selected, links: &mut Links, settings: &mut Settings) {
    add_vip(name, device.vip.as_ref(), settings);
    let link = links.entry(name);
    link.ignore = device.ignore.unwrap_or(false);
    link.mtu = u32::try_from(device.mtu).unwrap_or(0);
    add_addresses(link, &device.addresses, &device.cidr);
    add_routes(link, &device.routes);
    add_dhcp(link, device.dhcp, device.dhcp_options.as_ref());
    if device.dummy == Some(true) {
        link.kind = LinkKind::Dummy;
    }
    if let Some(wireguard) = &device.wireguard {
        link.kind = LinkKind::Wireguard(wireguard_spec(wireguard));
    }
    if let Some(port) = &device.bridge_port {
        link.bridge = Some(port.master.clone()).filter(|master| !master.is_empty());
    }
    if let Some(bridge) = &device.bridge {
        let mut spec = BridgeMasterSpec::default();
        // Spanning tree is on unless it is turned off, but only where the section is there.
        spec.stp.enabled = bridge.stp.as_ref().is_some_and(|stp| stp.enabled.unwrap_or(true));
        let filtering = bridge.vlan.as_ref().and_then(|vlan| vlan.vlan_filtering);
        spec.vlan.filtering_enabled = filtering.unwrap_or(false);
        link.kind = LinkKind::Bridge(spec);
        for member in bridge.interfaces.iter() {
            links.entry(member).bridge = Some(name.to_owned());
        }
    }
    if let Some(bond) = &device.bond {
        links.entry(name).kind = LinkKind::Bond(Box::new(bond_spec(bond)));
        let chosen = selected.members.get(name).map_or(&[][..], Vec::as_slice);
        let members = if bond.device_selectors.is_empty() { &*bond.interfaces } else { chosen };
        for (index, member) in (0_i64..).zip(members) {
            links.entry(member).bond = Some((name.to_owned(), index));
        }
    }
    for vlan in device.vlans.iter() {
        let vlan_link = vlan_name(name, vlan.vlan_id);
        add_vip(&vlan_link, vlan.vip.as_ref(), settings);
        let link = links.entry(&vlan_link);
        let spec = VLANSpec { vlan_id: vlan.vlan_id, vlan_protocol: VLANProtocol::DOT1Q };
        link.kind = LinkKind::Vlan(name.to_owned(), spec);
        link.mtu = vlan.mtu;
        add_addresses(link, &vlan.addresses, &vlan.cidr);
        add_routes(link, &vlan.routes);
        add_dhcp(link, vlan.dhcp, vlan.dhcp_options.as_ref());
    }
}

fn add_vip(link: &str, vip: Option<&Vip>, settings: &mut Settings) {
    let Some(vip) = vip else { return };
    let kind = match (&vip.equinix_metal, &vip.hcloud) {
        (Some(metal), _) => VipKind::EquinixMetal(metal.api_token.clone()),
        (None, Some(cloud)) => VipKind::HCloud(cloud.api_token.clone()),
        (None, None) => VipKind::Announced,
    };
    super::kinds::add_vip(settings, link, &vip.ip, kind);
}

fn add_addresses(link: &mut LinkSetting, addresses: &[String], single: &str) {
    let all = addresses.iter().map(String::as_str).chain([single]);
    for prefix in all.filter_map(parse_prefix_or_addr) {
        link.addresses.push(AddressSetting { prefix, priority: 0 });
    }
}

fn add_routes(link: &mut LinkSetting, routes: &[Route]) {
    for route in routes {
        link.routes.push(RouteSetting {
            destination: parse_prefix_or_addr(&route.network),
            gateway: route.gateway.parse().ok(),
            source: route.source.parse().ok(),
            metric: route.metric,
            mtu: route.mtu,
            ..RouteSetting::default()
        });
    }
}

fn add_dhcp(link: &mut LinkSetting, dhcp: Option<bool>, options: Option<&DhcpOptions>) {
    if dhcp != Some(true) {
        return;
    }
    let route_metric = options.map_or(0, |options| options.route_metric);
    if options.and_then(|options| options.ipv4).unwrap_or(true) {
        link.dhcp4 = Some(DhcpSetting { route_metric, ..DhcpSetting::default() });
    }
    if options.and_then(|options| options.ipv6).unwrap_or(false) {
        let duid = options.map(|options| options.duidv6.clone()).unwrap_or_default();
        let client_identifier = match duid.is_empty() {
            true => ClientIdentifierSpec::default(),
            false => ClientIdentifierSpec { client_identifier: ClientIdentifier::Duid, duid_raw_hex: duid },
        };
        link.dhcp6 = Some(DhcpSetting { route_metric, client_identifier, ..DhcpSetting::default() });
    }
}

fn bond_spec(bond: &Bond) -> BondMasterSpec {
    BondMasterSpec {
        mode: BondMode::from_text(&bond.mode).unwrap_or_default(),
        xmit_hash_policy: BondXmitHashPolicy::from_text(&bond.xmit_hash_policy).unwrap_or_default(),
        lacp_rate: LACPRate::from_text(&bond.lacp_rate).unwrap_or_default(),
        arp_validate: ARPValidate::from_text(&bond.arp_validate).unwrap_or_default(),
        arp_all_targets: ARPAllTargets::from_text(&bond.arp_all_targets).unwrap_or_default(),
        primary_reselect: PrimaryReselect::from_text(&bond.primary_reselect).unwrap_or_default(),
        fail_over_mac: FailOverMAC::from_text(&bond.fail_over_mac).unwrap_or_default(),
        ad_select: ADSelect::from_text(&bond.ad_select).unwrap_or_default(),
        ad_lacp_active: ADLACPActive::On,
        miimon: bond.miimon,
        updelay: bond.updelay,
        downdelay: bond.downdelay,
        arp_interval: bond.arp_interval,
        resend_igmp: bond.resend_igmp,
        min_links: bond.min_links,
        lp_interval: bond.lp_interval,
        packets_per_slave: bond.packets_per_slave,
        num_peer_notif: bond.num_peer_notif,
        tlb_logical_lb: bond.tlb_dynamic_lb,
        all_slaves_active: bond.all_slaves_active,
        use_carrier: bond.use_carrier.unwrap_or(true),
        ad_actor_sys_prio: bond.ad_actor_sys_prio,
        ad_user_port_key: bond.ad_user_port_key,
        peer_notify_delay: bond.peer_notify_delay,
        ..BondMasterSpec::default()
    }
}

fn wireguard_spec(wireguard: &Wireguard) -> WireguardSpec {
    let peers = wireguard.peers.iter().map(|peer| WireguardPeer {
        public_key: peer.public_key.clone(),
        endpoint: peer.endpoint.clone(),
        persistent_keepalive_interval: peer.persistent_keepalive_interval,
        allowed_ips: peer.allowed_ips.iter().filter_map(|net| net.parse().ok()).collect(),
        ..WireguardPeer::default()
    });
    WireguardSpec {
        private_key: wireguard.private_key.clone(),
        public_key: String::new(),
        listen_port: wireguard.listen_port,
        firewall_mark: wireguard.firewall_mark,
        peers: peers.collect(),
    }
}
