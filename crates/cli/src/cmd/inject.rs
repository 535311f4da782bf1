//! `inject serviceaccount`: Kubernetes manifests whose pods may use the machine API.

use std::collections::HashSet;

use ichor_yaml::{EmitOptions, Node, Value};

use crate::failure::{Context as _, Failure};
use crate::parse::Call;
use crate::table::{Command, Complete, Flag, Group};
use crate::{files, help, print};

/// The volume with the client configuration; the secret behind it is named after the object.
const VOLUME: &str = "talos-secrets";
const SUFFIX: &str = "-talos-secrets";
const MOUNT_PATH: &str = "/var/run/secrets/talos.dev";
const API_VERSION: &str = "talos.dev/v1alpha1";
const KIND: &str = "ServiceAccount";
/// The look of manifests as `kubectl` prints them.
const LOOK: EmitOptions = EmitOptions { indent: 2, flush_lists: true };

/// The parent.
pub static INJECT: Command = Command {
    name: "inject",
    group: Group::Offline,
    about: "Add access to the machine API to Kubernetes manifests",
    subcommands: &[&SERVICE_ACCOUNT],
    ..Command::EMPTY
};

static SERVICE_ACCOUNT: Command = Command {
    name: "serviceaccount",
    aliases: &["tsa"],
    about: "Give the pods of Kubernetes manifests a service account of the machine API",
    long: "Gives the pods of Kubernetes manifests a service account of the machine API: every container gets the\n\
           client configuration at /var/run/secrets/talos.dev, and each object a service account with the roles.\n\
           Other documents pass through; injecting twice changes nothing.",
    examples: &[
        "inject serviceaccount --roles os:reader -f deployment.yaml > injected.yaml",
        "inject serviceaccount -f - < deployment.yaml | kubectl apply -f -",
    ],
    flags: &[
        Flag::text("file", "file of the manifests, - for standard input").short('f').complete(Complete::File),
        Flag::list("roles", "roles of the service accounts").short('r').default("os:reader"),
    ],
    run: Some(run),
    ..Command::EMPTY
};

fn run(call: &Call) -> Result<(), Failure> {
    let Some(file) = call.some_text("file") else { return print(&help::help(&call.path)) };
    let content = files::read_or_stdin(file)?;
    let text = std::str::from_utf8(&content).context(file)?;
    let documents = ichor_yaml::parse(text).context(file)?;
    let roots = documents.into_iter().map(|document| document.root).collect();
    let injected = inject(roots, &call.list("roles")).map_err(|failure| failure.within(file))?;
    let texts: Vec<String> = injected.iter().map(|root| ichor_yaml::emit_with(root, LOOK)).collect();
    print(&texts.join("---\n"))
}

/// The manifests with volumes, mounts and service accounts; empty documents are left out.
fn inject(roots: Vec<Node>, roles: &[String]) -> Result<Vec<Node>, Failure> {
    let mut seen: HashSet<(String, String)> = HashSet::new();
    let mut out = Vec::with_capacity(roots.len());
    for mut root in roots {
        if root.is_null() {
            continue;
        }
        if root.as_map().is_none() {
            return Err(Failure::new(format!("line {}: a manifest is a mapping", root.span.line)));
        }
        let (namespace, name) = identity(&root);
        if let Some(spec) = pod_spec(&mut root).filter(|_| !name.is_empty()) {
            let secret = format!("{name}{SUFFIX}");
            add_volume(spec, &secret);
            for list in ["initContainers", "containers"] {
                if let Some(Node { value: Value::Seq(containers), .. }) = get_mut(spec, list) {
                    containers.iter_mut().for_each(add_mount);
                }
            }
            out.push(root);
            if seen.insert((namespace.clone(), name)) {
                out.push(service_account(&namespace, &secret, roles));
            }
        } else if text_at(&root, "apiVersion") == API_VERSION && text_at(&root, "kind") == KIND {
            // One that an earlier run added, or one of the user's own that wins when it comes first.
            let owner = name.strip_suffix(SUFFIX).unwrap_or(&name).to_owned();
            if owner.is_empty() || seen.insert((namespace, owner)) {
                out.push(root);
            }
        } else {
            out.push(root);
        }
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

/// The specification of an object's pods, if it has one.
fn pod_spec(root: &mut Node) -> Option<&mut Node> {
    let path: &[&str] = match (text_at(root, "apiVersion"), text_at(root, "kind")) {
        ("v1", "Pod") => &["spec"],
        ("apps/v1", "Deployment" | "StatefulSet" | "DaemonSet") | ("batch/v1", "Job") => {
            &["spec", "template", "spec"]
        }
        ("batch/v1", "CronJob") => &["spec", "jobTemplate", "spec", "template", "spec"],
        _ => return None,
    };
    let spec = path.iter().try_fold(root, |node, key| get_mut(node, key))?;
    spec.as_map().is_some().then_some(spec)
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
