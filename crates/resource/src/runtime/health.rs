//! Diagnostics, watchdog and other state of the machine.

use ichor_resource_derive::ResourceSpec;

use crate::value::GoDuration;

/// udev has settled.
///
/// Id: `devices`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "DevicesStatuses.runtime.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.DevicesStatusSpec")]
#[resource(columns(("Ready", "{.ready}")))]
pub struct DevicesStatus {
    #[spec(1, "ready")]
    pub ready: bool,
}

/// A warning from the built-in diagnostics.
///
/// Id: check id, e.g. `address-overlap`, `kubelet-csr`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "Diagnostics.runtime.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.DiagnosticSpec")]
#[resource(columns(("Message", "{.message}")))]
pub struct Diagnostic {
    #[spec(1, "message")]
    pub message: String,
    #[spec(2, "details")]
    pub details: Vec<String>,
}

/// Where to stream events to.
///
/// Id: `event-sink`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "EventSinkConfigs.runtime.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.EventSinkConfigSpec")]
pub struct EventSinkConfig {
    #[spec(1, "endpoint")]
    pub endpoint: String,
}

/// Older view of mounted volumes, kept for its readers. Has no automatic aliases: only `mounts`.
///
/// Id: volume id.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "MountStatuses.runtime.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.MountStatusSpec")]
#[resource(aliases("mounts"), skip_automatic_aliases)]
#[resource(columns(
    ("Source", "{.source}"),
    ("Target", "{.target}"),
    ("Filesystem Type", "{.filesystemType}"),
))]
pub struct MountStatus {
    #[spec(1, "source")]
    pub source: String,
    #[spec(2, "target")]
    pub target: String,
    #[spec(3, "filesystemType")]
    pub filesystem_type: String,
    #[spec(4, "options")]
    pub options: Vec<String>,
    #[spec(5, "encrypted")]
    pub encrypted: bool,
    #[spec(6, "encryptionProviders", omit)]
    pub encryption_providers: Vec<String>,
}

/// Record of an out-of-memory action.
///
/// Id: sequence number.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "OOMActions.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.OOMActionSpec")]
#[resource(aliases("oomaction", "oomactions"), sensitive)]
#[resource(columns(("Time", "{.time}"), ("Score", "{.score}")))]
pub struct OOMAction {
    #[spec(1, "triggerContext", omit)]
    pub trigger_context: String,
    #[spec(2, "score", omit)]
    pub score: f64,
    #[spec(3, "processes", omit)]
    pub processes: Vec<String>,
}

/// A package from the software bill of materials.
///
/// Id: package name.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "SBOMItems.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.SBOMItemSpec")]
#[resource(aliases("sbom", "sboms"))]
#[resource(columns(("Version", "{.version}"), ("License", "{.license}"), ("Extension", "{.extension}")))]
pub struct SBOMItem {
    #[spec(1, "name")]
    pub name: String,
    #[spec(2, "version")]
    pub version: String,
    #[spec(3, "license", omit)]
    pub license: String,
    #[spec(4, "cpes", omit)]
    pub cpes: Vec<String>,
    #[spec(5, "purls", omit)]
    pub purls: Vec<String>,
    #[spec(6, "extension", omit)]
    pub extension: bool,
}

/// Wanted watchdog timer.
///
/// Id: `timer`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "WatchdogTimerConfigs.runtime.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.WatchdogTimerConfigSpec")]
#[resource(columns(("Device", "{.device}"), ("Timeout", "{.timeout}")))]
pub struct WatchdogTimerConfig {
    #[spec(1, "device")]
    pub device: String,
    #[spec(2, "timeout")]
    pub timeout: GoDuration,
}

/// Watchdog timer in use.
///
/// Id: `timer`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "WatchdogTimerStatuses.runtime.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.WatchdogTimerStatusSpec")]
#[resource(columns(("Device", "{.device}"), ("Timeout", "{.timeout}")))]
pub struct WatchdogTimerStatus {
    #[spec(1, "device")]
    pub device: String,
    #[spec(2, "timeout")]
    pub timeout: GoDuration,
    #[spec(3, "feedInterval")]
    pub feed_interval: GoDuration,
}
