//! The gateway from end to end: real TLS, real sockets, a fake machine behind it.

mod abuse;
mod audit;
mod bad_input;
mod identity;
mod load;
mod many;
mod members;
mod memory;
mod restart;
mod support;
mod targets;

use ichor_wire::machine as api;
use support::{Cluster, with};
use tonic::Code;

#[tokio::test]
async fn a_call_arrives_with_the_callers_roles() {
    let cluster = Cluster::new();
    let _node = cluster.node(1);
    let mut client = cluster.client(1, &["os:reader", "os:operator"]);
    // A role the caller only claims is not passed on.
    let request = with((), &[("talos-role", "os:admin")]);
    let reply = client.version(request).await.expect("answer").into_inner();
    let version = reply.messages[0].version.clone().expect("version");
    assert_eq!(version.tag, "os:operator,os:reader");
    assert_eq!(version.sha, "", "a local call is not marked as forwarded");
    assert!(reply.messages[0].metadata.is_none(), "one-to-one adds no host name");
}

#[tokio::test]
async fn wrong_roles_and_unknown_methods_get_the_codes_of_the_original() {
    let cluster = Cluster::new();
    let _node = cluster.node(1);
    let mut reader = cluster.client(1, &["os:reader"]);
    let status = reader.reboot(api::RebootRequest::default()).await.expect_err("refused");
    assert_eq!((status.code(), status.message()), (Code::PermissionDenied, "not authorized"));
    let mut nobody = cluster.client(1, &[]);
    assert_eq!(nobody.version(()).await.expect_err("refused").code(), Code::PermissionDenied);
    let mut machine = cluster.client(1, &["os:impersonator"]);
    assert_eq!(machine.version(()).await.expect_err("refused").code(), Code::PermissionDenied);

    for (roles, code, text) in [
        (["os:admin"], Code::Unimplemented, "unknown service no.Such"),
        (["os:operator"], Code::PermissionDenied, "not authorized"),
    ] {
        let channel = cluster.channel(1, &cluster.certificate(&roles));
        let mut raw = tonic::client::Grpc::new(channel);
        raw.ready().await.expect("ready");
        let path = http::uri::PathAndQuery::from_static("/no.Such/Method");
        let codec = tonic_prost::ProstCodec::<(), ()>::default();
        let status = raw.unary(tonic::Request::new(()), path, codec).await.expect_err("refused");
        assert_eq!((status.code(), status.message()), (code, text));
    }
}

#[tokio::test]
async fn streams_and_their_ends_pass_through() {
    let cluster = Cluster::new();
    let _node = cluster.node(1);
    let mut client = cluster.client(1, &["os:admin"]);
    let mut logs = client.logs(api::LogsRequest::default()).await.expect("stream").into_inner();
    let mut text = String::new();
    while let Some(data) = logs.message().await.expect("message") {
        text.push_str(std::str::from_utf8(&data.bytes).expect("text"));
    }
    assert_eq!(text, "m1 line 0\nm1 line 1\nm1 line 2\n");

    let mut usage = client.disk_usage(api::DiskUsageRequest::default()).await.expect("stream").into_inner();
    assert!(usage.message().await.expect("first").is_some());
    let status = usage.message().await.expect_err("then the error");
    assert_eq!((status.code(), status.message()), (Code::DataLoss, "the rest is gone"));

    let status = client.read(api::ReadRequest::default()).await.expect_err("trailers only");
    assert_eq!((status.code(), status.message()), (Code::NotFound, "no such file"));
}

#[tokio::test]
async fn long_errors_arrive_whole() {
    let cluster = Cluster::new();
    let _node = cluster.node(1);
    let target = cluster.address(1).to_string();
    let mut client = cluster.client(1, &["os:admin"]);
    for pairs in [&[][..], &[("node", target.as_str())]] {
        let request = with(api::ApplyConfigurationRequest::default(), pairs);
        let status = client.apply_configuration(request).await.expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.message().len(), 20_000 * "line wrong\n".len());
    }
}

#[tokio::test]
async fn uploads_pass_through() {
    let cluster = Cluster::new();
    let _node = cluster.node(1);
    let mut client = cluster.client(1, &["os:admin"]);
    let chunk = ichor_wire::common::Data { metadata: None, bytes: vec![1; 100_000].into() };
    let upload = futures_util::stream::iter(vec![chunk; 20]);
    let reply = client.etcd_recover(upload).await.expect("answer").into_inner();
    let error = reply.messages[0].metadata.clone().expect("metadata").error;
    // Each message: 5 bytes of header, 1 + 3 of field header.
    assert_eq!(error, format!("{} bytes", 20 * 100_009));
}

#[tokio::test]
async fn deadlines_travel_with_the_call() {
    let cluster = Cluster::new();
    let _node = cluster.node(1);
    let mut client = cluster.client(1, &["os:admin"]);
    let mut request = with((), &[]);
    request.set_timeout(std::time::Duration::from_secs(7));
    let reply = client.version(request).await.expect("answer").into_inner();
    assert_eq!(reply.messages[0].version.clone().expect("version").built, "7000000u");
}

#[tokio::test]
async fn a_dropped_stream_ends_at_the_machine() {
    let cluster = Cluster::new();
    let node = cluster.node(1);
    let mut client = cluster.client(1, &["os:admin"]);
    let streams = node.machine.streams.clone();
    let count = move || streams.load(std::sync::atomic::Ordering::SeqCst);
    let mut events = client.events(api::EventsRequest::default()).await.expect("stream").into_inner();
    events.message().await.expect("hello");
    assert_eq!(count(), 1);
    drop(events);
    let start = std::time::Instant::now();
    while count() != 0 {
        assert!(start.elapsed() < support::PATIENCE, "the machine still streams");
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn the_socket_of_the_node_takes_roles_from_metadata() {
    let cluster = Cluster::new();
    let node = cluster.node(1);
    let channel = ichor_rpc::Channel::new(ichor_rpc::Dialer::unix(&node.socket));
    let mut client = support::Client::new(channel);
    let reply = client.version(with((), &[("talos-role", "os:reader")])).await.expect("answer").into_inner();
    assert_eq!(reply.messages[0].version.clone().expect("version").tag, "os:reader");
    assert_eq!(client.version(()).await.expect_err("no roles").code(), Code::PermissionDenied);
}
