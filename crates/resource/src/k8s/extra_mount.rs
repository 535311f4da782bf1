//! Mounts handed to kubelet.

use ichor_resource_derive::SpecMessage;

/// A mount as the OCI runtime takes it.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.proto.Mount")]
pub struct ExtraMount {
    #[spec(1, "destination")]
    pub destination: String,
    #[spec(2, "type", omit)]
    pub r#type: String,
    #[spec(3, "source", omit)]
    pub source: String,
    #[spec(4, "options", omit)]
    pub options: Vec<String>,
    #[spec(5, "uidmappings", omit)]
    pub uid_mappings: Vec<IdMapping>,
    #[spec(6, "gidmappings", omit)]
    pub gid_mappings: Vec<IdMapping>,
}

/// A range of ids as seen from outside and inside.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.proto.LinuxIDMapping")]
pub struct IdMapping {
    #[spec(1, "containerid")]
    pub container_id: u32,
    #[spec(2, "hostid")]
    pub host_id: u32,
    #[spec(3, "size")]
    pub size: u32,
}
