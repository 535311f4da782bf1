//! What calls to many nodes cost the gateway, which is a process of its own here.

use std::net::SocketAddr;
use std::time::Duration;

use hyper::service::service_fn;
use ichor_pki::Leaf;
use ichor_resource::cluster::Member;
use ichor_rpc::ServerTls;
use ichor_rpc::server::{Limits, serve_tls};
use ichor_wire::machine as api;
use tokio::time::timeout;

use crate::support::{Client, Cluster, Node, PATIENCE, Thread, answer_as, now, wait_for, with};
use crate::targets::nobody;

/// What one call to the largest number of nodes may take, in KiB.
const GROWTH_KIB_MAX: u64 = 8 * 1024;
const NODES: usize = 1024;

/// Peak of the resident memory since it was reset, resident memory now, and the anonymous part of it, in KiB.
fn memory(pid: u32) -> [u64; 3] {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the gateway lives");
    ["VmHWM:", "VmRSS:", "RssAnon:"].map(|key| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("a field of the kernel");
        line.split_whitespace().next().and_then(|text| text.parse().ok()).expect("a number")
    })
}

/// Runs `work` and gives by how much the gateway grew meanwhile, at most.
async fn growth<T>(pid: u32, what: &str, work: impl Future<Output = T>) -> (T, u64) {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("peak is reset");
    let [_, before, anonymous] = memory(pid);
    let done = work.await;
    let [peak, _, after] = memory(pid);
    println!("{what}: {before} KiB, {peak} at most; anonymous {anonymous}, then {after}");
    (done, peak.saturating_sub(before))
}

/// Nodes that all live behind one address and answer to any name.
fn nodes(cluster: &Cluster) -> (Vec<String>, Vec<(String, Member)>, Thread) {
    let address = cluster.address(2);
    let names: Vec<String> = (0..NODES).map(|number| format!("node-{number}.nodes.test")).collect();
    let member = |name: &String| {
        (
            name.clone(),
            Member { hostname: name.clone(), addresses: vec![address.into()], ..Member::default() },
        )
    };
    let members = names.iter().map(member).collect();
    let leaf = Leaf::server("node").with_names(["*.nodes.test"], []);
    let pair = cluster.authority.issue(&leaf, now()).expect("certificate");
    let tls = ServerTls::new();
    tls.set_certificate(&pair.crt, &pair.key).expect("certificate");
    tls.set_accepted(cluster.authority.crt_pem()).expect("authority");
    let listen = SocketAddr::new(address, cluster.port);
    let bound = tokio_util::sync::CancellationToken::new();
    let told = bound.clone();
    let server = Thread::spawn(move |stop| async move {
        let listener = tokio::net::TcpListener::bind(listen).await.expect("listener");
        told.cancel();
        let config = tls.mutual().expect("settings");
        serve_tls(listener, config, Limits::default(), stop, |_| {
            service_fn(|request| answer_as(request, "node"))
        })
        .await;
    });
    wait_for("the nodes", || bound.is_cancelled());
    (names, members, server)
}

/// A gateway in front of [`NODES`] nodes, warm.
async fn start(cluster: &Cluster) -> (Node, u32, Vec<String>, Thread) {
    let (names, members, server) = nodes(cluster);
    let (node, pid) = cluster.node_apart(1);
    node.specs.set_members(members);
    let mut client = cluster.client(1, &["os:reader"]);
    let start = std::time::Instant::now();
    // A call succeeds also when the gateway does not know its targets yet: each answer says so.
    let pair = [("nodes", names[0].as_str()), ("nodes", names[1].as_str())];
    let answered = |reply: tonic::Response<api::VersionResponse>| {
        reply.into_inner().messages.iter().all(|answer| answer.version.is_some())
    };
    while !client.version(with((), &pair)).await.is_ok_and(answered) {
        assert!(start.elapsed() < PATIENCE, "the first call");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    (node, pid, names, server)
}

async fn versions(client: &mut Client, targets: &[String]) -> Vec<api::Version> {
    let pairs: Vec<_> = targets.iter().map(|target| ("nodes", target.as_str())).collect();
    let call = client.version(with((), &pairs));
    timeout(PATIENCE, call).await.expect("in time").expect("an answer").into_inner().messages
}

#[tokio::test]
async fn a_call_to_1024_nodes_takes_8_mib_at_most() {
    let cluster = Cluster::new();
    let (_node, pid, names, _server) = start(&cluster).await;
    let mut reader = cluster.client(1, &["os:reader"]);
    let call = versions(&mut reader, &names);
    let (answers, grown) = growth(pid, "1024 nodes that answer", call).await;
    assert_eq!(answers.len(), NODES);
    let good = answers.iter().filter(|answer| answer.version.is_some()).count();
    assert_eq!(good, NODES, "{:?}", answers.iter().find(|answer| answer.version.is_none()));
    assert!(grown <= GROWTH_KIB_MAX, "{grown} KiB");

    let mut admin = cluster.client(1, &["os:admin"]);
    let targets = nobody(NODES);
    let call = versions(&mut admin, &targets);
    let (answers, grown) = growth(pid, "1024 addresses where nobody listens", call).await;
    assert_eq!(answers.len(), NODES);
    assert!(grown <= GROWTH_KIB_MAX, "{grown} KiB");

    // Streams keep their connections while they last, so they cost more; the bound is the daemon's own.
    let pairs: Vec<_> = names.iter().map(|target| ("nodes", target.as_str())).collect();
    let call = async {
        let logs = reader.logs(with(api::LogsRequest::default(), &pairs)).await;
        let mut logs = logs.expect("stream").into_inner();
        let mut count = 0;
        while let Some(data) = logs.message().await.expect("message") {
            assert_eq!(data.metadata.expect("metadata").error, "");
            count += 1;
        }
        count
    };
    let (count, grown) = growth(pid, "streams of 1024 nodes", timeout(PATIENCE, call)).await;
    assert_eq!(count.expect("in time"), 3 * NODES);
    assert!(grown <= 6 * GROWTH_KIB_MAX, "{grown} KiB");
}

#[tokio::test]
async fn three_calls_with_1700_repeated_targets_leave_the_gateway_as_it_was() {
    let cluster = Cluster::new();
    let (_node, pid, _names, _server) = start(&cluster).await;
    let mut clients: Vec<Client> = (0..3).map(|_| cluster.client(1, &["os:reader"])).collect();
    let targets = vec!["a".to_owned(); 1700];
    let calls = clients.iter_mut().map(|client| versions(client, &targets));
    let (answers, grown) = growth(pid, "3 x 1700 targets", futures_util::future::join_all(calls)).await;
    assert!(answers.iter().all(|answers| answers.len() == 1), "{answers:?}");
    assert!(grown <= GROWTH_KIB_MAX, "{grown} KiB");
    let reply = cluster.client(1, &["os:admin"]).version(()).await.expect("an answer").into_inner();
    assert_eq!(reply.messages.len(), 1);
}
