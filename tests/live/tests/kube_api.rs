//! Our client and controllers against the real Kubernetes API server.

#[path = "kube_api/controllers.rs"]
mod controllers;

use std::time::{Duration, Instant};

use ichor_kube::{
    Client, Delete, Error, Event, Kind, Limits, Patch, Select, Target, Watch, Write, drain, manifest,
};
use ichor_live::apiserver::{ADVERTISED, ApiServer};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

const NAMESPACES: Kind = Kind::known("", "v1", "namespaces", false);
const START_MAX: Duration = Duration::from_secs(240);
const EVENT_MAX: Duration = Duration::from_secs(120);

/// Waits until the server says that it is ready.
async fn ready(server: &ApiServer, client: &Client) {
    let start = Instant::now();
    loop {
        let error = match client.ready().await {
            // Namespaces of the system come a moment after that.
            Ok(()) => match client.get(&Target::new(NAMESPACES, "", "default")).await {
                Ok(_) => return,
                Err(error) => error,
            },
            Err(error) => error,
        };
        assert!(start.elapsed() < START_MAX, "not ready: {}\n{}", error.chain(), server.log());
        sleep(Duration::from_millis(100)).await;
    }
}

/// The first event that `wanted` makes something of.
async fn event<T>(watch: &mut Watch, mut wanted: impl FnMut(Event) -> Option<T>) -> T {
    let found = async {
        loop {
            match watch.next().await {
                Ok(event) => {
                    if let Some(found) = wanted(event) {
                        return found;
                    }
                }
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        }
    };
    timeout(EVENT_MAX, found).await.expect("an event in time")
}

fn map(name: &str, data: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": data })
}

#[tokio::test]
async fn the_client_speaks_with_the_real_server() {
    let mut server = ApiServer::start().unwrap();
    let admin = server.admin().unwrap();
    let client = Client::from_kubeconfig(&admin).unwrap();
    ready(&server, &client).await;
    objects(&client).await;
    fields_have_owners(&client).await;
    kinds_are_found(&client).await;
    pods_are_evicted(&client).await;
    strangers_are_refused(&server).await;
    watches_survive(&mut server, &client).await;
}

async fn objects(client: &Client) {
    let target = Target::new(Kind::CONFIG_MAPS, "default", "one");
    assert!(client.get(&target).await.unwrap_err().is_not_found());
    assert!(client.find(&target).await.unwrap().is_none());
    let dry = Write { dry_run: true, ..Write::by("test") };
    client.create(&target.kind, "default", &map("one", json!({"a": "1"})), dry).await.unwrap();
    assert!(client.find(&target).await.unwrap().is_none(), "a dry run leaves nothing");

    let made =
        client.create(&target.kind, "default", &map("one", json!({"a": "1"})), Write::by("test")).await;
    let made = made.unwrap();
    let error = client.create(&target.kind, "default", &map("one", json!({})), Write::default()).await;
    assert!(error.unwrap_err().is_already_exists());

    let patch = json!({ "data": { "b": "2" }, "metadata": { "labels": { "x": "y" } } });
    client.patch(&target, Patch::Merge, &patch, Write::default()).await.unwrap();
    let patch = json!([{ "op": "replace", "path": "/data/b", "value": "3" }]);
    let patched = client.patch(&target, Patch::Json, &patch, Write::default()).await.unwrap();
    assert_eq!(patched["data"], json!({ "a": "1", "b": "3" }));
    let error = client.replace(&target, &made, Write::default()).await.unwrap_err();
    assert!(error.is_conflict(), "an old version is refused: {error}");

    let select = |labels, fields| Select { labels, fields };
    let found = client.list(&target.kind, "default", select("x=y", "")).await.unwrap();
    assert_eq!(found.items.len(), 1);
    let none = client.list(&target.kind, "", select("x=z", "metadata.name=one")).await.unwrap();
    assert!(none.items.is_empty() && !none.version.is_empty());

    let other = Delete { uid: "11111111-1111-1111-1111-111111111111", ..Delete::default() };
    assert!(client.delete(&target, other).await.unwrap_err().is_conflict());
    client.delete(&target, Delete::default()).await.unwrap();
    assert!(client.find(&target).await.unwrap().is_none());
}

async fn fields_have_owners(client: &Client) {
    let target = Target::new(Kind::CONFIG_MAPS, "default", "owned");
    client.apply(&target, &map("owned", json!({"a": "1", "b": "1"})), Write::by("talos")).await.unwrap();
    client.apply(&target, &map("owned", json!({"c": "1"})), Write::by("gitops")).await.unwrap();
    let error =
        client.apply(&target, &map("owned", json!({"c": "2"})), Write::by("talos")).await.unwrap_err();
    assert!(error.is_conflict());
    assert_eq!(error.status().unwrap().conflicting_managers(), ["gitops"], "{error}");
    let now = client.apply(&target, &map("owned", json!({"a": "2"})), Write::by("talos")).await.unwrap();
    assert_eq!(now["data"], json!({ "a": "2", "c": "1" }), "what its owner drops goes");
    let force = Write { force: true, ..Write::by("talos") };
    let now = client.apply(&target, &map("owned", json!({"c": "2"})), force).await.unwrap();
    assert_eq!(now["data"], json!({ "c": "2" }));
    client.delete(&target, Delete::default()).await.unwrap();
}

async fn kinds_are_found(client: &Client) {
    let objects = manifest::parse(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: 'a:b'}\nrules: []\n---\n\
         apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n",
    );
    let objects = objects.unwrap();
    let role = client.locate(&objects[0]).await.unwrap();
    assert_eq!((role.kind.plural.as_ref(), role.namespace.as_str()), ("clusterroles", ""));
    client.apply(&role, &objects[0], Write::by("talos")).await.unwrap();
    assert_eq!(client.get(&role).await.unwrap()["metadata"]["name"], "a:b");
    assert_eq!(client.locate(&objects[1]).await.unwrap().namespace, "default");
    let error =
        client.apply(&client.locate(&objects[1]).await.unwrap(), &objects[1], Write::by("talos")).await;
    let error = error.unwrap_err();
    assert_eq!((error.reason(), error.is_of_object()), ("Invalid", true));
    let error = client.discover("example.com/v1", "Thing").await.unwrap_err();
    assert!(matches!(error, Error::NoKind { .. }));
}

async fn pods_are_evicted(client: &Client) {
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default" } });
    let accounts = client.discover("v1", "ServiceAccount").await.unwrap();
    let _ = client.create(&accounts, "default", &account, Write::default()).await;
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n" } });
    client.create(&Kind::NODES, "", &node, Write::default()).await.unwrap();
    for (name, owner) in [("web", Some("ReplicaSet")), ("proxy", Some("DaemonSet")), ("bare", None)] {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": name } },
            "spec": { "nodeName": "n", "containers": [{ "name": "a", "image": "a" }], "terminationGracePeriodSeconds": 0 },
        });
        if let Some(kind) = owner {
            pod["metadata"]["ownerReferences"] = json!([
                { "apiVersion": "apps/v1", "kind": kind, "name": "x", "uid": "1", "controller": true }
            ]);
        }
        // The server looks for the account in what it last heard.
        let start = Instant::now();
        while let Err(error) = client.create(&Kind::PODS, "default", &pod, Write::default()).await {
            assert!(start.elapsed() < EVENT_MAX, "{}", error.chain());
            sleep(Duration::from_millis(100)).await;
        }
    }
    let limits =
        Limits { grace: Duration::ZERO, overall: EVENT_MAX, gone: EVENT_MAX / 2, ..Limits::default() };
    let drained = drain(client, "n", limits).await.unwrap();
    assert_eq!(drained.gone, ["default/web"], "{drained:?}");
    let left = client.list(&Kind::PODS, "default", Select::default()).await.unwrap();
    assert_eq!(left.items.len(), 2);
}

async fn strangers_are_refused(server: &ApiServer) {
    let stranger = Client::from_kubeconfig(&server.kubeconfig("nobody", &[]).unwrap()).unwrap();
    let error = stranger.list(&Kind::SECRETS, "", Select::default()).await.unwrap_err();
    assert!(error.is_forbidden(), "{error}");
    let other = ApiServer::start().unwrap();
    let text = server.admin().unwrap();
    let foreign = other.admin().unwrap();
    let authority = |text: &str| {
        let from = text.find("certificate-authority-data: ").unwrap();
        text[from..].split('}').next().unwrap().to_owned()
    };
    let wrong = text.replace(&authority(&text), &authority(&foreign));
    let error = Client::from_kubeconfig(&wrong).unwrap().ready().await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{}", error.chain());
}

async fn watches_survive(server: &mut ApiServer, client: &Client) {
    let mut slices = client.watch(Kind::ENDPOINT_SLICES, "default", Select::default());
    let address = |object: &Value| object["endpoints"][0]["addresses"][0] == ADVERTISED;
    event(&mut slices, |event| match event {
        Event::Listed(items) => items.iter().any(address).then_some(()),
        Event::Changed(item) => address(&item).then_some(()),
        Event::Gone(_) => None,
    })
    .await;

    let mut watch = client.watch(Kind::CONFIG_MAPS, "default", Select::default());
    event(&mut watch, |event| matches!(event, Event::Listed(_)).then_some(())).await;
    let target = Target::new(Kind::CONFIG_MAPS, "default", "seen");
    client.apply(&target, &map("seen", json!({"a": "1"})), Write::by("test")).await.unwrap();
    let named =
        |object: &Value, value: &str| object["metadata"]["name"] == "seen" && object["data"]["a"] == value;
    event(&mut watch, |event| matches!(event, Event::Changed(object) if named(&object, "1")).then_some(()))
        .await;

    server.stop();
    assert!(client.ready().await.is_err());
    server.begin().unwrap();
    ready(server, client).await;
    client.apply(&target, &map("seen", json!({"a": "2"})), Write::by("test")).await.unwrap();
    event(&mut watch, |event| match event {
        Event::Changed(object) => named(&object, "2").then_some(()),
        Event::Listed(items) => items.iter().any(|object| named(object, "2")).then_some(()),
        Event::Gone(_) => None,
    })
    .await;
    client.delete(&target, Delete::default()).await.unwrap();
    event(&mut watch, |event| matches!(event, Event::Gone(_)).then_some(())).await;
}

#[tokio::test]
async fn controllers_work_on_the_real_server() {
    let mut server = ApiServer::start().unwrap();
    let client = Client::from_kubeconfig(&server.admin().unwrap()).unwrap();
    controllers::manifests(&mut server, &client).await;
    controllers::node(&server, &client).await;
}
