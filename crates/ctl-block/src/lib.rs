//! Controllers of block devices: what there is, what is on it, which disk the system is on, volumes and mounts.
//!
//! [`register`] adds the family to a runtime. Everything outside of the state is behind [`BlockPort`];
//! [`SystemBlock`] is the machine's own.

mod configs;
mod devices;
mod discovery;
mod disks;
pub mod mounts;
mod ports;
mod symlinks;
mod system;
mod system_disk;
pub mod volumes;

pub use configs::{
    UserDiskConfigController, UserVolumeConfigController, VolumeConfigController, WantedVolume,
};
pub use devices::DevicesController;
pub use discovery::DiscoveryController;
pub use disks::DisksController;
pub use ports::{BlockPort, DeviceChanges, ProbeError, Probed};
pub use symlinks::SymlinksController;
pub use system::SystemBlock;
pub use system_disk::{META_HOLDER, META_LABEL, SYSTEM_DISK, SystemDiskController};

use ichor_cosi::{RegisterError, Runtime};

/// Adds all controllers of the family to a runtime. `device_manager` says whether one runs here.
pub fn register<P: BlockPort>(runtime: &Runtime, port: P, device_manager: bool) -> Result<(), RegisterError> {
    runtime.register(DevicesController::new(port.clone()))?;
    runtime.register(SymlinksController::new(port.clone(), device_manager))?;
    runtime.register(DiscoveryController::new(port.clone()))?;
    runtime.register(DisksController::new(port))?;
    runtime.register(SystemDiskController)
}

/// Adds the controllers of volumes and mounts. `state` and `ephemeral` are where the volumes of the system are seen.
pub fn register_volumes<V: volumes::VolumePort, M: mounts::MountPort>(
    runtime: &Runtime,
    volumes: V,
    mounts: M,
    state: std::path::PathBuf,
    ephemeral: std::path::PathBuf,
) -> Result<(), RegisterError> {
    let failures = mounts::MountFailures::default();
    runtime.register(VolumeConfigController::new(state, ephemeral))?;
    runtime.register(UserVolumeConfigController)?;
    runtime.register(UserDiskConfigController)?;
    runtime.register(volumes::VolumeManagerController::new(volumes, failures.clone()))?;
    runtime.register(mounts::StateMountController)?;
    runtime.register(mounts::MountRequestController)?;
    runtime.register(mounts::MountController::new(mounts, failures))?;
    runtime.register(mounts::VolumeMountStatusController)?;
    runtime.register(mounts::LegacyMountStatusController)
}
