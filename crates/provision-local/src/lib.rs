//! What providers of machines on this host share: everything but the machines.
//!
//! One supervisor process per cluster owns everything: it lives in mount, network and process id namespaces of its own,
//! so its death takes all machines, mounts and links along. It has a bridge with the gateway's address, a control
//! socket, a registry of container images, and listening sockets on the host's loopback that lead to the machines.
//!
//! ```text
//! ichorctl ── spawns ──> supervisor (host side: waits)
//!                          └─ supervisor (PID 1 of the fleet: control socket, forwarders, machines)
//!                               └─ boot <machine> (one per boot)
//! ```
//!
//! These processes are the same executable again, called with a hidden first argument ([`Kind::HIDDEN`]); what a boot
//! process does is the business of a [`Kind`]. Its exit code says how the machine ended: [`REBOOTED`], [`POWERED_OFF`], or
//! anything else for a crash. SIGTERM asks it to shut its machine down in order, SIGKILL takes the machine's power.

mod control;
mod error;
mod fleet;
mod forward;
pub mod ipv4;
mod layout;
mod plan;
mod provider;
mod reload;
mod supervisor;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use ichor_provision::{Cluster, ClusterRequest, ProvisionError, Setting};

pub use error::SetupError;
pub use fleet::{POWERED_OFF, REBOOTED};
pub use layout::Layout;
pub use plan::images;
pub use provider::Local;
pub use supervisor::{BRIDGE, exit_code};

/// What machines are made of, and what that needs of the host.
pub trait Kind: Clone + std::fmt::Debug + Send + Sync + 'static {
    /// The name of the provider.
    const NAME: &'static str;
    /// The first argument of the processes that make up a cluster.
    const HIDDEN: &'static str;
    /// What only this provider can be told.
    const SETTINGS: &'static [Setting] = &[];
    /// How long a machine that is up may take to accept a connection; one whose link is down never does.
    const ACCEPTS_WITHIN: Duration;
    /// How long a machine may take to shut down in order.
    const STOP_WAIT: Duration;

    /// Fills in what the machines of a request boot, and refuses what cannot work. Changes nothing on the host.
    fn resolve(request: &ClusterRequest, cluster: &mut Cluster) -> Result<(), ProvisionError>;

    /// Patches that the configurations of these machines need.
    fn patches(cluster: &Cluster) -> Vec<String>;

    /// Makes what outlives a boot of a machine, if it is not there yet.
    fn make_machine(layout: &Layout, cluster: &Cluster, machine: &str) -> Result<(), SetupError>;

    /// The command that starts `program` where the host wants its supervisors; without one it is started as it is.
    fn launcher(_layout: &Layout, _cluster: &str, _program: &Path) -> Option<Command> {
        None
    }

    /// Whether the supervisor got as far as the place that [`Kind::launcher`] starts it in.
    fn launched(_layout: &Layout) -> bool {
        true
    }

    /// Prepares the host, before the supervisor leaves its namespaces.
    fn prepare_host(_layout: &Layout, _cluster: &Cluster) -> Result<(), SetupError> {
        Ok(())
    }

    /// Prepares the fleet in its own namespaces, before there are threads.
    fn prepare_fleet(_layout: &Layout, _cluster: &Cluster) -> Result<(), SetupError> {
        Ok(())
    }

    /// Starts what serves the machines on the bridge, for as long as the process lives.
    fn serve(_layout: &Layout, _cluster: &Cluster) -> impl Future<Output = Result<(), SetupError>> {
        std::future::ready(Ok(()))
    }

    /// Removes what only the supervisor sees of a machine. Best effort: all of it goes with the cluster.
    fn forget(_layout: &Layout, _cluster: &Cluster, _machine: &str) -> impl Future<Output = ()> {
        std::future::ready(())
    }

    /// Removes what a cluster without processes has left on the host beside its directory.
    fn clean(_layout: &Layout) -> Result<(), ProvisionError> {
        Ok(())
    }
}

/// Runs the supervisor of a cluster when the arguments (without the program's name) ask for it.
///
/// Every program that uses a provider calls this first in `main`, before it starts any thread.
pub fn supervisor_main<K: Kind>(args: &[&str]) -> Option<ExitCode> {
    match args {
        [hidden, "supervisor", dir] if *hidden == K::HIDDEN => Some(supervisor::main::<K>(Path::new(dir))),
        _ => None,
    }
}

/// The file of this program. It may have been replaced since it was started; its successor does as well.
pub fn own_program() -> std::io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let text = own.to_string_lossy();
    Ok(text.strip_suffix(" (deleted)").map(PathBuf::from).unwrap_or_else(|| own.clone()))
}
