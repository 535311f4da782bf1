//! The slots that this machine starts from: what a start means, and what becomes of a system on trial.
//!
//! The disk is changed by the installer, a child of init; one operation runs at a time, and META is lent to it meanwhile.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tracing::{error, info, warn};

use ichor_boot::health::{self, Observation, Role, ServiceHealth, Verdict, Watch};
use ichor_cosi::State;
use ichor_ctl_block::META_LABEL;
use ichor_ctl_runtime::Meta;
use ichor_resource::block::VolumeStatus;
use ichor_resource::config::{MachineConfig, MachineType};
use ichor_types::{Cmdline, MachineType as Type};

use crate::dashboard::DASHBOARD;
use crate::installer::{Installer, result};
use crate::node::Node;
use crate::sequencer::Request;
use crate::services::manager::ServiceView;
use crate::services::{ProcessSpec, ServiceState};

/// An operation on slots moves a few kilobytes.
const OPERATION_MAX: Duration = Duration::from_secs(120);
/// Between two looks at a system on trial.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How often the missing is named.
const TOLD_EVERY: Duration = Duration::from_secs(30);

/// The slots of this machine. Cheap to clone.
#[derive(Clone)]
pub struct BootSlots {
    shared: Arc<Shared>,
}

struct Shared {
    installer: Installer,
    meta: Meta,
    state: State,
    runtime: Handle,
    one: Mutex<()>,
    staged: std::sync::Mutex<Option<Staged>>,
}

/// An upgrade that waits for the next start of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Staged {
    /// The installer's image.
    pub(crate) image: String,
    /// Whatever it is.
    pub(crate) force: bool,
}

/// What becomes of the system that was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is not on trial, or no longer.
    Runs,
    /// The machine is being restarted, to start another one.
    Restarts,
}

impl BootSlots {
    /// The slots of a node.
    pub(crate) fn new(installer: Installer, meta: Meta, state: State, runtime: Handle) -> Self {
        Self {
            shared: Arc::new(Shared {
                installer,
                meta,
                state,
                runtime,
                one: Mutex::default(),
                staged: Default::default(),
            }),
        }
    }

    /// The program that changes them.
    pub(crate) fn installer(&self) -> &Installer {
        &self.shared.installer
    }

    /// The system disk; none on a machine that is not installed.
    pub(crate) fn disk(&self) -> Option<PathBuf> {
        if !self.shared.meta.is_on_partition() {
            return None;
        }
        let volume = self.shared.state.find::<VolumeStatus>("runtime", META_LABEL)?;
        Some(PathBuf::from(volume.parent_location.clone())).filter(|path| !path.as_os_str().is_empty())
    }

    /// Runs an installer that changes the system disk, META included. Goes on when the caller does not wait for it.
    pub(crate) async fn change(&self, spec: ProcessSpec, most: Duration) -> Result<Vec<String>, String> {
        let shared = Arc::clone(&self.shared);
        let work = self.shared.runtime.spawn(async move {
            let _one = shared.one.lock().await;
            let done = shared.meta.lend(shared.installer.run(&spec, most)).await;
            done.map_err(|error| format!("META after the installer: {error}"))?
        });
        work.await.map_err(|error| error.to_string())?
    }

    /// Remembers an upgrade that was staged before this start.
    pub(crate) fn set_staged(&self, staged: Staged) {
        *self.shared.staged.lock().unwrap_or_else(PoisonError::into_inner) = Some(staged);
    }

    /// The upgrade that was staged before this start.
    pub(crate) fn staged(&self) -> Option<Staged> {
        self.shared.staged.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// One operation on the slots; what it says.
    async fn operate(&self, operation: &str) -> Result<String, String> {
        let disk = self.disk().ok_or("system disk not found")?;
        let args = ["slots".to_owned(), operation.to_owned(), format!("--disk={}", disk.display())];
        let spec = self.shared.installer.own(args.to_vec());
        let lines = self.change(spec, OPERATION_MAX).await?;
        Ok(result(&lines).unwrap_or_default().to_owned())
    }

    /// Has the earlier system started by the next reboot. What that is.
    pub(crate) async fn rollback(&self) -> Result<String, String> {
        self.operate("rollback").await
    }

    /// Continues after a start of machined: brings record and boot loader together, and judges a system on trial.
    /// Returns once that is decided, unless the machine restarts for it.
    pub(crate) async fn continue_after_start(&self, node: Weak<Node>, cmdline: &Cmdline) -> Fate {
        if self.disk().is_none() {
            return Fate::Runs;
        }
        match self.operate("boot").await.as_deref() {
            Ok("judge") => {
                let watch = Watch::new(health::deadline(cmdline));
                info!(
                    seconds = watch.deadline().as_secs(),
                    "this system is on trial: it is kept when it is healthy within the deadline"
                );
                self.judge(&node, watch).await
            }
            Ok("restart") => restart(&node, "the boot loader has to start another slot"),
            Ok(_) => Fate::Runs,
            // A machine that runs is worth more than one that reboots because of its boot loader.
            Err(error) => {
                warn!("the slots of the system disk could not be continued: {error}");
                Fate::Runs
            }
        }
    }

    async fn judge(&self, node: &Weak<Node>, mut watch: Watch) -> Fate {
        let mut told = tokio::time::Instant::now();
        loop {
            let Some(now) = node.upgrade().map(|node| observe(&node)) else { return Fate::Runs };
            match watch.observe(&now) {
                Verdict::Good => {
                    match self.operate("commit").await {
                        Ok(_) => info!("this system is healthy and stays the default"),
                        Err(error) => {
                            error!("this system is healthy and could not be made the default: {error}");
                        }
                    }
                    return Fate::Runs;
                }
                Verdict::Bad(missing) => {
                    error!("this system is not healthy: {}", missing.join("; "));
                    return match self.operate("fail").await.as_deref() {
                        Ok("restart") => restart(node, "returning to the last good system"),
                        Ok(_) => {
                            warn!("there is no other system to return to; this one goes on");
                            Fate::Runs
                        }
                        Err(error) => {
                            error!("the trial could not be ended: {error}");
                            // The boot loader has taken the entry back: any restart starts the last good system.
                            restart(node, "returning to the last good system")
                        }
                    };
                }
                Verdict::Wait(missing) => {
                    if told.elapsed() >= TOLD_EVERY {
                        told = tokio::time::Instant::now();
                        info!("this system is on trial and waits for: {}", missing.join("; "));
                    }
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

fn restart(node: &Weak<Node>, why: &str) -> Fate {
    if let Some(node) = node.upgrade() {
        warn!("rebooting: {why}");
        node.power.sequencer.start(Request::Reboot { force: false }, true, "");
    }
    Fate::Restarts
}

/// One look at the machine.
fn observe(node: &Node) -> Observation {
    let uptime = ichor_sys::host::uptime();
    let state = &node.store.state;
    let configured = state.find::<MachineConfig>("config", MachineConfig::ACTIVE).is_some();
    let kind = state.find::<MachineType>("config", MachineType::ID).map(|found| found.machine_type);
    observation(configured, kind.unwrap_or_default(), &node.services.views(), uptime)
}

fn observation(configured: bool, kind: Type, views: &[ServiceView], uptime: Duration) -> Observation {
    let role = match (configured, kind) {
        (false, _) => Role::Maintenance,
        (true, Type::Worker) => Role::Worker,
        (true, Type::Init | Type::ControlPlane | Type::Unknown) => Role::ControlPlane,
    };
    let services: Vec<ServiceHealth> = views
        .iter()
        // No system is given up for what is on its screen.
        .filter(|view| view.id != DASHBOARD)
        .map(|view| ServiceHealth {
            id: view.id.clone(),
            is_up: matches!(
                view.state,
                ServiceState::Running | ServiceState::Finished | ServiceState::Skipped
            ),
            is_healthy: view.healthy,
        })
        .collect();
    let api_answers = services
        .iter()
        .any(|service| service.id == "machined" && service.is_up && service.is_healthy != Some(false));
    Observation { role, api_answers, services, uptime }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_judged_by_what_it_is() {
        let view = |id: &str, state, healthy| ServiceView { id: id.to_owned(), state, healthy };
        let machined = view("machined", ServiceState::Running, Some(true));
        let seen = |configured, kind, views: &[ServiceView]| {
            health::missing(&observation(configured, kind, views, Duration::from_secs(30)))
        };
        assert!(seen(false, Type::Unknown, std::slice::from_ref(&machined)).is_empty(), "maintenance mode");
        assert_eq!(seen(false, Type::Unknown, &[]), ["the machine API does not answer"]);
        let kubelet = view("kubelet", ServiceState::Running, Some(true));
        let views = [machined, kubelet, view("cri", ServiceState::Preparing, None)];
        assert_eq!(seen(true, Type::Worker, &views), ["service cri is not up"]);
        let broken = view(DASHBOARD, ServiceState::Failed, None);
        let screen = [views[0].clone(), views[1].clone(), broken];
        assert_eq!(seen(true, Type::Worker, &screen), Vec::<String>::new(), "a screen is no reason");
        assert_eq!(seen(true, Type::Worker, &views[..2]), Vec::<String>::new());
        assert_eq!(seen(true, Type::ControlPlane, &views[..2]), ["service etcd is not there"]);
    }
}
