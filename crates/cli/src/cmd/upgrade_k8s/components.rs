//! The steps that change machines: images first, then each component on each machine.

use std::time::Duration;

use ichor_client::status_text;
use ichor_config::v1alpha1::Config;
use ichor_health::objects;
use ichor_kube::{Event, Kind, Select};
use ichor_wire::common::ContainerdNamespace;
use ichor_wire::cosi::resource::EventType;
use ichor_wire::machine::ImagePullRequest;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

use super::{PAUSE, SYSTEM, Upgrade, comments, list, say};
use crate::failure::Failure;
use crate::kubernetes::settled;
use crate::node_config::{self, ServiceWatch};

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
    flag: &'static str,
    config: &'static str,
    image: fn(&mut Config) -> &mut String,
}

const COMPONENTS: [Component; 3] = [
    Component {
        name: "kube-apiserver",
        flag: "apiserver-image",
        config: "APIServerConfigs.kubernetes.talos.dev",
        image: |config| &mut config.cluster.get_or_insert_default().api_server.get_or_insert_default().image,
    },
    Component {
        name: "kube-controller-manager",
        flag: "controller-manager-image",
        config: "ControllerManagerConfigs.kubernetes.talos.dev",
        image: |config| {
            &mut config.cluster.get_or_insert_default().controller_manager.get_or_insert_default().image
        },
    },
    Component {
        name: "kube-scheduler",
        flag: "scheduler-image",
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
    pub(super) fn image(&self, flag: &str, suffix: &str) -> String {
        format!("{}:v{}{suffix}", self.call.text(flag), self.path.to)
    }

    /// Pulls everything before anything changes, so that no component waits for its image.
    pub(super) async fn pre_pull(&mut self) -> Result<(), Failure> {
        let mut pulls = Vec::new();
        for component in &COMPONENTS {
            let image = self.image(component.flag, "");
            pulls.extend(
                self.control_planes
                    .iter()
                    .map(|node| (node.clone(), image.clone(), ContainerdNamespace::NsCri)),
            );
        }
        if self.call.on("upgrade-kubelet") {
            for node in self.all() {
                let image = self.image("kubelet-image", variant(&self.kubelet_image(&node).await?));
                pulls.push((node, image, ContainerdNamespace::NsSystem));
            }
        }
        for (node, reference, namespace) in pulls {
            say(&format!(" > {node:?}: pre-pulling {reference}"))?;
            let step = format!("pull/{node}/{reference}");
            if self.progress.is_done(&step) {
                continue;
            }
            let request = ImagePullRequest { namespace: namespace.into(), reference: reference.clone() };
            match self.session.node(&node).machine().image_pull(request).await {
                Ok(_) => self.progress.note(step)?,
                Err(status) if status.code() == Code::Unimplemented => {
                    say(&format!(" < {node:?}: not implemented, skipping"))?;
                }
                Err(status) => {
                    return Err(Failure::new(format!(
                        "failed pre-pulling images: error pre-pulling {reference} on {node}: {}",
                        status_text(&status)
                    )));
                }
            }
        }
        Ok(())
    }

    async fn kubelet_image(&self, node: &str) -> Result<String, Failure> {
        let spec = self.access().get(node, "k8s", "KubeletSpecs.kubernetes.talos.dev", "kubelet").await;
        let spec = spec.map_err(|status| {
            Failure::new(format!("error fetching kubelet spec on node {node}: {}", status_text(&status)))
        })?;
        let image = spec.as_ref().and_then(|spec| spec.spec["image"].as_str());
        image.map(str::to_owned).ok_or_else(|| Failure::new(format!("{node} has no kubelet")))
    }

    /// The static pods of the control plane, component by component.
    pub(super) async fn control_plane(&mut self) -> Result<(), Failure> {
        for component in &COMPONENTS {
            say(&format!("updating {:?} to version \"{}\"", component.name, self.path.to))?;
            for node in self.control_planes.clone() {
                let step = format!("{}/{node}/{}", component.name, self.image(component.flag, ""));
                if self.progress.is_done(&step) && self.has_image(component, &node).await {
                    continue;
                }
                let updated = self.static_pod(component, &node).await;
                updated.map_err(|failure| {
                    failure.within(format!(
                        "failed updating service {:?}: error updating node {node:?}",
                        component.name
                    ))
                })?;
                if !self.dry_run {
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
        let image = self.image(component.flag, "");
        settings.is_ok_and(|found| found.is_some_and(|settings| settings.spec["image"] == image.as_str()))
    }

    async fn static_pod(&self, component: &Component, node: &str) -> Result<(), Failure> {
        say(&format!(" > {node:?}: starting update"))?;
        let client = self.session.node(node);
        let query = node_config::query("controlplane", component.config, component.name);
        let mut watch = client.watch(&query).await.map_err(|status| {
            Failure::new(format!("error watching service configuration: {}", status_text(&status)))
        })?;
        let (event, settings) = timeout(CONFIG_MAX, node_config::next(&mut watch))
            .await
            .map_err(|_| Failure::new("the machine does not say how the component is set up"))??;
        if event == EventType::Destroyed {
            return Err(Failure::new(format!("the machine does not run {}", component.name)));
        }
        let image = self.image(component.flag, "");
        let now = settings.spec["image"].as_str().unwrap_or_default().to_owned();
        let mut expected = settings.version;
        if now != image {
            let from = self.path.from.to_string();
            say(&format!(" > update {}: {} -> {}", component.name, tag(&now, &from), self.path.to))?;
            if self.dry_run {
                return say(" > skipped in dry-run");
            }
            let edit = |config: &mut Config| {
                let place = (component.image)(config);
                let differs = *place != image;
                place.clone_from(&image);
                differs
            };
            let changed = node_config::change(&client, comments(self.call), edit).await?;
            say(&format!(" > {node:?}: machine configuration patched"))?;
            if changed {
                let news = timeout(CONFIG_MAX, async {
                    loop {
                        let (_, settings) = node_config::next(&mut watch).await?;
                        if settings.spec["image"] == image.as_str() {
                            return Ok::<_, Failure>(settings.version);
                        }
                    }
                });
                expected =
                    news.await.map_err(|_| Failure::new("the machine did not take up its new image"))??;
            }
        } else if self.dry_run {
            return Ok(());
        }
        say(&format!(" > {node:?}: waiting for {} pod update", component.name))?;
        self.pod(component.name, node, &expected).await?;
        say(&format!(" < {node:?}: successfully updated"))
    }

    /// Waits for the pod of a component on a machine to be made from these settings, and ready.
    async fn pod(&self, app: &'static str, node: &str, expected: &str) -> Result<(), Failure> {
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
                        Ok(Event::Listed(pods)) => pods,
                        Ok(Event::Changed(pod)) => vec![pod],
                        Ok(_) => continue,
                        Err(_) => break,
                    };
                    for pod in pods.iter().filter(|pod| pod["status"]["hostIP"] == node) {
                        match judge(pod, expected) {
                            // The next machine waits until this one answers: there is always one that does.
                            None if app == settled::API_SERVER => {
                                for _ in 0..SILENCE_LOOKS {
                                    let pod = std::slice::from_ref(pod);
                                    let Some(text) = settled::silent(&self.fleet, node, pod).await else {
                                        return Ok::<_, Failure>(());
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
                            say(&format!(" > {node:?}: {app}: {last}"))?;
                            told.clone_from(&last);
                        }
                    }
                }
                self.kubernetes().forget().await;
                sleep(PAUSE).await;
            }
        };
        let result = timeout(POD_MAX, wait).await;
        result.map_err(|_| Failure::new(format!("waited {}s: {last}", POD_MAX.as_secs())))?
    }

    /// kube-proxy runs from a manifest, which is made from the configuration of control planes.
    pub(super) async fn kube_proxy(&mut self) -> Result<(), Failure> {
        say(&format!("updating kube-proxy to version \"{}\"", self.path.to))?;
        let image = self.image("proxy-image", "");
        for node in self.control_planes.clone() {
            say(&format!(" > {node:?}: starting update"))?;
            if self.dry_run {
                say(" > skipped in dry-run")?;
                continue;
            }
            let edit = |config: &mut Config| {
                let place = &mut config.cluster.get_or_insert_default().proxy.get_or_insert_default().image;
                let differs = *place != image;
                place.clone_from(&image);
                differs
            };
            let changed = node_config::change(&self.session.node(&node), comments(self.call), edit).await;
            changed.map_err(|failure| {
                failure.within(format!("failed updating kube-proxy: error updating node {node:?}"))
            })?;
        }
        Ok(())
    }

    /// The kubelets, control planes first.
    pub(super) async fn kubelets(&mut self) -> Result<(), Failure> {
        say(&format!("updating kubelet to version \"{}\"", self.path.to))?;
        for node in self.all() {
            let step = format!("kubelet/{node}/{}", self.image("kubelet-image", ""));
            if self.progress.is_done(&step)
                && self
                    .kubelet_image(&node)
                    .await
                    .is_ok_and(|now| now == self.image("kubelet-image", variant(&now)))
            {
                continue;
            }
            let updated = self.kubelet(&node).await;
            updated.map_err(|failure| {
                failure.within(format!("failed upgrading kubelet: error updating node {node:?}"))
            })?;
            if !self.dry_run {
                self.progress.note(step)?;
            }
        }
        Ok(())
    }

    async fn kubelet(&self, node: &str) -> Result<(), Failure> {
        say(&format!(" > {node:?}: starting update"))?;
        let client = self.session.node(node);
        let watch = ServiceWatch::begin(&client, "kubelet").await?;
        let now = self.kubelet_image(node).await?;
        let image = self.image("kubelet-image", variant(&now));
        if now != image {
            let from = self.path.from.to_string();
            say(&format!(
                " > update kubelet: {} -> {}",
                tag(&now, &from).trim_start_matches('v'),
                self.path.to
            ))?;
            if self.dry_run {
                return say(" > skipped in dry-run");
            }
            let edit = |config: &mut Config| {
                let place = &mut config.machine.get_or_insert_default().kubelet.get_or_insert_default().image;
                let differs = *place != image;
                place.clone_from(&image);
                differs
            };
            let changed = node_config::change(&client, comments(self.call), edit).await?;
            say(&format!(" > {node:?}: machine configuration patched"))?;
            if changed {
                say(&format!(" > {node:?}: waiting for kubelet restart"))?;
                if !watch.restarted(KUBELET_DOWN_MAX, KUBELET_UP_MAX).await? {
                    return Err(Failure::new("the kubelet was not restarted"));
                }
            }
        } else if self.dry_run {
            return Ok(());
        }
        say(&format!(" > {node:?}: waiting for node update"))?;
        self.node(node).await?;
        say(&format!(" < {node:?}: successfully updated"))
    }

    /// Waits for a node to report the new kubelet, and to be ready.
    async fn node(&self, address: &str) -> Result<(), Failure> {
        let wanted = format!("v{}", self.path.to);
        let end = Instant::now() + NODE_MAX;
        loop {
            let nodes = list(self.kubernetes(), &Kind::NODES, "").await?;
            let node =
                nodes.iter().find(|node| objects::node_addresses(node).iter().any(|known| known == address));
            let last = match node {
                None => "it is no node of Kubernetes".to_owned(),
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
                return Err(Failure::new(format!("waited {}s for the node: {last}", NODE_MAX.as_secs())));
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
