//! Tasks about the configuration, and what it asks of the machine.

use std::time::Duration;

use tracing::{info, warn};

use ichor_cosi::{State, StateError};
use ichor_ctl::Configuration;
use ichor_resource::block::{DiscoveredVolume, SystemDisk};
use ichor_resource::config::{MachineConfig, MachineType};
use ichor_resource::v1alpha1::{AcquireConfigSpec, AcquireConfigStatus};
use ichor_sys::memory::MemInfo;
use ichor_types::{Cmdline, MachineType as Role};

use super::{failed, volumes};
use crate::sequencer::{Task, TaskError};
use crate::services::ServiceManager;
use crate::udevd;

/// The one id of the request for a configuration.
const CONFIG: &str = "machine-config";

/// The role that the configuration gives this machine.
pub(super) fn role(state: &State) -> Role {
    let found = state.find::<MachineType>("config", MachineType::ID);
    found.map(|found| found.machine_type).unwrap_or_default()
}

/// Requests a configuration and waits until there is one.
pub(super) async fn load(state: State, has_disks: bool) -> Result<(), TaskError> {
    if has_disks {
        volumes::settle_state(&state).await;
    }
    state.modify::<AcquireConfigSpec>("runtime", CONFIG, "", |_| {}).map_err(failed)?;
    let found = state.wait_for::<AcquireConfigStatus>("runtime", CONFIG, |_| true).await;
    match state.destroy::<AcquireConfigSpec>("runtime", CONFIG, "") {
        Ok(()) | Err(StateError::NotFound(_)) => {}
        Err(error) => warn!(%error, "configuration request not removed"),
    }
    found.map(drop).map_err(failed)
}

/// The configuration of this machine, if there is one that can be read.
pub(super) fn active(state: &State) -> Option<Configuration> {
    let config = state.find::<MachineConfig>("config", MachineConfig::ACTIVE)?;
    Configuration::of(&config).ok()
}

/// Gives the device manager the rules of the configuration.
pub(super) async fn write_udev_rules(services: ServiceManager, state: State) -> Result<(), TaskError> {
    let config = active(&state);
    let udev = config.as_ref().and_then(|config| config.machine()?.udev.as_ref());
    let rules: Vec<String> = udev.map(|udev| udev.rules.iter().cloned().collect()).unwrap_or_default();
    udevd::write_rules(&udevd::Program(services), &rules).await.map_err(failed)
}

/// Whether this machine was started from a medium that is to do nothing where the system is installed, and it is.
pub(super) fn halts_if_installed(cmdline: &Cmdline, state: &State) -> bool {
    cmdline.flag("talos.halt_if_installed") && is_installed(state)
}

/// The system is on a disk: one was recognised as its own, or has its partition META.
fn is_installed(state: &State) -> bool {
    let volumes = state.list::<DiscoveredVolume>("runtime");
    state.find::<SystemDisk>("runtime", "system-disk").is_some()
        || volumes.iter().any(|volume| volume.partition_label == "META")
}

/// Says again and again that the medium is to be taken out, then fails.
pub(super) async fn halt_if_installed() -> Result<(), TaskError> {
    const TOLD_EVERY: Duration = Duration::from_secs(30);
    let deadline = tokio::time::Instant::now() + Task::StartAllServices.limit();
    while tokio::time::Instant::now() < deadline {
        info!(
            "the system is installed on a disk, but the machine was started from another medium with \
             talos.halt_if_installed: remove the medium or change the boot order, and reboot"
        );
        tokio::time::sleep(TOLD_EVERY).await;
    }
    Err(failed("the machine was started from a medium although the system is installed on a disk"))
}

/// Warns when there is less memory than the role wants.
pub(super) fn check_memory(state: &State) {
    let Ok(memory) = MemInfo::read() else { return };
    let total = memory.get("MemTotal") / 1024;
    if let Some(advice) = memory_advice(total, role(state)) {
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
}
