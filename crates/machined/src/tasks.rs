//! What the tasks of a sequence do on a node, in one module for each family. A task is handed the parts of the node that
//! it needs.

mod config;
mod files;
pub(crate) mod install;
mod kspp;
mod kubernetes;
mod power;
pub(crate) mod reset;
mod services;
mod storage;
pub(crate) mod volumes;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use ichor_sys::supervisor::RebootCommand;

use crate::node::Node;
use crate::sequencer::{Check, Request, Task, TaskContext, TaskError, Tasks};
use crate::services::BoxFuture;
use crate::services::spec::TaskRun;
use crate::supervisor::Supervisor;
use crate::{dashboard, families, last_boot, udevd};

pub(crate) use storage::VOLUMES;

/// The tasks of a node. The node is filled in once it exists.
pub struct NodeTasks {
    node: OnceLock<Weak<Node>>,
    supervisor: Supervisor,
    serve: TaskRun,
    program: String,
    powering_off: Arc<AtomicBool>,
}

impl NodeTasks {
    /// Tasks that end the machine through `supervisor`; `serve` is the machine API, `program` the
    /// multi-call binary.
    pub fn new(supervisor: Supervisor, serve: TaskRun, program: String) -> Self {
        Self { node: OnceLock::new(), supervisor, serve, program, powering_off: Arc::default() }
    }

    /// Fills in the node.
    pub fn attach(&self, node: &Arc<Node>) {
        // A second node for the same tasks would be a bug; the first one stays.
        let _ = self.node.set(Arc::downgrade(node));
    }

    /// What an emergency ends in.
    pub fn emergency(&self) -> RebootCommand {
        match self.powering_off.load(Ordering::SeqCst) {
            true => RebootCommand::PowerOff,
            false => RebootCommand::Restart,
        }
    }

    fn node(&self) -> Option<Arc<Node>> {
        self.node.get().and_then(Weak::upgrade)
    }
}

fn failed(error: impl std::fmt::Display) -> TaskError {
    TaskError::Failed(error.to_string())
}

fn done() -> BoxFuture<'static, Result<(), TaskError>> {
    Box::pin(std::future::ready(Ok(())))
}

impl Tasks for NodeTasks {
    fn run(&self, task: Task, context: TaskContext) -> BoxFuture<'static, Result<(), TaskError>> {
        let Some(node) = self.node() else {
            return Box::pin(std::future::ready(Err(failed("the node is gone"))));
        };
        let Node { host, store, journal, services: manager, .. } = &*node;
        let (manager, state, paths) = (manager.clone(), store.state.clone(), host.paths.clone());
        let end = |command: RebootCommand| -> BoxFuture<'static, Result<(), TaskError>> {
            let (journal, supervisor, actor) =
                (journal.clone(), self.supervisor.clone(), Arc::clone(&context.actor));
            Box::pin(async move { power::end(journal, supervisor, &actor, command).await })
        };
        let action = last_boot::action(context.request.sequence(), task);
        let (last_boot, actor) = (node.power.last_boot.clone(), Arc::clone(&context.actor));
        let work: BoxFuture<'static, Result<(), TaskError>> = match task {
            Task::EnforceKspp => Box::pin(kspp::enforce(state, host.cmdline.clone())),
            Task::StartUdevd => Box::pin(services::start_udevd(manager, host.cmdline.clone())),
            Task::StartMachined => {
                Box::pin(services::start_machined(manager, paths, Arc::clone(&self.serve)))
            }
            Task::StartAuditd => {
                Box::pin(services::start_auditd(manager, journal.logs.clone(), host.cmdline.clone()))
            }
            Task::StartSyslogd => Box::pin(services::start_syslogd(manager, journal.logs.clone())),
            Task::ReloadMeta => {
                let has_disks = families::has_disks();
                let (node, meta) = (Arc::clone(&node), store.meta.clone());
                let (last_boot, logs) = (node.power.last_boot.clone(), journal.logs.clone());
                let supervisor = self.supervisor.clone();
                Box::pin(async move {
                    let loaded = storage::reload_meta(state, meta, has_disks).await;
                    last_boot.learn(&logs, has_disks).await;
                    match (&loaded, has_disks) {
                        (Ok(()), true) => install::after_meta(&node, supervisor).await,
                        (Ok(()), false) => supervisor.trial_decided(),
                        // The sequence fails, and the machine restarts.
                        (Err(_), _) => {}
                    }
                    loaded
                })
            }
            Task::StartDashboard => {
                Box::pin(services::start_dashboard(manager, self.program.clone(), host.clone()))
            }
            Task::LoadConfig => Box::pin(config::load(state, families::has_disks())),
            Task::MemorySizeCheck => {
                config::check_memory(&state);
                done()
            }
            Task::HaltIfInstalled => Box::pin(config::halt_if_installed()),
            Task::WriteUdevRules => Box::pin(config::write_udev_rules(manager, state)),
            Task::MountEphemeralPartition => Box::pin(volumes::mount_ephemeral(state)),
            Task::MountUserDisks => Box::pin(volumes::mount_user_disks(state)),
            Task::UnmountPodMounts => Box::pin(volumes::unmount_below(paths.ephemeral)),
            Task::UnmountSystemDiskBindMounts => Box::pin(volumes::unmount_binds(paths.ephemeral)),
            Task::UnmountEphemeralPartition => Box::pin(volumes::unmount_ephemeral(state)),
            Task::WriteUserFiles => Box::pin(files::write_all(state)),
            Task::StartAllServices => {
                let (node, program) = (Arc::clone(&node), self.program.clone());
                Box::pin(async move { services::start_all(&node, &program).await })
            }
            Task::StoreShutdown => {
                self.powering_off.store(true, Ordering::SeqCst);
                done()
            }
            Task::CordonAndDrainNode => Box::pin(kubernetes::cordon_and_drain(state)),
            Task::StopAllPods | Task::RemoveAllPods => {
                let (node, remove) = (Arc::clone(&node), task == Task::RemoveAllPods);
                Box::pin(async move { kubernetes::stop_pods(&node, remove).await })
            }
            Task::StopServicesForUpgrade => Box::pin(services::stop_for_upgrade(manager)),
            Task::SendResetSignal => Box::pin(power::signal_reset(state)),
            Task::LeaveEtcd => Box::pin(kubernetes::leave_etcd(node.etcd.clone())),
            Task::TeardownLifecycle => Box::pin(storage::teardown_lifecycle(state)),
            Task::StopAllServices => Box::pin(services::stop_all(manager)),
            Task::Install => {
                let node = Arc::clone(&node);
                Box::pin(async move { install::install(&node).await })
            }
            Task::ReloadInstalledMeta => Box::pin(install::reload_meta(state, store.meta.clone())),
            Task::FlushMeta => {
                let meta = store.meta.clone();
                Box::pin(async move { meta.flush().await.map_err(failed) })
            }
            Task::Upgrade => {
                let (node, request) = (Arc::clone(&node), context.request);
                Box::pin(async move {
                    let (Request::Upgrade(upgrade) | Request::MaintenanceUpgrade(upgrade)) = &request else {
                        return Ok(());
                    };
                    install::upgrade(&node, upgrade).await
                })
            }
            Task::ResetSystemDisk | Task::ResetSystemDiskSpec | Task::ResetUserDisks => {
                let (node, request) = (Arc::clone(&node), context.request);
                Box::pin(async move {
                    let Request::Reset(wanted) = &request else { return Ok(()) };
                    match task {
                        Task::ResetSystemDisk => reset::system_disk(&node).await,
                        Task::ResetSystemDiskSpec => reset::partitions(&node, &wanted.partitions).await,
                        _ => reset::user_disks(&node, &wanted.user_disks).await,
                    }
                })
            }
            Task::Reboot => end(RebootCommand::Restart),
            Task::Shutdown => end(power::shutdown_command(&host.cmdline)),
        };
        match action {
            Some(action) => Box::pin(async move {
                // Before anything else: whatever goes wrong on the way, this is why.
                last_boot.asked(families::has_disks(), action, &last_boot::who(&actor)).await;
                work.await
            }),
            None => work,
        }
    }

    fn check(&self, check: Check, _request: &Request) -> bool {
        match check {
            Check::OwnsKernel => ichor_sys::power::in_first_pid_namespace(),
            Check::HasUdevd => udevd::is_here(),
            Check::HasDashboard => self.node().is_some_and(|node| dashboard::is_shown(&node.host)),
            Check::HaltsIfInstalled => self
                .node()
                .is_some_and(|node| config::halts_if_installed(&node.host.cmdline, &node.store.state)),
            Check::Registers => self.node().is_some_and(|node| kubernetes::registers(&node.store.state)),
        }
    }
}
