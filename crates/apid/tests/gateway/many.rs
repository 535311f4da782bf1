//! Other nodes: one, several, dead ones, and what a worker may.

use std::time::Duration;

use ichor_wire::common::Metadata;
use ichor_wire::machine as api;
use tokio::time::timeout;
use tonic::Code;

use crate::support::{Cluster, PATIENCE, with};

#[tokio::test]
async fn node_goes_to_that_node_with_the_callers_roles() {
    let cluster = Cluster::new();
    let (_one, _two) = (cluster.node(1), cluster.node(2));
    let target = cluster.address(2).to_string();
    let mut client = cluster.client(1, &["os:operator"]);
    let reply = client.hostname(with((), &[("node", &target)])).await.expect("answer").into_inner();
    assert_eq!(reply.messages[0].hostname, "m2");
    assert!(reply.messages[0].metadata.is_none());

    let reply = client.version(with((), &[("node", &target)])).await.expect("answer").into_inner();
    let version = reply.messages[0].version.clone().expect("version");
    assert_eq!(version.tag, "os:operator");
    assert_eq!(version.sha, format!("{}:{}", cluster.address(1), cluster.port), "proxyfrom");
    assert_eq!(version.os, "", "no targets are left in the metadata");
    assert_eq!(version.arch, format!("{target}:{}", cluster.port));

    let status =
        client.read(with(api::ReadRequest::default(), &[("node", &target)])).await.expect_err("role");
    assert_eq!((status.code(), status.message()), (Code::PermissionDenied, "not authorized"));
}

#[tokio::test]
async fn replies_of_many_nodes_are_merged() {
    let cluster = Cluster::new();
    let (_one, _two, _three) = (cluster.node(1), cluster.node(2), cluster.worker(3));
    let targets: Vec<String> = (1..=4).map(|number| cluster.address(number).to_string()).collect();
    let pairs: Vec<_> = targets.iter().map(|target| ("nodes", target.as_str())).collect();
    let mut client = cluster.client(1, &["os:reader"]);
    let reply = client.hostname(with((), &pairs)).await.expect("answer").into_inner();
    let mut found: Vec<(String, String, Metadata)> = reply
        .messages
        .into_iter()
        .map(|message| {
            (
                message.metadata.clone().unwrap_or_default().hostname,
                message.hostname,
                message.metadata.unwrap(),
            )
        })
        .collect();
    found.sort_by(|left, right| left.0.cmp(&right.0));
    assert_eq!(found.len(), 4);
    for (index, (target, name, metadata)) in found.iter().enumerate() {
        assert_eq!(*target, targets[index]);
        if index < 3 {
            assert_eq!(*name, format!("m{}", index + 1));
            assert_eq!(metadata.error, "");
        }
    }
    // Nobody listens on the fourth; why it cannot be reached is for operators.
    let dead = &found[3].2;
    let expected = format!(
        "rpc error: code = Unavailable desc = connection error: desc = \"node {} is not reachable\"",
        targets[3]
    );
    assert_eq!(dead.error, expected);
    assert_eq!(dead.status.as_ref().expect("status").code, Code::Unavailable as i32);
    let mut operator = cluster.client(1, &["os:operator"]);
    let reply = operator.hostname(with((), &pairs[3..])).await.expect("answer").into_inner();
    let expected = format!(
        "rpc error: code = Unavailable desc = connection error: desc = \"transport: Error while dialing: \
         dial tcp {}:{}: connect: connection refused\"",
        targets[3], cluster.port
    );
    assert_eq!(reply.messages[0].metadata.as_ref().expect("metadata").error, expected);
}

#[tokio::test]
async fn a_single_value_of_nodes_is_still_many() {
    let cluster = Cluster::new();
    let _one = cluster.node(1);
    let target = cluster.address(1).to_string();
    let mut client = cluster.client(1, &["os:reader"]);
    let reply = client.hostname(with((), &[("nodes", &target)])).await.expect("answer").into_inner();
    assert_eq!(reply.messages[0].metadata.clone().expect("metadata").hostname, target);
}

#[tokio::test]
async fn errors_of_nodes_are_parts_of_the_reply() {
    let cluster = Cluster::new();
    let (_one, _two) = (cluster.node(1), cluster.node(2));
    let targets = [cluster.address(1).to_string(), cluster.address(2).to_string()];
    let pairs = [("nodes", targets[0].as_str()), ("nodes", targets[1].as_str())];
    let mut client = cluster.client(1, &["os:reader"]);
    let reply =
        client.reboot(with(api::RebootRequest::default(), &pairs)).await.expect("answer").into_inner();
    assert_eq!(reply.messages.len(), 2);
    for message in reply.messages {
        let metadata = message.metadata.expect("metadata");
        assert_eq!(metadata.error, "rpc error: code = PermissionDenied desc = not authorized");
    }
    // A reply without an element cannot be merged: the whole call fails.
    let status = client.load_avg(with((), &pairs)).await.expect_err("no element");
    assert_eq!(status.code(), Code::Internal);
}

#[tokio::test]
async fn streams_of_many_nodes_are_interleaved() {
    let cluster = Cluster::new();
    let (_one, _two) = (cluster.node(1), cluster.node(2));
    let targets: Vec<String> = (1..=3).map(|number| cluster.address(number).to_string()).collect();
    let pairs: Vec<_> = targets.iter().map(|target| ("nodes", target.as_str())).collect();
    let mut client = cluster.client(1, &["os:admin"]);
    let mut logs = client.logs(with(api::LogsRequest::default(), &pairs)).await.expect("stream").into_inner();
    let mut texts = vec![String::new(); 3];
    let mut errors = 0;
    while let Some(data) = logs.message().await.expect("message") {
        let metadata = data.metadata.expect("metadata");
        let index = targets.iter().position(|target| *target == metadata.hostname).expect("known target");
        texts[index].push_str(std::str::from_utf8(&data.bytes).expect("text"));
        if !metadata.error.is_empty() {
            assert_eq!(index, 2, "{}", metadata.error);
            errors += 1;
        }
    }
    assert_eq!(texts[0], "m1 line 0\nm1 line 1\nm1 line 2\n");
    assert_eq!(texts[1], "m2 line 0\nm2 line 1\nm2 line 2\n");
    assert_eq!(errors, 1, "the dead node says so once");

    // A stream that breaks off tells it in a message of its own.
    let request = with(api::DiskUsageRequest::default(), &pairs[..1]);
    let mut usage = client.disk_usage(request).await.expect("stream").into_inner();
    let part = usage.message().await.expect("message").expect("part").metadata.expect("metadata");
    assert_eq!((part.hostname.as_str(), part.error.as_str()), (targets[0].as_str(), ""));
    let end = usage.message().await.expect("message").expect("error").metadata.expect("metadata");
    assert_eq!(end.error, "rpc error: code = DataLoss desc = the rest is gone");
    assert!(usage.message().await.expect("ends well").is_none());
}

#[tokio::test]
async fn every_message_of_an_upload_goes_to_all() {
    let cluster = Cluster::new();
    let (_one, _two) = (cluster.node(1), cluster.node(2));
    let targets = [cluster.address(1).to_string(), cluster.address(2).to_string()];
    let pairs = [("nodes", targets[0].as_str()), ("nodes", targets[1].as_str())];
    let mut client = cluster.client(1, &["os:admin"]);
    let chunk = ichor_wire::common::Data { metadata: None, bytes: vec![1; 100_000].into() };
    let upload = with(futures_util::stream::iter(vec![chunk; 20]), &pairs);
    let reply = client.etcd_recover(upload).await.expect("answer").into_inner();
    for message in reply.messages {
        assert_eq!(message.metadata.expect("metadata").error, format!("{} bytes", 20 * 100_009));
    }
}

#[tokio::test]
async fn resources_are_not_asked_of_many() {
    use ichor_wire::cosi::resource::GetRequest;
    use ichor_wire::cosi::resource::state_client::StateClient;
    let cluster = Cluster::new();
    let _one = cluster.node(1);
    let mut state = StateClient::new(cluster.channel(1, &cluster.certificate(&["os:admin"])));
    let status = state.get(with(GetRequest::default(), &[("nodes", "a")])).await.expect_err("refused");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.message(), "one-2-many proxying is not supported for COSI methods");
}

#[tokio::test]
async fn bad_targets_are_refused() {
    let cluster = Cluster::new();
    let _one = cluster.node(1);
    let mut client = cluster.client(1, &["os:admin"]);
    for (pairs, code, text) in [
        (vec![("node", "a"), ("node", "b")], Code::InvalidArgument, "node metadata must be single-valued"),
        (vec![("node", "1.2.3.4:50000")], Code::Internal, "invalid target \"1.2.3.4:50000\""),
        (vec![("nodes", "")], Code::Internal, "invalid target \"\""),
    ] {
        let status = client.version(with((), &pairs)).await.expect_err("refused");
        assert_eq!((status.code(), status.message()), (code, text));
    }
}

#[tokio::test]
async fn a_worker_serves_itself_and_forwards_nothing() {
    let cluster = Cluster::new();
    let (_one, _worker) = (cluster.node(1), cluster.worker(2));
    let mut client = cluster.client(2, &["os:admin"]);
    let own = cluster.address(2).to_string();
    for (key, target) in
        [("node", own.as_str()), ("nodes", own.as_str()), ("node", "host-2"), ("nodes", "host-2.example")]
    {
        let reply = client.hostname(with((), &[(key, target)])).await.expect("answer").into_inner();
        assert_eq!(reply.messages[0].hostname, "m2");
        assert!(reply.messages[0].metadata.is_none());
    }
    let other = cluster.address(1).to_string();
    for key in ["node", "nodes"] {
        let status = client.hostname(with((), &[(key, &other)])).await.expect_err("refused");
        assert_eq!((status.code(), status.message()), (Code::PermissionDenied, "no request forwarding"));
    }
}

#[tokio::test]
async fn a_deadline_bounds_the_wait_for_a_node_that_is_silent() {
    let cluster = Cluster::new();
    let _one = cluster.node(1);
    // It accepts and says nothing.
    let silent = std::net::TcpListener::bind((cluster.address(9), cluster.port)).expect("listener");
    let (good, bad) = (cluster.address(1).to_string(), cluster.address(9).to_string());
    let mut request = with((), &[("nodes", &good), ("nodes", &bad), ("grpc-timeout", "2S")]);
    request.metadata_mut().insert("x", "y".parse().unwrap());
    let mut client = cluster.client(1, &["os:admin"]);
    let reply = client.hostname(request).await.expect("answer").into_inner();
    let errors: Vec<_> = reply.messages.iter().map(|m| m.metadata.clone().unwrap().error).collect();
    assert_eq!(errors, ["", "rpc error: code = DeadlineExceeded desc = context deadline exceeded"]);
    drop(silent);
}

#[tokio::test]
async fn fifty_nodes_answer_through_one_endpoint() {
    const NODES: u8 = 50;
    const FANOUT_MAX: Duration = Duration::from_millis(200);
    let cluster = Cluster::new();
    let _nodes: Vec<_> = (1..=NODES).map(|number| cluster.node(number)).collect();
    let targets: Vec<String> = (1..=NODES).map(|number| cluster.address(number).to_string()).collect();
    let pairs: Vec<_> = targets.iter().map(|target| ("nodes", target.as_str())).collect();
    let mut client = cluster.client(1, &["os:admin"]);
    let mut times = Vec::new();
    // The first makes fifty connections. All nodes share this machine with other tests: the best one counts.
    for _ in 0..40 {
        if times.len() > 5 && times.iter().any(|time| *time <= FANOUT_MAX) {
            break;
        }
        let start = std::time::Instant::now();
        let reply = timeout(PATIENCE, client.version(with((), &pairs))).await.expect("in time");
        times.push(start.elapsed());
        let messages = reply.expect("answer").into_inner().messages;
        assert_eq!(messages.len(), usize::from(NODES));
        assert!(messages.iter().all(|message| message.version.is_some()), "{messages:?}");
    }
    println!("first {:?}, then {:?}", times[0], &times[1..]);
    let best = times.iter().min().expect("six");
    assert!(*best <= FANOUT_MAX, "{times:?}");
}
