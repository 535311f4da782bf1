//! Which entries and routes join this node with the others. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ichor_net::neighbour::Entry;
use ipnet::IpNet;

use crate::lease::Lease;
use crate::net_conf::Backend;

/// Something in the kernel, on one of our links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    /// A neighbour on the overlay, or a machine behind it.
    Entry(Entry),
    /// A way to the pods of a node.
    Route {
        /// Its pods.
        to: IpNet,
        /// Who takes the packets.
        via: IpAddr,
        /// Over the overlay, or over the link of the node itself.
        overlay: bool,
    },
}

/// What this node looks at when it judges the others.
#[derive(Debug, Clone)]
pub struct View<'a> {
    /// Its own name.
    pub own: &'a str,
    /// How nodes are joined.
    pub backend: Backend,
    /// Addresses of all pods.
    pub networks: &'a [IpNet],
    /// Networks that this node's link is in; who has an address there is a neighbour.
    pub neighbourhood: &'a [IpNet],
}

/// What should be in the kernel for these nodes, and why some have nothing there.
pub fn wanted(view: &View<'_>, nodes: &BTreeMap<String, Lease>) -> (BTreeSet<Item>, Vec<String>) {
    let (mut items, mut troubles) = (BTreeSet::new(), Vec::new());
    let own = nodes.get(view.own).map(|lease| lease.subnets.clone()).unwrap_or_default();
    for (name, lease) in nodes.iter().filter(|(name, lease)| *name != view.own && !lease.backend.is_empty()) {
        if lease.backend != view.backend.name() {
            troubles.push(format!(
                "node {name} is joined by {}, this one by {}",
                lease.backend,
                view.backend.name()
            ));
            continue;
        }
        for network in view.networks {
            let v6 = network.addr().is_ipv6();
            let Some((subnet, public)) = lease.subnet(v6).zip(lease.public(v6)) else { continue };
            if own.iter().any(|own| own.contains(&subnet) || subnet.contains(own)) {
                troubles.push(format!("node {name} has {subnet}, which is this node's"));
                continue;
            }
            let neighbour = view.neighbourhood.iter().any(|net| net.contains(&public));
            match view.backend {
                Backend::Vxlan { direct: true, .. } if neighbour => {
                    items.insert(Item::Route { to: subnet, via: public, overlay: false });
                }
                Backend::Vxlan { id, .. } => match lease.vtep(v6) {
                    Some(vtep) if vtep.id == id => {
                        let base = subnet.network();
                        items.insert(Item::Entry(Entry::Forward(vtep.mac, public)));
                        items.insert(Item::Entry(Entry::Neighbour(base, vtep.mac)));
                        items.insert(Item::Route { to: subnet, via: base, overlay: true });
                    }
                    Some(vtep) => {
                        troubles.push(format!("node {name} is in overlay {}, this one in {id}", vtep.id))
                    }
                    None => {
                        troubles.push(format!("node {name} does not say where its end of the overlay is"))
                    }
                },
                Backend::HostGateway if neighbour => {
                    items.insert(Item::Route { to: subnet, via: public, overlay: false });
                }
                Backend::HostGateway => {
                    troubles.push(format!(
                        "node {name} at {public} is no neighbour, and host-gw knows no other way"
                    ));
                }
            }
        }
    }
    (items, troubles)
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::lease::Vtep;

    fn lease(number: u8, backend: &str) -> Lease {
        Lease {
            subnets: vec![format!("10.244.{number}.0/24").parse().unwrap()],
            backend: backend.into(),
            public: Some([10, 5, 0, number].into()),
            vtep: Some(Vtep { id: 1, mac: format!("0a:00:00:00:00:{number:02}").parse().unwrap() }),
            ..Lease::default()
        }
    }

    #[track_caller]
    fn check(backend: Backend, neighbourhood: &str, nodes: &[(&str, Lease)], expect: Expect) {
        let networks = ["10.244.0.0/16".parse().unwrap()];
        let neighbourhood = [neighbourhood.parse().unwrap()];
        let view = View { own: "a", backend, networks: &networks, neighbourhood: &neighbourhood };
        let nodes = nodes.iter().map(|(name, lease)| ((*name).to_owned(), lease.clone())).collect();
        let (items, troubles) = wanted(&view, &nodes);
        let mut text: Vec<String> = items
            .iter()
            .map(|item| match item {
                Item::Entry(Entry::Neighbour(ip, mac)) => format!("{ip} at {mac}"),
                Item::Entry(Entry::Forward(mac, ip)) => format!("{mac} behind {ip}"),
                Item::Route { to, via, overlay } => {
                    format!("{to} via {via}{}", if *overlay { " packed" } else { "" })
                }
            })
            .collect();
        text.extend(troubles);
        expect.assert_eq(&text.join("\n"));
    }

    const VXLAN: Backend = Backend::Vxlan { id: 1, port: 4789, mtu: None, direct: false };
    const DIRECT: Backend = Backend::Vxlan { id: 1, port: 4789, mtu: None, direct: true };

    #[test]
    fn every_other_node_is_behind_the_overlay() {
        let nodes = [("a", lease(1, "vxlan")), ("b", lease(2, "vxlan")), ("new", lease(3, ""))];
        check(
            VXLAN,
            "10.5.0.0/24",
            &nodes,
            expect![[r#"
                10.244.2.0 at 0a:00:00:00:00:02
                0a:00:00:00:00:02 behind 10.5.0.2
                10.244.2.0/24 via 10.244.2.0 packed"#]],
        );
    }

    #[test]
    fn neighbours_are_reached_directly_where_that_is_wanted() {
        let nodes = [("a", lease(1, "vxlan")), ("b", lease(2, "vxlan"))];
        check(DIRECT, "10.5.0.0/24", &nodes, expect!["10.244.2.0/24 via 10.5.0.2"]);
        let nodes = [("a", lease(1, "host-gw")), ("b", lease(2, "host-gw"))];
        check(Backend::HostGateway, "10.5.0.0/24", &nodes, expect!["10.244.2.0/24 via 10.5.0.2"]);
    }

    #[test]
    fn who_cannot_be_joined_is_named_and_harms_nobody() {
        let other = Lease {
            vtep: Some(Vtep { id: 7, mac: "0a:00:00:00:00:09".parse().unwrap() }),
            ..lease(4, "vxlan")
        };
        let nodes = [
            ("a", lease(1, "vxlan")),
            ("b", lease(2, "host-gw")),
            ("c", Lease { vtep: None, ..lease(3, "vxlan") }),
            ("d", other),
            ("thief", Lease { subnets: lease(1, "").subnets, ..lease(5, "vxlan") }),
        ];
        check(
            VXLAN,
            "10.5.0.0/24",
            &nodes,
            expect![[r#"
                node b is joined by host-gw, this one by vxlan
                node c does not say where its end of the overlay is
                node d is in overlay 7, this one in 1
                node thief has 10.244.1.0/24, which is this node's"#]],
        );
        check(
            Backend::HostGateway,
            "192.168.0.0/24",
            &[("b", lease(2, "host-gw"))],
            expect!["node b at 10.5.0.2 is no neighbour, and host-gw knows no other way"],
        );
    }
}
