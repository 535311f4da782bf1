//! A cluster with the ways to it from here.

use ichor_client::Client;
use ichor_client::profile::{Overrides, Profile};
use ichor_config::talosconfig::ClientConfig;
use ichor_health::{Kind, Topology};
use ichor_provision::{Cluster, Endpoint, Machine, MachineKind, MachineStatus, Provider};
use ichor_rpc::Endpoint as KubernetesEndpoint;

use crate::error::{Doing as _, Problem, Result};
use crate::fleet::{self, Fleet, Route};

/// The port of the machine API.
pub const MACHINE_PORT: u16 = 50000;

/// A cluster, where its machines are reached and where its Kubernetes is.
#[derive(Clone, Debug)]
pub struct Site {
    /// The cluster.
    pub cluster: Cluster,
    /// In the order of the machines.
    reach: Vec<Endpoint>,
    kubernetes: Vec<Endpoint>,
}

impl Site {
    /// A cluster as its provider reaches it.
    pub fn new(provider: &dyn Provider, cluster: Cluster) -> Self {
        let reach = cluster.machines.iter().map(|machine| provider.reach(&cluster, machine)).collect();
        let kubernetes = provider.kubernetes(&cluster);
        Self { cluster, reach, kubernetes }
    }

    /// Its machines, each with where its API is, as client configurations write it.
    pub fn machines(&self) -> impl Iterator<Item = (&Machine, String)> {
        self.cluster.machines.iter().zip(self.reach.iter().map(|endpoint| endpoint.short(MACHINE_PORT)))
    }

    /// Where the APIs of its control planes are.
    pub fn control_plane_endpoints(&self) -> Vec<String> {
        let control_planes = self.machines().filter(|(own, _)| own.kind == MachineKind::ControlPlane);
        control_planes.map(|(_, endpoint)| endpoint).collect()
    }

    /// Where the APIs of all machines are.
    pub fn endpoints(&self) -> Vec<String> {
        self.machines().map(|(_, endpoint)| endpoint).collect()
    }

    /// Where its Kubernetes API is, as kubeconfigs write it; the cluster's own endpoint first.
    pub fn kubernetes_servers(&self) -> Vec<String> {
        self.kubernetes.iter().map(|endpoint| format!("https://{endpoint}")).collect()
    }

    /// A machine by its name or one of its addresses.
    pub fn find(&self, name: &str) -> Result<Machine> {
        let is = |(machine, endpoint): &(&Machine, String)| {
            machine.name == name || machine.has_address(name) || endpoint == name
        };
        match self.machines().find(is) {
            Some((machine, _)) => Ok(machine.clone()),
            None => Ok(self.cluster.machine(name).cloned()?),
        }
    }

    /// The same without a machine.
    pub(super) fn without(&self, name: &str) -> Self {
        let mut site = self.clone();
        let keep: Vec<bool> = self.cluster.machines.iter().map(|machine| machine.name != name).collect();
        let mut kept = keep.iter();
        site.cluster.machines.retain(|_| kept.next().copied().unwrap_or_default());
        let mut kept = keep.iter();
        site.reach.retain(|_| kept.next().copied().unwrap_or_default());
        site
    }

    /// The machines as checks know them.
    fn topology(&self) -> Topology {
        let machine = |machine: &Machine| {
            let kind = match machine.kind {
                MachineKind::ControlPlane => Kind::ControlPlane,
                MachineKind::Worker => Kind::Worker,
            };
            ichor_health::Machine::at(machine.address(), kind)
        };
        Topology::new(self.cluster.machines.iter().map(machine).collect())
    }

    /// The whole cluster behind a client.
    pub(super) fn fleet(&self, client: &Client) -> Fleet {
        let first = self.kubernetes.first();
        let endpoint = first.map(|endpoint| KubernetesEndpoint::new(endpoint.host.clone(), endpoint.port));
        fleet::over(fleet::access(client), self.topology(), &Route { endpoint, hosts: Vec::new() })
    }

    /// A client of the first control plane.
    pub(super) fn first_client(&self, config: &ClientConfig) -> Result<Client> {
        client(config, self.control_plane_endpoints().into_iter().take(1).collect())
    }

    /// A client of the control planes that run, without the machine of this name.
    pub(super) fn client(&self, config: &ClientConfig, without: &str) -> Result<Client> {
        let runs = |machine: &Machine| {
            let control_plane = machine.kind == MachineKind::ControlPlane;
            control_plane && machine.status == MachineStatus::Running && machine.name != without
        };
        let running = self.machines().filter(|(machine, _)| runs(machine));
        let endpoints: Vec<String> = running.map(|(_, endpoint)| endpoint).collect();
        if endpoints.is_empty() {
            return Err(Problem::NoControlPlaneRuns { cluster: self.cluster.name.clone() }.into());
        }
        client(config, endpoints)
    }
}

/// A client of the current context at other endpoints.
pub(super) fn client(config: &ClientConfig, endpoints: Vec<String>) -> Result<Client> {
    let overrides = Overrides { endpoints, ..Overrides::default() };
    let profile = Profile::resolve(config, &overrides).doing("client configuration")?;
    profile.client().doing("client configuration")
}

/// The client configuration with the context of a cluster as its current one; found by its endpoints.
pub fn context_of(config: &ClientConfig, site: &Site) -> Option<ClientConfig> {
    let ours = site.endpoints();
    let (name, _) = config.contexts.iter().find(|(_, context)| {
        !context.endpoints.is_empty() && context.endpoints.iter().all(|endpoint| ours.contains(endpoint))
    })?;
    Some(ClientConfig { context: name.clone(), ..config.clone() })
}

/// The client configuration after machines came or went: endpoints are the control planes, in their order.
pub fn follow(mut config: ClientConfig, before: &Site, after: &Site) -> ClientConfig {
    let Some(ClientConfig { context: name, .. }) = context_of(&config, before) else { return config };
    let Some(context) = config.contexts.entries_mut().get_mut(&name) else { return config };
    context.endpoints = after.control_plane_endpoints().into_iter().collect();
    let has = |site: &Site, node: &str| site.cluster.machines.iter().any(|machine| machine.has_address(node));
    context.nodes.items_mut().retain(|node| has(after, node) || !has(before, node));
    if context.nodes.is_empty() {
        context.nodes = after.cluster.control_planes().take(1).map(Machine::address).collect();
    }
    config
}
