//! `upgrade-k8s`: brings Kubernetes to another version, one component and machine at a time.

mod components;
mod sync;

use std::path::PathBuf;
use std::time::Duration;

use ichor_config::CommentMode;
use ichor_health::{Access, Lazy, objects};
use ichor_kube::{Kind, Select};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::failure::Failure;
use crate::fleet::{self, Fleet};
use crate::kubernetes::path::{self, Path, Version};
use crate::kubernetes::progress::Progress;
use crate::parse::Call;
use crate::session::{Session, block_on, warn_of_old_versions};
use crate::table::{Command, Flag, Group};
use crate::{print, profile};

/// The namespace of the system.
const SYSTEM: &str = ichor_health::kube::SYSTEM;
/// The components whose versions count.
const VERSIONED: [&str; 4] = ["kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler"];
/// How long the API may be away while its server is replaced.
const API_AWAY_MAX: Duration = Duration::from_secs(60);
/// Between two looks at an API that was away.
const PAUSE: Duration = Duration::from_millis(500);

/// How much is written into changed configurations, for commands that change them.
pub(super) static CONFIG_TEXT_FLAGS: &[Flag] = &[
    Flag::switch("with-docs", "describe every key in the changed configurations").default("true"),
    Flag::switch("with-examples", "show samples in the changed configurations").default("true"),
];

/// The comments those flags ask for.
pub(super) fn comments(call: &Call) -> CommentMode {
    super::gen_config::comments(call.on("with-docs"), call.on("with-examples"))
}

/// `upgrade-k8s`.
pub static UPGRADE_K8S: Command = Command {
    name: "upgrade-k8s",
    group: Group::Machines,
    about: "Upgrade Kubernetes",
    long: "Upgrades the control plane, kube-proxy, the kubelets and the manifests, one machine at a time, after\n\
           checking that machines and settings allow it. What is done is noted: an upgrade that was broken off\n\
           goes on where it ended when the command is given again.",
    examples: &["upgrade-k8s --to 1.35.0 --dry-run", "upgrade-k8s --to 1.35.0"],
    flags: &[
        Flag::text("apiserver-image", "image of kube-apiserver").default("registry.k8s.io/kube-apiserver"),
        Flag::text("controller-manager-image", "image of kube-controller-manager")
            .default("registry.k8s.io/kube-controller-manager"),
        Flag::switch("dry-run", "show what would be done"),
        Flag::text("endpoint", "address of the Kubernetes API"),
        Flag::text("from", "version to upgrade from; found out without it"),
        Flag::text("kubelet-image", "image of the kubelet").default("ghcr.io/siderolabs/kubelet"),
        Flag::switch("pre-pull-images", "pull images before anything changes").default("true"),
        Flag::text("proxy-image", "image of kube-proxy").default("registry.k8s.io/kube-proxy"),
        Flag::text("scheduler-image", "image of kube-scheduler").default("registry.k8s.io/kube-scheduler"),
        Flag::text("to", "version to upgrade to").default("1.35.0"),
        Flag::switch("upgrade-kubelet", "upgrade the kubelet too").default("true"),
    ],
    shared_flags: CONFIG_TEXT_FLAGS,
    run: Some(run),
    ..Command::EMPTY
};

/// The way to the Kubernetes of the cluster.
type Kubernetes = Lazy<ichor_client::Routed>;

/// An upgrade on its way.
pub(super) struct Upgrade<'a> {
    call: &'a Call,
    session: Session,
    fleet: Fleet,
    path: Path,
    dry_run: bool,
    control_planes: Vec<String>,
    workers: Vec<String>,
    progress: Progress,
}

fn run(call: &Call) -> Result<(), Failure> {
    block_on(upgrade(call))
}

async fn upgrade(call: &Call) -> Result<(), Failure> {
    for flag in
        ["kubelet-image", "apiserver-image", "controller-manager-image", "scheduler-image", "proxy-image"]
    {
        check_image(flag, call.text(flag))?;
    }
    let hosts = profile::load(call)?.hosts();
    let session = Session::open(call).await?;
    session.only(call)?;
    warn_of_old_versions(&session).await;
    let access = fleet::access(&session);
    // Any control plane hands out a kubeconfig; the one that was named is asked.
    let topology = ichor_health::Topology::named(&session.nodes, &[]);
    let fleet = fleet::over(access, topology, &hosts, call.text("endpoint"))?;
    let kept = progress_path(call);
    let to = call.text("to").trim_start_matches('v').to_owned();
    let begun = kept.as_deref().and_then(|path| Progress::begun_from(path, &to));
    let from = match (call.some_text("from"), begun) {
        (Some(from), _) => from.trim_start_matches('v').to_owned(),
        (None, Some(from)) => from,
        (None, None) => {
            let lowest = lowest_version(&fleet.kubernetes).await?;
            say(&format!("automatically detected the lowest Kubernetes version {lowest}"))?;
            lowest.to_string()
        }
    };
    let path = Path::new(&from, &to)?;
    let dry_run = call.on("dry-run");
    let progress = Progress::open(if dry_run { None } else { kept }, &from, &to);
    let (control_planes, workers) = nodes(&fleet.kubernetes, call.on("upgrade-kubelet")).await?;
    say(&format!("discovered controlplane nodes {}", quoted(&control_planes)))?;
    if call.on("upgrade-kubelet") {
        say(&format!("discovered worker nodes {}", quoted(&workers)))?;
    }
    if progress.count() > 0 {
        say(&format!("going on with an upgrade that was broken off: {} steps are done", progress.count()))?;
    }
    let mut upgrade = Upgrade { call, session, fleet, path, dry_run, control_planes, workers, progress };
    upgrade.check_versions().await?;
    upgrade.check_removed().await?;
    if call.on("pre-pull-images") {
        upgrade.pre_pull().await?;
    }
    upgrade.control_plane().await?;
    upgrade.kube_proxy().await?;
    if call.on("upgrade-kubelet") {
        upgrade.kubelets().await?;
    }
    upgrade.manifests().await?;
    upgrade.progress.finish();
    Ok(())
}

/// Where progress is kept: beside the client configuration, by context.
fn progress_path(call: &Call) -> Option<PathBuf> {
    let (config, path) = profile::open(call).ok()?;
    let (name, _) = profile::context(&config, call.some_text("context")).ok()?;
    let safe: String =
        name.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect();
    Some(path.parent()?.join("upgrade-k8s").join(format!("{safe}.json")))
}

/// A repository: no tag, no digest, nothing a reference cannot have.
fn check_image(flag: &str, text: &str) -> Result<(), Failure> {
    let name = flag.trim_end_matches("-image");
    let last = text.rsplit('/').next().unwrap_or_default();
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-/:".contains(c);
    if text.is_empty() || last.is_empty() || last.contains([':', '@']) || !text.chars().all(good) {
        return Err(Failure::new(format!(
            "invalid upgrade options: {name}: invalid image reference: {text}"
        ))
        .hint("name the repository alone, without a tag"));
    }
    Ok(())
}

fn say(line: &str) -> Result<(), Failure> {
    print(&format!("{line}\n"))
}

fn quoted(list: &[String]) -> String {
    let items: Vec<String> = list.iter().map(|item| format!("{item:?}")).collect();
    format!("[{}]", items.join(" "))
}

fn kubernetes_failed(error: String) -> Failure {
    Failure::new(format!("error building kubernetes client: {error}"))
        .hint("outside of the cluster's network name the address of its API with --endpoint")
}

/// The lowest version among the components that run.
async fn lowest_version(kubernetes: &Kubernetes) -> Result<Version, Failure> {
    let pods = list(kubernetes, &Kind::PODS, SYSTEM).await;
    let pods = pods.map_err(|failure| failure.within("error detecting the lowest Kubernetes version"))?;
    lowest_of(&pods)
        .ok_or_else(|| Failure::new("failed to detect lowest Kubernetes version").hint("name it with --from"))
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
async fn list(kubernetes: &Kubernetes, kind: &Kind, namespace: &str) -> Result<Vec<Value>, Failure> {
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
            return Err(Failure::new(format!("list {}: {last}", kind.plural))
                .hint("outside of the cluster's network name the address of its API with --endpoint"));
        }
        kubernetes.forget().await;
        sleep(PAUSE).await;
    }
}

/// The addresses of control planes and workers, as Kubernetes knows them.
async fn nodes(kubernetes: &Kubernetes, workers_too: bool) -> Result<(Vec<String>, Vec<String>), Failure> {
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
        return Err(Failure::new("no controlplane nodes discovered"));
    }
    Ok((control_planes, workers))
}

impl Upgrade<'_> {
    fn access(&self) -> &Access<ichor_client::Routed> {
        &self.fleet.access
    }

    fn kubernetes(&self) -> &Kubernetes {
        &self.fleet.kubernetes
    }

    fn all(&self) -> Vec<String> {
        [self.control_planes.clone(), self.workers.clone()].concat()
    }

    async fn check_versions(&self) -> Result<(), Failure> {
        for node in self.all() {
            let version = self.access().version(&node).await;
            let (system, _) = version.map_err(|status| {
                Failure::new(format!("error getting version on node {node:?}: {}", status.message()))
            })?;
            path::compatible(&system, &self.path.to).map_err(|text| {
                Failure::new(format!("compatibility check failed on node {node:?}: {text}"))
            })?;
            say(&format!(
                "> {node:?}: Talos version {} is compatible with Kubernetes version {}",
                system.trim_start_matches('v'),
                self.path.to
            ))?;
        }
        Ok(())
    }

    /// Flags, feature gates and kinds that the new version no longer has must not be in use.
    async fn check_removed(&self) -> Result<(), Failure> {
        let Some(removed) = self.path.removed() else { return Ok(()) };
        say("checking for removed Kubernetes component flags")?;
        let read_failed =
            |node: &str, status: tonic::Status| Failure::new(format!("{node}: {}", status.message()));
        let mut found = Vec::new();
        for node in &self.control_planes {
            for id in ["kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
                let pod = self.access().get(node, "k8s", "StaticPods.kubernetes.talos.dev", id).await;
                let Some(pod) = pod.map_err(|status| read_failed(node, status))? else { continue };
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
            if let Some(spec) = spec.map_err(|status| read_failed(&node, status))? {
                found.extend(removed.used(&node, "kubelet", &objects::texts(&spec.spec["args"])));
            }
        }
        say("checking for removed Kubernetes API resource versions")?;
        let client = self.kubernetes().client().await.map_err(kubernetes_failed)?;
        for (version, plural) in removed.kinds {
            let (group, version) = version.split_once('/').unwrap_or(("", version));
            let kind = Kind::known(group, version, plural, false);
            match client.list(&kind, "", Select::default()).await {
                Ok(list) if !list.items.is_empty() => {
                    found.push(format!("{} objects of {plural}.{version}.{group}", list.items.len()));
                }
                Ok(_) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(Failure::new(format!("error listing {plural}: {error}"))),
            }
        }
        if found.is_empty() {
            return Ok(());
        }
        Err(Failure::new(format!(
            "Kubernetes {} no longer has what is in use:\n  {}",
            self.path.to,
            found.join("\n  ")
        ))
        .hint("take it out of the machine configuration, then upgrade"))
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
            assert!(check_image("kubelet-image", good).is_ok(), "{good}");
        }
        for bad in ["", "registry.k8s.io/kube-apiserver:v1.35.0", "a/b@sha256:00", "a b", "a/"] {
            assert!(check_image("kubelet-image", bad).is_err(), "{bad}");
        }
    }
}
