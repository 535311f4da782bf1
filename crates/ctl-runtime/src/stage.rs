//! The stage of the machine, from what the boot sequence tells.

use std::sync::{Arc, Mutex, PoisonError};

use ichor_cosi::Wake;
use ichor_resource::runtime::MachineStage;

/// Something the sequencer said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment<'a> {
    /// A sequence starts, such as `boot`.
    SequenceStart(&'a str),
    /// A sequence is over, well or not.
    SequenceStop(&'a str),
    /// A phase of the running sequence starts.
    PhaseStart(&'a str),
    /// A task starts.
    TaskStart(&'a str),
    /// A task is over.
    TaskStop(&'a str),
    /// A sequence failed for good.
    Fatal,
}

/// The stage, told by the sequencer and read by the status controller. Clones are one.
#[derive(Debug, Clone, Default)]
pub struct Stages(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    stage: MachineStage,
    sequence: String,
    wakes: Vec<Wake>,
}

impl Stages {
    /// Takes note of what the sequencer said.
    pub fn observe(&self, moment: Moment<'_>) {
        let mut inner = self.lock();
        if let Moment::SequenceStart(sequence) = moment {
            sequence.clone_into(&mut inner.sequence);
        }
        let Some(stage) = stage_after(&inner.sequence, moment) else { return };
        if stage != inner.stage {
            inner.stage = stage;
            inner.wakes.iter().for_each(Wake::wake);
        }
    }

    /// The stage the machine is in.
    pub fn current(&self) -> MachineStage {
        self.lock().stage
    }

    /// Wakes a controller whenever the stage changes.
    pub(crate) fn subscribe(&self, wake: Wake) {
        self.lock().wakes.push(wake);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The stage a moment leads to; `None` when it leads nowhere.
fn stage_after(sequence: &str, moment: Moment<'_>) -> Option<MachineStage> {
    let replaces_system = matches!(sequence, "install" | "upgrade" | "stageUpgrade" | "maintenanceUpgrade");
    match moment {
        Moment::SequenceStart("boot" | "initialize") => Some(MachineStage::Booting),
        Moment::SequenceStart("shutdown") => Some(MachineStage::ShuttingDown),
        Moment::SequenceStart("upgrade" | "stageUpgrade" | "maintenanceUpgrade") => {
            Some(MachineStage::Upgrading)
        }
        Moment::SequenceStart("reset") => Some(MachineStage::Resetting),
        Moment::SequenceStart("reboot") => Some(MachineStage::Rebooting),
        Moment::PhaseStart("install") if sequence == "install" => Some(MachineStage::Installing),
        Moment::PhaseStart("kexec") if replaces_system => Some(MachineStage::Rebooting),
        Moment::TaskStart("runningMaintenance") => Some(MachineStage::Maintenance),
        Moment::TaskStop("runningMaintenance") => Some(MachineStage::Booting),
        Moment::SequenceStop("boot") => Some(MachineStage::Running),
        Moment::Fatal => Some(MachineStage::Rebooting),
        Moment::SequenceStart(_)
        | Moment::SequenceStop(_)
        | Moment::PhaseStart(_)
        | Moment::TaskStart(_)
        | Moment::TaskStop(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(moments: &[Moment<'_>], want: &[&str]) {
        let stages = Stages::default();
        let seen: Vec<_> = moments
            .iter()
            .map(|moment| {
                stages.observe(*moment);
                stages.current().as_str()
            })
            .collect();
        assert_eq!(seen, want);
    }

    #[test]
    fn a_boot_with_maintenance_ends_running() {
        check(
            &[
                Moment::SequenceStart("initialize"),
                Moment::SequenceStop("initialize"),
                Moment::SequenceStart("boot"),
                Moment::TaskStart("runningMaintenance"),
                Moment::TaskStop("runningMaintenance"),
                Moment::PhaseStart("kexec"),
                Moment::SequenceStop("boot"),
            ],
            &["booting", "booting", "booting", "maintenance", "booting", "booting", "running"],
        );
    }

    #[test]
    fn the_ends_of_a_machine_have_a_stage_each() {
        check(
            &[
                Moment::SequenceStart("reboot"),
                Moment::SequenceStart("shutdown"),
                Moment::SequenceStart("reset"),
                Moment::SequenceStart("upgrade"),
                Moment::PhaseStart("kexec"),
                Moment::SequenceStart("install"),
                Moment::PhaseStart("install"),
                Moment::Fatal,
            ],
            &[
                "rebooting",
                "shutting down",
                "resetting",
                "upgrading",
                "rebooting",
                "rebooting",
                "installing",
                "rebooting",
            ],
        );
    }
}
