//! What cannot be done is said, with its reason, for as long as it lasts.

use ichor_ctl_network::system::SystemDhcp;
use ichor_resource::network::{AddressStatus, LinkStatus, RouteStatus};

use crate::node::{FakeDhcp, on_a_node, with_dhcp};

fn interface(rest: &str) -> String {
    format!(
        "machine:\n    type: worker\n    network:\n        interfaces:\n            - interface: eth0\n{rest}"
    )
}

#[test]
fn a_route_over_a_gateway_out_of_reach_is_named_until_it_is_put_right() {
    on_a_node("", async |node| {
        let with = |gateway: &str| {
            interface(&format!(
                "              addresses: [10.9.0.2/24]\n              routes: [{{network: 0.0.0.0/0, gateway: {gateway}}}]\n"
            ))
        };
        node.configure(&with("192.0.2.1"));
        node.wait_for_trouble("network.RouteSpecController", |trouble| {
            trouble.is_some_and(|text| {
                text.starts_with("add route default via 192.0.2.1: Network is unreachable")
            })
        })
        .await;
        node.configure(&with("10.9.0.1"));
        node.wait("route", |state| state.get::<RouteStatus>("network", "inet4/10.9.0.1//1024").ok()).await;
        node.wait_for_trouble("network.RouteSpecController", |trouble| trouble.is_none()).await;
    });
}

#[test]
fn an_address_that_a_neighbour_has_is_named_with_its_owner() {
    on_a_node("", async |node| {
        let (_far, _netlink) = node.neighbour(&["10.9.0.2/24"]).await;
        node.configure(&interface("              addresses: [10.9.0.2/24]\n"));
        node.wait("address", |state| state.get::<AddressStatus>("network", "eth0/10.9.0.2/24").ok()).await;
        node.wait_for_trouble("network.AddressSpecController", |trouble| {
            trouble.is_some_and(|text| text.starts_with("address 10.9.0.2 on eth0 is in use by "))
        })
        .await;
        node.configure(&interface("              addresses: [10.9.0.3/24]\n"));
        node.wait_for_trouble("network.AddressSpecController", |trouble| trouble.is_none()).await;
    });
}

#[test]
fn settings_of_a_link_that_is_not_there_wait_for_it() {
    on_a_node("", async |node| {
        node.configure(
            "machine:\n    type: worker\n    network:\n        interfaces: [{interface: eth7, addresses: [10.9.0.2/24]}]\n",
        );
        let says = |wanted: &'static str| move |trouble: Option<&str>| trouble == Some(wanted);
        node.wait_for_trouble("network.LinkSpecController", says("link eth7: there is no link eth7")).await;
        let wanted = says("address 10.9.0.2/24: there is no link eth7");
        node.wait_for_trouble("network.AddressSpecController", wanted).await;
    });
}

#[test]
fn a_kind_of_link_that_cannot_be_made_is_named_and_the_others_are_made() {
    on_a_node("", async |node| {
        node.configure(
            "apiVersion: v1alpha1\nkind: WireguardConfig\nname: wg0\nprivateKey: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\npeers: []\n---\napiVersion: v1alpha1\nkind: BridgeConfig\nname: br7\nlinks: []\n",
        );
        node.wait("bridge", |state| state.get::<LinkStatus>("network", "br7").ok()).await;
        node.wait_for_trouble("network.LinkSpecController", |trouble| {
            trouble.is_some_and(|text| text.contains("link wg0: links of kind wireguard cannot be made yet"))
        })
        .await;
    });
}

#[test]
fn a_wire_without_a_dhcp_server_is_named() {
    with_dhcp("ip=eth0:dhcp", SystemDhcp::default(), FakeDhcp::default(), async |node| {
        node.wait_for_trouble("network.OperatorSpecController", |trouble| {
            trouble == Some("dhcp4/eth0: no DHCP server answers")
        })
        .await;
    });
}
