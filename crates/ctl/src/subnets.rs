//! Which addresses of a machine are meant: rules of subnets, and addresses that are shared. Pure.

use std::net::IpAddr;

use ichor_config::v1alpha1::network::Device;
use ipnet::IpNet;

/// The addresses a device shares with other control planes.
pub fn virtual_addresses(device: &Device) -> Vec<String> {
    let own = device.vip.iter();
    let vlans = device.vlans.iter().filter_map(|vlan| vlan.vip.as_ref());
    own.chain(vlans).map(|vip| vip.ip.clone()).filter(|ip| !ip.is_empty()).collect()
}

/// Walks the rules in order: a subnet adds the candidates in it, `!` before it takes them out again.
pub fn filter(rules: &[String], candidates: &[IpAddr]) -> Vec<IpAddr> {
    let mut kept: Vec<IpAddr> = Vec::new();
    for rule in rules {
        let (out, text) = rule.strip_prefix('!').map_or((false, rule.as_str()), |text| (true, text));
        let subnet = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        let Ok(subnet) = subnet else { continue };
        if out {
            kept.retain(|address| !subnet.contains(address));
        } else {
            for address in candidates {
                if subnet.contains(address) && !kept.contains(address) {
                    kept.push(*address);
                }
            }
        }
    }
    kept
}
