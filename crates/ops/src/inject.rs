//! Gives the pods of Kubernetes manifests access to the machine API.

mod quantity;
mod typed;

use std::collections::HashSet;

use ichor_config::model::FreeValue;
use ichor_yaml::{EmitOptions, Node, Value};
use typed::typed;

use crate::error::{Error, Result};

/// The volume with the client configuration; the secret behind it is named after the object.
const VOLUME: &str = "talos-secrets";
const SUFFIX: &str = "-talos-secrets";
const MOUNT_PATH: &str = "/var/run/secrets/talos.dev";
const API_VERSION: &str = "talos.dev/v1alpha1";
const KIND: &str = "ServiceAccount";
/// The look of objects as `kubectl` prints them; other documents have the look of configurations.
const LOOK: EmitOptions = EmitOptions { indent: 2, flush_lists: true, width: Some(80) };

/// The manifests with access, and what was left as it is although it has pods.
#[derive(Debug, Default)]
pub struct Injected {
    /// YAML documents, each with the separator behind it.
    pub documents: Vec<String>,
    /// Objects that were left as they are although they have pods.
    pub warnings: Vec<String>,
}

impl Injected {
    /// Keys come out in order and scalars in one form, however they were written.
    fn push(&mut self, root: &Node, look: EmitOptions) {
        let root = FreeValue::from_node(root).to_node();
        self.documents.push(format!("{}---\n", ichor_yaml::emit_with(&root, look)));
    }
}

/// The manifests with volumes, mounts and service accounts; empty documents are left out.
pub fn inject(roots: Vec<Node>, roles: &[String]) -> Result<Injected> {
    let mut seen: HashSet<(String, String)> = HashSet::new();
    let mut out = Injected::default();
    for root in roots {
        if root.is_null() {
            continue;
        }
        if root.as_map().is_none() {
            return Err(Error::state(format!("line {}: a manifest is a mapping", root.span.line)));
        }
        let (namespace, name) = identity(&root);
        if let Some((kind, path)) = kind_with_pods(&root).filter(|_| !name.is_empty()) {
            match typed(kind, &root) {
                Ok(mut object) => {
                    let secret = format!("{name}{SUFFIX}");
                    if let Some(spec) = path.iter().try_fold(&mut object, |node, key| get_mut(node, key)) {
                        add_access(spec, &secret);
                    }
                    out.push(&object, LOOK);
                    if seen.insert((namespace.clone(), name)) {
                        out.push(&service_account(&namespace, &secret, roles), EmitOptions::default());
                    }
                    continue;
                }
                Err(wrong) => out.warnings.push(format!(
                    "line {}: {kind} {name} gets no access: {} is not {}",
                    root.span.line, wrong.path, wrong.wanted
                )),
            }
        } else if text_at(&root, "apiVersion") == API_VERSION && text_at(&root, "kind") == KIND {
            // One that an earlier run added, or one of the user's own that wins when it comes first.
            let owner = name.strip_suffix(SUFFIX).unwrap_or(&name).to_owned();
            if !owner.is_empty() && !seen.insert((namespace, owner)) {
                continue;
            }
        }
        out.push(&root, EmitOptions::default());
    }
    Ok(out)
}

fn text_at<'n>(node: &'n Node, key: &str) -> &'n str {
    node.get(key).and_then(Node::as_str).unwrap_or_default()
}

/// Namespace and name of an object; either may be empty.
fn identity(root: &Node) -> (String, String) {
    let Some(metadata) = root.get("metadata") else { return Default::default() };
    (text_at(metadata, "namespace").to_owned(), text_at(metadata, "name").to_owned())
}

fn get_mut<'n>(node: &'n mut Node, key: &str) -> Option<&'n mut Node> {
    let Value::Map(entries) = &mut node.value else { return None };
    entries.iter_mut().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value)
}

/// The type of an object with pods, and the place of their specification.
fn kind_with_pods(root: &Node) -> Option<(&'static str, &'static [&'static str])> {
    const TEMPLATE: &[&str] = &["spec", "template", "spec"];
    match (text_at(root, "apiVersion"), text_at(root, "kind")) {
        ("v1", "Pod") => Some(("Pod", &["spec"])),
        ("apps/v1", "Deployment") => Some(("Deployment", TEMPLATE)),
        ("apps/v1", "StatefulSet") => Some(("StatefulSet", TEMPLATE)),
        ("apps/v1", "DaemonSet") => Some(("DaemonSet", TEMPLATE)),
        ("batch/v1", "Job") => Some(("Job", TEMPLATE)),
        ("batch/v1", "CronJob") => Some(("CronJob", &["spec", "jobTemplate", "spec", "template", "spec"])),
        _ => None,
    }
}

fn add_access(spec: &mut Node, secret: &str) {
    add_volume(spec, secret);
    for list in ["initContainers", "containers"] {
        match get_mut(spec, list) {
            Some(Node { value: Value::Seq(containers), .. }) => containers.iter_mut().for_each(add_mount),
            // Without containers there is an empty list.
            Some(none) => *none = Node::seq(Vec::new()),
            None => {}
        }
    }
}

fn entry(key: &str, value: Node) -> (Node, Node) {
    (Node::string(key), value)
}

/// Puts an item named after the volume at the end of a list, in place of earlier ones.
fn put(node: &mut Node, list: &str, item: Node) {
    if let Some(Node { value: Value::Seq(items), .. }) = get_mut(node, list) {
        items.retain(|item| text_at(item, "name") != VOLUME);
        items.push(item);
        return;
    }
    if let Value::Map(entries) = &mut node.value {
        entries.retain(|(key, _)| key.as_str() != Some(list));
        entries.push(entry(list, Node::seq(vec![item])));
    }
}

fn add_volume(spec: &mut Node, secret: &str) {
    let source = Node::map(vec![entry("secretName", Node::string(secret))]);
    let volume = Node::map(vec![entry("name", Node::string(VOLUME)), entry("secret", source)]);
    put(spec, "volumes", volume);
}

fn add_mount(container: &mut Node) {
    let mount = vec![entry("mountPath", Node::string(MOUNT_PATH)), entry("name", Node::string(VOLUME))];
    put(container, "volumeMounts", Node::map(mount));
}

fn service_account(namespace: &str, name: &str, roles: &[String]) -> Node {
    let mut metadata = vec![entry("name", Node::string(name))];
    if !namespace.is_empty() {
        metadata.push(entry("namespace", Node::string(namespace)));
    }
    let roles = Node::seq(roles.iter().map(Node::string).collect());
    Node::map(vec![
        entry("apiVersion", Node::string(API_VERSION)),
        entry("kind", Node::string(KIND)),
        entry("metadata", Node::map(metadata)),
        entry("spec", Node::map(vec![entry("roles", roles)])),
    ])
}
