//! Controllers of machine status, identity, events and platform.
//!
//! [`register`] adds the whole family to a runtime. What it needs from the outside comes through small ports:
//! [`Stages`] hears of the boot sequence, [`StatusSink`] passes on the machine's status, [`IdentityStore`] keeps
//! the identity, [`Files`] reads what the kernel shows in files.

mod cluster;
mod console;
mod counters;
pub mod cri;
mod delivery;
mod diagnostics;
mod documents;
pub mod extension_services;
mod extensions;
mod facts;
mod hardware;
mod identity;
mod log_persistence;
mod machine_status;
pub mod meta;
mod modules;
mod names;
pub mod oom;
mod params;
mod ports;
mod salt;
mod security;
mod stage;
mod sync;
mod system_clock;
mod token;
mod upgrade;
mod volumes;
mod watchdog;

pub use cluster::InfoController;
pub use console::ConsoleLogController;
pub use counters::{AdjtimeStatusController, StatsController, SwapStatusController, ZswapStatusController};
pub use cri::CriHost;
pub use delivery::{KernelLog, KernelRecords, KmsgLogDeliveryController, LogDeliveryController};
pub use diagnostics::{DiagnosticsController, DiagnosticsLoggerController};
pub use documents::{
    EventsSinkConfigController, ExtensionServiceConfigController, KernelModuleConfigController,
    KmsgLogConfigController, SiderolinkConfigController, WatchdogTimerConfigController,
    ZswapConfigController, kernel_modules,
};
pub use extensions::{ExtensionServiceConfigFilesController, ExtensionStatusController, SBOMItemController};
pub use facts::{DevicesStatusController, KernelCmdlineController, VersionController};
pub use hardware::{
    PCIDevicesController, PCIDriverRebindConfigController, PCIDriverRebindController, SystemInfoController,
};
pub use identity::{IDENTITY_FILE, NodeIdentityController};
pub use log_persistence::LogPersistenceController;
pub use machine_status::{MachineStatusController, MachineStatusPublisherController, StatusSink};
pub use meta::{META_FILE, Meta, MetaError};
pub use modules::{KernelModuleSpecController, LoadedKernelModuleController};
pub use names::{IQNController, NQNController};
pub use oom::{OOMController, SystemGroups};
pub use params::{
    KSPP, KernelParamConfigController, KernelParamDefaultsController, KernelParamSpecController,
    configured_kernel_params, default_kernel_params,
};
pub use ports::{Files, HostFiles, IdentityStore};
pub use salt::EncryptionSaltController;
pub use security::SecurityStateController;
pub use stage::{Moment, Stages};
pub use sync::{Adjustment, Leap, Measurement, SyncController, TimePort};
pub use system_clock::SystemClock;
pub use token::UniqueMachineTokenController;
pub use upgrade::{BootedEntryController, DropUpgradeFallbackController};
pub use volumes::DirectoryVolumeController;
pub use watchdog::{Armed, KernelWatchdog, WatchdogPort, WatchdogTimerController};

use std::path::PathBuf;

use ichor_config::Mode;
use ichor_cosi::{RegisterError, Runtime};
use ichor_types::Cmdline;

/// Everything the family touches outside of the state.
#[derive(Clone)]
pub struct Ports<F, S, T> {
    /// Files of the machine: the kernel's and the state directory's.
    pub files: F,
    /// Where the system is, for what is read in whole folders.
    pub root: PathBuf,
    /// The few values that outlive everything else.
    pub meta: Meta,
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
    /// The name of the platform.
    pub platform: String,
    /// The rules of the platform for a configuration.
    pub mode: Mode,
    /// Whether a device manager runs, whose readiness others wait for.
    pub device_manager: bool,
    /// Whether STATE may be a disk that has to be mounted before it is used.
    pub disks: bool,
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
    let Ports {
        files,
        root,
        meta,
        sink,
        time,
        stages,
        version,
        cmdline,
        platform,
        mode,
        device_manager,
        disks,
        kubernetes,
    } = ports;
    let arguments = Cmdline::parse(&cmdline);
    // Who has no clock of its own has no kernel of its own either.
    let own_kernel = time.owns_clock();

    runtime.register(MachineStatusController::new(stages, kubernetes))?;
    runtime.register(MachineStatusPublisherController::new(sink))?;
    runtime.register(NodeIdentityController::new(files.clone()).on_volume(disks))?;
    runtime.register(VersionController { version })?;
    runtime.register(SecurityStateController::new(files.clone(), &cmdline))?;
    runtime.register(KernelCmdlineController { cmdline })?;
    runtime.register(DevicesStatusController { device_manager })?;
    runtime.register(UniqueMachineTokenController)?;
    runtime.register(InfoController::default())?;
    runtime.register(SyncController::new(time))?;

    runtime.register(KernelParamDefaultsController { own_kernel })?;
    runtime.register(KernelParamConfigController)?;
    runtime.register(KernelParamSpecController::new(files.clone()))?;

    runtime.register(SystemInfoController::new(&root))?;
    runtime.register(PCIDevicesController::new(&root, device_manager))?;
    runtime.register(PCIDriverRebindConfigController)?;
    runtime.register(PCIDriverRebindController::new(files.clone()))?;
    runtime.register(StatsController { files: files.clone() })?;
    runtime.register(AdjtimeStatusController)?;
    if own_kernel {
        runtime.register(SwapStatusController { files: files.clone() })?;
    }
    runtime.register(ZswapStatusController { files: files.clone() })?;
    runtime.register(LoadedKernelModuleController::new(files.clone()))?;
    runtime.register(KernelModuleSpecController::new(&root))?;

    runtime.register(DiagnosticsController::new(meta.clone(), &platform, mode, &arguments))?;
    runtime.register(DiagnosticsLoggerController::default())?;
    runtime.register(ExtensionStatusController { root: root.clone() })?;
    runtime.register(ExtensionServiceConfigFilesController { root: root.clone() })?;
    runtime.register(SBOMItemController { root })?;
    runtime.register(BootedEntryController { files: files.clone() })?;
    runtime.register(DropUpgradeFallbackController::new(meta))?;
    runtime.register(EncryptionSaltController::new(files).on_volume(disks))?;
    runtime.register(IQNController)?;
    runtime.register(NQNController)?;
    runtime.register(ZswapConfigController { cmdline: arguments.clone() })?;
    runtime.register(SiderolinkConfigController { cmdline: arguments.clone() })?;

    runtime.register(EventsSinkConfigController { cmdline: arguments.clone() })?;
    runtime.register(KmsgLogConfigController { cmdline: arguments.clone() })?;
    runtime.register(WatchdogTimerConfigController { cmdline: arguments.clone() })?;
    runtime.register(KernelModuleConfigController { cmdline: arguments.clone() })?;
    runtime.register(ExtensionServiceConfigController { cmdline: arguments })
}
