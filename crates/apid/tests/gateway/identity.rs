//! Who gets in, with which certificate, and what changes without a restart.

use std::time::Duration;

use ichor_pki::{ExtendedUsage, KeyPair, Leaf};
use ichor_rpc::{Channel, ClientTls, Dialer, Endpoint};
use ichor_wire::machine as api;
use tonic::Code;

use crate::support::{Client, Cluster, PATIENCE, authority, now, with};

async fn is_refused(cluster: &Cluster, pair: &KeyPair) -> bool {
    match cluster.client_with(1, pair).version(()).await {
        Ok(_) => false,
        Err(status) => {
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            true
        }
    }
}

#[tokio::test]
async fn only_client_certificates_of_the_cluster_get_in() {
    let cluster = Cluster::new();
    let _node = cluster.node(1);
    assert!(!is_refused(&cluster, &cluster.certificate(&["os:admin"])).await);

    let admin = || Leaf::client("", ["os:admin"]);
    let issue = |leaf: &Leaf| cluster.authority.issue(leaf, now()).expect("certificate");
    let foreign = authority().issue(&admin(), now()).expect("certificate");
    assert!(is_refused(&cluster, &foreign).await, "another authority");

    let yesterday = now() - Duration::from_secs(48 * 3600);
    let expired = cluster.authority.issue(&admin(), yesterday).expect("certificate");
    assert!(is_refused(&cluster, &expired).await, "expired");

    let both = Leaf { extended_usage: ExtendedUsage::Both, ..admin() };
    assert!(is_refused(&cluster, &issue(&both)).await, "server and client at once");
    let server = Leaf { extended_usage: ExtendedUsage::Server, ..admin() };
    assert!(is_refused(&cluster, &issue(&server)).await, "a server's certificate");

    let tls = ClientTls::verified(cluster.authority.crt_pem(), None).expect("client TLS");
    let endpoint = Endpoint::new(cluster.address(1).to_string(), cluster.port);
    let mut nameless = Client::new(Channel::new(Dialer::tls([endpoint.clone()], tls)));
    assert_eq!(nameless.version(()).await.expect_err("no certificate").code(), Code::Unavailable);

    // And the client, for its part, knows the node by its authority.
    let mistrusting = ClientTls::verified(authority().crt_pem(), None).expect("client TLS");
    let mut client = Client::new(Channel::new(Dialer::tls([endpoint], mistrusting)));
    let status = client.version(()).await.expect_err("unknown authority");
    assert!(status.message().contains("authentication handshake failed"), "{status}");
}

#[tokio::test]
async fn new_certificates_are_served_without_a_restart() {
    let cluster = Cluster::new();
    let node = cluster.node(1);
    let mut before = cluster.client(1, &["os:admin"]);
    before.version(()).await.expect("answer");

    // The cluster moves to another authority; for a while both are accepted.
    let next = Cluster::beside(&cluster);
    let mut certificates = next.certificates(1, true);
    certificates.accepted_cas.extend(cluster.certificates(1, true).accepted_cas);
    node.specs.set("api", &certificates);
    let mut after = next.client(1, &["os:admin"]);
    let start = std::time::Instant::now();
    while after.version(()).await.is_err() {
        assert!(start.elapsed() < PATIENCE, "the new certificate is not served");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    before.version(()).await.expect("connections of before go on");

    // Then the old one is not.
    node.specs.set("api", &next.certificates(1, true));
    let old = cluster.certificate(&["os:admin"]);
    let start = std::time::Instant::now();
    while next.client_with(1, &old).version(()).await.is_ok() {
        assert!(start.elapsed() < PATIENCE, "the old authority is still accepted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    before.version(()).await.expect("a connection is checked when it is made");
}

#[tokio::test]
async fn a_new_identity_leaves_running_forwards_alone() {
    let cluster = Cluster::new();
    let (one, two) = (cluster.node(1), cluster.node(2));
    let target = cluster.address(2).to_string();
    let mut client = cluster.client(1, &["os:admin"]);
    let request = || with(api::EventsRequest::default(), &[("node", &target)]);
    let mut running = client.events(request()).await.expect("stream").into_inner();
    running.message().await.expect("hello");

    one.specs.set("api", &cluster.certificates(1, true));
    tokio::time::sleep(Duration::from_millis(50)).await;
    client.version(with((), &[("node", &target)])).await.expect("new calls use the new identity");
    let open = || two.machine.streams.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(open(), 1, "the stream of before still runs");
    let still = tokio::time::timeout(Duration::from_millis(50), running.message()).await;
    assert!(still.is_err(), "and has not ended: {still:?}");

    // Without an identity nothing is forwarded any more.
    one.specs.set("api", &cluster.certificates(1, false));
    let start = std::time::Instant::now();
    while client.version(with((), &[("node", &target)])).await.is_ok() {
        assert!(start.elapsed() < PATIENCE, "still forwarded");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(running);
}

#[tokio::test]
async fn bad_certificates_leave_the_good_ones_in_use() {
    let cluster = Cluster::new();
    let node = cluster.node(1);
    let mut bad = cluster.certificates(1, true);
    bad.server = cluster.certificates(1, true).client;
    bad.server.as_mut().expect("pair").key = "nonsense".into();
    node.specs.set("api", &bad);
    tokio::time::sleep(Duration::from_millis(50)).await;
    cluster.client(1, &["os:admin"]).version(()).await.expect("still served");
}

#[tokio::test]
async fn a_pinned_fingerprint_is_checked() {
    let cluster = Cluster::new();
    let node = cluster.node(1);
    let certificates = cluster.certificates(1, true);
    node.specs.set("api", &certificates);
    let served = ichor_pki::CertInfo::parse(&certificates.server.expect("server").crt).expect("certificate");
    let call = |fingerprint: String| {
        let tls = ClientTls::insecure([fingerprint]).expect("client TLS");
        let endpoint = Endpoint::new(cluster.address(1).to_string(), cluster.port);
        async move { Client::new(Channel::new(Dialer::tls([endpoint], tls))).version(()).await }
    };
    let wrong = call("AAAA".to_owned()).await.expect_err("wrong fingerprint");
    assert!(wrong.message().contains("is not one of those given"), "{wrong}");
    // The right one passes the client's check, once the gateway serves it; then the gateway misses a
    // certificate.
    let start = std::time::Instant::now();
    loop {
        let right = call(served.spki_fingerprint.clone()).await.expect_err("no certificate");
        if !right.message().contains("is not one of those given") {
            break;
        }
        assert!(start.elapsed() < crate::support::PATIENCE, "{right}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
