//! The machine: stage, identity, platform, META.

use std::collections::BTreeMap;

use ichor_resource_derive::{ResourceSpec, SpecMessage};

use super::enums::{FIPSState, MachineStage, SELinuxState};
use crate::value::Ip;

/// Boot entry that was booted.
///
/// Id: `bootedentry`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "BootedEntries.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.BootedEntrySpec")]
#[resource(columns(("Booted Entry", "{.bootedEntry}")))]
pub struct BootedEntry {
    #[spec(1, "bootedEntry", omit)]
    pub booted_entry: String,
}

/// Created when a reset has only local work left.
///
/// Id: `machine`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "MachineResetSignals.runtime.talos.dev", namespace = "runtime")]
pub struct MachineResetSignal {}

/// Stage and readiness of the machine; feeds MachineStatusEvent.
///
/// Id: `machine`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "MachineStatuses.runtime.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.MachineStatusSpec")]
#[resource(columns(("Stage", "{.stage}"), ("Ready", "{.status.ready}")))]
pub struct MachineStatus {
    #[spec(1, "stage")]
    pub stage: MachineStage,
    #[spec(2, "status")]
    pub status: MachineStatusStatus,
}

/// Part of a spec: `runtime.MachineStatusStatus`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.runtime.MachineStatusStatus")]
pub struct MachineStatusStatus {
    #[spec(1, "ready")]
    pub ready: bool,
    #[spec(2, "unmetConditions")]
    pub unmet_conditions: Vec<UnmetCondition>,
}

/// Part of a spec: `runtime.UnmetCondition`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.runtime.UnmetCondition")]
pub struct UnmetCondition {
    #[spec(1, "name")]
    pub name: String,
    #[spec(2, "reason")]
    pub reason: String,
}

/// Facts the platform gave about this machine.
///
/// Id: `platformmetadata`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "PlatformMetadatas.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.PlatformMetadataSpec")]
#[resource(columns(
    ("Platform", "{.platform}"),
    ("Type", "{.instanceType}"),
    ("Region", "{.region}"),
    ("Zone", "{.zone}"),
))]
pub struct PlatformMetadata {
    #[spec(1, "platform", omit)]
    pub platform: String,
    #[spec(2, "hostname", omit)]
    pub hostname: String,
    #[spec(3, "region", omit)]
    pub region: String,
    #[spec(4, "zone", omit)]
    pub zone: String,
    #[spec(5, "instanceType", omit)]
    pub instance_type: String,
    #[spec(6, "instanceId", omit)]
    pub instance_id: String,
    #[spec(7, "providerId", omit)]
    pub provider_id: String,
    #[spec(8, "spot", omit)]
    pub spot: bool,
    #[spec(9, "internalDNS", omit)]
    pub internal_dns: String,
    #[spec(10, "externalDNS", omit)]
    pub external_dns: String,
    #[spec(11, "tags", omit)]
    pub tags: BTreeMap<String, String>,
}

/// Secure boot, SELinux, FIPS and module signing state.
///
/// Id: `securitystate`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "SecurityStates.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.SecurityStateSpec")]
#[resource(columns(
    ("SecureBoot", "{.secureBoot}"),
    ("UKISigningKeyFingerprint", "{.ukiSigningKeyFingerprint}"),
    ("PCRSigningKeyFingerprint", "{.pcrSigningKeyFingerprint}"),
    ("SELinuxState", "{.selinuxState}"),
    ("ModuleSignatureEnforced", "{.moduleSignatureEnforced}"),
))]
pub struct SecurityState {
    #[spec(1, "secureBoot")]
    pub secure_boot: bool,
    #[spec(2, "ukiSigningKeyFingerprint", omit)]
    pub uki_signing_key_fingerprint: String,
    #[spec(3, "pcrSigningKeyFingerprint", omit)]
    pub pcr_signing_key_fingerprint: String,
    #[spec(4, "selinuxState", omit)]
    pub selinux_state: SELinuxState,
    #[spec(6, "fipsState", omit)]
    pub fips_state: FIPSState,
    #[spec(5, "bootedWithUKI", omit)]
    pub booted_with_uki: bool,
    #[spec(7, "moduleSignatureEnforced", omit)]
    pub module_signature_enforced: bool,
}

/// Token that survives reinstall, used by SideroLink; sensitive as every token.
///
/// Id: `unique-machine-token`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "UniqueMachineTokens.runtime.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.UniqueMachineTokenSpec")]
#[resource(columns(("Token", "{.token}")), sensitive)]
pub struct UniqueMachineToken {
    #[spec(1, "token")]
    pub token: String,
}

/// Running system version.
///
/// Id: `version`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "Versions.runtime.talos.dev", namespace = "runtime")]
#[resource(columns(("Version", "{.version}")))]
pub struct Version {
    #[spec(1, "version")]
    pub version: String,
}

/// Listen address of the maintenance service.
///
/// Id: `maintenance`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "MaintenanceServiceConfigs.runtime.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.MaintenanceServiceConfigSpec")]
pub struct MaintenanceServiceConfig {
    #[spec(1, "listenAddress")]
    pub listen_address: String,
    #[spec(2, "reachableAddresses")]
    pub reachable_addresses: Vec<Ip>,
}

/// Exists while the maintenance service should run.
///
/// Id: `maintenance`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "MaintenanceServiceRequests.runtime.talos.dev", namespace = "runtime")]
pub struct MaintenanceServiceRequest {}

/// A META key and its value. Among the values are a token and the keys of an encrypted STATE, hence sensitive.
///
/// Id: key as `0x%02x`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "MetaKeys.runtime.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.MetaKeySpec")]
#[resource(aliases("meta"), sensitive)]
#[resource(columns(("Value", "{.value}")))]
pub struct MetaKey {
    #[spec(1, "value")]
    pub value: String,
}

/// META has been read.
///
/// Id: `meta-loaded`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "MetaLoads.runtime.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.MetaLoadedSpec")]
#[resource(columns(("Done", "{.done}")))]
pub struct MetaLoad {
    #[spec(1, "done")]
    pub done: bool,
}
