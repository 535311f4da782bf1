//! System extensions and their services.

use ichor_resource_derive::{ResourceSpec, SpecMessage};

/// The above was written to disk at this spec version.
///
/// Id: extension service name.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "ExtensionServiceConfigStatuses.runtime.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.ExtensionServiceConfigStatusSpec")]
pub struct ExtensionServiceConfigStatus {
    #[spec(1, "specVersion")]
    pub spec_version: String,
}

/// Configuration files and environment for an extension service, which is where its credentials are, hence sensitive.
///
/// Id: extension service name.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "ExtensionServiceConfigs.runtime.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.ExtensionServiceConfigSpec")]
#[resource(sensitive)]
pub struct ExtensionServiceConfig {
    #[spec(1, "files", omit)]
    pub files: Vec<ExtensionServiceConfigFile>,
    #[spec(2, "environment", omit)]
    pub environment: Vec<String>,
}

/// Part of a spec: `runtime.ExtensionServiceConfigFile`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.runtime.ExtensionServiceConfigFile")]
pub struct ExtensionServiceConfigFile {
    #[spec(1, "content")]
    pub content: String,
    #[spec(2, "mountPath")]
    pub mount_path: String,
}

/// An installed system extension.
///
/// Id: layer file name without `.sqsh`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "ExtensionStatuses.runtime.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.extensions.Layer")]
#[resource(aliases("extensions"))]
#[resource(columns(("Name", "{.metadata.name}"), ("Version", "{.metadata.version}")))]
pub struct ExtensionStatus {
    #[spec(1, "image")]
    pub image: String,
    #[spec(2, "metadata")]
    pub metadata: ExtensionMetadata,
}

/// Part of a spec: `extensions.Metadata`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.extensions.Metadata")]
pub struct ExtensionMetadata {
    #[spec(1, "name")]
    pub name: String,
    #[spec(2, "version")]
    pub version: String,
    #[spec(3, "author")]
    pub author: String,
    #[spec(4, "description")]
    pub description: String,
    #[spec(5, "compatibility")]
    pub compatibility: ExtensionCompatibility,
    #[spec(6, "extraInfo", omit)]
    pub extra_info: String,
}

/// Part of a spec: `extensions.Compatibility`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.extensions.Compatibility")]
pub struct ExtensionCompatibility {
    #[spec(1, "talos")]
    pub talos: ExtensionConstraint,
}

/// Part of a spec: `extensions.Constraint`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.extensions.Constraint")]
pub struct ExtensionConstraint {
    #[spec(1, "version")]
    pub version: String,
}
