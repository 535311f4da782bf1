//! The host DNS cache.

use std::time::Duration;

use ichor_net::link;
use ichor_resource::network::{DNSResolveCache, DNSUpstream};

use crate::node::on_a_node;

/// A question for the address of `a.test`.
const QUESTION: &[u8] = b"\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x04test\x00\x00\x01\x00\x01";

#[test]
fn the_host_dns_cache_serves_this_machine_and_its_pods() {
    on_a_node("ip=10.5.0.2::10.5.0.1:24:node-1:eth0", async |node| {
        // The upstream is an address of this node, so that the question finds its way in one namespace.
        link::set_up(&node.netlink, "lo", true).await.unwrap();
        link::add_address(&node.netlink, "lo", "10.99.0.1/32".parse().unwrap()).await.unwrap();
        let upstream = tokio::net::UdpSocket::bind("10.99.0.1:53").await.unwrap();
        tokio::spawn(async move {
            let mut buffer = [0; 512];
            loop {
                let (length, from) = upstream.recv_from(&mut buffer).await.unwrap();
                let mut answer = buffer[..length].to_vec();
                answer[2] |= 0x80;
                answer[7] = 1;
                answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 10, 1, 2, 3]);
                upstream.send_to(&answer, from).await.unwrap();
            }
        });
        let config = r"
machine:
    type: worker
    network: {nameservers: [10.99.0.1]}
    features:
        hostDNS: {enabled: true, forwardKubeDNSToHost: true}
cluster: {}
";
        node.configure(config);
        for id in
            ["udp-127.0.0.53:53", "tcp-127.0.0.53:53", "udp-169.254.116.108:53", "tcp-169.254.116.108:53"]
        {
            node.wait(id, |state| state.get::<DNSResolveCache>("network", id).ok()).await;
        }
        let upstream =
            node.wait("upstream", |state| state.get::<DNSUpstream>("network", "#000 10.99.0.1").ok()).await;
        assert!(upstream.healthy && upstream.addr == "10.99.0.1:53");
        node.wait("resolv.conf", |_| {
            let own = std::fs::read_to_string(node.directory.join("etc/resolv.conf")).ok()?;
            let pods = std::fs::read_to_string(node.directory.join("resolv.conf")).ok()?;
            (own == "nameserver 127.0.0.53\n" && pods == "nameserver 169.254.116.108\n").then_some(())
        })
        .await;
        let client = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        client.send_to(QUESTION, "127.0.0.53:53").await.unwrap();
        let mut buffer = [0; 512];
        let received = tokio::time::timeout(Duration::from_secs(30), client.recv(&mut buffer)).await;
        let length = received.unwrap().unwrap();
        assert_eq!(buffer[length - 4..length], [10, 1, 2, 3]);
    });
}

#[test]
fn a_name_server_that_does_not_answer_is_named() {
    on_a_node("ip=10.5.0.2::10.5.0.1:24:node-1:eth0", async |node| {
        link::set_up(&node.netlink, "lo", true).await.unwrap();
        link::add_address(&node.netlink, "lo", "10.99.0.1/32".parse().unwrap()).await.unwrap();
        // Nobody listens there.
        node.configure(
            "machine:\n    type: worker\n    network: {nameservers: [10.99.0.1]}\n    features: {hostDNS: {enabled: true}}\n",
        );
        node.wait("listener", |state| state.get::<DNSResolveCache>("network", "udp-127.0.0.53:53").ok())
            .await;
        assert_eq!(node.trouble("network.DNSUpstreamController"), None);
        let client = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut buffer = [0; 512];
        for _ in 0..2 {
            client.send_to(QUESTION, "127.0.0.53:53").await.unwrap();
            let received = tokio::time::timeout(Duration::from_secs(10), client.recv(&mut buffer)).await;
            received.unwrap().unwrap();
            assert_eq!(buffer[3] & 0xf, 2, "a failure");
        }
        node.wait_for_trouble("network.DNSUpstreamController", |trouble| {
            trouble.is_some_and(|text| text.starts_with("name server 10.99.0.1: does not answer"))
        })
        .await;
        node.wait("unhealthy", |state| {
            let upstream = state.get::<DNSUpstream>("network", "#000 10.99.0.1").ok()?;
            (!upstream.healthy).then_some(())
        })
        .await;
    });
}
