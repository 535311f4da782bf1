//! Controllers of machine status, identity, events and platform.
//!
//! [`register`] adds the whole family to a runtime. What it needs from the outside comes through small ports:
//! [`Stages`] hears of the boot sequence, [`StatusSink`] passes on the machine's status, [`IdentityStore`] keeps
//! the identity, [`Files`] reads what the kernel shows in files.

mod cluster;
mod documents;
mod facts;
mod identity;
mod machine_status;
pub mod meta;
mod params;
mod ports;
mod security;
mod stage;
mod sync;
mod system_clock;
mod token;

pub use cluster::InfoController;
pub use documents::{
    EventsSinkConfigController, ExtensionServiceConfigController, KernelModuleConfigController,
    KmsgLogConfigController, WatchdogTimerConfigController,
};
pub use facts::{DevicesStatusController, KernelCmdlineController, VersionController};
pub use identity::{IDENTITY_FILE, NodeIdentityController};
pub use machine_status::{MachineStatusController, MachineStatusPublisherController, StatusSink};
pub use meta::{META_FILE, Meta, MetaError};
pub use params::{KernelParamConfigController, KernelParamDefaultsController, KernelParamSpecController};
pub use ports::{Files, HostFiles, IdentityStore};
pub use security::SecurityStateController;
pub use stage::{Moment, Stages};
pub use sync::{Adjustment, Leap, Measurement, SyncController, TimePort};
pub use system_clock::SystemClock;
pub use token::UniqueMachineTokenController;

use ichor_cosi::{RegisterError, Runtime};
use ichor_types::Cmdline;

/// Everything the family touches outside of the state.
#[derive(Debug, Clone)]
pub struct Ports<F, S, T> {
    /// Files of the machine: the kernel's and the state directory's.
    pub files: F,
    /// Who hears of the machine's status.
    pub sink: S,
    /// The clock and who knows the time.
    pub time: T,
    /// What the boot sequence is at.
    pub stages: Stages,
    /// The version this system calls itself.
    pub version: String,
    /// The kernel command line.
    pub cmdline: String,
    /// Whether a device manager runs, whose readiness others wait for.
    pub device_manager: bool,
    /// Whether this system runs Kubernetes; if so, it is not ready without it.
    pub kubernetes: bool,
}

/// Adds all controllers of the family to a runtime.
pub fn register<F, S, T>(runtime: &Runtime, ports: Ports<F, S, T>) -> Result<(), RegisterError>
where
    F: Files + IdentityStore + Clone,
    S: StatusSink,
    T: TimePort,
{
    let Ports { files, sink, time, stages, version, cmdline, device_manager, kubernetes } = ports;
    let arguments = Cmdline::parse(&cmdline);
    // Who has no clock of its own has no kernel of its own either.
    let own_kernel = time.owns_clock();

    runtime.register(MachineStatusController::new(stages, kubernetes))?;
    runtime.register(MachineStatusPublisherController::new(sink))?;
    runtime.register(NodeIdentityController::new(files.clone()))?;
    runtime.register(VersionController { version })?;
    runtime.register(SecurityStateController::new(files.clone(), &cmdline))?;
    runtime.register(KernelCmdlineController { cmdline })?;
    runtime.register(DevicesStatusController { device_manager })?;
    runtime.register(UniqueMachineTokenController)?;
    runtime.register(InfoController::default())?;
    runtime.register(SyncController::new(time))?;

    runtime.register(KernelParamDefaultsController { own_kernel })?;
    runtime.register(KernelParamConfigController)?;
    runtime.register(KernelParamSpecController::new(files))?;

    runtime.register(EventsSinkConfigController { cmdline: arguments.clone() })?;
    runtime.register(KmsgLogConfigController { cmdline: arguments.clone() })?;
    runtime.register(WatchdogTimerConfigController { cmdline: arguments.clone() })?;
    runtime.register(KernelModuleConfigController { cmdline: arguments.clone() })?;
    runtime.register(ExtensionServiceConfigController { cmdline: arguments })
}
