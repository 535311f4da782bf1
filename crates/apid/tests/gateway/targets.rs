//! Calls that name many targets: repeated ones, too many, invented ones, and what they leave to others.

use ichor_wire::common::Metadata;
use ichor_wire::machine as api;
use tokio::time::timeout;
use tonic::Code;

use crate::support::{Client, Cluster, PATIENCE, with};

/// The metadata of all answers to `Hostname` of these targets.
async fn ask(client: &mut Client, targets: &[String]) -> Vec<Metadata> {
    let pairs: Vec<_> = targets.iter().map(|target| ("nodes", target.as_str())).collect();
    let call = client.hostname(with((), &pairs));
    let reply = timeout(PATIENCE, call).await.expect("in time").expect("an answer").into_inner();
    reply.messages.into_iter().map(|message| message.metadata.expect("metadata")).collect()
}

/// Addresses on loopback where nobody listens.
pub(crate) fn nobody(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("127.78.{}.{}", number >> 8, number & 255)).collect()
}

#[tokio::test]
async fn repeated_targets_are_called_once() {
    let cluster = Cluster::new();
    let (_one, _two) = (cluster.node(1), cluster.node(2));
    let target = cluster.address(2).to_string();
    let mut client = cluster.client(1, &["os:reader"]);
    let answers = ask(&mut client, &vec![target.clone(); 900]).await;
    assert_eq!(answers, [Metadata { hostname: target, ..Metadata::default() }]);
}

#[tokio::test]
async fn more_targets_than_the_bound_are_refused_by_name() {
    let cluster = Cluster::new();
    let _one = cluster.node(1);
    let mut client = cluster.client(1, &["os:admin"]);
    let targets: Vec<String> = (0..1025).map(|number| format!("n{number}")).collect();
    let pairs: Vec<_> = targets.iter().map(|target| ("nodes", target.as_str())).collect();
    let refused = client.hostname(with((), &pairs)).await.expect_err("too many");
    let text = "1025 nodes in one call, 1024 at most; split it into several calls";
    assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, text));
    // As many as allowed fit, also as the longest addresses.
    let targets: Vec<String> = (0..1024)
        .map(|number| format!("2001:db8:aaaa:bbbb:cccc:dddd:eeee:{:04x}", 0x1000 + number))
        .collect();
    let mut reader = cluster.client(1, &["os:reader"]);
    assert_eq!(ask(&mut reader, &targets).await.len(), 1024);
}

#[tokio::test]
async fn metadata_beyond_the_bound_is_refused() {
    let cluster = Cluster::new();
    let _one = cluster.node(1);
    let own = cluster.address(1).to_string();
    let mut client = cluster.client(1, &["os:admin"]);
    let large = "x".repeat(17 * 1024);
    for pairs in [&[("note", large.as_str())][..], &[("nodes", &own), ("note", &large)]] {
        let refused = client.hostname(with((), pairs)).await.expect_err("too large");
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().ends_with("bytes beside the targets, 16384 at most"), "{refused:?}");
    }
    client.hostname(with((), &[("note", &large[..15_000])])).await.expect("an answer");
}

#[tokio::test]
async fn invented_names_lock_nobody_out() {
    let cluster = Cluster::new();
    let (_one, _two) = (cluster.node(1), cluster.node(2));
    let mut reader = cluster.client(1, &["os:reader"]);
    for round in 0..6 {
        let names: Vec<String> = (0..700).map(|number| format!("invented-{round}-{number}")).collect();
        let answers = ask(&mut reader, &names).await;
        assert_eq!(answers.len(), names.len());
        assert!(answers.iter().all(|answer| answer.error.contains("not a known member")), "{answers:?}");
    }
    // Nobody has called this node before, by its name or otherwise.
    let mut admin = cluster.client(1, &["os:admin"]);
    let call = admin.hostname(with((), &[("node", "host-2")]));
    let reply = timeout(PATIENCE, call).await.expect("in time").expect("an answer").into_inner();
    assert_eq!(reply.messages[0].hostname, "m2");
}

#[tokio::test]
async fn targets_that_nobody_answers_at_lock_nobody_out() {
    let cluster = Cluster::new();
    let (_one, _two) = (cluster.node(1), cluster.node(2));
    let mut operator = cluster.client(1, &["os:operator"]);
    // More than are ever kept, from somebody who may call them.
    for targets in nobody(4200).chunks(700) {
        let answers = ask(&mut operator, targets).await;
        assert!(answers.iter().all(|answer| answer.error.contains("connection refused")), "{answers:?}");
    }
    let mut admin = cluster.client(1, &["os:admin"]);
    let call = admin.hostname(with((), &[("node", &cluster.address(2).to_string())]));
    let reply = timeout(PATIENCE, call).await.expect("in time").expect("an answer").into_inner();
    assert_eq!(reply.messages[0].hostname, "m2");
}

#[tokio::test]
async fn one_certificate_leaves_the_gateway_to_others() {
    let cluster = Cluster::new();
    let (one, _two) = (cluster.node(1), cluster.node(2));
    let own = cluster.address(1).to_string();
    let greedy = cluster.certificate(&["os:admin"]);
    let mut clients: Vec<Client> = (0..4).map(|_| cluster.client_with(1, &greedy)).collect();
    // Streams that last, each to a node and many that refuse: all of its share.
    let targets: Vec<String> = nobody(1023).into_iter().chain([own]).collect();
    let pairs: Vec<_> = targets.iter().map(|target| ("nodes", target.as_str())).collect();
    let mut held = Vec::new();
    for client in &mut clients {
        held.push(
            client.events(with(api::EventsRequest::default(), &pairs)).await.expect("stream").into_inner(),
        );
    }
    let refused = clients[0].events(with(api::EventsRequest::default(), &pairs)).await.expect_err("too much");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    assert!(refused.message().contains("of this certificate"), "{refused:?}");
    let mut other = cluster.client(1, &["os:reader"]);
    assert_eq!(ask(&mut other, &["host-2".to_owned()]).await[0].error, "");
    // What ended is given back.
    drop(held);
    let streams = one.machine.streams.clone();
    let start = std::time::Instant::now();
    loop {
        match clients[0].events(with(api::EventsRequest::default(), &pairs)).await {
            Ok(_) => break,
            Err(refused) => assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}"),
        }
        assert!(start.elapsed() < PATIENCE, "{} streams", streams.load(std::sync::atomic::Ordering::SeqCst));
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
