//! Which objects of the cluster came from manifests: a map in the cluster itself, so that what leaves the
//! configuration can leave the cluster. Pure.
//!
//! The keys are those of the inventories of common tools: `namespace_name_group_Kind`, a colon in a name doubled to
//! `__`. The value is the version of the group. An annotation keeps, by node, a digest of what that node applied last:
//! a node changes objects only when its own manifests changed, so that nodes with different ones do not fight.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Where the inventory lives.
pub const NAMESPACE: &str = "kube-system";
/// Its name.
pub const NAME: &str = "talos-bootstrap-manifests-inventory";
/// Who applied what.
const APPLIED: &str = "talos.dev/applied";
/// Nodes that are remembered; a control plane has a handful.
const NODES_MAX: usize = 32;

/// Managers that stand for the machines themselves: the node, and the clients that carry out its upgrades.
pub const OURS: &[&str] = &["talos", "talosctl", "ichorctl"];
/// Managers that are part of every cluster and own little things on everybody's objects.
const SYSTEM: &[&str] =
    &["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "cloud-controller-manager"];
/// Kinds that hold what belongs to others; they stay in the cluster.
const KEPT: &[&str] = &["Namespace", "CustomResourceDefinition", "PersistentVolume", "PersistentVolumeClaim"];

/// An object that came from a manifest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Empty without namespaces.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Empty for the core group.
    pub group: String,
    /// As manifests name it.
    pub kind: String,
}

impl Entry {
    /// The entry of an object in a place.
    pub fn of(object: &Value, namespace: &str) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let api_version = text(&object["apiVersion"]);
        Self {
            namespace: namespace.to_owned(),
            name: text(&object["metadata"]["name"]),
            group: api_version.split_once('/').map(|(group, _)| group.to_owned()).unwrap_or_default(),
            kind: text(&object["kind"]),
        }
    }

    fn key(&self) -> String {
        let name = self.name.replace(':', "__");
        format!("{}_{name}_{}_{}", self.namespace, self.group, self.kind)
    }

    fn parse(key: &str) -> Option<Self> {
        let (namespace, rest) = key.split_once('_')?;
        let (rest, kind) = rest.rsplit_once('_')?;
        let (name, group) = rest.rsplit_once('_')?;
        let well = !name.is_empty() && !kind.is_empty();
        well.then(|| Self {
            namespace: namespace.to_owned(),
            name: name.replace("__", ":"),
            group: group.to_owned(),
            kind: kind.to_owned(),
        })
    }

    /// Whether it holds what belongs to others.
    pub fn is_kept(&self) -> bool {
        KEPT.contains(&self.kind.as_str())
    }

    /// For messages.
    pub fn display(&self) -> String {
        match self.namespace.as_str() {
            "" => format!("{} {}", self.kind, self.name),
            namespace => format!("{} {namespace}/{}", self.kind, self.name),
        }
    }
}

/// The inventory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Objects and the versions of their groups.
    pub entries: BTreeMap<Entry, String>,
    /// Digests of what nodes applied last.
    applied: BTreeMap<String, String>,
    version: Option<String>,
}

impl Inventory {
    /// Reads the map of the cluster.
    pub fn read(object: &Value) -> Self {
        let data = object["data"].as_object().into_iter().flatten();
        let applied = object["metadata"]["annotations"][APPLIED].as_str().unwrap_or_default();
        Self {
            entries: data
                .filter_map(|(key, value)| Some((Entry::parse(key)?, value.as_str()?.to_owned())))
                .collect(),
            applied: serde_json::from_str(applied).unwrap_or_default(),
            version: object["metadata"]["resourceVersion"].as_str().map(str::to_owned),
        }
    }

    /// Whether the cluster has one.
    pub fn exists(&self) -> bool {
        self.version.is_some()
    }

    /// The map for the cluster.
    pub fn write(&self) -> Value {
        let data: serde_json::Map<String, Value> =
            self.entries.iter().map(|(entry, version)| (entry.key(), version.as_str().into())).collect();
        let mut object = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": NAME,
                "namespace": NAMESPACE,
                "annotations": { APPLIED: json!(self.applied).to_string() },
            },
            "data": data,
        });
        if let Some(version) = &self.version {
            object["metadata"]["resourceVersion"] = version.as_str().into();
        }
        object
    }

    /// What a node applied last.
    pub fn applied(&self, node: &str) -> Option<&str> {
        self.applied.get(node).map(String::as_str)
    }

    /// Notes what a node applied.
    pub fn set_applied(&mut self, node: &str, digest: &str) {
        self.applied.insert(node.to_owned(), digest.to_owned());
        while self.applied.len() > NODES_MAX {
            let Some(other) = self.applied.keys().find(|other| *other != node).cloned() else { return };
            self.applied.remove(&other);
        }
    }
}

/// Whether an object of the cluster is (also) ours. One without fields of its own, such as an account, is nobody's:
/// nothing says who made it, and nothing in it can be taken from anybody.
pub fn is_ours(live: &Value) -> bool {
    managers(live).next().is_none() || managers(live).any(|manager| OURS.contains(&manager))
}

/// Whether it is ours alone, so that removing it takes nothing from anybody.
pub fn is_ours_alone(live: &Value) -> bool {
    is_ours(live) && managers(live).all(|manager| OURS.contains(&manager) || SYSTEM.contains(&manager))
}

/// Those who own fields of an object itself, its status left out.
fn managers(live: &Value) -> impl Iterator<Item = &str> {
    let entries = live["metadata"]["managedFields"].as_array().into_iter().flatten();
    entries
        .filter(|entry| entry["subresource"].as_str().unwrap_or_default().is_empty())
        .filter_map(|entry| entry["manager"].as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written() {
        for (key, name) in [
            ("kube-system_coredns__Service", "coredns"),
            ("_system__coredns_rbac.authorization.k8s.io_ClusterRole", "system:coredns"),
            ("_a__b__c_x.y_Z", "a:b:c"),
        ] {
            let entry = Entry::parse(key).unwrap();
            assert_eq!(entry.name, name);
            assert_eq!(entry.key(), key);
        }
        assert_eq!(Entry::parse("nothing"), None);
    }

    #[test]
    fn the_inventory_is_read_as_it_is_written() {
        let object = json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": "p" } });
        let mut inventory = Inventory::default();
        inventory.entries.insert(Entry::of(&object, "kube-system"), "v1".into());
        for number in 0..40 {
            inventory.set_applied(&format!("node-{number:02}"), "x");
        }
        let read = Inventory::read(&inventory.write());
        assert_eq!(read, inventory);
        assert_eq!(read.applied("node-39"), Some("x"));
        assert_eq!(read.applied.len(), NODES_MAX);
    }

    #[test]
    fn system_components_do_not_make_an_object_somebody_else_s() {
        let object = |managers: &[(&str, &str)]| {
            let fields: Vec<_> = managers
                .iter()
                .map(|(manager, sub)| json!({ "manager": manager, "subresource": sub }))
                .collect();
            json!({ "metadata": { "managedFields": fields } })
        };
        assert!(is_ours_alone(&object(&[("talos", ""), ("kube-controller-manager", ""), ("x", "status")])));
        assert!(!is_ours_alone(&object(&[("talos", ""), ("argocd-controller", "")])));
        assert!(is_ours(&object(&[("argocd-controller", ""), ("talosctl", "")])));
        assert!(!is_ours(&object(&[("kubectl", "")])));
        assert!(is_ours_alone(&object(&[])));
    }
}
