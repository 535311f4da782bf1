//! Upgrades Kubernetes, one component and machine at a time, resuming where an earlier run stopped.

mod components;
mod event;
mod manifests;
pub mod path;
mod progress;

use std::path::PathBuf;
use std::time::Duration;

use ichor_client::{Client, Routed};
use ichor_config::CommentMode;
use ichor_health::{Access, Lazy, objects};
use ichor_kube::{Kind, Select};
use serde_json::Value;
use tokio::time::{Instant, sleep};

pub use event::{Event, Obsolete};

use crate::error::{Error, Problem, Result};
use crate::event::Sink;
use crate::fleet::Fleet;
use path::{Path, Version};
use progress::Progress;

/// The namespace of the system.
const SYSTEM: &str = ichor_health::kube::SYSTEM;
/// The components whose versions count.
const VERSIONED: [&str; 4] = ["kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler"];
/// How long the API may be away while its server is replaced.
const API_AWAY_MAX: Duration = Duration::from_secs(60);
/// Between two looks at an API that was away.
const PAUSE: Duration = Duration::from_millis(500);

/// Image repositories without a tag, by component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Images {
    /// kube-apiserver.
    pub apiserver: String,
    /// kube-controller-manager.
    pub controller_manager: String,
    /// kube-scheduler.
    pub scheduler: String,
    /// kube-proxy.
    pub proxy: String,
    /// The kubelet.
    pub kubelet: String,
}

impl Default for Images {
    fn default() -> Self {
        Self {
            apiserver: "registry.k8s.io/kube-apiserver".to_owned(),
            controller_manager: "registry.k8s.io/kube-controller-manager".to_owned(),
            scheduler: "registry.k8s.io/kube-scheduler".to_owned(),
            proxy: "registry.k8s.io/kube-proxy".to_owned(),
            kubelet: "ghcr.io/siderolabs/kubelet".to_owned(),
        }
    }
}

impl Images {
    /// Fails when one of them is not a repository alone.
    pub fn check(&self) -> Result<()> {
        check_image("kubelet", &self.kubelet)?;
        check_image("apiserver", &self.apiserver)?;
        check_image("controller-manager", &self.controller_manager)?;
        check_image("scheduler", &self.scheduler)?;
        check_image("proxy", &self.proxy)
    }
}

/// A repository: no tag, no digest, nothing a reference cannot have.
fn check_image(component: &'static str, image: &str) -> Result<()> {
    let last = image.rsplit('/').next().unwrap_or_default();
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-/:".contains(c);
    if image.is_empty() || last.is_empty() || last.contains([':', '@']) || !image.chars().all(good) {
        return Err(Problem::BadImage { component, image: image.to_owned() }.into());
    }
    Ok(())
}

/// Which upgrade, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The present version; detected when it is not named.
    pub from: Option<String>,
    /// The wanted version.
    pub to: String,
    /// Where images come from.
    pub images: Images,
    /// Upgrade the kubelets too.
    pub kubelets: bool,
    /// Pull all images before anything changes.
    pub pre_pull: bool,
    /// Report what would be done and change nothing.
    pub dry_run: bool,
    /// The comments of changed machine configurations.
    pub comments: CommentMode,
    /// Where finished steps are noted; without a file an interrupted upgrade starts over.
    pub progress: Option<PathBuf>,
}

/// Upgrades the Kubernetes of the cluster behind `client`. `node` is a control plane, whose manifests become those of
/// the cluster; `fleet` leads to its Kubernetes.
pub async fn run(
    client: &Client,
    node: &str,
    fleet: &Fleet,
    options: &Options,
    events: &dyn Sink<Event>,
) -> Result<()> {
    options.images.check()?;
    let to = options.to.trim_start_matches('v').to_owned();
    let begun = options.progress.as_deref().and_then(|path| Progress::begun_from(path, &to));
    let from = match (&options.from, begun) {
        (Some(from), _) => from.trim_start_matches('v').to_owned(),
        (None, Some(from)) => from,
        (None, None) => {
            let lowest = lowest_version(&fleet.kubernetes).await?.to_string();
            events.emit(Event::VersionDetected(lowest.clone()));
            lowest
        }
    };
    let path = Path::new(&from, &to)?;
    let kept = if options.dry_run { None } else { options.progress.clone() };
    let progress = Progress::open(kept, &from, &to);
    let (control_planes, workers) = nodes(&fleet.kubernetes, options.kubelets).await?;
    events.emit(Event::ControlPlanes(control_planes.clone()));
    if options.kubelets {
        events.emit(Event::Workers(workers.clone()));
    }
    if progress.count() > 0 {
        events.emit(Event::Resumed { steps: progress.count() });
    }
    let mut upgrade =
        Upgrade { client, node, fleet, options, events, path, control_planes, workers, progress };
    upgrade.check_versions().await?;
    upgrade.check_removed().await?;
    if options.pre_pull {
        upgrade.pre_pull().await?;
    }
    upgrade.control_plane().await?;
    upgrade.kube_proxy().await?;
    if options.kubelets {
        upgrade.kubelets().await?;
    }
    upgrade.manifests().await?;
    upgrade.progress.finish();
    Ok(())
}

/// The way to the Kubernetes of the cluster.
type Kubernetes = Lazy<Routed>;

/// An upgrade on its way.
struct Upgrade<'a> {
    client: &'a Client,
    node: &'a str,
    fleet: &'a Fleet,
    options: &'a Options,
    events: &'a dyn Sink<Event>,
    path: Path,
    control_planes: Vec<String>,
    workers: Vec<String>,
    progress: Progress,
}

/// The lowest version among the components that run.
async fn lowest_version(kubernetes: &Kubernetes) -> Result<Version> {
    let pods = list(kubernetes, &Kind::PODS, SYSTEM).await;
    let pods = pods.map_err(|error| error.within("error detecting the lowest Kubernetes version"))?;
    lowest_of(&pods).ok_or_else(|| Problem::VersionNotDetected.into())
}

fn lowest_of(pods: &[Value]) -> Option<Version> {
    let containers = pods.iter().filter_map(|pod| {
        let app = pod["metadata"]["labels"]["k8s-app"].as_str()?;
        let containers = pod["spec"]["containers"].as_array()?;
        VERSIONED.contains(&app).then_some(())?;
        containers.iter().find(|container| container["name"] == app)
    });
    containers
        .filter_map(|container| Version::of_image(container["image"].as_str()?))
        .min_by_key(Version::numbers)
}

/// Lists objects, through an API that may be away for a moment.
async fn list(kubernetes: &Kubernetes, kind: &Kind, namespace: &str) -> Result<Vec<Value>> {
    let end = Instant::now() + API_AWAY_MAX;
    loop {
        let last = match kubernetes.client().await {
            Ok(client) => match client.list(kind, namespace, Select::default()).await {
                Ok(list) => return Ok(list.items),
                Err(error) => ichor_health::kube::text_of(&error),
            },
            Err(error) => error,
        };
        if Instant::now() > end {
            return Err(Problem::Kubernetes { doing: format!("list {}", kind.plural), reason: last }.into());
        }
        kubernetes.forget().await;
        sleep(PAUSE).await;
    }
}

/// The addresses of control planes and workers, as Kubernetes knows them.
async fn nodes(kubernetes: &Kubernetes, workers_too: bool) -> Result<(Vec<String>, Vec<String>)> {
    let nodes = list(kubernetes, &Kind::NODES, "").await?;
    let (mut control_planes, mut workers) = (Vec::new(), Vec::new());
    for node in &nodes {
        let address = objects::node_addresses(node).into_iter().next();
        match (objects::is_control_plane(node), address) {
            (true, Some(address)) => control_planes.push(address),
            (false, Some(address)) if workers_too => workers.push(address),
            _ => {}
        }
    }
    if control_planes.is_empty() {
        return Err(Error::state("no controlplane nodes discovered"));
    }
    Ok((control_planes, workers))
}

impl Upgrade<'_> {
    fn emit(&self, event: Event) {
        self.events.emit(event);
    }

    fn access(&self) -> &Access<Routed> {
        &self.fleet.access
    }

    fn kubernetes(&self) -> &Kubernetes {
        &self.fleet.kubernetes
    }

    fn all(&self) -> Vec<String> {
        [self.control_planes.clone(), self.workers.clone()].concat()
    }

    async fn check_versions(&self) -> Result<()> {
        for node in self.all() {
            let version = self.access().version(&node).await;
            let (system, _) = version
                .map_err(|status| Error::call(format!("error getting version on node {node:?}"), status))?;
            path::compatible(&system, &self.path.to).map_err(|text| {
                Error::state(format!("compatibility check failed on node {node:?}: {text}"))
            })?;
            let (system, to) = (system.trim_start_matches('v').to_owned(), self.path.to.to_string());
            self.emit(Event::Compatible { node, system, to });
        }
        Ok(())
    }

    /// Flags, feature gates and kinds that the new version no longer has must not be in use.
    async fn check_removed(&self) -> Result<()> {
        let Some(removed) = self.path.removed() else { return Ok(()) };
        self.emit(Event::CheckingFlags);
        let mut found = Vec::new();
        for node in &self.control_planes {
            for id in ["kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
                let pod = self.access().get(node, "k8s", "StaticPods.kubernetes.talos.dev", id).await;
                let Some(pod) = pod.map_err(|status| Error::call(node, status))? else { continue };
                // The pod is the spec itself, or a key of it.
                let spec = if pod.spec["spec"].is_null() { &pod.spec["pod"] } else { &pod.spec };
                let container = &spec["spec"]["containers"][0];
                let command =
                    [objects::texts(&container["command"]), objects::texts(&container["args"])].concat();
                found.extend(removed.used(node, id, &command));
            }
        }
        for node in self.all() {
            let spec = self.access().get(&node, "k8s", "KubeletSpecs.kubernetes.talos.dev", "kubelet").await;
            if let Some(spec) = spec.map_err(|status| Error::call(&node, status))? {
                found.extend(removed.used(&node, "kubelet", &objects::texts(&spec.spec["args"])));
            }
        }
        self.emit(Event::CheckingResources);
        let client = self.kubernetes().client().await.map_err(|reason| Problem::Kubernetes {
            doing: "error building kubernetes client".to_owned(),
            reason,
        })?;
        for (version, plural) in removed.kinds {
            let (group, version) = version.split_once('/').unwrap_or(("", version));
            let kind = Kind::known(group, version, plural, false);
            match client.list(&kind, "", Select::default()).await {
                Ok(list) if !list.items.is_empty() => found.push(Obsolete::Objects {
                    count: list.items.len(),
                    kind: format!("{plural}.{version}.{group}"),
                }),
                Ok(_) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => {
                    let doing = format!("error listing {plural}");
                    return Err(Problem::Kubernetes { doing, reason: error.to_string() }.into());
                }
            }
        }
        if found.is_empty() {
            return Ok(());
        }
        Err(Problem::Removed { to: self.path.to.to_string(), used: found }.into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_lowest_version_is_that_of_the_oldest_component() {
        let pod = |app: &str, image: &str| {
            json!({
                "metadata": {"labels": {"k8s-app": app}},
                "spec": {"containers": [{"name": "sidecar", "image": "x:v1.0.0"}, {"name": app, "image": image}]},
            })
        };
        let pods = [
            pod("kube-apiserver", "registry.k8s.io/kube-apiserver:v1.35.0"),
            pod("kube-proxy", "registry.k8s.io/kube-proxy:v1.34.10"),
            pod("kube-scheduler", "registry.k8s.io/kube-scheduler:v1.34.9"),
            pod("kube-dns", "registry.k8s.io/coredns/coredns:v1.13.2"),
            pod("kube-controller-manager", "registry.k8s.io/kube-controller-manager:odd"),
        ];
        assert_eq!(lowest_of(&pods).unwrap().to_string(), "1.34.9");
        assert_eq!(lowest_of(&[]), None);
    }

    #[test]
    fn an_image_is_a_repository_without_a_tag() {
        for good in ["registry.k8s.io/kube-apiserver", "localhost:5000/kubelet", "kubelet"] {
            assert!(check_image("kubelet", good).is_ok(), "{good}");
        }
        for bad in ["", "registry.k8s.io/kube-apiserver:v1.35.0", "a/b@sha256:00", "a b", "a/"] {
            assert!(check_image("kubelet", bad).is_err(), "{bad}");
        }
    }
}
