//! State of the machine.

mod enums;
mod extension;
mod health;
mod kernel;
mod machine;

pub use enums::*;
pub use extension::{
    ExtensionCompatibility, ExtensionConstraint, ExtensionMetadata, ExtensionServiceConfig,
    ExtensionServiceConfigFile, ExtensionServiceConfigStatus, ExtensionStatus,
};
pub use health::{
    DevicesStatus, Diagnostic, EventSinkConfig, MountStatus, OOMAction, SBOMItem, WatchdogTimerConfig,
    WatchdogTimerStatus,
};
pub use kernel::{
    KernelCmdline, KernelModuleSpec, KernelParamDefaultSpec, KernelParamSpec, KernelParamStatus,
    KmsgLogConfig, LoadedKernelModule,
};
pub use machine::{
    BootedEntry, MachineResetSignal, MachineStatus, MachineStatusStatus, MaintenanceServiceConfig,
    MaintenanceServiceRequest, MetaKey, MetaLoad, PlatformMetadata, SecurityState, UniqueMachineToken,
    UnmetCondition, Version,
};
