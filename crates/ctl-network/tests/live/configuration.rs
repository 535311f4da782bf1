//! Machine configurations that come, change and go on a running node.

use std::time::Duration;

use ichor_net::{address, route};
use ichor_resource::network::{
    AddressSpec, AddressStatus, EthernetStatus, HostnameStatus, LinkStatus, NetworkStatus, NodeAddress,
    RouteStatus,
};
use ichor_resource::runtime::{MetaKey, PlatformMetadata};

use crate::node::{FakeDhcp, on_a_node, on_platform};

#[test]
fn a_configuration_is_applied_live_and_removed_again() {
    on_a_node("", async |node| {
        let first = r"
machine:
    type: worker
    network:
        hostname: configured.example.org
        nameservers: [10.9.0.53]
        interfaces:
            - interface: eth0
              addresses: [10.9.0.2/24]
              mtu: 1300
              routes:
                  - network: 0.0.0.0/0
                    gateway: 10.9.0.1
            - interface: br7
              bridge: {interfaces: []}
              addresses: [10.7.0.1/24]
cluster:
    network: {podSubnets: [10.7.0.0/16]}
";
        node.configure(first);
        node.wait("configured", |state| {
            let ready = state.get::<NetworkStatus>("network", "status").ok()?;
            let route = state.get::<RouteStatus>("network", "inet4/10.9.0.1//1024").ok()?;
            let bridge = state.get::<LinkStatus>("network", "br7").ok()?;
            let address = state.get::<AddressStatus>("network", "eth0/10.9.0.2/24").is_ok();
            let mtu = state.get::<LinkStatus>("network", "eth0").ok()?.mtu == 1300;
            let done = ready.hostname_ready && ready.etc_files_ready && address && mtu;
            (done && bridge.kind == "bridge" && route.protocol.to_string() == "static").then_some(())
        })
        .await;
        node.wait("resolvers", |_| {
            let text = std::fs::read_to_string(node.directory.join("etc/resolv.conf")).ok()?;
            (text == "nameserver 10.9.0.53\n\nsearch example.org\n").then_some(())
        })
        .await;
        node.wait("pods apart", |state| {
            let all = state.get::<NodeAddress>("network", "current").ok()?;
            let own = state.get::<NodeAddress>("network", "current-no-k8s").ok()?;
            let text =
                |view: &NodeAddress| view.addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
            let apart = text(&all).contains(&"10.7.0.1/24".to_owned()) && text(&own) == ["10.9.0.2/24"];
            // A bridge without members has no carrier.
            let down = text(&all) == ["10.9.0.2/24"] && text(&own) == ["10.9.0.2/24"];
            (apart || down).then_some(())
        })
        .await;

        let second = "machine:\n    type: worker\n    network:\n        hostname: other\n";
        node.configure(second);
        node.wait("removed", |state| {
            let gone = state.get::<AddressStatus>("network", "eth0/10.9.0.2/24").is_err()
                && state.get::<RouteStatus>("network", "inet4/10.9.0.1//1024").is_err()
                && state.get::<LinkStatus>("network", "br7").is_err()
                && state.get::<AddressSpec>("network", "eth0/10.9.0.2/24").is_err();
            let name = state.get::<HostnameStatus>("network", "hostname").ok()?;
            (gone && name.hostname == "other" && name.domainname.is_empty()).then_some(())
        })
        .await;
        assert_eq!(rustix::system::uname().nodename().to_bytes(), b"other");
    });
}

#[test]
fn a_route_goes_into_the_table_that_its_document_names() {
    on_a_node("", async |node| {
        let document = "apiVersion: v1alpha1\nkind: LinkConfig\nname: eth0\naddresses:\n    - address: 10.9.0.2/24\nroutes:\n    \
                        - destination: 10.99.0.0/16\n      gateway: 10.9.0.1\n      table: \"123\"\n";
        node.configure(document);
        let id = "123/inet4/10.9.0.1/10.99.0.0/16/1024";
        let status = node.wait("the route", |state| state.get::<RouteStatus>("network", id).ok()).await;
        assert_eq!(status.table.number(), 123);
        let routes = route::list(&node.netlink).await.unwrap();
        let wanted = "10.99.0.0/16".parse().unwrap();
        let tables: Vec<u32> =
            routes.iter().filter(|r| r.destination == Some(wanted)).map(|r| r.table).collect();
        assert_eq!(tables, [123]);
    });
}

#[test]
fn a_configuration_that_flips_ends_where_it_ends() {
    on_a_node("", async |node| {
        let with = "machine:\n    type: worker\n    network:\n        interfaces:\n            - interface: eth0\n              addresses: [10.9.0.2/24]\n";
        let without = "machine:\n    type: worker\n";
        node.configure(with);
        for round in 0..40_u64 {
            let yaml = if round % 2 == 0 { without } else { with };
            node.configure(yaml);
            tokio::time::sleep(Duration::from_micros(round * 37 % 400)).await;
        }
        node.wait_for_default("10.9.0.2/24").await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let addresses = address::list(&node.netlink).await.unwrap();
        assert!(addresses.iter().any(|a| a.prefix == "10.9.0.2/24".parse().unwrap()));
        let spec = node.state.get::<AddressSpec>("network", "eth0/10.9.0.2/24").unwrap();
        assert!(spec.meta().is_running());
    });
}

#[test]
fn ethernet_settings_show_and_are_set() {
    on_a_node("", async |node| {
        let feature = |state: &ichor_cosi::State, name: &str| {
            let status = state.get::<EthernetStatus>("network", "eth0").ok()?;
            status.features.0.iter().find(|f| f.name == name).map(|f| f.status.clone())
        };
        let name = "tx-tcp-segmentation";
        let before = node.wait("features", |state| feature(state, name)).await;
        assert_eq!(before, "on");
        node.configure(&format!(
            "apiVersion: v1alpha1\nkind: EthernetConfig\nname: eth0\nfeatures: {{{name}: false, warp-drive: true}}\n"
        ));
        node.wait_for_trouble("network.EthernetSpecController", |trouble| {
            trouble.is_some_and(|text| text.ends_with("there is no feature warp-drive"))
        })
        .await;
        node.configure(&format!(
            "apiVersion: v1alpha1\nkind: EthernetConfig\nname: eth0\nfeatures: {{{name}: false}}\n"
        ));
        node.wait("off", |state| feature(state, name).filter(|status| status == "off")).await;
        node.wait_for_trouble("network.EthernetSpecController", |trouble| trouble.is_none()).await;
    });
}

#[test]
fn what_meta_says_about_the_network_of_a_machine_of_metal_is_applied_and_follows_it() {
    let dhcp = FakeDhcp::default();
    on_platform("metal", "", dhcp.clone(), dhcp, async |node| {
        let said = |address: &str| MetaKey {
            value: format!(
                "addresses:\n    - {{address: {address}, linkName: eth0, family: inet4, scope: global, flags: permanent, layer: platform}}\nhostnames:\n    - {{hostname: metal-1, domainname: example.org, layer: platform}}\nexternalIPs: [198.51.100.7]\n"
            ),
        };
        node.state.create("runtime", "0x0a", said("10.9.0.2/24"), "").unwrap();
        node.wait_for_default("10.9.0.2/24").await;
        node.wait("name", |state| {
            let name = state.get::<HostnameStatus>("network", "hostname").ok()?;
            (name.hostname == "metal-1" && name.domainname == "example.org").then_some(())
        })
        .await;
        node.wait("external", |state| {
            let all = state.get::<NodeAddress>("network", "current").ok()?;
            all.addresses.iter().any(|net| net.to_string() == "198.51.100.7/32").then_some(())
        })
        .await;
        let spec = node.state.get::<AddressSpec>("network-config", "platform/eth0/10.9.0.2/24").unwrap();
        assert_eq!(spec.meta().owner(), "network.PlatformConfigApplyController");
        assert_eq!(
            node.state.get::<PlatformMetadata>("runtime", "platformmetadata").unwrap().platform,
            "metal"
        );
        node.wait("kept", |_| std::fs::read_to_string(node.directory.join("platform-network.yaml")).ok())
            .await;

        node.state
            .update_with::<MetaKey>("runtime", "0x0a", "", |spec, _| *spec = said("10.9.0.3/24"))
            .unwrap();
        node.wait_for_default("10.9.0.3/24").await;
        node.wait("old address gone", |state| {
            state.get::<AddressStatus>("network", "eth0/10.9.0.2/24").is_err().then_some(())
        })
        .await;
    });
}
