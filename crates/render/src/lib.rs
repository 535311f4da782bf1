//! What a machine would run from a configuration: kubelet, static pods, etcd, network, kernel settings. Pure.
//!
//! The functions that decide are those of the controllers. What only a running machine knows comes in as [`Facts`]; two
//! versions of the system that are given the same configuration and the same facts differ only where they would act
//! differently, and [`difference`] shows where. Secrets are not part of a rendering.

pub mod difference;
pub mod etcd;
pub mod facts;
mod hide;
mod kernel;
mod network;
pub mod stream;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ichor_config::Documents;
use ichor_ctl_etcd::spec::{etcd_config, etcd_spec};
use ichor_ctl_k8s::args;
use ichor_ctl_k8s::kubelet::Host;
use ichor_ctl_k8s::rendering::{KubernetesFacts, KubernetesRendering};
use ichor_ctl_k8s::settings::is_control_plane;
use ichor_resource::Spec;
use ichor_yaml::Node;
use serde_json::Value as Json;

use etcd::Beginning;
pub use facts::Facts;
use hide::HIDDEN;
pub use stream::Rendering;

/// What came of rendering a configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Why something would not run.
    pub errors: Vec<String>,
    /// What is left out, and why.
    pub notes: Vec<String>,
    /// What would run.
    pub rendering: Rendering,
}

/// Renders a configuration for a machine.
pub fn render(config: &Documents, facts: &Facts) -> Outcome {
    // Whatever the schema calls a secret is gone before anything is made of it; the rest is hidden in what was made.
    let config = config.redacted(HIDDEN);
    let mut things = Things::default();
    let name = network::render(&config, facts, &mut things);
    let kubernetes = kubernetes(&config, facts, &name);
    things.kubernetes(&kubernetes);
    things.errors.extend(kubernetes.errors);
    things.notes.extend(kubernetes.notes);
    etcd(&config, facts, &name, &mut things);
    kernel::render(&config, facts, &mut things);
    things.outcome()
}

/// The name a machine has, with its domain.
struct HostName {
    hostname: String,
    domain: String,
}

/// Things by name, on their way to a rendering.
#[derive(Default)]
struct Things {
    nodes: BTreeMap<String, Node>,
    images: Vec<(&'static str, String)>,
    errors: Vec<String>,
    notes: Vec<String>,
}

impl Things {
    fn add(&mut self, name: impl Into<String>, node: Node) {
        self.nodes.insert(name.into(), node);
    }

    fn image(&mut self, component: &'static str, image: &str) {
        self.images.push((component, image.to_owned()));
    }

    fn kubernetes(&mut self, found: &KubernetesRendering) {
        if let Some(kubelet) = &found.kubelet {
            self.image("kubelet", &kubelet.image);
            self.add("kubelet", of_spec(kubelet));
        }
        for (name, pod) in &found.pods {
            self.add(format!("static-pod/{name}"), of_json(&Json::Object(pod.clone())));
        }
        for component in ichor_ctl_k8s::static_pods::CONTROL_PLANE {
            let pod = found.pods.iter().find(|(name, _)| name == component);
            let image = pod.and_then(|(_, pod)| pod["spec"]["containers"][0]["image"].as_str());
            if let Some(image) = image {
                self.image(component, image);
            }
        }
        for file in &found.files {
            let content = serde_json::from_str(&file.text).unwrap_or_else(|_| file.text.clone().into());
            self.add(format!("file/{}/{}", file.component, file.name), of_json(&content));
        }
        if let Some(manifests) = &found.manifests {
            for (component, image, enabled) in [
                ("kube-proxy", &manifests.proxy_image, manifests.proxy_enabled),
                ("coredns", &manifests.core_dns_image, manifests.core_dns_enabled),
                ("flannel", &manifests.flannel_image, manifests.flannel_enabled),
            ] {
                if enabled {
                    self.image(component, image);
                }
            }
            self.add("bootstrap-manifests", of_spec(manifests));
        }
    }

    fn outcome(mut self) -> Outcome {
        if !self.images.is_empty() {
            let images = std::mem::take(&mut self.images);
            let entry = |(name, image): (&str, String)| (Node::string(name), Node::string(image));
            self.add("images", Node::map(images.into_iter().map(entry).collect()));
        }
        let nodes = self.nodes.into_iter().map(|(name, mut node)| {
            hide::secrets(&mut node);
            (name, node)
        });
        Outcome { errors: self.errors, notes: self.notes, rendering: Rendering::of(nodes) }
    }
}

fn kubernetes(config: &Documents, facts: &Facts, name: &HostName) -> KubernetesRendering {
    let facts = KubernetesFacts {
        hostname: name.hostname.clone(),
        domain: name.domain.clone(),
        addresses: facts.routed.clone(),
        host: Host {
            cgroup_root: facts.cgroup_root.clone(),
            protect_kernel: facts.protect_kernel,
            cgroup_v1: facts.cgroup_v1,
            shared: facts.shared,
        },
    };
    ichor_ctl_k8s::rendering::render(config, &facts)
}

fn etcd(config: &Documents, facts: &Facts, name: &HostName, things: &mut Things) {
    if !is_control_plane(config) {
        return;
    }
    let (routed, current): (&[IpAddr], &[IpAddr]) = (&facts.routed, &facts.current);
    let Some(spec) = etcd_spec(&etcd_config(config), &name.hostname, routed, current) else {
        things.notes.push(
            "no address of this machine fits cluster.etcd.advertisedSubnets and listenSubnets; etcd waits for one"
                .to_owned(),
        );
        return;
    };
    // How a member begins is decided by what is on its disk.
    match etcd::arguments(&spec, &Beginning::Log { alone: false }) {
        Ok(arguments) => {
            things.image("etcd", &spec.image);
            let arguments = args::command(&arguments).into_iter().map(Node::string).collect();
            things.add(
                "etcd",
                Node::map(vec![
                    (Node::string("image"), Node::string(&spec.image)),
                    (Node::string("args"), Node::seq(arguments)),
                ]),
            );
        }
        Err(error) => things.errors.push(format!("cluster.etcd.extraArgs: {error}")),
    }
}

/// A resource as a tree.
fn of_spec(spec: &dyn Spec) -> Node {
    let mut text = String::new();
    spec.encode_yaml(&mut text);
    match ichor_yaml::parse(&text) {
        Ok(documents) => documents.into_iter().next().map_or_else(Node::null, |document| document.root),
        // Not what it should be, but still comparable.
        Err(_) => Node::string(text),
    }
}

/// JSON as a tree.
fn of_json(value: &Json) -> Node {
    match value {
        Json::Null => Node::null(),
        Json::Bool(value) => Node::bool(*value),
        Json::Number(number) => Node::plain(number.to_string()),
        Json::String(text) => Node::string(text),
        Json::Array(items) => Node::seq(items.iter().map(of_json).collect()),
        Json::Object(map) => {
            Node::map(map.iter().map(|(key, value)| (Node::string(key), of_json(value))).collect())
        }
    }
}

#[cfg(test)]
mod tests;
