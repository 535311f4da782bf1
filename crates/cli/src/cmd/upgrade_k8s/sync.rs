//! The last step: the manifests of the machines become those of the cluster.

use std::time::Duration;

use ichor_health::objects;
use ichor_kube::{Client, Error, Target, Write};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{Upgrade, say};
use crate::failure::Failure;
use crate::output::json;

/// How long one object may be tried.
const OBJECT_MAX: Duration = Duration::from_secs(3 * 60);
/// How long a deployment, and a daemon set, may take to be everywhere.
const DEPLOYMENT_MAX: Duration = Duration::from_secs(3 * 60);
const DAEMON_SET_MAX: Duration = Duration::from_secs(5 * 60);
/// Between two attempts.
const PAUSE: Duration = Duration::from_secs(1);
/// Whose changes these are.
const MANAGER: &str = "talos";
/// What the server writes into the metadata of every object.
const SERVERS_OWN: [&str; 10] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "finalizers",
    "selfLink",
    "ownerReferences",
];

/// What became of one object.
enum Outcome {
    Same,
    /// The difference.
    Different(String),
}

impl Upgrade<'_> {
    /// Makes, changes or leaves every object, and waits for workloads that changed.
    pub(super) async fn manifests(&mut self) -> Result<(), Failure> {
        let node = self.session.nodes.first().cloned().unwrap_or_default();
        let resources = self.access().list(&node, "controlplane", "Manifests.kubernetes.talos.dev").await;
        let resources = resources.map_err(|status| {
            Failure::new(format!("{node}: error reading manifests: {}", status.message()))
        })?;
        let mut resources: Vec<_> =
            resources.into_iter().map(|resource| (resource.id, resource.spec)).collect();
        resources.sort_by(|(a, _), (b, _)| a.cmp(b));
        say("updating manifests")?;
        let mut changed = Vec::new();
        for object in resources.into_iter().flat_map(|(_, spec)| objects_of(spec)) {
            let outcome = self.object(&object).await?;
            say(&format!(" > processing manifest {}", path_of(&object)))?;
            match (outcome, self.dry_run) {
                (Outcome::Same, _) => say(" < no changes")?,
                (Outcome::Different(text), true) => {
                    say(text.trim_end())?;
                    say(" < dry run, change skipped")?;
                }
                (Outcome::Different(text), false) => {
                    say(text.trim_end())?;
                    say(" < applied successfully")?;
                    changed.push(object);
                }
            }
        }
        if self.dry_run {
            return Ok(());
        }
        say("waiting for all manifests to be applied")?;
        let of = |kind: &str| changed.iter().filter(|object| object["kind"] == kind).collect::<Vec<_>>();
        for (list, limit) in [(of("Deployment"), DEPLOYMENT_MAX), (of("DaemonSet"), DAEMON_SET_MAX)] {
            for object in list {
                say(&format!(" > waiting for {}", path_of(object)))?;
                self.rollout(object, limit).await?;
            }
        }
        Ok(())
    }

    async fn object(&self, object: &Value) -> Result<Outcome, Failure> {
        let end = Instant::now() + OBJECT_MAX;
        loop {
            let last = match self.kubernetes().client().await {
                Ok(client) => match put(&client, object, self.dry_run).await {
                    Ok(outcome) => return Ok(outcome),
                    Err(error) if !may_pass(&error) => {
                        return Err(Failure::new(format!("{}: {error}", path_of(object))));
                    }
                    Err(error) => ichor_health::kube::text_of(&error),
                },
                Err(error) => error,
            };
            if Instant::now() > end {
                return Err(Failure::new(format!("{}: {last}", path_of(object))));
            }
            sleep(PAUSE).await;
        }
    }

    async fn rollout(&self, object: &Value, limit: Duration) -> Result<(), Failure> {
        let end = Instant::now() + limit;
        loop {
            let last = match self.kubernetes().client().await {
                Ok(client) => {
                    let found = async { client.get(&client.locate(object).await?).await };
                    match found.await {
                        Ok(now) => match rolled_out(&now) {
                            None => return Ok(()),
                            Some(reason) => reason,
                        },
                        Err(error) => ichor_health::kube::text_of(&error),
                    }
                }
                Err(error) => error,
            };
            if Instant::now() > end {
                return Err(Failure::new(format!("{}: {last}", path_of(object))));
            }
            sleep(PAUSE).await;
        }
    }
}

/// Whether another attempt may succeed.
fn may_pass(error: &Error) -> bool {
    match error {
        Error::Refused { .. } => error.is_conflict() || error.is_too_many(),
        Error::NoKind { .. } | Error::Nameless(_) => false,
        _ => true,
    }
}

async fn put(client: &Client, object: &Value, dry_run: bool) -> Result<Outcome, Error> {
    let target: Target = client.locate(object).await?;
    let write = Write { manager: MANAGER, ..Write::default() };
    let Some(current) = client.find(&target).await? else {
        if !dry_run {
            client.create(&target.kind, &target.namespace, object, write).await?;
        }
        return Ok(Outcome::Different(difference(None, object)));
    };
    let mut wanted = object.clone();
    wanted["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"].clone();
    // The server fills in its defaults: what it would store is compared with what it has.
    let stored = client.replace(&target, &wanted, Write { dry_run: true, ..write }).await?;
    let (old, new) = (comparable(&current), comparable(&stored));
    if old == new {
        return Ok(Outcome::Same);
    }
    if !dry_run {
        client.replace(&target, &wanted, write).await?;
    }
    Ok(Outcome::Different(difference(Some(&old), &new)))
}

/// An object without what the server writes into it.
fn comparable(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|key, _| !SERVERS_OWN.contains(&key.as_str()));
        let empty =
            metadata.get_mut("annotations").and_then(Value::as_object_mut).is_some_and(|annotations| {
                annotations.retain(|key, _| !key.contains("kubernetes.io/"));
                annotations.is_empty()
            });
        if empty {
            metadata.remove("annotations");
        }
    }
    if let Some(map) = object.as_object_mut() {
        map.remove("status");
        if map.get("kind").is_some_and(|kind| kind == "ServiceAccount") {
            map.remove("secrets");
        }
    }
    json::sorted(object)
}

fn difference(old: Option<&Value>, new: &Value) -> String {
    let text = |value: &Value| ichor_yaml::emit(&json::to_yaml(&json::sorted(value.clone())));
    ichor_config::diff::diff_text(&old.map(text).unwrap_or_default(), &text(new))
}

/// The objects of a manifest resource: a list of them, each by itself or as the key of its item.
fn objects_of(spec: Value) -> Vec<Value> {
    let items = match spec {
        Value::Array(items) => items,
        Value::Object(mut map) => match map.remove("items") {
            Some(Value::Array(items)) => items,
            _ if map.contains_key("kind") => vec![Value::Object(map)],
            _ => Vec::new(),
        },
        _ => Vec::new(),
    };
    items
        .into_iter()
        .map(|mut item| match item.get_mut("object") {
            Some(object) if object.is_object() => object.take(),
            _ => item,
        })
        .collect()
}

/// How an object is named: version, kind, namespace, name.
fn path_of(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = objects::name(object);
    let namespace = text(&object["metadata"]["namespace"]);
    let name = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
    format!("{}.{}/{name}", text(&object["apiVersion"]), text(&object["kind"]))
}

/// What a workload still waits for.
fn rolled_out(object: &Value) -> Option<String> {
    let status = |key: &str| object["status"][key].as_u64().unwrap_or_default();
    let name = objects::name(object);
    let generation = object["metadata"]["generation"].as_u64().unwrap_or_default();
    if generation != status("observedGeneration") {
        return Some(format!("generation {generation} of {name} is not seen yet"));
    }
    let (wanted, counts): (u64, [&str; 3]) = match object["kind"].as_str() {
        Some("DaemonSet") => {
            (status("desiredNumberScheduled"), ["updatedNumberScheduled", "numberAvailable", "numberReady"])
        }
        _ => (status("replicas"), ["updatedReplicas", "readyReplicas", "readyReplicas"]),
    };
    let behind = counts.into_iter().find(|key| status(key) != wanted)?;
    Some(format!("{name}: {behind} is {} of {wanted}", status(behind)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn manifests_are_read_in_either_shape() {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}});
        let expected = std::slice::from_ref(&object);
        assert_eq!(objects_of(json!([object])), expected);
        assert_eq!(objects_of(json!({"items": [{"object": object}]})), expected);
        assert_eq!(objects_of(Value::Null), Vec::<Value>::new());
        assert_eq!(path_of(&object), "v1.Namespace/a");
    }

    #[test]
    fn what_the_server_writes_is_no_difference() {
        let old = json!({
            "kind": "ServiceAccount",
            "metadata": {
                "name": "a", "uid": "1", "resourceVersion": "5", "managedFields": [],
                "annotations": {"deployment.kubernetes.io/revision": "1"},
            },
            "secrets": [{"name": "x"}],
            "status": {"x": 1},
        });
        let new = json!({"metadata": {"resourceVersion": "6", "name": "a"}, "kind": "ServiceAccount"});
        assert_eq!(comparable(&old), comparable(&new));
    }

    #[test]
    fn a_workload_is_everywhere_when_its_numbers_agree() {
        let set = |ready: u64| {
            json!({
                "kind": "DaemonSet",
                "metadata": {"name": "kube-proxy", "generation": 2},
                "status": {
                    "observedGeneration": 2, "desiredNumberScheduled": 3, "updatedNumberScheduled": 3,
                    "numberAvailable": 3, "numberReady": ready,
                },
            })
        };
        assert_eq!(rolled_out(&set(3)), None);
        assert_eq!(rolled_out(&set(2)).as_deref(), Some("kube-proxy: numberReady is 2 of 3"));
    }
}
