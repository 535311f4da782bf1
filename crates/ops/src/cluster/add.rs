//! More machines for a cluster that runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ichor_client::Client;
use ichor_config::patch::Patch;
use ichor_config::talosconfig::ClientConfig;
use ichor_provision::{
    Cluster, Configs, Machine, MachineKind, MachineRequest, MachineStatus, Plan, Provider, Resources,
};

use super::bring_up::BringUp;
use super::inherit::inherit;
use super::{Event, Site, Step, provided, ready, shown};
use crate::error::{Error, Problem, Result};
use crate::event::Sink;
use crate::generate::patched;
use crate::node_config::{query, text_of};

/// Machines to add.
pub struct AddOptions {
    /// How many control planes.
    pub control_planes: usize,
    /// How many workers.
    pub workers: usize,
    /// Patches for their configuration.
    pub patches: Vec<Patch>,
}

/// Makes and starts machines with the configuration that a machine of their kind has now. `config` has the cluster as its
/// current context. Returns the cluster with its new machines; [`wait`] waits until they are part of it.
pub async fn add(
    provider: &Arc<dyn Provider>,
    site: &Site,
    config: &ClientConfig,
    options: &AddOptions,
    events: &dyn Sink<Event>,
) -> Result<Site> {
    let started = Instant::now();
    events.emit(Event::Step(Step::ReadingConfiguration));
    let client = site.client(config, "")?;
    client.connect().await.map_err(Problem::Unreachable)?;
    let requests = requests(&site.cluster, options)?;
    let name = site.cluster.name.clone();
    let plan = provided(provider, events, move |provider, _| provider.plan_more(&name, &requests)).await?;
    let configs = configs(&client, &site.cluster, &plan, &options.patches).await?;
    let made = provided(provider, events, move |provider, steps| provider.add(&plan, &configs, steps));
    let after = Site::new(&**provider, made.await?);
    events.emit(Event::Done);
    events.emit(Event::Phase { name: "start", took: started.elapsed() });
    Ok(after)
}

impl Site {
    /// Waits until the cluster is healthy, with machines that were just added.
    pub async fn wait(
        &self,
        config: &ClientConfig,
        nodes: bool,
        limit: Duration,
        events: &dyn Sink<Event>,
    ) -> Result<()> {
        let bring_up = BringUp::new(config, self, limit)?;
        events.emit(Event::Step(Step::NewMachines));
        if bring_up.has_kubernetes().await? {
            return bring_up.wait(nodes, events).await;
        }
        let since = Instant::now();
        let access = ready::Access::Configured(config.clone());
        access.wait(self, limit, events).await?;
        events.emit(Event::Phase { name: "machines", took: since.elapsed() });
        Ok(())
    }

    /// The same with each machine's present status.
    pub async fn refreshed(&self, provider: &Arc<dyn Provider>) -> Result<Self> {
        Ok(Self::new(&**provider, shown(provider, &self.cluster.name).await?))
    }
}

/// What to ask the provider for.
fn requests(cluster: &Cluster, options: &AddOptions) -> Result<Vec<MachineRequest>> {
    let mut requests: Vec<MachineRequest> = Vec::new();
    let kinds = [(MachineKind::ControlPlane, options.control_planes), (MachineKind::Worker, options.workers)];
    for (kind, count) in kinds {
        let first = cluster.next_number(kind);
        for number in first..first + count {
            requests.push(MachineRequest {
                name: format!("{}-{kind}-{number}", cluster.name),
                kind,
                kernel_args: source_of(cluster, kind)?.kernel_args.clone(),
                resources: size_of(cluster, kind),
            });
        }
    }
    Ok(requests)
}

/// The configuration of each new machine, inherited and patched.
async fn configs(client: &Client, cluster: &Cluster, plan: &Plan, patches: &[Patch]) -> Result<Configs> {
    let mut sources: Vec<(MachineKind, String)> = Vec::new();
    let mut configs = Configs::new();
    for new in &plan.new {
        let kind = plan.cluster.machine(&new.name)?.kind;
        let source = match sources.iter().find(|(known, _)| *known == kind) {
            Some((_, text)) => text.clone(),
            None => {
                let text = config_of(client, source_of(cluster, kind)?).await?;
                sources.push((kind, text.clone()));
                text
            }
        };
        let own = inherit(&source, kind, &new.sans)?;
        configs.insert(new.name.clone(), patched("configuration", own, patches)?);
    }
    Ok(configs)
}

/// The machine whose configuration a new one inherits: one of its kind that runs, else a control plane.
fn source_of(cluster: &Cluster, kind: MachineKind) -> Result<&Machine> {
    let running = |kind: MachineKind| {
        let runs = |machine: &&Machine| machine.kind == kind && machine.status == MachineStatus::Running;
        cluster.machines.iter().find(runs)
    };
    let none = || Problem::NoControlPlaneRuns { cluster: cluster.name.clone() };
    Ok(running(kind).or_else(|| running(MachineKind::ControlPlane)).ok_or_else(none)?)
}

/// As large as the first of its kind.
fn size_of(cluster: &Cluster, kind: MachineKind) -> Resources {
    let first = cluster.machines.iter().find(|machine| machine.kind == kind);
    first.or(cluster.machines.first()).map(|machine| machine.resources).unwrap_or_default()
}

/// The configuration a machine has now.
async fn config_of(client: &Client, machine: &Machine) -> Result<String> {
    let node = client.to(ichor_client::Target::Node(machine.address()));
    let found = node.get(&query("config", "MachineConfigs.config.talos.dev", "v1alpha1")).await;
    let found = found.map_err(|status| Error::call(format!("{}: configuration", machine.name), status))?;
    text_of(&found)
}
