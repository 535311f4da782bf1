//! What the parts of machined share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use ichor_cosi::{Runtime, State, StateError, SystemClock};
use ichor_ctl_config::ConfigStore;
use ichor_ctl_runtime::{META_FILE, Meta};
use ichor_observe::ship::Drain;
use ichor_observe::{ConsoleLogs, LogManager};
use ichor_resource::block::VolumeLifecycle;
use ichor_types::Cmdline;
use tokio::runtime::Handle;

use crate::audit::Audit;
use crate::etcd::Member;
use crate::events::Events;
use crate::images::Images;
use crate::installer::Installer;
use crate::kubelet::Kubelet;
use crate::last_boot::LastBoot;
use crate::meta;
use crate::platform::Platform;
use crate::sequencer::Sequencer;
use crate::services::{Process, ProcessPort, ServiceManager};
use crate::slots::BootSlots;
use crate::state_volume::StateVolume;
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

    /// The gateway, for the node's own calls.
    pub fn gateway_socket(&self) -> PathBuf {
        self.run.join("apid/apid.sock")
    }

    /// A containerd of the node's own containers, where there is a second one.
    pub fn system_containerd(&self) -> PathBuf {
        self.run.join("containerd/containerd.sock")
    }

    /// What the console may see and do.
    pub fn console_socket(&self) -> PathBuf {
        self.run.join("dashboard/machine.sock")
    }

    /// The filtered state of a daemon.
    pub fn runtime_socket(&self, daemon: &str) -> PathBuf {
        self.run.join(daemon).join("runtime.sock")
    }
}

/// Where a node runs: what does not change while it does.
#[derive(Debug, Clone)]
pub struct Host {
    /// The platform.
    pub platform: Platform,
    /// What the kernel was told.
    pub cmdline: Cmdline,
    /// Its directories.
    pub paths: Paths,
    /// Whether the kernel log is this node's own; in a sandbox it is the host's.
    pub own_kernel_log: bool,
}

/// What a node knows and keeps.
#[derive(Clone)]
pub struct Store {
    /// All resources.
    pub state: State,
    /// All controllers.
    pub controllers: Runtime,
    /// The writer of the configuration.
    pub config: ConfigStore,
    /// The few values that outlive everything else.
    pub meta: Meta,
}

/// What a node reports about itself.
#[derive(Clone)]
pub struct Journal {
    /// What happened.
    pub events: Events,
    /// What was written.
    pub logs: LogManager,
    /// Which of it is on the console too.
    pub console: ConsoleLogs,
    /// Who called what.
    pub audit: Audit,
    /// What is on its way to receivers of logs and events.
    pub shipping: Drain,
}

/// Starts, stops and resets of the whole machine.
#[derive(Clone)]
pub struct Power {
    /// What is being done.
    pub sequencer: Sequencer,
    /// Whether this node may end the machine; in somebody else's container it may not.
    pub is_owned: bool,
    /// Why it went down the last time, and the record of this boot.
    pub last_boot: LastBoot,
}

/// A running node, by capability. Its API and its tasks are handed the parts they need.
pub struct Node {
    /// Where it runs.
    pub host: Host,
    /// What it knows and keeps.
    pub store: Store,
    /// What it reports.
    pub journal: Journal,
    /// What runs.
    pub services: ServiceManager,
    /// How it ends.
    pub power: Power,
    /// Its etcd member.
    pub etcd: Member,
    /// Its kubelet.
    pub kubelet: Kubelet,
    /// What it starts from.
    pub slots: BootSlots,
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
        let disk = Arc::new(StateVolume::new(state.clone(), self.paths.state.clone()));
        let config = ConfigStore::new(state.clone(), disk, runtime.clone());
        let meta = Meta::new(state.clone(), self.paths.state.join(META_FILE), runtime.clone());
        let installer = Installer::new(services.port(), &self.paths.run, &self.paths.containerd);
        let slots = BootSlots::new(installer, meta.clone(), state.clone(), runtime);
        let host = Host {
            platform: self.platform,
            cmdline: self.cmdline,
            paths: self.paths,
            own_kernel_log: self.own_kernel_log,
        };
        let node = Arc::new(Node {
            etcd: Member::new(&host, &state, &services),
            kubelet: Kubelet::new(&host, &state, &services),
            power: Power {
                sequencer,
                is_owned: host.platform.mode.owns_power(),
                last_boot: LastBoot::new(&host.paths, meta.clone()),
            },
            journal: Journal {
                events,
                audit: Audit::kept(&self.logs, &host.paths.run),
                logs: self.logs,
                console: ConsoleLogs::default(),
                shipping: Drain::default(),
            },
            store: Store { controllers: Runtime::new(state.clone()), state, config, meta },
            services,
            slots,
            host,
        });
        tasks.attach(&node);
        Ok(node)
    }
}
