//! Volumes: what is wanted and what is.

use ichor_resource_derive::{ResourceSpec, SpecMessage};

use super::enums::{EncryptionKeyType, EncryptionProviderType, FilesystemType, VolumePhase, VolumeType};
use crate::block::Expression;
use crate::value::TextBytes;

/// Whether the legacy user-disk configuration has been turned into volumes.
///
/// Id: `user-disks`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "UserDiskConfigStatuses.block.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.block.UserDiskConfigStatusSpec")]
#[resource(columns(("Ready", "{.ready}")))]
pub struct UserDiskConfigStatus {
    #[spec(1, "ready")]
    pub ready: bool,
    #[spec(2, "tornDown")]
    pub torn_down: bool,
}

/// Desired volume: how to find it, provision, encrypt and mount it. Holds passphrases, hence sensitive.
///
/// Id: partition label (`STATE`, `EPHEMERAL`, `META`, ...), a path for directory volumes, or prefixed name:
/// `u-` user, `r-` raw, `e-` existing, `s-` swap.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "VolumeConfigs.block.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.block.VolumeConfigSpec")]
#[resource(sensitive)]
pub struct VolumeConfig {
    #[spec(1, "parentId", omit)]
    pub parent_id: String,
    #[spec(2, "type")]
    pub r#type: VolumeType,
    #[spec(3, "provisioning")]
    pub provisioning: ProvisioningSpec,
    #[spec(6, "encryption", omit)]
    pub encryption: EncryptionSpec,
    #[spec(4, "locator")]
    pub locator: LocatorSpec,
    #[spec(5, "mount", omit)]
    pub mount: MountSpec,
    #[spec(7, "symlink", omit)]
    pub symlink: SymlinkProvisioningSpec,
}

/// Part of a spec: `block.ProvisioningSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.block.ProvisioningSpec")]
pub struct ProvisioningSpec {
    #[spec(3, "wave", omit)]
    pub wave: i64,
    #[spec(1, "diskSelector", omit)]
    pub disk_selector: DiskSelector,
    #[spec(2, "partitionSpec", omit)]
    pub partition_spec: PartitionSpec,
    #[spec(4, "filesystemSpec", omit)]
    pub filesystem_spec: FilesystemSpec,
}

/// Part of a spec: `block.DiskSelector`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.block.DiskSelector")]
pub struct DiskSelector {
    #[spec(1, "match", omit)]
    pub r#match: Expression,
}

/// Part of a spec: `block.PartitionSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.block.PartitionSpec")]
pub struct PartitionSpec {
    #[spec(1, "minSize")]
    pub min_size: u64,
    #[spec(2, "maxSize", omit)]
    pub max_size: u64,
    #[spec(6, "relativeMaxSize")]
    pub relative_max_size: u64,
    #[spec(3, "grow")]
    pub grow: bool,
    #[spec(4, "label", omit)]
    pub label: String,
    #[spec(5, "typeUUID", omit)]
    pub type_uuid: String,
}

/// Part of a spec: `block.FilesystemSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.block.FilesystemSpec")]
pub struct FilesystemSpec {
    #[spec(1, "type")]
    pub r#type: FilesystemType,
    #[spec(2, "label", omit)]
    pub label: String,
}

/// Part of a spec: `block.EncryptionSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.block.EncryptionSpec")]
pub struct EncryptionSpec {
    #[spec(1, "provider")]
    pub provider: EncryptionProviderType,
    #[spec(2, "keys")]
    pub keys: Vec<EncryptionKey>,
    #[spec(3, "cipher", omit)]
    pub cipher: String,
    #[spec(4, "keySize", omit)]
    pub key_size: u64,
    #[spec(5, "blockSize", omit)]
    pub block_size: u64,
    #[spec(6, "perfOptions", omit)]
    pub perf_options: Vec<String>,
}

/// Part of a spec: `block.EncryptionKey`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.block.EncryptionKey")]
pub struct EncryptionKey {
    #[spec(1, "slot")]
    pub slot: i64,
    #[spec(2, "type")]
    pub r#type: EncryptionKeyType,
    #[spec(6, "lockToState", omit)]
    pub lock_to_state: bool,
    #[spec(3, "staticPassphrase", omit)]
    pub static_passphrase: TextBytes,
    #[spec(4, "kmsEndpoint", omit)]
    pub kms_endpoint: String,
    #[spec(5, "tpmCheckSecurebootStatusOnEnroll", omit)]
    pub tpm_check_secureboot_status_on_enroll: bool,
    #[spec(7, "pcrs", omit)]
    pub pcrs: Vec<i64>,
    #[spec(8, "pubKeyPcrs", omit)]
    pub pub_key_pcrs: Vec<i64>,
}

/// Part of a spec: `block.LocatorSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.block.LocatorSpec")]
pub struct LocatorSpec {
    #[spec(1, "match", omit)]
    pub r#match: Expression,
    #[spec(2, "diskMatch", omit)]
    pub disk_match: Expression,
}

/// Part of a spec: `block.MountSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.block.MountSpec")]
pub struct MountSpec {
    #[spec(1, "targetPath")]
    pub target_path: String,
    #[spec(2, "selinuxLabel")]
    pub selinux_label: String,
    #[spec(3, "projectQuotaSupport")]
    pub project_quota_support: bool,
    #[spec(4, "parentId", omit)]
    pub parent_id: String,
    #[spec(5, "fileMode", omit)]
    pub file_mode: u32,
    #[spec(6, "uid", omit)]
    pub uid: i64,
    #[spec(7, "gid", omit)]
    pub gid: i64,
    #[spec(8, "recursiveRelabel", omit)]
    pub recursive_relabel: bool,
    #[spec(9, "bindTarget", omit)]
    pub bind_target: Option<String>,
}

/// Part of a spec: `block.SymlinkProvisioningSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.block.SymlinkProvisioningSpec")]
pub struct SymlinkProvisioningSpec {
    #[spec(1, "symlinkTargetPath")]
    pub symlink_target_path: String,
    #[spec(2, "force")]
    pub force: bool,
}

/// Marker whose teardown tells the volume manager to close all volumes before shutdown.
///
/// Id: `volumes`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "VolumeLifecycles.block.talos.dev", namespace = "runtime")]
pub struct VolumeLifecycle {}

/// Current phase and location of a volume.
///
/// Id: volume id.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "VolumeStatuses.block.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.block.VolumeStatusSpec")]
#[resource(columns(
    ("Type", "{.type}"),
    ("Phase", "{.phase}"),
    ("Location", "{.location}"),
    ("Size", "{.prettySize}"),
))]
pub struct VolumeStatus {
    #[spec(1, "phase")]
    pub phase: VolumePhase,
    #[spec(6, "preFailPhase", omit)]
    pub pre_fail_phase: VolumePhase,
    #[spec(16, "type")]
    pub r#type: VolumeType,
    #[spec(19, "parentID", omit)]
    pub parent_id: String,
    #[spec(2, "location", omit)]
    pub location: String,
    #[spec(11, "mountLocation", omit)]
    pub mount_location: String,
    #[spec(8, "partitionIndex", omit)]
    pub partition_index: i64,
    #[spec(7, "parentLocation", omit)]
    pub parent_location: String,
    #[spec(4, "uuid", omit)]
    pub uuid: String,
    #[spec(5, "partitionUUID", omit)]
    pub partition_uuid: String,
    #[spec(9, "size", omit)]
    pub size: u64,
    #[spec(13, "prettySize", omit)]
    pub pretty_size: String,
    #[spec(10, "filesystem", omit)]
    pub filesystem: FilesystemType,
    #[spec(12, "encryptionProvider", omit)]
    pub encryption_provider: EncryptionProviderType,
    #[spec(14, "encryptionFailedSyncs", omit)]
    pub encryption_failed_syncs: Vec<String>,
    #[spec(17, "configuredEncryptionKeys", omit)]
    pub configured_encryption_keys: Vec<String>,
    #[spec(20, "encryptionLockedToState", omit)]
    pub encryption_locked_to_state: bool,
    #[spec(21, "encryptionSlot", omit)]
    pub encryption_slot: Option<i64>,
    #[spec(22, "tpmEncryptionOptions", omit)]
    pub tpm_encryption_options: TPMEncryptionOptionsInfo,
    #[spec(15, "mountSpec", omit)]
    pub mount_spec: MountSpec,
    #[spec(18, "symlink", omit)]
    pub symlink: SymlinkProvisioningSpec,
    #[spec(3, "errorMessage", omit)]
    pub error_message: String,
}

/// Part of a spec: `block.TPMEncryptionOptionsInfo`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.block.TPMEncryptionOptionsInfo")]
pub struct TPMEncryptionOptionsInfo {
    #[spec(1, "pcrs", omit)]
    pub pcrs: Vec<i64>,
    #[spec(2, "pubKeyPcrs", omit)]
    pub pub_key_pcrs: Vec<i64>,
}
