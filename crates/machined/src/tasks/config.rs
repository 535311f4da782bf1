//! Tasks about the configuration, and what it asks of the machine.

use tracing::warn;

use ichor_cosi::{State, StateError};
use ichor_resource::config::MachineType;
use ichor_resource::v1alpha1::{AcquireConfigSpec, AcquireConfigStatus};
use ichor_sys::memory::MemInfo;
use ichor_types::MachineType as Role;

use super::failed;
use crate::sequencer::TaskError;

/// The one id of the request for a configuration.
const CONFIG: &str = "machine-config";

/// The role that the configuration gives this machine.
pub(super) fn role(state: &State) -> Role {
    let found = state.find::<MachineType>("config", MachineType::ID);
    found.map(|found| found.machine_type).unwrap_or_default()
}

/// Requests a configuration and waits until there is one.
pub(super) async fn load(state: State) -> Result<(), TaskError> {
    state.modify::<AcquireConfigSpec>("runtime", CONFIG, "", |_| {}).map_err(failed)?;
    let found = state.wait_for::<AcquireConfigStatus>("runtime", CONFIG, |_| true).await;
    match state.destroy::<AcquireConfigSpec>("runtime", CONFIG, "") {
        Ok(()) | Err(StateError::NotFound(_)) => {}
        Err(error) => warn!(%error, "configuration request not removed"),
    }
    found.map(drop).map_err(failed)
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
