//! What the parts of machined share.

use std::path::PathBuf;

use ichor_cosi::{Runtime, State};
use ichor_ctl_config::ConfigStore;
use ichor_observe::LogManager;
use ichor_types::Cmdline;

use crate::events::Events;
use crate::platform::Platform;
use crate::sequencer::Sequencer;
use crate::services::ServiceManager;

/// Directories of a node, so that tests can have their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// What survives a reboot.
    pub state: PathBuf,
    /// Sockets.
    pub run: PathBuf,
    /// Data of workloads.
    pub ephemeral: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        Self { state: "/system/state".into(), run: "/system/run".into(), ephemeral: "/var".into() }
    }
}

impl Paths {
    /// The machine API.
    pub fn machine_socket(&self) -> PathBuf {
        self.run.join("machined/machine.sock")
    }

    /// The filtered state of a daemon.
    pub fn runtime_socket(&self, daemon: &str) -> PathBuf {
        self.run.join(daemon).join("runtime.sock")
    }
}

/// A running node, as its API and its tasks see it.
pub struct Node {
    /// Where it runs.
    pub platform: Platform,
    /// What the kernel was told.
    pub cmdline: Cmdline,
    /// Its directories.
    pub paths: Paths,
    /// All resources.
    pub state: State,
    /// All controllers.
    pub controllers: Runtime,
    /// What happened.
    pub events: Events,
    /// What was written.
    pub logs: LogManager,
    /// What runs.
    pub services: ServiceManager,
    /// What is being done.
    pub sequencer: Sequencer,
    /// The writer of the configuration.
    pub config: ConfigStore,
    /// Whether the kernel log is this node's own; in a sandbox it is the host's.
    pub own_kernel_log: bool,
}
