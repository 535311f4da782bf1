//! Mounts and those who ask for them.

use ichor_resource_derive::ResourceSpec;

use super::enums::{EncryptionProviderType, FilesystemType};

/// Merged request to mount one volume, built from all volume mount requests for it.
///
/// Id: volume id (merged across requesters).
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "MountRequests.block.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.block.MountRequestSpec")]
#[resource(columns(("Volume", "{.volumeID}"), ("Parent", "{.parentID}"), ("Requesters", "{.requesters}")))]
pub struct MountRequest {
    #[spec(1, "volumeID")]
    pub volume_id: String,
    #[spec(2, "parentID")]
    pub parent_id: String,
    #[spec(5, "readOnly")]
    pub read_only: bool,
    #[spec(6, "detached")]
    pub detached: bool,
    #[spec(3, "requesters")]
    pub requesters: Vec<String>,
    #[spec(4, "requesterIDs")]
    pub requester_ids: Vec<String>,
}

/// A mount that was carried out for a mount request.
///
/// Id: same as the mount request.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "MountStatuses.block.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.block.MountStatusSpec")]
#[resource(columns(
    ("Source", "{.source}"),
    ("Target", "{.target}"),
    ("Filesystem", "{.filesystem}"),
    ("Volume", "{.spec.volumeID}"),
))]
pub struct MountStatus {
    #[spec(1, "spec")]
    pub spec: MountRequest,
    #[spec(3, "source")]
    pub source: String,
    #[spec(2, "target")]
    pub target: String,
    #[spec(4, "filesystem")]
    pub filesystem: FilesystemType,
    #[spec(7, "encryptionProvider", omit)]
    pub encryption_provider: EncryptionProviderType,
    #[spec(5, "readOnly")]
    pub read_only: bool,
    #[spec(6, "projectQuotaSupport")]
    pub project_quota_support: bool,
    #[spec(8, "detached")]
    pub detached: bool,
}

/// One requester asks for one volume to be mounted.
///
/// Id: requester-chosen, often the volume id.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "VolumeMountRequests.block.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.block.VolumeMountRequestSpec")]
#[resource(columns(("Volume ID", "{.volumeID}"), ("Requester", "{.requester}")))]
pub struct VolumeMountRequest {
    #[spec(1, "volumeID")]
    pub volume_id: String,
    #[spec(3, "readOnly")]
    pub read_only: bool,
    #[spec(4, "detached")]
    pub detached: bool,
    #[spec(2, "requester")]
    pub requester: String,
}

/// The answer to a volume mount request: the volume is mounted at this target. Users put finalizers on it
/// while they use the mount.
///
/// Id: same as the request.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "VolumeMountStatuses.block.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.block.VolumeMountStatusSpec")]
#[resource(columns(("Volume ID", "{.volumeID}"), ("Requester", "{.requester}"), ("Target", "{.target}")))]
pub struct VolumeMountStatus {
    #[spec(1, "volumeID")]
    pub volume_id: String,
    #[spec(2, "requester")]
    pub requester: String,
    #[spec(3, "target")]
    pub target: String,
    #[spec(4, "readOnly")]
    pub read_only: bool,
    #[spec(5, "detached")]
    pub detached: bool,
}
