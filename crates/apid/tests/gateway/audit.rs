//! What the machine learns about who calls, and what the gateway tells of those it turned away.

use ichor_pki::Leaf;
use ichor_rpc::{Channel, ClientTls, Dialer, Endpoint};
use tonic::Code;

use crate::support::{Client, Cluster, PATIENCE, authority, now, with};

/// Caller and proxy as the machine saw them.
async fn seen(client: &mut Client, metadata: &[(&'static str, &str)]) -> (String, String) {
    let reply = client.version(with((), metadata)).await.expect("answer").into_inner();
    let version = reply.messages[0].version.clone().expect("version");
    let (caller, proxy) = version.go_version.split_once('|').expect("both");
    (caller.to_owned(), proxy.to_owned())
}

#[tokio::test]
async fn the_machine_learns_name_certificate_and_address_of_the_caller() {
    let cluster = Cluster::new();
    let _node = cluster.node(1);
    let leaf = Leaf::client("jo \"the\" admin", ["os:admin"]);
    let pair = cluster.authority.issue(&leaf, now()).expect("certificate");
    let mut client = cluster.client_with(1, &pair);
    // What a client writes under these names itself counts for nothing.
    let forged = [("ichor-caller", "1 10.0.0.1 00 root"), ("ichor-proxy", "1 10.0.0.2 00 node")];
    let (caller, proxy) = seen(&mut client, &forged).await;
    let words: Vec<&str> = caller.split(' ').collect();
    assert_eq!((words.len(), words[1], words[3]), (4, "127.0.0.1", "jo%20%22the%22%20admin"), "{caller}");
    assert!(words[0].parse::<u16>().is_ok(), "{caller}");
    assert!(words[2].len() == 16 && words[2].bytes().all(|byte| byte.is_ascii_hexdigit()), "{caller}");
    assert_eq!(proxy, "");
}

#[tokio::test]
async fn a_forwarded_call_names_its_first_caller_and_the_gateway_between() {
    let cluster = Cluster::new();
    let (_one, _two) = (cluster.node(1), cluster.node(2));
    let target = cluster.address(2).to_string();
    let pair = cluster.authority.issue(&Leaf::client("jo", ["os:admin"]), now()).expect("certificate");
    let mut client = cluster.client_with(1, &pair);
    let (direct, _) = seen(&mut client, &[]).await;
    for key in ["node", "nodes"] {
        let (caller, proxy) = seen(&mut client, &[(key, &target)]).await;
        assert_eq!(caller, direct, "{key}");
        assert!(proxy.contains(" 127.0.0.1 ") && proxy.ends_with(" node"), "{proxy}");
    }
}

#[tokio::test]
async fn who_is_turned_away_at_the_door_is_told() {
    let cluster = Cluster::new();
    let node = cluster.worker(1);
    let endpoint = Endpoint::new(cluster.address(1).to_string(), cluster.port);
    let nameless = ClientTls::verified(cluster.authority.crt_pem(), None).expect("client TLS");
    for _ in 0..3 {
        let mut client = Client::new(Channel::new(Dialer::tls([endpoint.clone()], nameless.clone())));
        client.version(()).await.expect_err("no certificate");
    }
    let foreign = authority().issue(&Leaf::client("", ["os:admin"]), now()).expect("certificate");
    cluster.client_with(1, &foreign).version(()).await.expect_err("another authority");
    let mut reader = cluster.client(1, &["os:reader"]);
    let refused = reader.version(with((), &[("nodes", "10.9.9.9")])).await.expect_err("a worker");
    assert_eq!(refused.code(), Code::PermissionDenied);

    let told = |method: &str, reason: &str| {
        let told = node.told.0.lock().unwrap();
        let fits = |entry: &&ichor_wire::ichor::node::AuditEntry| {
            entry.method == method && entry.reason == reason && entry.caller.starts_with("- 127.0.0.1 ")
        };
        told.iter().filter(fits).map(|entry| entry.count).sum::<u64>()
    };
    let start = std::time::Instant::now();
    loop {
        let found = [
            told("", "no certificate"),
            told("", "unknown authority"),
            told("/machine.MachineService/Version", "no request forwarding"),
        ];
        // A client may try once more by itself.
        if found[0] >= 3 && found[1] >= 1 && found[2] == 1 {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{:?}", node.told.0.lock().unwrap());
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}
