//! The ingress firewall.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use ichor_net::netns;
use ichor_resource::network::{AddressStatus, NfTablesChain};

use crate::node::on_a_node;

#[test]
fn a_node_that_blocks_answers_only_where_a_rule_says_so() {
    on_a_node("ip=10.5.0.2::10.5.0.1:24:node-1:eth0", async |node| {
        let (far, _netlink) = node.neighbour(&["10.5.0.1/24"]).await;
        node.wait("address", |state| state.get::<AddressStatus>("network", "eth0/10.5.0.2/24").ok()).await;
        let listeners = ["10.5.0.2:8080", "10.5.0.2:9090"].map(|address| TcpListener::bind(address).unwrap());
        let reach = |port: u16| {
            let to = SocketAddr::from(([10, 5, 0, 2], port));
            let connect = move || TcpStream::connect_timeout(&to, Duration::from_millis(1500)).is_ok();
            netns::run_in(far.as_fd(), connect).unwrap()
        };
        assert!((0..20).any(|_| reach(8080)) && (0..20).any(|_| reach(9090)));
        let block = "apiVersion: v1alpha1\nkind: NetworkDefaultActionConfig\ningress: block\n";
        let rule = |subnet: &str| {
            format!(
                "{block}---\napiVersion: v1alpha1\nkind: NetworkRuleConfig\nname: web\nportSelector: {{ports: [8000-8100], protocol: tcp}}\ningress:\n    - subnet: {subnet}\n"
            )
        };
        let quiet = "network.NfTablesChainController";
        let settled = async |wanted: [bool; 2], what: &str| {
            let mut seen = [false; 2];
            for _ in 0..40 {
                seen = [reach(8080), reach(9090)];
                if seen == wanted {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            panic!("{what}: {seen:?}, {:?}", node.trouble(quiet));
        };
        node.configure(&rule("10.5.0.0/24"));
        node.wait("chains", |state| state.get::<NfTablesChain>("network", "prerouting").ok()).await;
        settled([true, false], "only the rule lets in").await;
        assert_eq!(node.trouble(quiet), None);
        node.configure(&rule("192.0.2.0/24"));
        settled([false, false], "others are kept out").await;
        node.configure("machine:\n    type: worker\n");
        settled([true, true], "without documents all is let in").await;
        drop(listeners);
    });
}
