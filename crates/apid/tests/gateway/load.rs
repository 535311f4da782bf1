//! Many streams, and clients that open a lot and read nothing.

use std::time::Duration;

use ichor_wire::common::Data;
use ichor_wire::machine as api;
use tokio::time::timeout;
use tonic::Streaming;

use crate::support::{Client, Cluster, Node, PATIENCE, with};

#[tokio::test]
async fn the_connection_of_a_client_that_left_serves_the_next_one() {
    let cluster = Cluster::new();
    let node = cluster.node(1);
    let count = || node.machine.connections.load(std::sync::atomic::Ordering::SeqCst);
    for _ in 0..20 {
        let mut client = cluster.client(1, &["os:admin"]);
        timeout(PATIENCE, client.version(())).await.expect("in time").expect("answer");
        drop(client);
        // The gateway notices the end of a connection a moment later.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(count() <= 5, "{} connections to the machine for 20 clients, one after the other", count());

    // Clients at the same time each have their own.
    let clients: Vec<_> = (0..4).map(|_| cluster.client(1, &["os:admin"])).collect();
    let before = count();
    for client in &clients {
        timeout(PATIENCE, client.clone().version(())).await.expect("in time").expect("answer");
    }
    assert!(count() >= before + 2, "four clients share connections to the machine");
}

#[tokio::test]
async fn a_thousand_streams_share_one_connection() {
    let cluster = Cluster::new();
    let node = cluster.node(1);
    let client = cluster.client(1, &["os:admin"]);
    let open = (0..1000).map(|_| {
        let mut client = client.clone();
        async move {
            let mut events = client.events(api::EventsRequest::default()).await.expect("stream").into_inner();
            events.message().await.expect("hello");
            events
        }
    });
    let streams = timeout(PATIENCE, futures_util::future::join_all(open)).await.expect("all in time");
    assert_eq!(node.machine.streams.load(std::sync::atomic::Ordering::SeqCst), 1000);
    timeout(PATIENCE, client.clone().version(())).await.expect("in time").expect("answer");
    drop(streams);
    let start = std::time::Instant::now();
    while node.machine.streams.load(std::sync::atomic::Ordering::SeqCst) > 0 {
        assert!(start.elapsed() < PATIENCE, "streams are left at the machine");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Opens big streams, reads none of them, and waits until every buffer on the way is full.
async fn stall(
    node: &Node,
    client: &mut Client,
    count: usize,
    pairs: &[(&'static str, &str)],
) -> Vec<Streaming<Data>> {
    let mut stalled = Vec::new();
    for _ in 0..count {
        let request = with(api::CopyRequest { root_path: "/".to_owned() }, pairs);
        stalled.push(client.copy(request).await.expect("stream").into_inner());
    }
    node.machine.wait_until_stalled().await;
    stalled
}

#[tokio::test]
async fn a_client_that_reads_nothing_stalls_only_itself() {
    let cluster = Cluster::new();
    let node = cluster.node(1);
    let mut idle = cluster.client(1, &["os:admin"]);
    let mut other = cluster.client(1, &["os:admin"]);
    other.version(()).await.expect("before");
    // More than would fill the window of a connection: 64 streams of 256 KiB each.
    let stalled = stall(&node, &mut idle, 80, &[]).await;
    timeout(PATIENCE, other.version(())).await.expect("in time").expect("answer");
    drop(stalled);
    timeout(PATIENCE, idle.version(())).await.expect("in time").expect("the idle one recovers");
}

#[tokio::test]
async fn streams_that_nobody_reads_between_nodes_leave_calls_alone() {
    let cluster = Cluster::new();
    let (_one, two) = (cluster.node(1), cluster.node(2));
    let target = cluster.address(2).to_string();
    let pairs = [("node", target.as_str())];
    let mut idle = cluster.client(1, &["os:admin"]);
    let mut other = cluster.client(1, &["os:admin"]);
    // A few leave room for other streams; too many for that still leave room for calls.
    let few = stall(&two, &mut idle, 8, &pairs).await;
    let logs = other.logs(with(api::LogsRequest::default(), &pairs));
    let mut logs = timeout(PATIENCE, logs).await.expect("in time").expect("stream").into_inner();
    timeout(PATIENCE, logs.message()).await.expect("in time").expect("message");
    let many = stall(&two, &mut idle, 80, &pairs).await;
    let call = other.version(with((), &pairs));
    timeout(PATIENCE, call).await.expect("in time").expect("answer");
    let merged = other.version(with((), &[("nodes", target.as_str())]));
    timeout(PATIENCE, merged).await.expect("in time").expect("answer");
    drop((few, many));
}

#[tokio::test]
async fn a_client_of_many_that_reads_nothing_stalls_only_itself() {
    let cluster = Cluster::new();
    let (_one, two) = (cluster.node(1), cluster.node(2));
    let targets = [cluster.address(1).to_string(), cluster.address(2).to_string()];
    let pairs = [("nodes", targets[0].as_str()), ("nodes", targets[1].as_str())];
    let mut idle = cluster.client(1, &["os:admin"]);
    let stalled = stall(&two, &mut idle, 4, &pairs).await;
    let mut other = cluster.client(1, &["os:admin"]);
    let call = other.version(with((), &pairs));
    let reply = timeout(PATIENCE, call).await.expect("in time").expect("answer").into_inner();
    assert!(reply.messages.iter().all(|message| message.version.is_some()));
    drop(stalled);
}

#[tokio::test]
async fn however_many_streams_one_client_leaves_unread_others_get_theirs() {
    let cluster = Cluster::new();
    let (_one, two) = (cluster.node(1), cluster.node(2));
    let target = cluster.address(2).to_string();
    let pairs = [("node", target.as_str())];
    let mut idle = cluster.client(1, &["os:admin"]);
    // Twice what fills the window of a shared connection.
    let stalled = stall(&two, &mut idle, 130, &pairs).await;
    for _ in 0..3 {
        let mut other = cluster.client(1, &["os:admin"]);
        let logs = other.logs(with(api::LogsRequest::default(), &pairs));
        let mut logs = timeout(PATIENCE, logs).await.expect("in time").expect("stream").into_inner();
        let first = timeout(PATIENCE, logs.message()).await.expect("in time").expect("message");
        assert!(first.is_some());
        let call = other.version(with((), &pairs));
        timeout(PATIENCE, call).await.expect("in time").expect("answer");
    }
    drop(stalled);
}
