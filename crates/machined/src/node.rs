//! What the parts of machined share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use ichor_cosi::{Runtime, State, StateError, SystemClock};
use ichor_ctl_config::{ConfigStore, StateDir};
use ichor_ctl_runtime::{META_FILE, Meta};
use ichor_observe::LogManager;
use ichor_observe::ship::Drain;
use ichor_resource::block::VolumeLifecycle;
use ichor_types::Cmdline;
use tokio::runtime::Handle;

use crate::audit::Audit;
use crate::events::Events;
use crate::images::Images;
use crate::meta;
use crate::platform::Platform;
use crate::sequencer::Sequencer;
use crate::services::{Process, ProcessPort, ServiceManager};
use crate::tasks::{NodeTasks, VOLUMES};

/// Directories of a node, so that tests can have their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// What survives a reboot.
    pub state: PathBuf,
    /// Sockets.
    pub run: PathBuf,
    /// Data of workloads.
    pub ephemeral: PathBuf,
    /// The socket of containerd.
    pub containerd: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            state: "/system/state".into(),
            run: "/system/run".into(),
            ephemeral: "/var".into(),
            containerd: "/run/containerd/containerd.sock".into(),
        }
    }
}

impl Paths {
    /// The machine API.
    pub fn machine_socket(&self) -> PathBuf {
        self.run.join("machined/machine.sock")
    }

    /// A containerd of the node's own containers, where there is a second one.
    pub fn system_containerd(&self) -> PathBuf {
        self.run.join("containerd/containerd.sock")
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
    /// Who called what.
    pub audit: Audit,
    /// What runs.
    pub services: ServiceManager,
    /// What is being done.
    pub sequencer: Sequencer,
    /// The writer of the configuration.
    pub config: ConfigStore,
    /// What the etcd member does when it starts without data.
    pub etcd: crate::etcd::Wanted,
    /// What is on its way to receivers of logs and events.
    pub shipping: Drain,
    /// The few values that outlive everything else.
    pub meta: Meta,
    /// Whether the kernel log is this node's own; in a sandbox it is the host's.
    pub own_kernel_log: bool,
}

/// What a node is put together from.
pub struct NodeParts {
    /// Where it runs.
    pub platform: Platform,
    /// What the kernel was told.
    pub cmdline: Cmdline,
    /// Its directories.
    pub paths: Paths,
    /// Its logs.
    pub logs: LogManager,
    /// Whether the kernel log is its own.
    pub own_kernel_log: bool,
}

impl NodeParts {
    /// A node with an empty state, whose tasks and timers run on the runtime of the caller. No controller
    /// is registered yet.
    ///
    /// # Errors
    /// When the state refuses its first resources; a bug.
    pub fn assemble(
        self,
        port: Arc<dyn ProcessPort>,
        inherited: BTreeMap<String, Process>,
        tasks: &Arc<NodeTasks>,
    ) -> Result<Arc<Node>, StateError> {
        let runtime = Handle::current();
        let events = Events::default();
        let state = State::new(SystemClock);
        meta::register(&state)?;
        state.create("runtime", VOLUMES, VolumeLifecycle {}, "")?;
        // Clients ask for these by name, support bundles among them; they exist before their first line.
        for id in ["controller-runtime", "dns-resolve-cache"] {
            self.logs.ring(id);
        }
        let services =
            ServiceManager::new(events.clone(), self.logs.clone(), port, inherited, runtime.clone());
        let memory = self.paths.run.join("containers");
        services.with_images(Arc::new(Images::new(&self.paths.containerd, memory)));
        let sequencer = Sequencer::new(tasks.clone(), events.clone(), runtime.clone());
        let disk = Arc::new(StateDir::new(&self.paths.state));
        let config = ConfigStore::new(state.clone(), disk, runtime.clone());
        let meta = Meta::new(state.clone(), self.paths.state.join(META_FILE), runtime);
        let run = self.paths.run.clone();
        let node = Arc::new(Node {
            platform: self.platform,
            cmdline: self.cmdline,
            paths: self.paths,
            controllers: Runtime::new(state.clone()),
            state,
            events,
            audit: Audit::kept(&self.logs, &run),
            logs: self.logs,
            services,
            sequencer,
            config,
            etcd: crate::etcd::Wanted::default(),
            shipping: Drain::default(),
            meta,
            own_kernel_log: self.own_kernel_log,
        });
        tasks.attach(&node);
        Ok(node)
    }
}
