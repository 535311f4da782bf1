//! The seam between clusters and whatever machines are made of: plan, create, reach, power, console, destroy.
//!
//! A [`Provider`] makes machines; a [`Registry`] knows the providers of a program by name. The directories of all clusters
//! lie below one root ([`Store`]); each holds a state file that says what was asked for, so that a cluster whose creation
//! was killed half-way can still be shown and destroyed.
//!
//! Nothing here knows how machines are reached or which address family they have: a provider says where a machine is seen
//! from the program that runs ([`Provider::reach`]), and which names certificates must hold for that ([`NewMachine::sans`]).

mod cluster;
mod endpoint;
mod error;
mod plan;
mod registry;
mod store;

use std::io::Read;

pub use cluster::{Cluster, Machine, MachineKind, MachineStatus, Network, Resources};
pub use endpoint::Endpoint;
pub use error::ProvisionError;
pub use plan::{ClusterRequest, Configs, MachineRequest, NewMachine, Plan, Setting, check_settings};
pub use registry::{Helper, Registration, Registry};
pub use store::{Store, check_name};

/// What is done to the power of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// Starts it, if it is off.
    On,
    /// Shuts it down in order; one that does not stop in time loses its power.
    Off,
    /// Takes the power away, as pulling the plug does.
    Cut,
    /// Presses the reset button: the power goes and comes back.
    Reset,
}

/// Receives each step of what takes long.
pub type Steps<'a> = &'a mut dyn FnMut(&str);

/// What a provider does, by name of cluster and machine.
///
/// All calls block, and each wait has a bound; callers with a runtime run them on a thread of their own. A provider that
/// talks to an asynchronous service drives it itself.
pub trait Provider: Send + Sync {
    /// The provider's own name, as in the state files of its clusters.
    fn name(&self) -> &'static str;

    /// Where its clusters are kept.
    fn store(&self) -> &Store;

    /// The settings it takes beside what every provider does.
    fn settings(&self) -> &'static [Setting] {
        &[]
    }

    /// Checks a request and lays it out. Changes nothing, and refuses whatever [`Provider::create`] would refuse, as far as
    /// that can be known.
    fn plan(&self, request: &ClusterRequest) -> Result<Plan, ProvisionError>;

    /// Makes the machines of a plan and starts them. Machines without a configuration wait for one.
    ///
    /// When it fails nothing is left behind.
    fn create(&self, plan: &Plan, configs: &Configs, steps: Steps<'_>) -> Result<Cluster, ProvisionError>;

    /// Lays out more machines for a cluster. Changes nothing.
    fn plan_more(&self, cluster: &str, machines: &[MachineRequest]) -> Result<Plan, ProvisionError>;

    /// Adds the new machines of a plan to a cluster that runs, and starts them. When it fails the cluster is as it was.
    fn add(&self, plan: &Plan, configs: &Configs, steps: Steps<'_>) -> Result<Cluster, ProvisionError>;

    /// Takes a machine's power and removes everything of it. Whoever needs its data has taken leave before.
    fn remove(&self, cluster: &str, machine: &str, steps: Steps<'_>) -> Result<Cluster, ProvisionError>;

    /// Where the API of a machine is seen from this program.
    fn reach(&self, cluster: &Cluster, machine: &Machine) -> Endpoint;

    /// Where the Kubernetes API of a cluster is seen from this program: the cluster's own endpoint first, then each
    /// control plane.
    fn kubernetes(&self, cluster: &Cluster) -> Vec<Endpoint>;

    /// Changes the power of a machine, or of all machines of a cluster.
    fn power(&self, cluster: &str, machine: Option<&str>, power: Power) -> Result<(), ProvisionError>;

    /// What a machine has written to its console so far.
    fn console(&self, cluster: &str, machine: &str) -> Result<Box<dyn Read + Send>, ProvisionError>;

    /// The cluster, with each machine's present status.
    fn show(&self, cluster: &str) -> Result<Cluster, ProvisionError>;

    /// All clusters of this provider, by name.
    fn list(&self) -> Result<Vec<Cluster>, ProvisionError> {
        let ours = self.store().list()?.into_iter().filter(|cluster| cluster.provisioner == self.name());
        ours.map(|cluster| self.show(&cluster.name)).collect()
    }

    /// Removes the cluster and everything of it; whatever state it is in.
    fn destroy(&self, cluster: &str, steps: Steps<'_>) -> Result<(), ProvisionError>;
}
