//! The steps that change machines: images first, then each component on each machine.

use std::time::Duration;

use ichor_config::v1alpha1::Config;
use ichor_health::objects;
use ichor_kube::{Event as Watched, Kind, Select};
use ichor_wire::common::ContainerdNamespace;
use ichor_wire::cosi::resource::EventType;
use ichor_wire::machine::ImagePullRequest;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

use super::{Event, Images, PAUSE, SYSTEM, Upgrade, list};
use crate::error::{Error, Result};
use crate::node_config::{self, ServiceWatch};
use crate::settled;

/// How long a pod may take to be the new one and ready.
const POD_MAX: Duration = Duration::from_secs(5 * 60);
/// How often a machine is asked about one and the same pod.
const SILENCE_LOOKS: u32 = 20;
/// How long a machine may take to notice its new configuration.
const CONFIG_MAX: Duration = Duration::from_secs(60);
/// How long the kubelet may take to go away, and to come back.
const KUBELET_DOWN_MAX: Duration = Duration::from_secs(60);
const KUBELET_UP_MAX: Duration = Duration::from_secs(5 * 60);
/// How long a node may take to report the new kubelet.
const NODE_MAX: Duration = Duration::from_secs(3 * 60);
/// The pod carries the version of the settings it was made from.
const CONFIG_VERSION: &str = "talos.dev/config-version";

/// A component of the control plane.
struct Component {
    name: &'static str,
    repository: fn(&Images) -> &String,
    config: &'static str,
    image: fn(&mut Config) -> &mut String,
}

const COMPONENTS: [Component; 3] = [
    Component {
        name: "kube-apiserver",
        repository: |images| &images.apiserver,
        config: "APIServerConfigs.kubernetes.talos.dev",
        image: |config| &mut config.cluster.get_or_insert_default().api_server.get_or_insert_default().image,
    },
    Component {
        name: "kube-controller-manager",
        repository: |images| &images.controller_manager,
        config: "ControllerManagerConfigs.kubernetes.talos.dev",
        image: |config| {
            &mut config.cluster.get_or_insert_default().controller_manager.get_or_insert_default().image
        },
    },
    Component {
        name: "kube-scheduler",
        repository: |images| &images.scheduler,
        config: "SchedulerConfigs.kubernetes.talos.dev",
        image: |config| &mut config.cluster.get_or_insert_default().scheduler.get_or_insert_default().image,
    },
];

/// The tag of an image, or what stands in for it.
fn tag<'a>(image: &'a str, otherwise: &'a str) -> &'a str {
    image.rsplit_once(':').map_or(otherwise, |(_, tag)| tag)
}

/// The variant of a kubelet image, which an upgrade keeps.
pub(super) fn variant(image: &str) -> &'static str {
    ["-fat", "-slim"].into_iter().find(|variant| image.ends_with(variant)).unwrap_or_default()
}

impl Upgrade<'_> {
    /// The new image of a repository.
    pub(super) fn image(&self, repository: &str, suffix: &str) -> String {
        format!("{repository}:v{}{suffix}", self.path.to)
    }

    fn component_image(&self, component: &Component) -> String {
        self.image((component.repository)(&self.options.images), "")
    }

    /// The new image of a kubelet that runs from `now`.
    fn new_kubelet_image(&self, now: &str) -> String {
        self.image(&self.options.images.kubelet, variant(now))
    }

    /// Pulls everything before anything changes, so that no component waits for its image.
    pub(super) async fn pre_pull(&mut self) -> Result<()> {
        let mut pulls = Vec::new();
        for component in &COMPONENTS {
            let image = self.component_image(component);
            pulls.extend(
                self.control_planes
                    .iter()
                    .map(|node| (node.clone(), image.clone(), ContainerdNamespace::NsCri)),
            );
        }
        if self.options.kubelets {
            for node in self.all() {
                let image = self.new_kubelet_image(&self.kubelet_image(&node).await?);
                pulls.push((node, image, ContainerdNamespace::NsSystem));
            }
        }
        for (node, reference, namespace) in pulls {
            self.emit(Event::Pulling { node: node.clone(), image: reference.clone() });
            let step = format!("pull/{node}/{reference}");
            if self.progress.is_done(&step) {
                continue;
            }
            let request = ImagePullRequest { namespace: namespace.into(), reference: reference.clone() };
            match self.client.to_node(&node).machine().image_pull(request).await {
                Ok(_) => self.progress.note(step)?,
                Err(status) if status.code() == Code::Unimplemented => {
                    self.emit(Event::PullUnsupported { node });
                }
                Err(status) => {
                    let doing = format!("failed pre-pulling images: error pre-pulling {reference} on {node}");
                    return Err(Error::call(doing, status));
                }
            }
        }
        Ok(())
    }

    async fn kubelet_image(&self, node: &str) -> Result<String> {
        let spec = self.access().get(node, "k8s", "KubeletSpecs.kubernetes.talos.dev", "kubelet").await;
        let spec = spec
            .map_err(|status| Error::call(format!("error fetching kubelet spec on node {node}"), status))?;
        let image = spec.as_ref().and_then(|spec| spec.spec["image"].as_str());
        image.map(str::to_owned).ok_or_else(|| Error::state(format!("{node} has no kubelet")))
    }

    /// The static pods of the control plane, component by component.
    pub(super) async fn control_plane(&mut self) -> Result<()> {
        for component in &COMPONENTS {
            self.emit(Event::Component { name: component.name, to: self.path.to.to_string() });
            for node in self.control_planes.clone() {
                let step = format!("{}/{node}/{}", component.name, self.component_image(component));
                if self.progress.is_done(&step) && self.has_image(component, &node).await {
                    continue;
                }
                let updated = self.static_pod(component, &node).await;
                updated.map_err(|error| {
                    error.within(format!(
                        "failed updating service {:?}: error updating node {node:?}",
                        component.name
                    ))
                })?;
                if !self.options.dry_run {
                    self.progress.note(step)?;
                }
            }
        }
        Ok(())
    }

    /// Whether a machine runs a component from its new image already. What was noted may be of a cluster of the same name
    /// that is gone.
    async fn has_image(&self, component: &Component, node: &str) -> bool {
        let settings = self.access().get(node, "controlplane", component.config, component.name).await;
        let image = self.component_image(component);
        settings.is_ok_and(|found| found.is_some_and(|settings| settings.spec["image"] == image.as_str()))
    }

    async fn static_pod(&self, component: &Component, node: &str) -> Result<()> {
        self.emit(Event::NodeStarted { node: node.to_owned() });
        let client = self.client.to_node(node);
        let query = node_config::query("controlplane", component.config, component.name);
        let mut watch = client
            .watch(&query)
            .await
            .map_err(|status| Error::call("error watching service configuration", status))?;
        let (event, settings) = timeout(CONFIG_MAX, node_config::next(&mut watch))
            .await
            .map_err(|_| Error::state("the machine does not report the settings of the component"))??;
        if event == EventType::Destroyed {
            return Err(Error::state(format!("the machine does not run {}", component.name)));
        }
        let image = self.component_image(component);
        let now = settings.spec["image"].as_str().unwrap_or_default().to_owned();
        let mut expected = settings.version;
        if now != image {
            let from = self.path.from.to_string();
            let from = tag(&now, &from).to_owned();
            self.emit(Event::VersionChange { name: component.name, from, to: self.path.to.to_string() });
            if self.options.dry_run {
                self.emit(Event::Skipped);
                return Ok(());
            }
            let edit = |config: &mut Config| {
                let place = (component.image)(config);
                let differs = *place != image;
                place.clone_from(&image);
                differs
            };
            let changed = node_config::change(&client, self.options.comments, edit).await?;
            self.emit(Event::Patched { node: node.to_owned() });
            if changed {
                let news = timeout(CONFIG_MAX, async {
                    loop {
                        let (_, settings) = node_config::next(&mut watch).await?;
                        if settings.spec["image"] == image.as_str() {
                            return Ok::<_, Error>(settings.version);
                        }
                    }
                });
                expected =
                    news.await.map_err(|_| Error::state("the machine did not take up its new image"))??;
            }
        } else if self.options.dry_run {
            return Ok(());
        }
        self.emit(Event::WaitingForPod { node: node.to_owned(), name: component.name });
        self.pod(component.name, node, &expected).await?;
        self.emit(Event::NodeDone { node: node.to_owned() });
        Ok(())
    }

    /// Waits for the pod of a component on a machine to be made from these settings, and ready.
    async fn pod(&self, app: &'static str, node: &str, expected: &str) -> Result<()> {
        let labels = format!("k8s-app={app}");
        let mut last = format!("no pod of {app} on {node} is known");
        let mut told = String::new();
        let wait = async {
            loop {
                // The API may be the very thing that restarts: a watch that breaks is begun anew.
                let Ok(client) = self.kubernetes().client().await else {
                    sleep(PAUSE).await;
                    continue;
                };
                let select = Select { labels: &labels, ..Select::default() };
                let mut watch = client.watch(Kind::PODS, SYSTEM, select);
                'watch: loop {
                    let pods = match watch.next().await {
                        Ok(Watched::Listed(pods)) => pods,
                        Ok(Watched::Changed(pod)) => vec![pod],
                        Ok(_) => continue,
                        Err(_) => break,
                    };
                    for pod in pods.iter().filter(|pod| pod["status"]["hostIP"] == node) {
                        match judge(pod, expected) {
                            // The next machine waits until this one answers: there is always one that does.
                            None if app == settled::API_SERVER => {
                                for _ in 0..SILENCE_LOOKS {
                                    let pod = std::slice::from_ref(pod);
                                    let Some(text) = settled::silent(self.fleet, node, pod).await else {
                                        return Ok::<_, Error>(());
                                    };
                                    last = text;
                                    sleep(PAUSE).await;
                                }
                                // It may be another one by now.
                                break 'watch;
                            }
                            None => return Ok(()),
                            Some(text) => last = text,
                        }
                        if last != told {
                            let (node, reason) = (node.to_owned(), last.clone());
                            self.emit(Event::PodBehind { node, name: app, reason });
                            told.clone_from(&last);
                        }
                    }
                }
                self.kubernetes().forget().await;
                sleep(PAUSE).await;
            }
        };
        let result = timeout(POD_MAX, wait).await;
        result.map_err(|_| Error::timeout(format!("waited {}s", POD_MAX.as_secs()), last))?
    }

    /// kube-proxy runs from a manifest, which is made from the configuration of control planes.
    pub(super) async fn kube_proxy(&mut self) -> Result<()> {
        self.emit(Event::Component { name: "kube-proxy", to: self.path.to.to_string() });
        let image = self.image(&self.options.images.proxy, "");
        for node in self.control_planes.clone() {
            self.emit(Event::NodeStarted { node: node.to_owned() });
            if self.options.dry_run {
                self.emit(Event::Skipped);
                continue;
            }
            let edit = |config: &mut Config| {
                let place = &mut config.cluster.get_or_insert_default().proxy.get_or_insert_default().image;
                let differs = *place != image;
                place.clone_from(&image);
                differs
            };
            let changed = node_config::change(&self.client.to_node(&node), self.options.comments, edit).await;
            changed.map_err(|error| {
                error.within(format!("failed updating kube-proxy: error updating node {node:?}"))
            })?;
        }
        Ok(())
    }

    /// The kubelets, control planes first.
    pub(super) async fn kubelets(&mut self) -> Result<()> {
        self.emit(Event::Component { name: "kubelet", to: self.path.to.to_string() });
        for node in self.all() {
            let step = format!("kubelet/{node}/{}", self.new_kubelet_image(""));
            if self.progress.is_done(&step)
                && self.kubelet_image(&node).await.is_ok_and(|now| now == self.new_kubelet_image(&now))
            {
                continue;
            }
            let updated = self.kubelet(&node).await;
            updated.map_err(|error| {
                error.within(format!("failed upgrading kubelet: error updating node {node:?}"))
            })?;
            if !self.options.dry_run {
                self.progress.note(step)?;
            }
        }
        Ok(())
    }

    async fn kubelet(&self, node: &str) -> Result<()> {
        self.emit(Event::NodeStarted { node: node.to_owned() });
        let client = self.client.to_node(node);
        let watch = ServiceWatch::begin(&client, "kubelet").await?;
        let now = self.kubelet_image(node).await?;
        let image = self.new_kubelet_image(&now);
        if now != image {
            let from = self.path.from.to_string();
            let from = tag(&now, &from).trim_start_matches('v').to_owned();
            self.emit(Event::VersionChange { name: "kubelet", from, to: self.path.to.to_string() });
            if self.options.dry_run {
                self.emit(Event::Skipped);
                return Ok(());
            }
            let edit = |config: &mut Config| {
                let place = &mut config.machine.get_or_insert_default().kubelet.get_or_insert_default().image;
                let differs = *place != image;
                place.clone_from(&image);
                differs
            };
            let changed = node_config::change(&client, self.options.comments, edit).await?;
            self.emit(Event::Patched { node: node.to_owned() });
            if changed {
                self.emit(Event::WaitingForKubelet { node: node.to_owned() });
                if !watch.restarted(KUBELET_DOWN_MAX, KUBELET_UP_MAX).await? {
                    return Err(Error::state("the kubelet was not restarted"));
                }
            }
        } else if self.options.dry_run {
            return Ok(());
        }
        self.emit(Event::WaitingForNode { node: node.to_owned() });
        self.node(node).await?;
        self.emit(Event::NodeDone { node: node.to_owned() });
        Ok(())
    }

    /// Waits for a node to report the new kubelet, and to be ready.
    async fn node(&self, address: &str) -> Result<()> {
        let wanted = format!("v{}", self.path.to);
        let end = Instant::now() + NODE_MAX;
        loop {
            let nodes = list(self.kubernetes(), &Kind::NODES, "").await?;
            let node =
                nodes.iter().find(|node| objects::node_addresses(node).iter().any(|known| known == address));
            let last = match node {
                None => "it is not a node of Kubernetes".to_owned(),
                Some(node) => {
                    let version = node["status"]["nodeInfo"]["kubeletVersion"].as_str().unwrap_or_default();
                    match (version == wanted, objects::is_ready(node)) {
                        (true, true) => return Ok(()),
                        (true, false) => objects::unready(node),
                        (false, _) => format!("its kubelet is {version}, not {wanted}"),
                    }
                }
            };
            if Instant::now() > end {
                return Err(Error::timeout(format!("waited {}s for the node", NODE_MAX.as_secs()), last));
            }
            sleep(PAUSE).await;
        }
    }
}

/// What a pod still waits for.
fn judge(pod: &Value, expected: &str) -> Option<String> {
    let version = pod["metadata"]["annotations"][CONFIG_VERSION].as_str().unwrap_or_default();
    if version != expected {
        return Some(format!("waiting, config version mismatch: got {version:?}, expected {expected:?}"));
    }
    (!objects::is_ready(pod)).then(|| "pod is not ready, waiting".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_variant_of_a_kubelet_stays() {
        assert_eq!(variant("ghcr.io/siderolabs/kubelet:v1.34.0-slim"), "-slim");
        assert_eq!(variant("ghcr.io/siderolabs/kubelet:v1.34.0"), "");
    }

    #[test]
    fn a_pod_counts_when_it_is_made_from_the_new_settings_and_ready() {
        let pod = |version: &str, ready: &str| {
            json!({
                "metadata": {"annotations": {"talos.dev/config-version": version}},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            })
        };
        assert_eq!(judge(&pod("2", "True"), "2"), None);
        assert_eq!(judge(&pod("2", "False"), "2").as_deref(), Some("pod is not ready, waiting"));
        assert_eq!(
            judge(&pod("1", "True"), "2").as_deref(),
            Some(r#"waiting, config version mismatch: got "1", expected "2""#)
        );
    }
}
