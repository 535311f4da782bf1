//! Manifests against a server in memory.

use ichor_cosi::State;
use ichor_resource::k8s::SingleManifest;
use ichor_resource::value::Object;
use ichor_testkit::Harness;
use ichor_testkit::kube::Server;

use super::*;

const MAP: &str = "/api/v1/namespaces/default/configmaps";

struct Node {
    state: State,
    harness: Harness<ManifestApplyController>,
    _root: tempfile::TempDir,
}

impl Node {
    fn new(server: &Server, name: &str) -> Self {
        let (ports, root) = crate::api::fake(server);
        let (state, _clock) = ichor_testkit::state();
        let nodename = Nodename { nodename: name.into(), ..Nodename::default() };
        state.create("k8s", "nodename", nodename, "").unwrap();
        state.create("secrets", "k8s-certs", KubernetesSecret::default(), "").unwrap();
        let etcd = Service { running: true, healthy: true, unknown: false };
        state.create("runtime", "etcd", etcd, "").unwrap();
        state.create("controlplane", "manifests", BootstrapManifestsConfig::default(), "").unwrap();
        state.create("controlplane", "extra-manifests", ExtraManifestsConfig::default(), "").unwrap();
        for (id, objects) in
            manifests::render(&BootstrapManifestsConfig::default(), manifests::Token { id: "t", secret: "s" })
        {
            state.create("controlplane", &id, manifest(objects), "").unwrap();
        }
        let harness = Harness::new(&state, ManifestApplyController::new(ports)).unwrap();
        Self { state, harness, _root: root }
    }

    fn set(&self, id: &str, objects: Vec<Value>) {
        let _ = self.state.destroy::<Manifest>("controlplane", id, "");
        self.state.create("controlplane", id, manifest(objects), "").unwrap();
    }

    async fn run(&mut self) -> (Option<Duration>, Option<String>) {
        self.harness.reconcile().await.unwrap();
        (self.harness.requeue(), self.harness.context().take_trouble())
    }
}

fn manifest(objects: Vec<Value>) -> Manifest {
    let single = |object| match object {
        Value::Object(map) => SingleManifest { object: Object(map) },
        other => panic!("no object: {other}"),
    };
    Manifest { items: objects.into_iter().map(single).collect() }
}

fn map(name: &str, data: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": data })
}

#[tokio::test]
async fn missing_objects_are_made_and_the_second_pass_writes_nothing() {
    let server = Server::new();
    let mut node = Node::new(&server, "a");
    assert_eq!(node.run().await, (None, None));
    let secret = server.object("/api/v1/namespaces/kube-system/secrets/bootstrap-token-t").unwrap();
    assert_eq!(secret["data"]["token-secret"], "cw==", "secrets are kept as data");
    let status = node.state.get::<ManifestStatus>("controlplane", "manifests").unwrap();
    assert_eq!(status.manifests_applied.len(), 6);
    let inventory = server.object(&format!("/api/v1/namespaces/kube-system/configmaps/{}", inventory::NAME));
    assert_eq!(
        inventory.unwrap()["data"]["_system__talos-nodes_rbac.authorization.k8s.io_ClusterRole"],
        "v1"
    );
    server.writes();

    node.run().await;
    assert_eq!(server.writes(), [""; 0]);
    let mut again = Node::new(&server, "a");
    again.run().await;
    assert_eq!(server.writes(), [""; 0], "a restart writes nothing either");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_asked_again_soon() {
    let server = Server::new();
    server.set_down(true);
    let mut node = Node::new(&server, "a");
    let (again, trouble) = node.run().await;
    assert_eq!(again, Some(Duration::from_millis(200)));
    assert!(trouble.unwrap().contains("the server is down"));
    server.set_down(false);
    assert_eq!(node.run().await, (None, None));
}

#[tokio::test]
async fn a_bad_object_keeps_no_other_from_being_applied() {
    let server = Server::new();
    server.refuse(&format!("{MAP}/bad"));
    let mut node = Node::new(&server, "a");
    let unknown = json!({ "apiVersion": "example.com/v1", "kind": "Thing", "metadata": { "name": "x" } });
    node.set("98-mixed", vec![map("bad", json!({})), unknown, map("good", json!({ "a": "1" }))]);
    node.set("99-last", vec![map("last", json!({}))]);
    let (again, trouble) = node.run().await;
    assert!(again.is_some());
    let trouble = trouble.unwrap();
    assert!(trouble.contains("98-mixed: ConfigMap bad: PATCH"), "{trouble}");
    assert!(trouble.contains("98-mixed: Thing x: the server knows no Thing in example.com/v1"), "{trouble}");
    let told = node.state.get::<Diagnostic>("runtime", "manifests-refused").unwrap();
    assert_eq!(told.details.join("; "), trouble);
    assert!(
        server.object(&format!("{MAP}/good")).is_some() && server.object(&format!("{MAP}/last")).is_some()
    );
    let status = node.state.get::<ManifestStatus>("controlplane", "manifests").unwrap();
    assert!(!status.manifests_applied.iter().any(|id| id == "98-mixed"));
    assert!(status.manifests_applied.iter().any(|id| id == "99-last"));
    node.set("98-mixed", vec![]);
    node.run().await;
    assert!(
        node.state.get::<Diagnostic>("runtime", "manifests-refused").is_err(),
        "it is gone with its reason"
    );
}

#[tokio::test]
async fn what_changes_here_changes_there_and_what_leaves_leaves() {
    let server = Server::new();
    let mut node = Node::new(&server, "a");
    node.set("99-x", vec![map("one", json!({ "a": "1", "b": "1" })), map("two", json!({}))]);
    let space = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "space" } });
    node.set("99-y", vec![space]);
    node.run().await;
    node.set("99-x", vec![map("one", json!({ "a": "2" }))]);
    node.set("99-y", vec![]);
    assert_eq!(node.run().await, (None, None));
    let one = server.object(&format!("{MAP}/one")).unwrap();
    assert_eq!(one["data"], json!({ "a": "2" }));
    assert!(server.object(&format!("{MAP}/two")).is_none());
    assert!(server.object("/api/v1/namespaces/space").is_some(), "a namespace holds what belongs to others");
}

#[tokio::test]
async fn what_others_own_is_left_alone() {
    let server = Server::new();
    let client = server.client();
    let foreign = Target::new(Kind::CONFIG_MAPS, "default", "foreign");
    client
        .create(&foreign.kind, "default", &map("foreign", json!({ "a": "theirs" })), Write::by("helm"))
        .await
        .unwrap();
    let mut node = Node::new(&server, "a");
    let objects = |value: &str| {
        vec![
            map("foreign", json!({ "a": value })),
            map("shared", json!({ "a": value })),
            map("gone", json!({})),
        ]
    };
    node.set("99-x", objects("1"));
    node.run().await;
    let shared = Target::new(Kind::CONFIG_MAPS, "default", "shared");
    let force = Write { force: true, ..Write::by("argocd") };
    client.apply(&shared, &map("shared", json!({ "a": "git" })), force).await.unwrap();
    client
        .apply(&Target::new(Kind::CONFIG_MAPS, "default", "gone"), &map("gone", json!({ "k": "v" })), force)
        .await
        .unwrap();

    node.set("99-x", objects("2").into_iter().take(2).collect());
    assert_eq!(node.run().await, (None, None));
    let data = |name: &str| server.object(&format!("{MAP}/{name}")).unwrap()["data"]["a"].clone();
    assert_eq!(data("foreign"), "theirs");
    assert_eq!(data("shared"), "git");
    assert!(server.object(&format!("{MAP}/gone")).is_some(), "somebody else owns parts of it");
}

#[tokio::test]
async fn an_upgrade_by_the_original_client_is_no_fight() {
    let server = Server::new();
    let mut node = Node::new(&server, "a");
    node.set("99-x", vec![map("one", json!({ "a": "1" }))]);
    node.run().await;
    // It puts whole objects, as its own user agent.
    let target = Target::new(Kind::CONFIG_MAPS, "default", "one");
    let mut live = server.object(&format!("{MAP}/one")).unwrap();
    live["data"]["a"] = "2".into();
    server.client().replace(&target, &live, Write::by("talosctl")).await.unwrap();
    server.writes();
    Node::new(&server, "a");
    node.run().await;
    assert_eq!(server.writes(), [""; 0]);
    node.set("99-x", vec![map("one", json!({ "a": "3" }))]);
    node.run().await;
    assert_eq!(server.object(&format!("{MAP}/one")).unwrap()["data"]["a"], "3");
}

#[tokio::test]
async fn nodes_with_different_manifests_do_not_fight() {
    let server = Server::new();
    let (mut a, mut b) = (Node::new(&server, "a"), Node::new(&server, "b"));
    a.set("99-x", vec![map("one", json!({ "a": "1" })), map("two", json!({}))]);
    b.set("99-x", vec![map("one", json!({ "a": "1" })), map("two", json!({}))]);
    a.run().await;
    b.run().await;
    a.set("99-x", vec![map("one", json!({ "a": "2" })), map("two", json!({}))]);
    a.run().await;
    // The other node starts anew with the manifests it always had.
    let mut b_again = Node::new(&server, "b");
    b_again.set("99-x", vec![map("one", json!({ "a": "1" })), map("two", json!({}))]);
    b_again.run().await;
    assert_eq!(server.object(&format!("{MAP}/one")).unwrap()["data"]["a"], "2");
}

#[tokio::test]
async fn nothing_leaves_while_manifests_are_still_coming() {
    let server = Server::new();
    let mut node = Node::new(&server, "a");
    node.set("99-x", vec![map("one", json!({}))]);
    node.run().await;
    let extra =
        ichor_resource::k8s::ExtraManifest { name: "y".into(), priority: "99".into(), ..Default::default() };
    node.state
        .update_with::<ExtraManifestsConfig>("controlplane", "extra-manifests", "", |spec, _| {
            spec.extra_manifests = vec![extra.clone()];
        })
        .unwrap();
    node.set("99-x", vec![]);
    node.run().await;
    assert!(server.object(&format!("{MAP}/one")).is_some());
    node.set("99-y", vec![map("y", json!({}))]);
    node.run().await;
    assert!(server.object(&format!("{MAP}/one")).is_none());
    assert!(server.object(&format!("{MAP}/y")).is_some());
}

#[tokio::test]
async fn a_pass_that_failed_halfway_is_undone_when_the_wishes_go_back() {
    let server = Server::new();
    server.refuse(&format!("{MAP}/bad"));
    let mut node = Node::new(&server, "a");
    node.run().await;
    node.set("99-x", vec![map("good", json!({})), map("bad", json!({}))]);
    assert!(node.run().await.1.is_some());
    assert!(node.run().await.1.is_some());
    assert!(server.object(&format!("{MAP}/good")).is_some());
    node.state.destroy::<Manifest>("controlplane", "99-x", "").unwrap();
    assert_eq!(node.run().await, (None, None));
    assert!(server.object(&format!("{MAP}/good")).is_none());
}
