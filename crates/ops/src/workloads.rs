//! Manifests of the machines, and the rollout of the workloads among them.

use std::time::Duration;

use ichor_health::objects;
use ichor_kube::{Patch, Target, Write};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::fleet::Fleet;
use crate::patience::patiently;

/// How long all pods may take to trust a new authority.
const REFRESH_MAX: Duration = Duration::from_secs(5 * 60);
/// How long the controller manager may take to tell pods of a new authority. One of before tells them only of the
/// issuing one.
const TOLD_MAX: Duration = Duration::from_secs(60);
/// Where pods get their authorities from.
const AUTHORITIES: &str = "kube-root-ca.crt";
/// Whose changes these are.
const MANAGER: &str = "talos";

/// Starts the workloads of the machines' manifests anew, so that they trust the authorities that pods are given now, and
/// waits until they run. Programs in pods read their authorities once, when they start.
pub(crate) async fn refresh(fleet: &Fleet, node: &str, authority: &[u8], stamp: &str) -> Result<Vec<String>> {
    let authority = String::from_utf8_lossy(authority).trim().to_owned();
    let config = Target::new(ichor_kube::Kind::CONFIG_MAPS, ichor_health::kube::SYSTEM, AUTHORITIES);
    let told = patiently(fleet, TOLD_MAX, async |client| {
        let found = client.get(&config).await?;
        let bundle = found["data"]["ca.crt"].as_str().unwrap_or_default();
        Ok(if bundle.contains(&authority) {
            Ok(())
        } else {
            Err("pods are not told of the new CA".to_owned())
        })
    });
    told.await?;
    let manifests = fleet.access.list(node, "controlplane", "Manifests.kubernetes.talos.dev").await;
    let manifests = manifests.map_err(|status| Error::call(format!("{node}: read its manifests"), status))?;
    let workloads: Vec<Value> = manifests
        .into_iter()
        .flat_map(|manifest| objects_of(manifest.spec))
        .filter(|object| object["kind"] == "DaemonSet" || object["kind"] == "Deployment")
        .collect();
    let stamp = json!({ "metadata": { "annotations": { "kubectl.kubernetes.io/restartedAt": stamp } } });
    let change = json!({ "spec": { "template": stamp } });
    for object in &workloads {
        patiently(fleet, REFRESH_MAX, async |client| {
            let target = client.locate(object).await?;
            match client.patch(&target, Patch::Strategic, &change, Write::by(MANAGER)).await {
                Err(error) if error.is_not_found() => Ok(Ok(())),
                done => done.map(|_| Ok(())),
            }
        })
        .await
        .map_err(|error| error.within(path_of(object)))?;
    }
    for object in &workloads {
        patiently(fleet, REFRESH_MAX, async |client| {
            let now = client.find(&client.locate(object).await?).await?;
            Ok(now.and_then(|now| rolled_out(&now)).map_or(Ok(()), Err))
        })
        .await
        .map_err(|error| error.within(path_of(object)))?;
    }
    Ok(workloads.iter().map(path_of).collect())
}

/// The objects of a manifest resource: a list of them, each by itself or as the key of its item.
pub(crate) fn objects_of(spec: Value) -> Vec<Value> {
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
pub(crate) fn path_of(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = objects::name(object);
    let namespace = text(&object["metadata"]["namespace"]);
    let name = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
    format!("{}.{}/{name}", text(&object["apiVersion"]), text(&object["kind"]))
}

/// Whether pods of a workload are still to be replaced, or whether it is not even known yet. Pods that are new and not
/// ready are no such case: what keeps them from it need not be an upgrade.
pub(crate) fn is_rolling(object: &Value) -> bool {
    let status = |key: &str| object["status"][key].as_u64().unwrap_or_default();
    let (wanted, updated) = match object["kind"].as_str() {
        Some("DaemonSet") => (status("desiredNumberScheduled"), status("updatedNumberScheduled")),
        _ => (status("replicas"), status("updatedReplicas")),
    };
    object["metadata"]["generation"].as_u64().unwrap_or_default() != status("observedGeneration")
        || wanted != updated
}

/// What a workload still waits for.
pub(crate) fn rolled_out(object: &Value) -> Option<String> {
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
        let mut rolling = set(3);
        assert!(!is_rolling(&rolling));
        rolling["status"]["updatedNumberScheduled"] = json!(1);
        assert!(is_rolling(&rolling));
    }
}
