//! What every provider of machines offers: create, start, stop, cut the power, console, destroy.
//!
//! A machine is a directory plus a way to start it. The directories of all clusters lie below one root
//! ([`Store`]); each holds a state file that says what was asked for, so that a cluster whose creation was
//! killed half-way can still be shown and destroyed.

mod cluster;
mod error;
mod store;

use std::path::PathBuf;

pub use cluster::{Cluster, Machine, MachineKind, MachineStatus, Network, Resources, loopback};
pub use error::ProvisionError;
pub use store::{Store, check_name};

use ipnet::Ipv4Net;

/// A cluster to create.
#[derive(Clone, Debug)]
pub struct ClusterRequest {
    /// Its name; lower-case letters, digits and dashes.
    pub name: String,
    /// The network of its machines.
    pub cidr: Ipv4Net,
    /// Largest packet.
    pub mtu: u32,
    /// The root image.
    pub image: PathBuf,
    /// An OCI layout of container images that the provider serves to the machines.
    pub images: Option<PathBuf>,
    /// The machines, in the order of their addresses.
    pub machines: Vec<MachineRequest>,
}

/// A machine to create. Its address follows from its place in the request: the second of the network first.
#[derive(Clone, Debug)]
pub struct MachineRequest {
    /// Its name, also its host name.
    pub name: String,
    /// Control plane or worker.
    pub kind: MachineKind,
    /// The machine configuration it finds at boot; without one it waits for one.
    pub config: Option<Vec<u8>>,
    /// More kernel arguments.
    pub kernel_args: Vec<String>,
    /// How large it is.
    pub resources: Resources,
}

/// What a provider does, by name of cluster and machine. All calls block; each wait has a bound.
pub trait Provider {
    /// The provider's own name, as in `--provisioner`.
    fn name(&self) -> &'static str;

    /// Checks what can be checked, makes the machines and starts them. Tells each step to `progress`.
    ///
    /// When it fails nothing is left behind.
    fn create(
        &self,
        request: &ClusterRequest,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Cluster, ProvisionError>;

    /// Adds machines to a cluster that runs, and starts them. When it fails the cluster is as it was.
    fn add(
        &self,
        cluster: &str,
        machines: &[MachineRequest],
        progress: &mut dyn FnMut(&str),
    ) -> Result<Cluster, ProvisionError>;

    /// Takes a machine's power and removes everything of it. Whoever needs its data has said goodbye before.
    fn remove(
        &self,
        cluster: &str,
        machine: &str,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Cluster, ProvisionError>;

    /// Starts machines that are stopped: the named one, or all.
    fn start(&self, cluster: &str, machine: Option<&str>) -> Result<(), ProvisionError>;

    /// Shuts machines down in order; one that does not stop in time loses its power.
    fn stop(&self, cluster: &str, machine: Option<&str>) -> Result<(), ProvisionError>;

    /// Takes the power away, as pulling the plug does.
    fn cut_power(&self, cluster: &str, machine: Option<&str>) -> Result<(), ProvisionError>;

    /// Presses the reset button: the power goes and comes back.
    fn reset(&self, cluster: &str, machine: &str) -> Result<(), ProvisionError>;

    /// The file that collects what the machine writes to its console.
    fn console(&self, cluster: &str, machine: &str) -> Result<PathBuf, ProvisionError>;

    /// The cluster, with each machine's present status.
    fn show(&self, cluster: &str) -> Result<Cluster, ProvisionError>;

    /// All clusters of this provider, by name.
    fn list(&self) -> Result<Vec<Cluster>, ProvisionError>;

    /// Removes the cluster and everything of it; whatever state it is in.
    fn destroy(&self, cluster: &str, progress: &mut dyn FnMut(&str)) -> Result<(), ProvisionError>;
}
