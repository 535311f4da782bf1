//! The client against a server in memory.

use std::time::Duration;

use ichor_kube::{Delete, Drained, Event, Kind, Limits, Select, Target, Write, drain};
use ichor_testkit::kube::Server;
use serde_json::{Value, json};

const TIME_MAX: Duration = Duration::from_secs(5);

fn map(name: &str, key: &str, value: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": "a" }, "data": { key: value } })
}

#[tokio::test]
async fn manifests_find_their_place() {
    let client = Server::new().client();
    let target = client.locate(&map("x", "k", "v")).await.unwrap();
    assert_eq!(target.path(), "/api/v1/namespaces/a/configmaps/x");
    let unknown = json!({ "apiVersion": "example.com/v1", "kind": "Thing", "metadata": { "name": "x" } });
    let error = client.locate(&unknown).await.unwrap_err();
    assert_eq!(error.to_string(), "the server knows no Thing in example.com/v1");
    assert!(error.is_of_object());
}

#[tokio::test]
async fn a_watch_goes_on_where_it_broke_off() {
    let server = Server::new();
    let client = server.client();
    server.put("/api/v1/namespaces/a/configmaps/x", map("x", "k", "1"));
    let mut watch = client.watch(Kind::CONFIG_MAPS, "a", Select::default());
    let Event::Listed(listed) = watch.next().await.unwrap() else { panic!("a list comes first") };
    assert_eq!(listed.len(), 1);

    server.put("/api/v1/namespaces/b/configmaps/y", map("y", "k", "1"));
    server.put("/api/v1/namespaces/a/configmaps/x", map("x", "k", "2"));
    let next = tokio::time::timeout(TIME_MAX, watch.next()).await.unwrap().unwrap();
    assert!(matches!(next, Event::Changed(object) if object["data"]["k"] == "2"));

    server.set_down(true);
    assert!(tokio::time::timeout(TIME_MAX, watch.next()).await.unwrap().is_err());
    server.set_down(false);
    let target = Target::new(Kind::CONFIG_MAPS, "a", "x");
    client.delete(&target, Delete::default()).await.unwrap();
    let next = tokio::time::timeout(TIME_MAX, watch.next()).await.unwrap().unwrap();
    assert!(matches!(next, Event::Gone(_)), "{next:?}");
}

#[tokio::test]
async fn fields_of_others_are_not_taken() {
    let server = Server::new();
    let client = server.client();
    let target = Target::new(Kind::CONFIG_MAPS, "a", "x");
    client.apply(&target, &map("x", "k", "1"), Write::by("talos")).await.unwrap();
    client.apply(&target, &map("x", "other", "1"), Write::by("argocd")).await.unwrap();
    let error = client.apply(&target, &map("x", "other", "2"), Write::by("talos")).await.unwrap_err();
    assert!(error.is_conflict());
    assert_eq!(error.status().unwrap().conflicting_managers(), ["argocd"]);
    // What the owner no longer names goes.
    client.apply(&target, &map("x", "new", "1"), Write::by("talos")).await.unwrap();
    let object = client.get(&target).await.unwrap();
    assert_eq!(object["data"], json!({ "other": "1", "new": "1" }));
}

fn pod(name: &str, owner: Option<&str>, annotations: Value) -> Value {
    let mut pod = json!({
        "metadata": { "name": name, "namespace": "a", "annotations": annotations },
        "spec": { "nodeName": "n" }, "status": { "phase": "Running" },
    });
    if let Some(owner) = owner {
        pod["metadata"]["ownerReferences"] = json!([{ "kind": owner, "controller": true }]);
    }
    pod
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_budgets_and_leaves_what_belongs_to_the_node() {
    let server = Server::new();
    let put = |pod: Value| {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        server.put(&format!("/api/v1/namespaces/a/pods/{name}"), pod);
    };
    put(pod("web", Some("ReplicaSet"), json!({})));
    put(pod("db", Some("StatefulSet"), json!({})));
    put(pod("proxy", Some("DaemonSet"), json!({})));
    put(pod("bare", None, json!({})));
    put(pod("api", Some("Node"), json!({ "kubernetes.io/config.mirror": "x" })));
    server.hold_back(3);
    let start = tokio::time::Instant::now();
    let drained = drain(&server.client(), "n", Limits::default()).await.unwrap();
    assert_eq!(drained, Drained { gone: vec!["a/db".into(), "a/web".into()], stayed: vec![] });
    assert!(start.elapsed() >= Duration::from_secs(5), "a budget is asked again after a while");
    assert_eq!(server.paths().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_when_its_time_is_over() {
    let server = Server::new();
    server.put("/api/v1/namespaces/a/pods/web", pod("web", Some("ReplicaSet"), json!({})));
    server.hold_back(usize::MAX);
    let limits = Limits { overall: Duration::from_secs(20), ..Limits::default() };
    let drained = drain(&server.client(), "n", limits).await.unwrap();
    assert_eq!(drained.stayed, [("a/web".to_owned(), "the time for draining is over".to_owned())]);
}
