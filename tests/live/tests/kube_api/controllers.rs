//! The controllers of a node against the real server.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ichor_cosi::{Controller, State};
use ichor_ctl_k8s::api::{Ports, no_fetch, no_lock};
use ichor_ctl_k8s::endpoints::EndpointController;
use ichor_ctl_k8s::inventory;
use ichor_ctl_k8s::manifest_apply::ManifestApplyController;
use ichor_ctl_k8s::manifests::{self, Token};
use ichor_ctl_k8s::node_apply::NodeApplyController;
use ichor_ctl_k8s::node_status::NodeStatusController;
use ichor_kube::{Client, Kind, Select, Target, Write, manifest};
use ichor_live::apiserver::{ADVERTISED, ApiServer};
use ichor_resource::config::MachineType;
use ichor_resource::k8s::{
    BootstrapManifestsConfig, Endpoint, ExtraManifestsConfig, Manifest, ManifestStatus, NodeCordonedSpec,
    NodeLabelSpec, NodeStatus, NodeTaintSpec, Nodename, SingleManifest,
};
use ichor_resource::secrets::KubernetesSecret;
use ichor_resource::v1alpha1::Service;
use ichor_resource::value::Object;
use ichor_testkit::Harness;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

const STEP_MAX: Duration = Duration::from_secs(180);

/// Runs a controller, as a runtime would, until `done`.
async fn until<C: Controller>(harness: &mut Harness<C>, what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    loop {
        harness.reconcile().await.unwrap();
        if done() {
            return;
        }
        let trouble = harness.context().take_trouble();
        assert!(start.elapsed() < STEP_MAX, "{what}: {trouble:?}");
        let wait = harness.requeue().unwrap_or(Duration::from_millis(200));
        tokio::select! {
            () = harness.context().wake().woken() => {}
            () = sleep(wait) => {}
        }
    }
}

/// Runs a controller until nothing troubles it.
async fn settle<C: Controller>(harness: &mut Harness<C>) {
    let start = Instant::now();
    loop {
        harness.reconcile().await.unwrap();
        let Some(trouble) = harness.context().take_trouble() else { return };
        assert!(start.elapsed() < STEP_MAX, "{trouble}");
        sleep(Duration::from_millis(200)).await;
    }
}

fn state(admin: &str) -> State {
    let (state, _clock) = ichor_testkit::state();
    let nodename = Nodename { nodename: "cp-1".into(), ..Nodename::default() };
    state.create("k8s", "nodename", nodename, "").unwrap();
    let secrets = KubernetesSecret {
        localhost_admin_kubeconfig: admin.to_owned(),
        admin_kubeconfig: admin.to_owned(),
        ..KubernetesSecret::default()
    };
    state.create("secrets", "k8s-certs", secrets, "").unwrap();
    let running = Service { running: true, healthy: true, unknown: false };
    state.create("runtime", "etcd", running.clone(), "").unwrap();
    state.create("runtime", "kubelet", running, "").unwrap();
    state
}

fn ports(root: &Path) -> Ports {
    Ports { root: root.into(), ..Ports::machine(no_lock(), no_lock(), no_fetch()) }
}

fn put(state: &State, id: &str, objects: Vec<Value>) {
    let single = |object| match object {
        Value::Object(map) => SingleManifest { object: Object(map) },
        other => panic!("no object: {other}"),
    };
    let _ = state.destroy::<Manifest>("controlplane", id, "");
    let items = objects.into_iter().map(single).collect();
    state.create("controlplane", id, Manifest { items }, "").unwrap();
}

fn settings() -> BootstrapManifestsConfig {
    BootstrapManifestsConfig {
        server: "https://127.0.0.1:7445".into(),
        cluster_domain: "cluster.local".into(),
        pod_cidrs: vec!["10.244.0.0/16".into()],
        proxy_enabled: true,
        proxy_image: "registry.k8s.io/kube-proxy:v1.35.0".into(),
        proxy_args: vec!["--cluster-cidr=10.244.0.0/16".into()],
        core_dns_enabled: true,
        core_dns_image: "registry.k8s.io/coredns/coredns:v1.13.2".into(),
        dns_service_ip: "10.96.0.10".into(),
        flannel_enabled: true,
        flannel_image: "ghcr.io/siderolabs/flannel:v0.27.4".into(),
        talos_api_service_enabled: true,
        ..BootstrapManifestsConfig::default()
    }
}

/// All built-in manifests and one of the user, from the first answer of the server on.
pub(crate) async fn manifests(server: &mut ApiServer, client: &Client) {
    let root = tempfile::tempdir().unwrap();
    let state = state(&server.admin().unwrap());
    state.create("controlplane", "manifests", settings(), "").unwrap();
    state.create("controlplane", "extra-manifests", ExtraManifestsConfig::default(), "").unwrap();
    for (id, objects) in manifests::render(&settings(), Token { id: "abcdef", secret: "0123456789abcdef" }) {
        put(&state, &id, objects);
    }
    let user = |value: &str| {
        manifest::parse(&format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop}}\n---\n\
             apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: one, namespace: shop}}\ndata: {{a: '{value}'}}\n---\n\
             apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: two, namespace: shop}}\n",
        ))
        .unwrap()
    };
    put(&state, "99-user", user("1"));
    put(
        &state,
        "99-wrong",
        vec![json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "w" } })],
    );

    let applied =
        || state.get::<ManifestStatus>("controlplane", "manifests").map(|s| s.manifests_applied.len());
    let mut harness = Harness::new(&state, ManifestApplyController::new(ports(root.path()))).unwrap();
    until(&mut harness, "manifests", || applied().is_ok_and(|count| count == 12)).await;
    let trouble = harness.context().take_trouble().unwrap();
    assert!(trouble.starts_with("99-wrong: Deployment w: PATCH "), "{trouble}");
    for (api_version, kind, namespace, name) in [
        ("apps/v1", "DaemonSet", "kube-system", "kube-proxy"),
        ("apps/v1", "DaemonSet", "kube-system", "kube-flannel"),
        ("apps/v1", "Deployment", "kube-system", "coredns"),
        ("v1", "Service", "kube-system", "kube-dns"),
        ("v1", "Secret", "kube-system", "bootstrap-token-abcdef"),
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "serviceaccounts.talos.dev"),
        ("v1", "ConfigMap", "shop", "one"),
        ("v1", "ConfigMap", inventory::NAMESPACE, inventory::NAME),
    ] {
        let target = Target::new(client.discover(api_version, kind).await.unwrap(), namespace, name);
        client.get(&target).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    }

    // What is wrong is taken away, what changed changes, what is gone goes; an object of somebody else stays.
    state.destroy::<Manifest>("controlplane", "99-wrong", "").unwrap();
    settle(&mut harness).await;
    let one = Target::new(Kind::CONFIG_MAPS, "shop", "one");
    put(&state, "99-user", user("2").into_iter().take(2).collect());
    settle(&mut harness).await;
    assert_eq!(client.get(&one).await.unwrap()["data"]["a"], "2");
    assert!(client.find(&Target::new(Kind::CONFIG_MAPS, "shop", "two")).await.unwrap().is_none());

    let force = Write { force: true, ..Write::by("gitops") };
    let theirs = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "one" }, "data": { "a": "git" } });
    client.apply(&one, &theirs, force).await.unwrap();
    put(&state, "99-user", user("3").into_iter().take(2).collect());
    harness.reconcile().await.unwrap();
    assert_eq!(client.get(&one).await.unwrap()["data"]["a"], "git");

    // Settings of the cluster that change reach what is ours, as when the original's client had put it.
    let daemons = client.discover("apps/v1", "DaemonSet").await.unwrap();
    let proxy = Target::new(daemons, "kube-system", "kube-proxy");
    let mut live = client.get(&proxy).await.unwrap();
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "registry.k8s.io/kube-proxy:v1.34.9".into();
    client.replace(&proxy, &live, Write::by("talosctl")).await.unwrap();
    let newer =
        BootstrapManifestsConfig { proxy_image: "registry.k8s.io/kube-proxy:v1.35.1".into(), ..settings() };
    for (id, objects) in manifests::render(&newer, Token { id: "abcdef", secret: "0123456789abcdef" }) {
        put(&state, &id, objects);
    }
    settle(&mut harness).await;
    let image =
        client.get(&proxy).await.unwrap()["spec"]["template"]["spec"]["containers"][0]["image"].clone();
    assert_eq!(image, "registry.k8s.io/kube-proxy:v1.35.1");

    // A new start of the node changes nothing, and asks little.
    let before = client.list(&Kind::CONFIG_MAPS, "kube-system", Select::default()).await.unwrap().version;
    let mut again = Harness::new(&state, ManifestApplyController::new(ports(root.path()))).unwrap();
    again.reconcile().await.unwrap();
    let target = Target::new(Kind::CONFIG_MAPS, inventory::NAMESPACE, inventory::NAME);
    let version = client.get(&target).await.unwrap()["metadata"]["resourceVersion"].clone();
    assert!(version.as_str().unwrap().parse::<u64>().unwrap() <= before.parse().unwrap());
}

/// A worker with the rights of its kubelet.
pub(crate) async fn node(server: &ApiServer, client: &Client) {
    let root = tempfile::tempdir().unwrap();
    let pair = root.path().join("var/lib/kubelet/pki/kubelet-client-current.pem");
    let kubeconfig = root.path().join("etc/kubernetes/kubeconfig-kubelet");
    for path in [&pair, &kubeconfig] {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    }
    std::fs::write(&kubeconfig, server.kubelet("cp-1", &pair).unwrap()).unwrap();
    let state = Arc::new(state(&server.admin().unwrap()));
    let worker = MachineType { machine_type: ichor_types::MachineType::Worker };
    state.create("config", MachineType::ID, worker, "").unwrap();
    let label = NodeLabelSpec { key: "example.com/rack".into(), value: "7".into() };
    state.create("k8s", "rack", label, "").unwrap();

    let mut status = Harness::new(&state, NodeStatusController::new(ports(root.path()))).unwrap();
    let mut apply = Harness::new(&state, NodeApplyController::new(ports(root.path()))).unwrap();
    let object = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "cp-1" } });
    client.create(&Kind::NODES, "", &object, Write::default()).await.unwrap();
    let seen = |wanted: &dyn Fn(&NodeStatus) -> bool| {
        state.get::<NodeStatus>("k8s", "cp-1").is_ok_and(|status| wanted(&status))
    };
    until(&mut status, "the node is seen", || seen(&|_| true)).await;
    until(&mut apply, "labels", || true).await;
    until(&mut status, "the label is seen", || {
        seen(&|status| status.labels.get("example.com/rack").is_some_and(|value| value == "7"))
    })
    .await;
    state.create("k8s", "cordoned", NodeCordonedSpec {}, "").unwrap();
    until(&mut apply, "cordon", || true).await;
    until(&mut status, "the cordon is seen", || seen(&|status| status.unschedulable)).await;

    // What a kubelet may not do is told, and does not stop the rest of the machine.
    let taint =
        NodeTaintSpec { key: "example.com/no".into(), effect: "NoSchedule".into(), value: String::new() };
    state.create("k8s", "no", taint, "").unwrap();
    let start = Instant::now();
    loop {
        apply.reconcile().await.unwrap();
        let trouble = apply.context().take_trouble().expect("a kubelet may not taint");
        if trouble.contains("not allowed to modify taints") {
            break;
        }
        assert!(start.elapsed() < STEP_MAX, "{trouble}");
        sleep(Duration::from_millis(200)).await;
    }

    let mut endpoints = Harness::new(&state, EndpointController::new(ports(root.path()))).unwrap();
    let found = || state.get::<Endpoint>("controlplane", "kube-apiserver");
    until(&mut endpoints, "addresses of the API", || found().is_ok()).await;
    assert_eq!(found().unwrap().addresses[0].to_string(), ADVERTISED);
}
