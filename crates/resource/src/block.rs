//! Block devices, volumes and mounts.

mod device;
mod enums;
mod expression;
mod mount;
mod volume;

pub use device::{
    BlockDevice, BlockSymlink, DiscoveredVolume, DiscoveryRefreshRequest, DiscoveryRefreshStatus, Disk,
    SwapStatus, SystemDisk, ZswapStatus,
};
pub use enums::*;
pub use expression::Expression;
pub use mount::{MountRequest, MountStatus, VolumeMountRequest, VolumeMountStatus};
pub use volume::{
    DiskSelector, EncryptionKey, EncryptionSpec, FilesystemSpec, LocatorSpec, MountSpec, PartitionSpec,
    ProvisioningSpec, SymlinkProvisioningSpec, TPMEncryptionOptionsInfo, UserDiskConfigStatus, VolumeConfig,
    VolumeLifecycle, VolumeStatus,
};
