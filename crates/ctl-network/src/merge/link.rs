//! Links merge field by field: a higher layer overlays what it sets.

use std::collections::BTreeMap;

use ichor_resource::network::{LinkSpec, LinkType, WireguardSpec};

/// Folds links by name, lowest layer first.
pub(super) fn merge(mut specs: Vec<LinkSpec>) -> BTreeMap<String, LinkSpec> {
    specs.sort_by(|a, b| (&a.name, a.layer).cmp(&(&b.name, b.layer)));
    let mut merged: BTreeMap<String, LinkSpec> = BTreeMap::new();
    for spec in specs {
        match merged.get_mut(&spec.name) {
            Some(held) => overlay(held, spec),
            None => drop(merged.insert(spec.name.clone(), spec)),
        }
    }
    merged
}

fn overlay(held: &mut LinkSpec, spec: LinkSpec) {
    fn take<T: Default + PartialEq>(held: &mut T, new: T) {
        if new != T::default() {
            *held = new;
        }
    }
    held.layer = spec.layer;
    // Set wins over unset, so a higher layer cannot bring down what a lower one brought up.
    held.logical |= spec.logical;
    held.up |= spec.up;
    take(&mut held.mtu, spec.mtu);
    take(&mut held.kind, spec.kind);
    if spec.r#type != LinkType::default() {
        held.r#type = spec.r#type;
    }
    take(&mut held.hardware_addr, spec.hardware_addr);
    take(&mut held.parent_name, spec.parent_name);
    take(&mut held.bond_slave, spec.bond_slave);
    take(&mut held.bridge_slave, spec.bridge_slave);
    take(&mut held.vlan, spec.vlan);
    take(&mut held.bond_master, spec.bond_master);
    take(&mut held.bridge_master, spec.bridge_master);
    if spec.wireguard != WireguardSpec::default() {
        overlay_wireguard(&mut held.wireguard, spec.wireguard);
    }
    // `multicast` is not merged: the lowest layer's word stays.
}

fn overlay_wireguard(held: &mut WireguardSpec, spec: WireguardSpec) {
    if spec.listen_port != 0 {
        held.listen_port = spec.listen_port;
    }
    if spec.firewall_mark != 0 {
        held.firewall_mark = spec.firewall_mark;
    }
    if !spec.private_key.is_empty() {
        held.private_key = spec.private_key;
    }
    for peer in spec.peers {
        if !held.peers.iter().any(|known| known.public_key == peer.public_key) {
            held.peers.push(peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use ichor_resource::network::{ConfigLayer, WireguardPeer};

    use super::*;

    fn link(layer: ConfigLayer) -> LinkSpec {
        LinkSpec { name: "eth0".into(), layer, ..LinkSpec::default() }
    }

    #[test]
    fn fields_overlay_and_up_stays_up() {
        let low = LinkSpec { up: true, mtu: 1500, multicast: Some(false), ..link(ConfigLayer::Default) };
        let high = LinkSpec { mtu: 9000, multicast: Some(true), ..link(ConfigLayer::Configuration) };
        let merged = &merge(vec![high, low])["eth0"];
        assert_eq!((merged.up, merged.mtu, merged.multicast), (true, 9000, Some(false)));
        assert_eq!(merged.layer, ConfigLayer::Configuration);
    }

    #[test]
    fn a_peer_known_to_a_lower_layer_keeps_its_entry() {
        let peer = |key: &str, endpoint: &str| WireguardPeer {
            public_key: key.into(),
            endpoint: endpoint.into(),
            ..WireguardPeer::default()
        };
        let with = |layer, peers| LinkSpec {
            wireguard: WireguardSpec { peers, ..WireguardSpec::default() },
            ..link(layer)
        };
        let merged = merge(vec![
            with(ConfigLayer::Operator, vec![peer("a", "low")]),
            with(ConfigLayer::Configuration, vec![peer("a", "high"), peer("b", "new")]),
        ]);
        let peers: Vec<_> = merged["eth0"].wireguard.peers.iter().map(|p| p.endpoint.as_str()).collect();
        assert_eq!(peers, ["low", "new"]);
    }
}
