//! `upgrade-k8s`: brings Kubernetes to another version.

use std::path::PathBuf;

use ichor_config::CommentMode;
use ichor_ops::upgrade::{self, Event, Images, Options};
use ichor_ops::{Problem, fleet as ops_fleet};

use crate::connection::Connection;
use crate::failure::Failure;
use crate::parse::Call;
use crate::session::{Session, block_on, warn_of_old_versions};
use crate::table::{Command, Flag, Group};
use crate::{fleet, profile, say};

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

/// The command line, resolved.
struct UpgradeFlags {
    connection: Connection,
    endpoint: String,
    options: Options,
}

impl UpgradeFlags {
    fn of(call: &Call) -> Result<Self, Failure> {
        let text = |name: &str| call.text(name).to_owned();
        let connection = call.connection();
        let options = Options {
            from: call.some_text("from").map(str::to_owned),
            to: text("to"),
            images: Images {
                apiserver: text("apiserver-image"),
                controller_manager: text("controller-manager-image"),
                scheduler: text("scheduler-image"),
                proxy: text("proxy-image"),
                kubelet: text("kubelet-image"),
            },
            kubelets: call.on("upgrade-kubelet"),
            pre_pull: call.on("pre-pull-images"),
            dry_run: call.on("dry-run"),
            comments: comments(call),
            progress: None,
        };
        options.images.check().map_err(explained)?;
        Ok(Self { connection, endpoint: text("endpoint"), options })
    }
}

fn run(call: &Call) -> Result<(), Failure> {
    let flags = UpgradeFlags::of(call)?;
    block_on(upgrade(flags))
}

async fn upgrade(mut flags: UpgradeFlags) -> Result<(), Failure> {
    let route = fleet::route(&flags.connection, &flags.endpoint)?;
    let session = Session::open(&flags.connection).await?;
    session.only()?;
    warn_of_old_versions(&session).await;
    flags.options.progress = progress_path(&flags.connection);
    let client = session.endpoint();
    // Any control plane hands out a kubeconfig; the one that was named is asked.
    let topology = ichor_health::Topology::named(&session.nodes, &[]);
    let fleet = ops_fleet::over(ops_fleet::access(&client), topology, &route);
    let told = |event: Event| say(&text(&event));
    upgrade::run(&client, &session.nodes[0], &fleet, &flags.options, &told).await.map_err(explained)
}

/// Where progress is kept: beside the client configuration, by context.
fn progress_path(connection: &Connection) -> Option<PathBuf> {
    let (config, path) = profile::open(connection).ok()?;
    let (name, _) = profile::context(&config, connection.context.as_deref()).ok()?;
    let safe: String =
        name.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect();
    Some(path.parent()?.join("upgrade-k8s").join(format!("{safe}.json")))
}

/// Adds what to do about an error, in terms of the flags.
fn explained(error: ichor_ops::Error) -> Failure {
    let hint = match error.problem() {
        Problem::BadImage { .. } => Some("name the repository alone, without a tag"),
        Problem::UnsupportedUpgrade { .. } => Some("upgrade one minor version at a time"),
        Problem::VersionNotDetected => Some("name it with --from"),
        Problem::Removed { .. } => Some("take it out of the machine configuration, then upgrade"),
        Problem::Kubernetes { .. } => {
            Some("outside of the cluster's network name the address of its API with --endpoint")
        }
        _ => None,
    };
    let failure = Failure::from(error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn quoted(list: &[String]) -> String {
    let items: Vec<String> = list.iter().map(|item| format!("{item:?}")).collect();
    format!("[{}]", items.join(" "))
}

/// The line of an event.
fn text(event: &Event) -> String {
    match event {
        Event::VersionDetected(version) => {
            format!("automatically detected the lowest Kubernetes version {version}")
        }
        Event::ControlPlanes(nodes) => format!("discovered controlplane nodes {}", quoted(nodes)),
        Event::Workers(nodes) => format!("discovered worker nodes {}", quoted(nodes)),
        Event::Resumed { steps } => {
            format!("going on with an upgrade that was broken off: {steps} steps are done")
        }
        Event::Compatible { node, system, to } => {
            format!("> {node:?}: Talos version {system} is compatible with Kubernetes version {to}")
        }
        Event::CheckingFlags => "checking for removed Kubernetes component flags".to_owned(),
        Event::CheckingResources => "checking for removed Kubernetes API resource versions".to_owned(),
        Event::Pulling { node, image } => format!(" > {node:?}: pre-pulling {image}"),
        Event::PullUnsupported { node } => format!(" < {node:?}: not implemented, skipping"),
        // The original quotes the names of static pods only.
        Event::Component { name: name @ ("kube-proxy" | "kubelet"), to } => {
            format!("updating {name} to version \"{to}\"")
        }
        Event::Component { name, to } => format!("updating {name:?} to version \"{to}\""),
        Event::NodeStarted { node } => format!(" > {node:?}: starting update"),
        Event::VersionChange { name, from, to } => format!(" > update {name}: {from} -> {to}"),
        Event::Skipped => " > skipped in dry-run".to_owned(),
        Event::Patched { node } => format!(" > {node:?}: machine configuration patched"),
        Event::WaitingForPod { node, name } => format!(" > {node:?}: waiting for {name} pod update"),
        Event::PodBehind { node, name, reason } => format!(" > {node:?}: {name}: {reason}"),
        Event::WaitingForKubelet { node } => format!(" > {node:?}: waiting for kubelet restart"),
        Event::WaitingForNode { node } => format!(" > {node:?}: waiting for node update"),
        Event::NodeDone { node } => format!(" < {node:?}: successfully updated"),
        Event::Manifests => "updating manifests".to_owned(),
        Event::Manifest { object, difference, applied } => {
            let outcome = match (difference, applied) {
                (None, _) => " < no changes".to_owned(),
                (Some(text), false) => format!("{}\n < dry run, change skipped", text.trim_end()),
                (Some(text), true) => format!("{}\n < applied successfully", text.trim_end()),
            };
            format!(" > processing manifest {object}\n{outcome}")
        }
        Event::WaitingForManifests => "waiting for all manifests to be applied".to_owned(),
        Event::WaitingForRollout { object } => format!(" > waiting for {object}"),
    }
}
