//! Which volumes a machine has: what the system needs, and what its configuration asks for.
//!
//! [`system`] and [`user`] are pure: documents of the configuration become `VolumeConfigs`. The controllers publish them, and
//! request mounts of those that are for workloads.

mod controller;
mod legacy;
mod system;
mod user;
mod user_controller;

pub use controller::VolumeConfigController;
pub use user_controller::{UserDiskConfigController, UserVolumeConfigController};

use ichor_config::kinds::block::{Encryption, Provisioning};
use ichor_config::values::Size;
use ichor_resource::block::{
    EncryptionProviderType, EncryptionSpec, Expression, PartitionSpec, VolumeConfig,
};

/// What partitions with data are for, in the partition table.
pub(crate) const LINUX_DATA: &str = "0FC63DAF-8483-4772-8E79-3D69D8477DE4";
/// What partitions to swap to are for.
pub(crate) const LINUX_SWAP: &str = "0657FD6D-A4AB-43C4-84E5-0933C84B4F4F";
/// The security label of EPHEMERAL and of what is mounted below it.
pub(crate) const EPHEMERAL_LABEL: &str = "system_u:object_r:ephemeral_t:s0";

/// A volume that the configuration asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct WantedVolume {
    /// The id of its resources.
    pub id: String,
    /// The label that tells its kind.
    pub label: &'static str,
    /// What it is to be.
    pub config: VolumeConfig,
    /// Whether it is mounted, and if so read-only.
    pub mount: Option<bool>,
}

pub(crate) fn expression(text: impl Into<String>) -> Expression {
    Expression { text: text.into(), ..Expression::default() }
}

/// A text as an expression has it.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The sizes of a partition. What is not given is `minimum`, no largest size, and `grow`.
pub(crate) fn partition(
    label: &str,
    type_uuid: &str,
    wanted: &Provisioning,
    minimum: u64,
    grow: bool,
) -> PartitionSpec {
    let (max_size, relative_max_size) = match &wanted.max_size {
        Size::Unset => (0, 0),
        Size::Bytes(size) => (size.bytes(), 0),
        Size::Percent { percent, .. } => (0, *percent),
    };
    let min_size = match wanted.min_size.is_set() {
        true => wanted.min_size.bytes(),
        // A largest size below what is usual is what was asked for.
        false if max_size > 0 => minimum.min(max_size),
        false => minimum,
    };
    PartitionSpec {
        min_size,
        max_size,
        relative_max_size,
        grow: wanted.grow.unwrap_or(grow),
        label: label.to_owned(),
        type_uuid: type_uuid.to_owned(),
    }
}

/// The encryption, as far as it decides what happens to the volume: it is refused by name until it is built.
pub(crate) fn encryption(wanted: &Encryption) -> EncryptionSpec {
    let provider = match wanted.is_absent() {
        true => EncryptionProviderType::None,
        false => EncryptionProviderType::Luks2,
    };
    EncryptionSpec { provider, ..EncryptionSpec::default() }
}
