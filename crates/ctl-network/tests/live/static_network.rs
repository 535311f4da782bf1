//! Static addresses and routes.

use std::time::{Duration, Instant};

use ichor_net::{address, link, route};
use ichor_resource::files::EtcFileStatus;
use ichor_resource::network::{
    AddressSpec, AddressStatus, ConfigLayer, HostnameStatus, LinkStatus, NetworkStatus, RouteStatus,
};
use ichor_resource::runtime::PlatformMetadata;

use crate::node::on_a_node;

#[test]
fn a_static_address_is_ready_within_milliseconds() {
    on_a_node("ip=10.5.0.2::10.5.0.1:24:node-1.example.org:eth0:off:10.5.0.1", async |node| {
        let began = Instant::now();
        let status = node
            .wait("ready", |state| {
                let status = state.get::<NetworkStatus>("network", "status").ok()?;
                let ready = status.address_ready
                    && status.connectivity_ready
                    && status.hostname_ready
                    && status.etc_files_ready;
                ready.then_some(status)
            })
            .await;
        let took = began.elapsed();
        assert_eq!(status.meta().owner(), "network.StatusController");
        eprintln!("network ready after {took:?}");
        // Usually 6 ms; the bound only has to tell a timer from none on a busy machine.
        assert!(took < Duration::from_secs(5), "took {took:?}");

        let state = &node.state;
        let hostname = state.get::<HostnameStatus>("network", "hostname").unwrap();
        assert_eq!((hostname.hostname.as_str(), hostname.domainname.as_str()), ("node-1", "example.org"));
        assert_eq!(rustix::system::uname().nodename().to_bytes(), b"node-1");
        let address = state.get::<AddressStatus>("network", "eth0/10.5.0.2/24").unwrap();
        assert_eq!(address.broadcast.to_string(), "10.5.0.255");
        let route = state.get::<RouteStatus>("network", "inet4/10.5.0.1//1024").unwrap();
        assert_eq!((route.out_link_name.as_str(), route.protocol.to_string().as_str()), ("eth0", "boot"));
        let spec = state.get::<AddressSpec>("network", "eth0/10.5.0.2/24").unwrap();
        assert_eq!(spec.meta().owner(), "AddressMergeControllers.net.talos.dev");
        assert_eq!(spec.layer, ConfigLayer::Cmdline);
        let source = state.get::<AddressSpec>("network-config", "cmdline/eth0/10.5.0.2/24").unwrap();
        assert_eq!(source.meta().owner(), "network.AddressConfigController");
        assert!(state.get::<AddressStatus>("network", "lo/127.0.0.1/8").is_ok());
        let link = state.get::<LinkStatus>("network", "eth0").unwrap();
        assert_eq!((link.kind.as_str(), link.link_state), ("veth", true));

        let platform = state.get::<PlatformMetadata>("runtime", "platformmetadata").unwrap();
        assert_eq!(platform.platform, "sandbox");
        assert!(state.get::<EtcFileStatus>("files", "hosts").is_ok());
        let hosts = std::fs::read_to_string(node.directory.join("etc/hosts")).unwrap();
        assert!(hosts.contains("10.5.0.2  node-1.example.org node-1\n"), "{hosts}");
        let resolv = std::fs::read_to_string(node.directory.join("etc/resolv.conf")).unwrap();
        assert_eq!(resolv, "nameserver 10.5.0.1\n");
    });
}

#[test]
fn without_a_device_name_the_first_link_is_taken() {
    on_a_node("ip=10.5.0.2::10.5.0.1:24", async |node| {
        node.wait_for_default("10.5.0.2/24").await;
        // A link with an earlier name comes along: the address stays where it is.
        link::create_bridge(&node.netlink, "aa0").await.unwrap();
        node.wait("aa0", |state| state.get::<LinkStatus>("network", "aa0").ok()).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(node.state.get::<AddressSpec>("network", "eth0/10.5.0.2/24").is_ok());
        assert!(node.state.get::<AddressSpec>("network", "aa0/10.5.0.2/24").is_err());
    });
}

#[test]
fn what_others_take_away_is_put_back() {
    on_a_node("ip=10.5.0.2::10.5.0.1:24:node-1:eth0", async |node| {
        node.wait("route", |state| state.get::<RouteStatus>("network", "inet4/10.5.0.1//1024").ok()).await;
        link::set_up(&node.netlink, "eth0", false).await.unwrap();
        let addresses = address::list(&node.netlink).await.unwrap();
        let ours = addresses.iter().find(|a| a.prefix == "10.5.0.2/24".parse().unwrap()).unwrap();
        address::remove(&node.netlink, "eth0", ours).await.unwrap();
        let began = Instant::now();
        loop {
            let routes = route::list(&node.netlink).await.unwrap();
            let addresses = address::list(&node.netlink).await.unwrap();
            let back = routes.iter().any(|r| r.destination.is_none() && r.gateway.is_some())
                && addresses.iter().any(|a| a.prefix == "10.5.0.2/24".parse().unwrap());
            if back {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "not put back");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}
