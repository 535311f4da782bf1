//! Rules of `machine.network`.

use std::{collections::BTreeMap, net::IpAddr};

use super::{
    Report,
    text::{check_cidr, check_ip_or_cidr, check_wireguard_key, split_host_port},
};
use crate::{
    kinds::bond,
    model::{Field, Path},
    v1alpha1::network::{Bond, Device, NetworkConfig, Route, Wireguard},
};

const EXCLUSIVE: &str = "config sections are mutually exclusive";
const KUBESPAN_MTU_DEFAULT: u32 = 1420;
const KUBESPAN_MTU_MIN: u32 = 1280;

pub(super) fn check(report: &mut Report<'_>, network: &NetworkConfig) {
    let path = Path::of("machine.network.interfaces");
    let members = check_masters(report, &path, network);
    for (i, device) in network.interfaces.iter().enumerate() {
        if device.ignore != Some(true) {
            check_device(report, &path.index(i), device, &members);
        }
    }
    if let Some(kubespan) = network.kubespan.as_ref().filter(|kubespan| kubespan.enabled == Some(true))
        && kubespan.mtu.unwrap_or(KUBESPAN_MTU_DEFAULT) < KUBESPAN_MTU_MIN
    {
        let message = format!("kubespan link MTU must be at least {KUBESPAN_MTU_MIN}");
        report.error(&Path::of("machine.network.kubespan.mtu"), message);
    }
}

/// Finds out which links are members of others and complains about two masters.
fn check_masters(report: &mut Report<'_>, path: &Path, network: &NetworkConfig) -> BTreeMap<String, String> {
    let mut members: BTreeMap<String, String> = BTreeMap::new();
    for (i, device) in network.interfaces.iter().enumerate() {
        let at = path.index(i);
        let name = &device.interface;
        if device.bond.is_some() && device.bridge.is_some() {
            let message = format!("interface has both bridge and bond sections set {name:?}: {EXCLUSIVE}");
            report.error(&at, message);
        }
        let mut mine: &[String] = &[];
        if let Some(bond) = &device.bond {
            mine = &bond.interfaces;
            if !bond.interfaces.is_empty() && !bond.device_selectors.is_empty() {
                let message =
                    format!("interface {name:?} has both interfaces and selectors set: {EXCLUSIVE}");
                report.error(&at.key("bond"), message);
            }
        }
        if let Some(bridge) = &device.bridge {
            mine = &bridge.interfaces;
        }
        for member in mine {
            if let Some(other) = members.get(member).filter(|other| *other != name) {
                let message = format!(
                    "interface {member:?} is declared as part of two separate links: {other:?} and {name:?}"
                );
                report.error(&at, message);
            }
            members.insert(member.clone(), name.clone());
        }
    }
    members
}

fn check_device(report: &mut Report<'_>, path: &Path, device: &Device, members: &BTreeMap<String, String>) {
    let both = "[networking.os.device.interface], [networking.os.device.deviceSelector]";
    match (device.interface.is_empty(), &device.device_selector) {
        (true, None) => report.error(path, format!("{both}: required either config section to be set")),
        (false, Some(_)) => report.error(&path.key("deviceSelector"), format!("{both}: {EXCLUSIVE}")),
        _ => {}
    }
    if device.device_selector.as_ref().is_some_and(Field::is_empty) {
        let message =
            "[networking.os.device.deviceSelector]: config section should contain at least one field";
        report.error(&path.key("deviceSelector"), message);
    }
    if let Some(bond) = &device.bond {
        check_bond(report, &path.key("bond"), bond);
    }
    if let Some(wireguard) = &device.wireguard {
        check_wireguard(report, &path.key("wireguard"), wireguard);
    }
    check_vlans(report, path, device);
    check_addressing(report, path, device, members);
    for (i, route) in device.routes.iter().enumerate() {
        check_route(report, &path.key("routes").index(i), i, route);
    }
}

fn check_addressing(
    report: &mut Report<'_>,
    path: &Path,
    device: &Device,
    members: &BTreeMap<String, String>,
) {
    let name = &device.interface;
    let addressed = device.dhcp == Some(true)
        || !device.cidr.is_empty()
        || !device.addresses.is_empty()
        || device.vip.is_some();
    if members.contains_key(name) && addressed {
        let message = "bonded/bridged interface shouldn't have any addressing methods configured";
        report.error(path, format!("[networking.os.device] {name:?}: {message}"));
    }
    if !device.addresses.is_empty() && !device.cidr.is_empty() {
        let message = "interface can't have both .cidr and .addresses set";
        report.error(&path.key("cidr"), format!("[networking.os.device] {name:?}: {message}"));
    }
    if !device.cidr.is_empty() {
        if let Err(error) = check_ip_or_cidr(&device.cidr) {
            report.error(&path.key("cidr"), format!("[networking.os.device.CIDR] {name:?}: {error}"));
        }
        let message =
            "machine.network.interface.cidr is deprecated, please use machine.network.interface.addresses";
        report.warn(&path.key("cidr"), format!("{name:?}: {message}"));
    }
    for (i, address) in device.addresses.iter().enumerate() {
        if let Err(error) = check_ip_or_cidr(address) {
            let at = path.key("addresses").index(i);
            report.error(&at, format!("[networking.os.device.addresses] {name:?}: {error}"));
        }
    }
    if let Some(vip) = &device.vip
        && vip.ip.parse::<IpAddr>().is_err()
    {
        let message = format!("[networking.os.device.vip] failed to parse {:?} as IP address", vip.ip);
        report.error(&path.key("vip").key("ip"), message);
    }
}

fn check_route(report: &mut Report<'_>, path: &Path, index: usize, route: &Route) {
    let name = format!("networking.os.device.route[{index}]");
    let bad = "invalid network address";
    if !route.network.is_empty() && check_cidr(&route.network).is_err() {
        report.error(&path.key("network"), format!("[{name}.network] {:?}: {bad}", route.network));
    }
    if !route.gateway.is_empty() && route.gateway.parse::<IpAddr>().is_err() {
        report.error(&path.key("gateway"), format!("[{name}.gateway] {:?}: {bad}", route.gateway));
    }
    if route.gateway.is_empty() && route.network.is_empty() {
        report.error(path, format!("[{name}]: either network or gateway should be set"));
    }
    if !route.source.is_empty() && route.source.parse::<IpAddr>().is_err() {
        report.error(&path.key("source"), format!("[{name}.source] {:?}: {bad}", route.source));
    }
}

fn check_vlans(report: &mut Report<'_>, path: &Path, device: &Device) {
    for (i, vlan) in device.vlans.iter().enumerate() {
        let at = path.key("vlans").index(i);
        let name = format!("{}.{}", device.interface, vlan.vlan_id);
        if !vlan.addresses.is_empty() && !vlan.cidr.is_empty() {
            let message = "vlan can't have both .cidr and .addresses set";
            report.error(&at.key("cidr"), format!("[networking.os.device.vlan] {name}: {message}"));
        }
        if !vlan.cidr.is_empty()
            && let Err(error) = check_ip_or_cidr(&vlan.cidr)
        {
            report.error(&at.key("cidr"), format!("[networking.os.device.vlan.CIDR] {name}: {error}"));
        }
        for (j, address) in vlan.addresses.iter().enumerate() {
            if let Err(error) = check_ip_or_cidr(address) {
                let message = format!("[networking.os.device.vlan.addresses] {name}: {error}");
                report.error(&at.key("addresses").index(j), message);
            }
        }
    }
}

fn check_wireguard(report: &mut Report<'_>, path: &Path, wireguard: &Wireguard) {
    if let Err(error) = check_wireguard_key(&wireguard.private_key) {
        report.error(&path.key("privateKey"), format!("private key is invalid: {error}"));
    }
    for (i, peer) in wireguard.peers.iter().enumerate() {
        let at = path.key("peers").index(i);
        if let Err(error) = check_wireguard_key(&peer.public_key) {
            report.error(&at.key("publicKey"), format!("public key invalid: {error}"));
        }
        if !peer.endpoint.is_empty() && split_host_port(&peer.endpoint).is_err() {
            report.error(&at.key("endpoint"), format!("peer endpoint {:?} is invalid", peer.endpoint));
        }
        for (j, network) in peer.allowed_ips.iter().enumerate() {
            if let Err(error) = check_cidr(network) {
                let message = format!("peer allowed IP {network:?} is invalid: {error}");
                report.error(&at.key("allowedIPs").index(j), message);
            }
        }
    }
}

/// Checks a word of a bond; empty means the default.
fn check_word(report: &mut Report<'_>, path: &Path, what: &str, text: &str, allowed: &[&str]) {
    if text.is_empty() || allowed.contains(&text) {
        return;
    }
    let help = crate::suggest::did_you_mean(text, allowed.iter().copied());
    let help = help.unwrap_or_else(|| format!("allowed: {}", allowed.join(", ")));
    report.error_with_help(path, format!("invalid {what} {text}"), Some(help));
}

fn check_bond(report: &mut Report<'_>, path: &Path, bond: &Bond) {
    let words: [(&str, &str, &str, &[&str]); 8] = [
        ("mode", "bond type", &bond.mode, bond::BondMode::TEXTS),
        ("xmitHashPolicy", "xmit hash policy", &bond.xmit_hash_policy, bond::XmitHashPolicy::TEXTS),
        ("lacpRate", "lacp rate", &bond.lacp_rate, bond::LacpRate::TEXTS),
        ("arpValidate", "arp validate mode", &bond.arp_validate, bond::ArpValidate::TEXTS),
        ("arpAllTargets", "arp all targets mode", &bond.arp_all_targets, bond::ArpAllTargets::TEXTS),
        ("primaryReselect", "primary reselect mode", &bond.primary_reselect, bond::PrimaryReselect::TEXTS),
        ("failOverMac", "fail over mac mode", &bond.fail_over_mac, bond::FailOverMac::TEXTS),
        ("adSelect", "ad select mode", &bond.ad_select, bond::AdSelect::TEXTS),
    ];
    for (key, what, text, allowed) in words {
        check_word(report, &path.key(key), what, text, allowed);
    }
    for (key, name, delay) in
        [("updelay", "upDelay", bond.updelay), ("downdelay", "downDelay", bond.downdelay)]
    {
        if bond.miimon == 0 && delay != 0 {
            report.error(&path.key(key), format!("bond.{name} can't be set if miiMon is zero"));
        } else if bond.miimon != 0 && !delay.is_multiple_of(bond.miimon) {
            report.error(&path.key(key), format!("bond.{name} should be a multiple of miiMon"));
        }
    }
    let mode = if bond.mode.is_empty() { "balance-rr" } else { bond.mode.as_str() };
    let lacp = mode == "802.3ad";
    let balanced = matches!(mode, "balance-tlb" | "balance-alb");
    let has_primary = balanced || mode == "active-backup";
    let not_in = |what: &str| format!("bond.{what} is not available in {mode} mode");
    let only_lacp = |what: &str| format!("bond.{what} is only available in 802.3ad mode");
    let rules: [(bool, &str, String); 10] = [
        (!bond.arp_ip_target.is_empty(), "arpIPTarget", "bond.arpIPTarget is not supported".to_owned()),
        (!bond.lacp_rate.is_empty() && !lacp, "lacpRate", only_lacp("lacpRate")),
        (!bond.ad_actor_system.is_empty(), "adActorSystem", "bond.adActorSystem is not supported".to_owned()),
        (!bond.arp_validate.is_empty() && (lacp || balanced), "arpValidate", not_in("arpValidate")),
        (!bond.primary.is_empty() && !has_primary, "primary", not_in("primary")),
        (bond.arp_interval > 0 && (lacp || balanced), "arpInterval", not_in("arpInterval")),
        (bond.packets_per_slave > 1 && mode != "balance-rr", "packetsPerSlave", not_in("packetsPerSlave")),
        (bond.tlb_dynamic_lb > 0 && !balanced, "tlbDynamicLb", not_in("tlbDynamicTLB")),
        (bond.ad_actor_sys_prio > 0 && !lacp, "adActorSysPrio", only_lacp("adActorSysPrio")),
        (bond.ad_user_port_key > 0 && !lacp, "adUserPortKey", only_lacp("adUserPortKey")),
    ];
    for (broken, key, message) in rules {
        if broken {
            report.error(&path.key(key), message);
        }
    }
}
