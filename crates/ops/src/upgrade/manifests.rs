//! The last step: the manifests of the machines are applied to the cluster.

use std::time::Duration;

use ichor_health::objects;
use ichor_kube::{Client, Error as KubeError, Target, Write};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{Event, Upgrade};
use crate::error::{Error, Problem, Result};
use crate::workloads::{is_rolling, objects_of, path_of, rolled_out};
use crate::yaml::{sorted, to_yaml};

/// How long a machine may take to make manifests from its configuration.
const MANIFESTS_MAX: Duration = Duration::from_secs(10);
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

impl Upgrade<'_> {
    /// Makes, changes or leaves every object, and waits for workloads that changed.
    pub(super) async fn manifests(&mut self) -> Result<()> {
        let wished = self.wished().await?;
        self.emit(Event::Manifests);
        let mut workloads = Vec::new();
        for object in wished {
            let difference = self.object(&object).await?;
            let changed = difference.is_some();
            let applied = changed && !self.options.dry_run;
            self.emit(Event::Manifest { object: path_of(&object), difference, applied });
            if ["Deployment", "DaemonSet"].iter().any(|kind| object["kind"] == *kind) {
                workloads.push((object, changed));
            }
        }
        if self.options.dry_run {
            return Ok(());
        }
        self.emit(Event::WaitingForManifests);
        for (object, changed) in &workloads {
            let limit = if object["kind"] == "Deployment" { DEPLOYMENT_MAX } else { DAEMON_SET_MAX };
            self.rollout(object, *changed, limit).await?;
        }
        Ok(())
    }

    /// The objects that the machine wants in the cluster, made from its new configuration.
    async fn wished(&self) -> Result<Vec<Value>> {
        let node = self.node;
        let end = Instant::now() + MANIFESTS_MAX;
        loop {
            let resources = self.access().list(node, "controlplane", "Manifests.kubernetes.talos.dev").await;
            let mut resources = resources
                .map_err(|status| Error::call(format!("{node}: error reading manifests"), status))?;
            resources.sort_by(|a, b| a.id.cmp(&b.id));
            let objects: Vec<Value> =
                resources.into_iter().flat_map(|resource| objects_of(resource.spec)).collect();
            if self.options.dry_run
                || !is_old(&objects, &self.image(&self.options.images.proxy, ""))
                || Instant::now() > end
            {
                return Ok(objects);
            }
            sleep(PAUSE).await;
        }
    }

    /// Brings one object into the cluster and tells how it differed.
    async fn object(&self, object: &Value) -> Result<Option<String>> {
        let end = Instant::now() + OBJECT_MAX;
        loop {
            let last = match self.kubernetes().client().await {
                Ok(client) => match put(&client, object, self.options.dry_run).await {
                    Ok(difference) => return Ok(difference),
                    Err(error) if !may_pass(&error) => {
                        return Err(Problem::Kubernetes {
                            doing: path_of(object),
                            reason: error.to_string(),
                        }
                        .into());
                    }
                    Err(error) => {
                        self.kubernetes().forget().await;
                        ichor_health::kube::text_of(&error)
                    }
                },
                Err(error) => error,
            };
            if Instant::now() > end {
                return Err(Error::timeout(path_of(object), last));
            }
            sleep(PAUSE).await;
        }
    }

    /// Waits until a workload that changed is everywhere. The machines bring their manifests into the cluster
    /// themselves: one that did not change just now may be on its way all the same.
    async fn rollout(&self, object: &Value, changed: bool, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        let mut told = false;
        loop {
            let last = match self.kubernetes().client().await {
                Ok(client) => {
                    let found = async { client.get(&client.locate(object).await?).await };
                    match found.await {
                        Ok(now) => match rolled_out(&now) {
                            None => return Ok(()),
                            Some(_) if !changed && !told && !is_rolling(&now) => return Ok(()),
                            Some(reason) => reason,
                        },
                        Err(error) => {
                            self.kubernetes().forget().await;
                            ichor_health::kube::text_of(&error)
                        }
                    }
                }
                Err(error) => error,
            };
            if Instant::now() > end {
                return Err(Error::timeout(path_of(object), last));
            }
            if !told {
                self.emit(Event::WaitingForRollout { object: path_of(object) });
                told = true;
            }
            sleep(PAUSE).await;
        }
    }
}

/// Whether kube-proxy is among the objects, with another image than this.
fn is_old(objects: &[Value], image: &str) -> bool {
    objects.iter().any(|object| {
        object["kind"] == "DaemonSet"
            && objects::name(object) == "kube-proxy"
            && object["spec"]["template"]["spec"]["containers"][0]["image"] != image
    })
}

/// Whether another attempt may succeed.
fn may_pass(error: &KubeError) -> bool {
    match error {
        KubeError::Refused { .. } => error.is_conflict() || error.is_too_many(),
        KubeError::NoKind { .. } | KubeError::Nameless(_) => false,
        _ => true,
    }
}

async fn put(
    client: &Client,
    object: &Value,
    dry_run: bool,
) -> std::result::Result<Option<String>, KubeError> {
    let target: Target = client.locate(object).await?;
    let write = Write { manager: MANAGER, ..Write::default() };
    let Some(current) = client.find(&target).await? else {
        if !dry_run {
            client.create(&target.kind, &target.namespace, object, write).await?;
        }
        return Ok(Some(difference(None, object)));
    };
    let mut wanted = object.clone();
    wanted["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"].clone();
    // The server fills in its defaults: what it would store is compared with what it has.
    let stored = client.replace(&target, &wanted, Write { dry_run: true, ..write }).await?;
    let (old, new) = (comparable(&current), comparable(&stored));
    if old == new {
        return Ok(None);
    }
    if !dry_run {
        client.replace(&target, &wanted, write).await?;
    }
    Ok(Some(difference(Some(&old), &new)))
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
    sorted(object)
}

fn difference(old: Option<&Value>, new: &Value) -> String {
    let text = |value: &Value| ichor_yaml::emit(&to_yaml(&sorted(value.clone())));
    ichor_config::diff::diff_text(&old.map(text).unwrap_or_default(), &text(new))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
}
