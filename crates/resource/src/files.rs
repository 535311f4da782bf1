//! Files under /etc.

use ichor_resource_derive::ResourceSpec;

use crate::value::TextBytes;

/// A file to be rendered into /etc. Those of the container runtime hold credentials of registries, hence sensitive.
///
/// Id: path under /etc, e.g. `hosts`, `machine-id`, `cri/conf.d/...`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "EtcFileSpecs.files.talos.dev", namespace = "files")]
#[resource(proto = "talos.resource.definitions.files.EtcFileSpecSpec")]
#[resource(sensitive)]
pub struct EtcFileSpec {
    #[spec(1, "contents")]
    pub contents: TextBytes,
    #[spec(2, "mode")]
    pub mode: u32,
    #[spec(3, "selinux_label")]
    pub selinux_label: String,
}

/// The file above was rendered at this spec version.
///
/// Id: same as the spec.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "EtcFileStatuses.files.talos.dev", namespace = "files")]
#[resource(proto = "talos.resource.definitions.files.EtcFileStatusSpec")]
pub struct EtcFileStatus {
    #[spec(1, "specVersion")]
    pub spec_version: String,
}
