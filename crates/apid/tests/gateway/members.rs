//! Whom a caller may reach through the gateway: below os:operator, members of the cluster.

use std::net::{IpAddr, TcpListener};
use std::time::{Duration, Instant};

use ichor_resource::cluster::Member;
use ichor_wire::ichor::node::AuditEntry;
use ichor_wire::machine as api;
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::support::{Client, Cluster, MEMBERS, Node, PATIENCE, with};

/// A node that is there but no member.
const STRANGER: u8 = MEMBERS + 12;
const VERSION: &str = "/machine.MachineService/Version";

async fn ask(client: &mut Client, target: &str) -> Result<String, Status> {
    let call = client.hostname(with((), &[("node", target)]));
    let reply = timeout(PATIENCE, call).await.expect("in time")?.into_inner();
    Ok(reply.messages[0].hostname.clone())
}

/// Waits for an entry of the audit log.
async fn told(node: &Node, target: &str, code: Code, reason: &str) -> AuditEntry {
    let start = Instant::now();
    loop {
        let found = node
            .told
            .0
            .lock()
            .unwrap()
            .iter()
            .find(|entry| entry.target == target && entry.code == code as u32 && entry.reason == reason)
            .cloned();
        if let Some(entry) = found {
            return entry;
        }
        assert!(start.elapsed() < PATIENCE, "{target} {code:?} {reason}: {:?}", node.told.0.lock().unwrap());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn the_gateway_is_no_port_scanner_for_readers() {
    let cluster = Cluster::new();
    let one = cluster.node(1);
    let _stranger = cluster.node(STRANGER);
    let open = TcpListener::bind((cluster.address(30), cluster.port)).expect("listener");
    open.set_nonblocking(true).expect("nonblocking");
    let refusing = cluster.address(31).to_string();
    let open_address = cluster.address(30).to_string();
    let stranger = cluster.address(STRANGER).to_string();
    for roles in [&["os:reader"][..], &["os:etcd:backup"], &["os:impersonator"], &["os:root"], &[]] {
        let mut client = cluster.client(1, roles);
        for target in [&open_address, &refusing, &stranger, "localhost", "host-99", "2130706433"] {
            let status = ask(&mut client, target).await.expect_err("not a member");
            let text = format!(
                "{target:?} is not a known member of the cluster; other targets need the role os:operator"
            );
            assert_eq!(
                (status.code(), status.message()),
                (Code::PermissionDenied, text.as_str()),
                "{roles:?}"
            );
            let reply = client.hostname(with((), &[("nodes", target)])).await.expect("parts").into_inner();
            let part = reply.messages[0].metadata.clone().expect("metadata");
            assert_eq!(part.error, format!("rpc error: code = PermissionDenied desc = {text}"));
        }
    }
    assert!(open.accept().is_err(), "somebody was connected to");
    let entry = told(&one, &open_address, Code::PermissionDenied, "target is not a cluster member").await;
    assert_eq!(entry.method, "/machine.MachineService/Hostname");
    assert!(entry.caller.starts_with("- 127.0.0.1 "), "{entry:?}");
}

#[tokio::test]
async fn operators_reach_every_address_and_it_is_audited() {
    let cluster = Cluster::new();
    let (one, _stranger) = (cluster.node(1), cluster.node(STRANGER));
    let (stranger, nobody) = (cluster.address(STRANGER).to_string(), cluster.address(31).to_string());
    for roles in [["os:operator"], ["os:admin"]] {
        let mut client = cluster.client(1, &roles);
        assert_eq!(ask(&mut client, &stranger).await.expect("an answer"), format!("m{STRANGER}"));
        let status = ask(&mut client, &nobody).await.expect_err("nobody is there");
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("connection refused"), "{status:?}");
    }
    told(&one, &stranger, Code::Ok, "target is not a cluster member").await;
    told(&one, &nobody, Code::Unavailable, "target is not a cluster member and not reachable").await;
    // A node that says nothing is given up on, which is an attempt, too.
    let silent = TcpListener::bind((cluster.address(32), cluster.port)).expect("listener");
    let mut client = cluster.client(1, &["os:operator"]);
    let target = cluster.address(32).to_string();
    let call = client.version(with((), &[("node", &target)]));
    timeout(Duration::from_millis(300), call).await.expect_err("it says nothing");
    let entry = told(&one, &target, Code::Cancelled, "canceled before the node answered").await;
    assert_eq!(entry.method, VERSION);
    drop(silent);
}

#[tokio::test]
async fn a_reader_reaches_members_by_address_and_by_name() {
    let cluster = Cluster::new();
    let (one, _two) = (cluster.node(1), cluster.node(2));
    let mut reader = cluster.client(1, &["os:reader"]);
    let address = cluster.address(2).to_string();
    for target in [address.as_str(), "host-2", "HOST-2", "host-2."] {
        assert_eq!(ask(&mut reader, target).await.expect("an answer"), "m2", "{target}");
    }
    let mut logs = reader
        .logs(with(api::LogsRequest::default(), &[("nodes", "host-2"), ("nodes", "host-1")]))
        .await
        .expect("stream")
        .into_inner();
    let mut from = std::collections::BTreeSet::new();
    while let Some(data) = logs.message().await.expect("message") {
        let metadata = data.metadata.expect("metadata");
        assert_eq!(metadata.error, "");
        from.insert(metadata.hostname);
    }
    assert_eq!(from.into_iter().collect::<Vec<_>>(), ["host-1", "host-2"]);

    // Members come and are known at once.
    let _late = cluster.node(STRANGER);
    let address: IpAddr = cluster.address(STRANGER);
    ask(&mut reader, &address.to_string()).await.expect_err("not yet");
    let hostname = format!("host-{STRANGER}");
    let member = Member { hostname: hostname.clone(), addresses: vec![address.into()], ..Member::default() };
    one.specs.set_members([(hostname.clone(), member)]);
    let start = Instant::now();
    while ask(&mut reader, &hostname).await.is_err() {
        assert!(start.elapsed() < PATIENCE, "the new member is not known");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(ask(&mut reader, &address.to_string()).await.expect("an answer"), format!("m{STRANGER}"));
}

#[tokio::test]
async fn why_a_member_cannot_be_reached_is_not_told_to_readers() {
    let cluster = Cluster::new();
    let one = cluster.node(1);
    // The third refuses, the fourth accepts and hangs up, the fifth is somebody else's.
    let closing = TcpListener::bind((cluster.address(4), cluster.port)).expect("listener");
    std::thread::spawn(move || {
        while let Ok((stream, _)) = closing.accept() {
            drop(stream);
        }
    });
    let foreign = Cluster::beside(&cluster);
    let _foreign = foreign.node(5);
    let mut reader = cluster.client(1, &["os:reader"]);
    for number in 3..=5 {
        let target = cluster.address(number).to_string();
        let status = ask(&mut reader, &target).await.expect_err("not reachable");
        let text = format!("connection error: desc = \"node {target} is not reachable\"");
        assert_eq!((status.code(), status.message()), (Code::Unavailable, text.as_str()));
        told(&one, &target, Code::Unavailable, "node not reachable").await;
    }
}
