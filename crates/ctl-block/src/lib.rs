//! Controllers of block devices: what there is, what is on it, which disk the system is on.
//!
//! [`register`] adds the family to a runtime. Everything outside of the state is behind [`BlockPort`];
//! [`SystemBlock`] is the machine's own.

mod devices;
mod discovery;
mod disks;
mod ports;
mod symlinks;
mod system;
mod system_disk;
mod volume_config;
pub mod volumes;

pub use devices::DevicesController;
pub use discovery::DiscoveryController;
pub use disks::DisksController;
pub use ports::{BlockPort, DeviceChanges, ProbeError, Probed};
pub use symlinks::SymlinksController;
pub use system::SystemBlock;
pub use system_disk::{META_LABEL, SYSTEM_DISK, SystemDiskController};
pub use volume_config::{DirectoryVolume, VolumeConfigController};

use ichor_cosi::{RegisterError, Runtime};

/// Adds all controllers of the family to a runtime. `device_manager` says whether one runs here.
pub fn register<P: BlockPort>(runtime: &Runtime, port: P, device_manager: bool) -> Result<(), RegisterError> {
    runtime.register(DevicesController::new(port.clone()))?;
    runtime.register(SymlinksController::new(port.clone(), device_manager))?;
    runtime.register(DiscoveryController::new(port.clone()))?;
    runtime.register(DisksController::new(port))?;
    runtime.register(SystemDiskController)
}
