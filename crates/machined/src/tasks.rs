//! What the tasks of a sequence do on a node.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tracing::{info, warn};

use ichor_cosi::StateError;
use ichor_resource::block::VolumeLifecycle;
use ichor_resource::config::MachineType;
use ichor_resource::k8s::KubeletConfig;
use ichor_resource::runtime::MachineResetSignal;
use ichor_resource::v1alpha1::{AcquireConfigSpec, AcquireConfigStatus};
use ichor_sys::memory::MemInfo;
use ichor_sys::supervisor::RebootCommand;
use ichor_types::MachineType as Role;
use ichor_wire::machine;

use crate::daemons;
use crate::node::Node;
use crate::sequencer::{Check, Request, Task, TaskContext, TaskError, Tasks};
use crate::services::spec::TaskRun;
use crate::services::{BoxFuture, ServiceError, ServiceState};
use crate::supervisor::Supervisor;

/// `reboot(2)` commands, as events and clients spell them.
const RESTART: u32 = 0x0123_4567;
const POWER_OFF: u32 = 0x4321_fedc;
const HALT: u32 = 0xcdef_0123;

/// The last logs and events get this long to reach receivers that take them.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// The one id of the question for a configuration.
const CONFIG: &str = "machine-config";

/// The one id of the volume lifecycle.
pub const VOLUMES: &str = "volumes";

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
}

fn failed(error: impl std::fmt::Display) -> TaskError {
    TaskError::Failed(error.to_string())
}

fn service(result: Result<(), ServiceError>) -> Result<(), TaskError> {
    result.map_err(failed)
}

impl Tasks for NodeTasks {
    fn run(&self, task: Task, context: TaskContext) -> BoxFuture<'static, Result<(), TaskError>> {
        let Some(node) = self.node.get().and_then(Weak::upgrade) else {
            return Box::pin(std::future::ready(Err(failed("the node is gone"))));
        };
        let supervisor = self.supervisor.clone();
        match task {
            Task::StartUdevd => Box::pin(async move {
                node.services.load(daemons::udevd());
                service(node.services.start("udevd"))?;
                service(node.services.wait_up(&["udevd"], Task::StartUdevd.limit()).await)
            }),
            Task::StartMachined => {
                node.services.load(daemons::machined(&node.paths, Arc::clone(&self.serve)));
                Box::pin(async move {
                    service(node.services.start("machined"))?;
                    service(node.services.wait_up(&["machined"], Task::StartMachined.limit()).await)
                })
            }
            Task::ReloadMeta => Box::pin(async move { node.meta.load().await.map_err(failed) }),
            Task::LoadConfig => Box::pin(async move { load_config(&node).await }),
            Task::MemorySizeCheck => Box::pin(async move {
                check_memory(&node);
                Ok(())
            }),
            Task::StartAllServices => {
                let program = self.program.clone();
                Box::pin(async move { start_all(&node, &program).await })
            }
            Task::StoreShutdown => {
                self.powering_off.store(true, Ordering::SeqCst);
                Box::pin(std::future::ready(Ok(())))
            }
            Task::CordonAndDrainNode => {
                Box::pin(async move { crate::drain::drain(&node).await.map_err(failed) })
            }
            Task::StopAllPods => {
                Box::pin(async move { crate::pods::stop(&node, false).await.map_err(failed) })
            }
            Task::RemoveAllPods => {
                Box::pin(async move { crate::pods::stop(&node, true).await.map_err(failed) })
            }
            Task::StopServicesForUpgrade => {
                Box::pin(async move { service(node.services.stop_with_dependants(&["cri", "trustd"]).await) })
            }
            Task::SendResetSignal => Box::pin(async move {
                node.state
                    .modify::<MachineResetSignal>("runtime", "machine", "", |_| {})
                    .map(drop)
                    .map_err(failed)
            }),
            Task::LeaveEtcd => Box::pin(async move { leave_etcd(&node).await }),
            Task::TeardownLifecycle => Box::pin(async move { teardown_lifecycle(&node).await }),
            Task::StopAllServices => Box::pin(async move {
                node.services.shutdown().await;
                Ok(())
            }),
            Task::ResetSystemDisk => {
                Box::pin(
                    async move { clear(vec![node.paths.state.clone(), node.paths.ephemeral.clone()]).await },
                )
            }
            Task::ResetSystemDiskSpec => Box::pin(async move {
                let Request::Reset(reset) = &context.request else { return Ok(()) };
                let dirs = reset.partitions.iter().filter_map(|label| match label.as_str() {
                    "STATE" => Some(node.paths.state.clone()),
                    "EPHEMERAL" => Some(node.paths.ephemeral.clone()),
                    _ => None,
                });
                clear(dirs.collect()).await?;
                keep_meta(&node, &reset.partitions).await
            }),
            Task::Reboot => Box::pin(async move {
                Err(end(&node, &supervisor, &context, RebootCommand::Restart, RESTART).await)
            }),
            Task::Shutdown => Box::pin(async move {
                let (command, number) = match node.cmdline.first("talos.shutdown") {
                    Some("halt") => (RebootCommand::Halt, HALT),
                    _ => (RebootCommand::PowerOff, POWER_OFF),
                };
                Err(end(&node, &supervisor, &context, command, number).await)
            }),
        }
    }

    fn check(&self, check: Check, _request: &Request) -> bool {
        match check {
            Check::HasUdevd => Path::new(daemons::UDEVD).exists(),
            Check::Registers => {
                let node = self.node.get().and_then(Weak::upgrade);
                let kubelet = node.and_then(|node| node.state.find::<KubeletConfig>("k8s", "kubelet"));
                kubelet.is_some_and(|kubelet| !kubelet.skip_node_registration)
            }
        }
    }
}

/// Says goodbye, lets it reach those who listen, and has init end the machine.
async fn end(
    node: &Node,
    supervisor: &Supervisor,
    context: &TaskContext,
    command: RebootCommand,
    number: u32,
) -> TaskError {
    node.events.publish_as(&context.actor, machine::RestartEvent { cmd: i64::from(number) });
    node.shipping.settled(DRAIN_MAX).await;
    supervisor.reboot(command);
    TaskError::Reboot(number)
}

/// META lives in a file of STATE and outlives it, unless it was named itself. The encryption of a STATE that is
/// gone goes with it.
async fn keep_meta(node: &Node, cleared: &[String]) -> Result<(), TaskError> {
    let named = |label: &str| cleared.iter().any(|partition| partition == label);
    if named("META") {
        return node.meta.clear().await.map_err(failed);
    }
    if !named("STATE") {
        return Ok(());
    }
    match node.meta.delete(ichor_ctl_runtime::meta::STATE_ENCRYPTION).await {
        Ok(()) => Ok(()),
        Err(ichor_ctl_runtime::MetaError::NotFound { .. }) => node.meta.flush().await.map_err(failed),
        Err(error) => Err(failed(error)),
    }
}

async fn load_config(node: &Node) -> Result<(), TaskError> {
    node.state.modify::<AcquireConfigSpec>("runtime", CONFIG, "", |_| {}).map_err(failed)?;
    let found = node.state.wait_for::<AcquireConfigStatus>("runtime", CONFIG, |_| true).await;
    match node.state.destroy::<AcquireConfigSpec>("runtime", CONFIG, "") {
        Ok(()) | Err(StateError::NotFound(_)) => {}
        Err(error) => warn!(%error, "the question for a configuration stays"),
    }
    found.map(drop).map_err(failed)
}

/// Warns when there is less memory than a role wants.
fn check_memory(node: &Node) {
    let Ok(memory) = MemInfo::read() else { return };
    let total = memory.get("MemTotal") / 1024;
    let role = node.state.find::<MachineType>("config", MachineType::ID).map(|found| found.machine_type);
    if let Some(advice) = memory_advice(total, role.unwrap_or_default()) {
        warn!("{advice}");
    }
}

/// What to say about this many MiB; firmware and kernel keep up to 150 of what was paid for.
fn memory_advice(total_mib: u64, role: Role) -> Option<String> {
    const RESERVE: u64 = 150;
    let (minimum, recommended) = match role {
        Role::Worker => (1024, 2048),
        Role::Init | Role::ControlPlane | Role::Unknown => (1848, 4096),
    };
    let verdict = match total_mib {
        total if total < minimum - RESERVE => "less than the minimum",
        total if total < recommended - RESERVE => "less than recommended",
        _ => return None,
    };
    Some(format!(
        "memory size is {total_mib} MiB, {verdict}: minimum {minimum} MiB, recommended {recommended} MiB"
    ))
}

async fn start_all(node: &Node, program: &str) -> Result<(), TaskError> {
    /// How often the open ones are named.
    const NAG: Duration = Duration::from_secs(15);
    if Path::new(crate::cri::CONTAINERD).exists() {
        // The kubelet is started by its controller.
        node.services.load(crate::kubelet::service(node));
        node.services.load(crate::cri::service(node));
        service(node.services.start("cri"))?;
    }
    let role = node.state.find::<MachineType>("config", MachineType::ID).map(|found| found.machine_type);
    match role.unwrap_or_default() {
        Role::Init | Role::ControlPlane => {
            node.services.load(daemons::trustd(program, &node.state));
            service(node.services.start("trustd"))?;
            if Path::new(crate::cri::CONTAINERD).exists() {
                node.services.load(crate::etcd::service(node));
                service(node.services.start(crate::etcd::ETCD))?;
            }
        }
        Role::Worker | Role::Unknown => {}
    }
    // What an earlier machined ran and this configuration does not want.
    for id in node.services.unclaimed() {
        info!(service = id, "ending a process that no service wants");
        node.services.drop_unclaimed(&id);
    }
    let deadline = tokio::time::Instant::now() + Task::StartAllServices.limit();
    loop {
        let ids = node.services.ids();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        match node.services.wait_up(&ids, NAG).await {
            Ok(()) => return Ok(()),
            Err(error) if tokio::time::Instant::now() >= deadline => return Err(failed(error)),
            Err(ServiceError::NotUp { pending }) => {
                info!("service(s) not yet up: {}", pending.join(", "));
            }
            Err(error) => return Err(failed(error)),
        }
    }
}

/// A control plane that is cleared is no member any more; one that never was has nothing to leave.
async fn leave_etcd(node: &Node) -> Result<(), TaskError> {
    use crate::etcd::{Data, ETCD, leave};
    let runs = node.services.views().into_iter().any(|view| {
        let alive =
            matches!(view.state, ServiceState::Running | ServiceState::Stopping | ServiceState::Failed);
        view.id == ETCD && alive
    });
    if !runs || !Data::below(&node.paths.ephemeral).dir.join("member").exists() {
        return Ok(());
    }
    leave::leave(node, leave::Last::End).await.map_err(|error| failed(error.message()))
}

/// Lets the volumes go; whoever holds them gets its time.
async fn teardown_lifecycle(node: &Node) -> Result<(), TaskError> {
    let ready = match node.state.teardown::<VolumeLifecycle>("runtime", VOLUMES, "") {
        Ok(ready) => ready,
        Err(StateError::NotFound(_)) => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    if !ready {
        node.state
            .wait_for::<VolumeLifecycle>("runtime", VOLUMES, |found| found.meta().finalizers().is_empty())
            .await
            .map_err(failed)?;
    }
    node.state.destroy::<VolumeLifecycle>("runtime", VOLUMES, "").map_err(failed)
}

/// Removes everything in these directories. Mount points inside stay, emptied.
async fn clear(dirs: Vec<PathBuf>) -> Result<(), TaskError> {
    let work = tokio::task::spawn_blocking(move || {
        let mut errors = Vec::new();
        for dir in dirs {
            unmount_below(&dir);
            errors.extend(ichor_sys::tree::clear(&dir).iter().map(ToString::to_string));
            // The emptiness has to survive the reboot that follows.
            if let Ok(open) = std::fs::File::open(&dir) {
                let _ = open.sync_all();
            }
        }
        errors
    });
    match work.await.map_err(failed)? {
        errors if errors.is_empty() => Ok(()),
        errors => Err(failed(errors.join("; "))),
    }
}

/// Lets go of what is mounted below a directory, as volumes of pods are; what is left is told when it is cleared.
fn unmount_below(dir: &Path) {
    let mounts = ichor_sys::mountinfo::mounts().unwrap_or_default();
    // The last mounted goes first: it may be on another.
    for mount in mounts.iter().rev() {
        let target = Path::new(&mount.target);
        if target.starts_with(dir) && target != dir {
            let _ = ichor_sys::mount::detach(target);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_judged_by_role() {
        assert!(memory_advice(1000, Role::ControlPlane).unwrap().contains("less than the minimum"));
        assert!(memory_advice(1000, Role::Worker).unwrap().contains("less than recommended"));
        assert!(memory_advice(4000, Role::ControlPlane).is_none());
        assert!(memory_advice(8192, Role::Worker).is_none());
    }

    #[tokio::test]
    async fn clearing_leaves_the_directory_itself() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/c"), "x").unwrap();
        std::os::unix::fs::symlink("/etc", dir.path().join("link")).unwrap();
        clear(vec![dir.path().to_path_buf(), "/no/such/dir".into()]).await.unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(Path::new("/etc").exists());
    }
    #[tokio::test]
    async fn reset_clears_paths_over_4096_bytes() {
        let dir = tempfile::tempdir().unwrap();
        // Two halves that a path can name, one put below the other: their end is 6 000 bytes away.
        let half = |top: &str| {
            let names = std::iter::repeat_n("d".repeat(100), 30);
            names.fold(dir.path().join(top), |path, name| path.join(name))
        };
        let (upper, lower) = (half("upper"), half("lower"));
        std::fs::create_dir_all(&upper).unwrap();
        std::fs::create_dir_all(&lower).unwrap();
        std::fs::write(lower.join("file"), "x").unwrap();
        std::fs::rename(dir.path().join("lower"), upper.join("lower")).unwrap();
        clear(vec![dir.path().to_path_buf()]).await.unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
