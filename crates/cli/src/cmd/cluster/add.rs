//! `cluster add`: more machines for a cluster that runs.

use std::time::Instant;

use ichor_client::Client;
use ichor_client::profile::{Overrides, Profile};
use ichor_client::resources::Query;
use ichor_config::talosconfig::ClientConfig;
use ichor_provision::{
    Cluster, Machine, MachineKind, MachineRequest, MachineStatus, Provider as _, Resources,
};

use super::bring_up::{BringUp, Times};
use super::create::MACHINES_MAX;
use super::inherit::inherit;
use super::{failed, ready, sandbox, show};
use crate::failure::{Failure, chain};
use crate::parse::Call;
use crate::session::block_on;
use crate::table::{Command, Complete, Flag};
use crate::term::Progress;
use crate::{explain, machineconfig, print, profile};

/// The command.
pub static ADD: Command = Command {
    name: "add",
    about: "Add machines to a cluster that runs",
    long: "Adds machines to a cluster that runs. They get the configuration that a machine of their kind has now, so\n\
           they join whatever has become of the cluster since it was made. Control planes become members of etcd one\n\
           after the other. The command ends when the whole cluster is healthy.",
    examples: &["cluster add --name lab --workers 1", "cluster add --name lab --controlplanes 2"],
    flags: &[
        Flag::int("controlplanes", "0", "number of control plane machines to add"),
        Flag::int("workers", "0", "number of worker machines to add"),
        Flag::repeated("config-patch", "patch for the new machines, as text or @file"),
        Flag::switch("wait", "wait until the cluster is healthy").default("true"),
        Flag::duration("wait-timeout", "20m0s", "give up waiting after this time"),
        Flag::switch(
            "skip-k8s-node-readiness-check",
            "do not wait for nodes to be ready, as without a network for pods",
        ),
        Flag::text("talosconfig", "client configuration with the cluster's context").complete(Complete::File),
    ],
    run: Some(run),
    ..Command::EMPTY
};

fn run(call: &Call) -> Result<(), Failure> {
    let counts = [(MachineKind::ControlPlane, "controlplanes"), (MachineKind::Worker, "workers")];
    let mut wanted = Vec::new();
    for (kind, flag) in counts {
        let count = usize::try_from(call.int(flag)).ok().filter(|count| *count <= MACHINES_MAX as usize);
        let count =
            count.ok_or_else(|| Failure::new(format!("--{flag} must lie between 0 and {MACHINES_MAX}")))?;
        wanted.extend(std::iter::repeat_n(kind, count));
    }
    if wanted.is_empty() {
        return Err(
            Failure::new("there is nothing to add").hint("say how many with --controlplanes or --workers")
        );
    }
    machineconfig::load_patches(&call.list("config-patch"))?;
    let provider = sandbox(call)?;
    let before = provider.show(call.text("name")).map_err(|error| failed(&error))?;
    let location = profile::locate_at(call.some_text("talosconfig"))?;
    let (config, path) = profile::open_at(&location)?;
    let context = context_of(&config, &before)?;
    let mut times = Times::default();
    let mut progress = Progress::new();
    let started = Instant::now();
    progress.step("reading the configuration of the cluster");
    let mut planned = Vec::new();
    let plan = async {
        planned = requests(call, &context, &before, &wanted).await?;
        Ok(())
    };
    block_on(plan).inspect_err(|_| progress.failed())?;
    let added = provider.add(&before.name, &planned, &mut |step| progress.step(step));
    let cluster = added.map_err(|error| {
        progress.failed();
        failed(&error)
    })?;
    progress.done();
    let config = follow(config, &before, &cluster);
    profile::save(&config, &path)?;
    times.note("start", started);
    if call.on("wait") {
        let context = context_of(&config, &cluster)?;
        let waited = block_on(wait(call, &context, &cluster, &mut progress, &mut times));
        if let Err(failure) = waited {
            progress.failed();
            return Err(failure);
        }
        progress.done();
    }
    print(&show::cluster_text(&provider.show(&cluster.name).unwrap_or(cluster)))?;
    eprint!("\n{}", times.text());
    Ok(())
}

/// The client configuration with the cluster as its current context.
pub fn context_of(config: &ClientConfig, cluster: &Cluster) -> Result<ClientConfig, Failure> {
    match ready::Access::find(config, cluster) {
        ready::Access::Configured(config) => Ok(config),
        ready::Access::Maintenance => {
            Err(Failure::new(format!("the client configuration has no context for cluster {}", cluster.name))
                .hint("name the file that has it with --talosconfig"))
        }
    }
}

/// A client of the control planes of a cluster that run, without one of them.
pub fn client(config: &ClientConfig, cluster: &Cluster, without: &str) -> Result<Client, Failure> {
    let plain = |error: &dyn std::error::Error| Failure::new(chain(error));
    let running = cluster.control_planes().filter(|machine| machine.status == MachineStatus::Running);
    let endpoints: Vec<String> = running
        .filter(|machine| machine.name != without)
        .map(|machine| machine.loopback.to_string())
        .collect();
    if endpoints.is_empty() {
        return Err(Failure::new(format!("no control plane of cluster {} runs", cluster.name))
            .hint(format!("start them with `ichorctl cluster start --name {}`", cluster.name)));
    }
    let overrides = Overrides { endpoints, ..Overrides::default() };
    let profile = Profile::resolve(config, &overrides).map_err(|error| plain(&error))?;
    profile.client().map_err(|error| plain(&error))
}

/// What to ask the provider for.
async fn requests(
    call: &Call,
    config: &ClientConfig,
    cluster: &Cluster,
    wanted: &[MachineKind],
) -> Result<Vec<MachineRequest>, Failure> {
    let client = client(config, cluster, "")?;
    client.connect().await.map_err(|error| explain::unreachable(&error))?;
    let mut layout = cluster.clone();
    let mut requests: Vec<MachineRequest> = Vec::new();
    let mut sources: Vec<(MachineKind, String)> = Vec::new();
    for kind in wanted {
        let like = source_of(cluster, *kind)?;
        let request = MachineRequest {
            name: format!("{}-{kind}-{}", cluster.name, layout.next_number(*kind)),
            kind: *kind,
            config: None,
            kernel_args: like.kernel_args.clone(),
            resources: size_of(cluster, *kind),
        };
        layout.grow(std::slice::from_ref(&request)).map_err(|error| failed(&error))?;
        if !sources.iter().any(|(known, _)| known == kind) {
            sources.push((*kind, config_of(&client, like).await?));
        }
        requests.push(request);
    }
    for request in &mut requests {
        let machine = layout.machine(&request.name).map_err(|error| failed(&error))?;
        let source = sources.iter().find(|(kind, _)| *kind == request.kind);
        let source = source.map(|(_, text)| text.as_str()).unwrap_or_default();
        let own = inherit(source, request.kind, &machine.loopback.to_string())?;
        request.config = Some(machineconfig::patched(own, &call.list("config-patch"))?);
    }
    Ok(requests)
}

/// The machine whose configuration a new one inherits: one of its kind that runs, else a control plane.
fn source_of(cluster: &Cluster, kind: MachineKind) -> Result<&Machine, Failure> {
    let running = |kind: MachineKind| {
        let runs = |machine: &&Machine| machine.kind == kind && machine.status == MachineStatus::Running;
        cluster.machines.iter().find(runs)
    };
    running(kind).or_else(|| running(MachineKind::ControlPlane)).ok_or_else(|| {
        Failure::new(format!("no control plane of cluster {} runs", cluster.name))
            .hint(format!("start them with `ichorctl cluster start --name {}`", cluster.name))
    })
}

/// As large as the first of its kind.
fn size_of(cluster: &Cluster, kind: MachineKind) -> Resources {
    let first = cluster.machines.iter().find(|machine| machine.kind == kind);
    first.or(cluster.machines.first()).map(|machine| machine.resources).unwrap_or_default()
}

/// The configuration a machine has now.
async fn config_of(client: &Client, machine: &Machine) -> Result<String, Failure> {
    let query = Query {
        namespace: "config".to_owned(),
        resource_type: "MachineConfigs.config.talos.dev".to_owned(),
        id: Some("v1alpha1".to_owned()),
    };
    let node = client.to(ichor_client::Target::Node(machine.address.to_string()));
    let found = node.get(&query).await;
    let found =
        found.map_err(|status| explain::status(&format!("{}: configuration", machine.name), &status))?;
    machineconfig::text_of(&found)
}

/// The client configuration after machines came or went: endpoints are the control planes, in their order.
pub fn follow(mut config: ClientConfig, before: &Cluster, after: &Cluster) -> ClientConfig {
    let Ok(ClientConfig { context: name, .. }) = context_of(&config, before) else { return config };
    let Some(context) = config.contexts.entries_mut().get_mut(&name) else { return config };
    context.endpoints = after.control_planes().map(|machine| machine.loopback.to_string()).collect();
    let there = |node: &String| after.machines.iter().any(|machine| machine.address.to_string() == *node);
    let ours = |node: &String| before.machines.iter().any(|machine| machine.address.to_string() == *node);
    context.nodes.items_mut().retain(|node| there(node) || !ours(node));
    if context.nodes.is_empty() {
        context.nodes = after.control_planes().take(1).map(|machine| machine.address.to_string()).collect();
    }
    config
}

async fn wait(
    call: &Call,
    config: &ClientConfig,
    cluster: &Cluster,
    progress: &mut Progress,
    times: &mut Times,
) -> Result<(), Failure> {
    let limit = call.duration("wait-timeout");
    let bring_up = BringUp::new(config, cluster, limit)?;
    progress.step("waiting for the new machines");
    if bring_up.has_kubernetes().await? {
        return bring_up.wait(!call.on("skip-k8s-node-readiness-check"), progress, times).await;
    }
    let since = Instant::now();
    let access = ready::Access::Configured(config.clone());
    ready::wait(&access, &cluster.machines, limit, progress, |_| {}).await?;
    times.note("machines", since);
    Ok(())
}
