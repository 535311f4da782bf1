//! machined goes and comes back; the gateway stays.

use std::time::{Duration, Instant};

use ichor_wire::machine as api;
use tonic::Code;

use crate::support::{Cluster, PATIENCE};

#[tokio::test]
async fn calls_fail_at_once_without_machined_and_work_at_once_with_it() {
    let cluster = Cluster::new();
    let node = cluster.node(1);
    let mut client = cluster.client(1, &["os:admin"]);
    client.version(()).await.expect("answer");
    let mut events = client.events(api::EventsRequest::default()).await.expect("stream").into_inner();
    events.message().await.expect("hello");

    node.machine.stop();
    let ended = tokio::time::timeout(PATIENCE, events.message()).await.expect("in time");
    assert_eq!(ended.expect_err("the stream breaks").code(), Code::Unavailable);
    let start = Instant::now();
    let status = client.version(()).await.expect_err("nobody there");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(start.elapsed() < PATIENCE / 6, "it did not wait");

    for _ in 0..3 {
        node.machine.start();
        client.version(()).await.expect("the very next call works");
        node.machine.stop();
        assert_eq!(client.version(()).await.expect_err("gone again").code(), Code::Unavailable);
    }
}

#[tokio::test]
async fn a_node_that_comes_back_is_found_again() {
    let cluster = Cluster::new();
    let _one = cluster.node(1);
    let target = cluster.address(2).to_string();
    let mut client = cluster.client(1, &["os:admin"]);
    let call = |client: &mut crate::support::Client| {
        let mut client = client.clone();
        let request = crate::support::with((), &[("node", target.as_str())]);
        async move { client.hostname(request).await }
    };
    assert_eq!(call(&mut client).await.expect_err("nobody there").code(), Code::Unavailable);
    let _two = cluster.node(2);
    let start = Instant::now();
    while call(&mut client).await.is_err() {
        assert!(start.elapsed() < PATIENCE, "not found in time");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
