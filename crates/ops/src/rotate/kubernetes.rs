//! The rotation of the authority of Kubernetes.

use std::time::Duration;

use ichor_client::Client;
use ichor_config::generate::Secrets;
use ichor_config::v1alpha1::Config;
use ichor_health::{Kind, Machine, Topology, objects};
use ichor_kube::{Kind as Kinds, Select};
use jiff::Timestamp;

use super::{Authority, Change, Event, Options, Pairs, Trust, current, first_control_plane};
use crate::error::{Doing as _, Problem, Result};
use crate::event::Sink;
use crate::fleet::Fleet;
use crate::node_config::{self, ServiceWatch};
use crate::patience::patiently;
use crate::{settled, workloads};

/// How long all nodes may take to be ready again.
const READY_MAX: Duration = Duration::from_secs(3 * 60);
/// How long the kubelet may take to go away, and to come back. It goes when the pods of the control plane are new.
const KUBELET_DOWN_MAX: Duration = Duration::from_secs(60);
const KUBELET_UP_MAX: Duration = Duration::from_secs(5 * 60);

/// Replaces the authority of Kubernetes on all machines of the fleet.
pub async fn kubernetes(
    client: &Client,
    fleet: &Fleet,
    secrets: &Secrets,
    options: Options,
    events: &dyn Sink<Event>,
) -> Result<()> {
    let authority = Authority::Kubernetes;
    let topology = &fleet.topology;
    events.emit(Event::Started { authority, dry_run: options.dry_run });
    events.emit(Event::Topology(topology.clone()));
    events.emit(Event::KubernetesClient(Trust::Existing));
    fleet
        .kubernetes
        .client()
        .await
        .map_err(|reason| Problem::Kubernetes { doing: "error fetching kubeconfig".to_owned(), reason })?;
    let first = first_control_plane(topology)?;
    let old = current(&client.to_node(first), "KubernetesRootSecrets.secrets.talos.dev", "k8s").await?;
    events.emit(Event::Current(authority, old.clone()));
    let new = secrets.kubernetes_ca().doing("generate the new CA")?.clone();
    events.emit(Event::New(authority, new.clone()));
    let pairs = Pairs { old: old.crt.0, new };
    let rotation = Rotation { client, fleet, pairs: &pairs, options, events };
    rotation.ready(Trust::Existing).await?;
    for change in [Change::Accept, Change::Swap, Change::Drop] {
        events.emit(Event::Changing(authority, change));
        for machine in in_order(topology, change) {
            let node = machine.address.clone();
            if !options.dry_run {
                let changed = rotation.change(machine, change).await;
                changed.map_err(|error| error.within(format!("error patching node {node}")))?;
            }
            events.emit(Event::Changed { node, skipped: options.dry_run });
        }
        if change == Change::Accept && !options.dry_run {
            events.emit(Event::RestartingWorkloads);
            let stamp = Timestamp::now().to_string();
            for workload in workloads::refresh(fleet, first, &pairs.new.crt.0, &stamp).await? {
                events.emit(Event::WorkloadRestarted(workload));
            }
        }
        if change == Change::Swap {
            events.emit(Event::KubernetesClient(Trust::New));
            fleet.kubernetes.forget().await;
        }
        if change != Change::Accept {
            rotation.ready(Trust::New).await?;
        }
    }
    Ok(())
}

struct Rotation<'a> {
    client: &'a Client,
    fleet: &'a Fleet,
    pairs: &'a Pairs,
    options: Options,
    events: &'a dyn Sink<Event>,
}

impl Rotation<'_> {
    async fn change(&self, machine: &Machine, change: Change) -> Result<()> {
        let client = self.client.to_node(&machine.address);
        let edit =
            |config: &mut Config| self.pairs.apply(config, Authority::Kubernetes, change, machine.kind);
        let control_plane = machine.kind == Kind::ControlPlane;
        let before =
            if control_plane { settled::wanted(self.fleet, &machine.address).await? } else { Vec::new() };
        let watch = ServiceWatch::begin(&client, "kubelet").await?;
        if node_config::change(&client, self.options.comments, edit).await? {
            watch.restarted(KUBELET_DOWN_MAX, KUBELET_UP_MAX).await?;
            // The next machine waits for this one's pods, so that there is always an API that answers.
            if control_plane {
                settled::settle(self.fleet, &machine.address, &before).await?;
            }
        }
        Ok(())
    }

    /// All nodes are ready, as asked through the API.
    async fn ready(&self, trust: Trust) -> Result<()> {
        self.events.emit(Event::Verifying(Authority::Kubernetes, trust));
        if self.options.dry_run {
            self.events.emit(Event::NodesReady(None));
            return Ok(());
        }
        let count = patiently(self.fleet, READY_MAX, async |client| {
            let nodes = client.list(&Kinds::NODES, "", Select::default()).await?.items;
            let unready: Vec<String> =
                nodes.iter().filter(|node| !objects::is_ready(node)).map(objects::unready).collect();
            let missing = || format!("nodes not ready: [{}]", unready.join(" "));
            Ok(if unready.is_empty() { Ok(nodes.len()) } else { Err(missing()) })
        });
        self.events.emit(Event::NodesReady(Some(count.await?)));
        Ok(())
    }
}

/// Control planes come first, but for the last change: then the kubelets of workers get their new certificates while
/// those of before still count everywhere.
fn in_order(topology: &Topology, change: Change) -> Vec<&Machine> {
    let (control_planes, workers) = (topology.control_planes(), topology.workers());
    match change {
        Change::Accept | Change::Swap => control_planes.iter().chain(workers).collect(),
        Change::Drop => workers.iter().chain(control_planes).collect(),
    }
}
