//! Settings of the control plane components.

use std::collections::BTreeMap;

use ichor_resource_derive::{ResourceSpec, SpecMessage};

use crate::value::{Ip, Object};

/// kube-apiserver settings.
///
/// Id: `kube-apiserver`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "APIServerConfigs.kubernetes.talos.dev", namespace = "controlplane")]
#[resource(proto = "talos.resource.definitions.k8s.APIServerConfigSpec")]
pub struct APIServerConfig {
    #[spec(1, "image")]
    pub image: String,
    #[spec(2, "cloudProvider")]
    pub cloud_provider: String,
    #[spec(3, "controlPlaneEndpoint")]
    pub control_plane_endpoint: String,
    #[spec(4, "etcdServers")]
    pub etcd_servers: Vec<String>,
    #[spec(5, "localPort")]
    pub local_port: i64,
    #[spec(6, "serviceCIDR")]
    pub service_cidr: Vec<String>,
    #[spec(7, "extraArgs")]
    pub extra_args: BTreeMap<String, String>,
    #[spec(8, "extraVolumes")]
    pub extra_volumes: Vec<ExtraVolume>,
    #[spec(9, "environmentVariables")]
    pub environment_variables: BTreeMap<String, String>,
    #[spec(11, "advertisedAddress")]
    pub advertised_address: String,
    #[spec(12, "resources")]
    pub resources: Resources,
}

/// Part of a spec: `k8s.ExtraVolume`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.k8s.ExtraVolume")]
pub struct ExtraVolume {
    #[spec(1, "name")]
    pub name: String,
    #[spec(2, "hostPath")]
    pub host_path: String,
    #[spec(3, "mountPath")]
    pub mount_path: String,
    #[spec(4, "readonly")]
    pub readonly: bool,
}

/// Part of a spec: `k8s.Resources`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.k8s.Resources")]
pub struct Resources {
    #[spec(1, "requests")]
    pub requests: BTreeMap<String, String>,
    #[spec(2, "limits")]
    pub limits: BTreeMap<String, String>,
}

/// kube-apiserver admission plugin configuration.
///
/// Id: `admission-control`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "AdmissionControlConfigs.kubernetes.talos.dev", namespace = "controlplane")]
#[resource(proto = "talos.resource.definitions.k8s.AdmissionControlConfigSpec")]
pub struct AdmissionControlConfig {
    #[spec(1, "config")]
    pub config: Vec<AdmissionPluginSpec>,
}

/// Part of a spec: `k8s.AdmissionPluginSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.k8s.AdmissionPluginSpec")]
pub struct AdmissionPluginSpec {
    #[spec(1, "name")]
    pub name: String,
    #[spec(2, "configuration")]
    pub configuration: Object,
}

/// kube-apiserver audit policy.
///
/// Id: `audit-policy`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "AuditPolicyConfigs.kubernetes.talos.dev", namespace = "controlplane")]
#[resource(proto = "talos.resource.definitions.k8s.AuditPolicyConfigSpec")]
#[resource(sensitive)]
pub struct AuditPolicyConfig {
    #[spec(1, "config")]
    pub config: Object,
}

/// kube-apiserver authorizers.
///
/// Id: `authorization`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "AuthorizationConfigs.kubernetes.talos.dev", namespace = "controlplane")]
#[resource(proto = "talos.resource.definitions.k8s.AuthorizationConfigSpec")]
pub struct AuthorizationConfig {
    #[spec(1, "image")]
    pub image: String,
    #[spec(2, "config")]
    pub config: Vec<AuthorizationAuthorizersSpec>,
}

/// Part of a spec: `k8s.AuthorizationAuthorizersSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.k8s.AuthorizationAuthorizersSpec")]
pub struct AuthorizationAuthorizersSpec {
    #[spec(1, "type")]
    pub r#type: String,
    #[spec(2, "name")]
    pub name: String,
    #[spec(3, "webhook")]
    pub webhook: Object,
}

/// Control plane configuration files are rendered.
///
/// Id: `static-pods`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "ConfigStatuses.kubernetes.talos.dev", namespace = "controlplane")]
#[resource(proto = "talos.resource.definitions.k8s.ConfigStatusSpec")]
#[resource(columns(("Ready", "{.ready}"), ("Secrets Version", "{.version}")))]
pub struct ConfigStatus {
    #[spec(1, "ready")]
    pub ready: bool,
    #[spec(2, "version")]
    pub version: String,
}

/// kube-controller-manager settings.
///
/// Id: `kube-controller-manager`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "ControllerManagerConfigs.kubernetes.talos.dev", namespace = "controlplane")]
#[resource(proto = "talos.resource.definitions.k8s.ControllerManagerConfigSpec")]
pub struct ControllerManagerConfig {
    #[spec(1, "enabled")]
    pub enabled: bool,
    #[spec(2, "image")]
    pub image: String,
    #[spec(3, "cloudProvider")]
    pub cloud_provider: String,
    #[spec(4, "podCIDRs")]
    pub pod_cidrs: Vec<String>,
    #[spec(5, "serviceCIDRs")]
    pub service_cidrs: Vec<String>,
    #[spec(6, "extraArgs")]
    pub extra_args: BTreeMap<String, String>,
    #[spec(7, "extraVolumes")]
    pub extra_volumes: Vec<ExtraVolume>,
    #[spec(8, "environmentVariables")]
    pub environment_variables: BTreeMap<String, String>,
    #[spec(9, "resources")]
    pub resources: Resources,
}

/// kube-scheduler settings.
///
/// Id: `kube-scheduler`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "SchedulerConfigs.kubernetes.talos.dev", namespace = "controlplane")]
#[resource(proto = "talos.resource.definitions.k8s.SchedulerConfigSpec")]
pub struct SchedulerConfig {
    #[spec(1, "enabled")]
    pub enabled: bool,
    #[spec(2, "image")]
    pub image: String,
    #[spec(3, "extraArgs")]
    pub extra_args: BTreeMap<String, String>,
    #[spec(4, "extraVolumes")]
    pub extra_volumes: Vec<ExtraVolume>,
    #[spec(5, "environmentVariables")]
    pub environment_variables: BTreeMap<String, String>,
    #[spec(6, "resources")]
    pub resources: Resources,
    #[spec(7, "config")]
    pub config: Object,
}

/// Control plane secrets are rendered to disk.
///
/// Id: `static-pods`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "SecretStatuses.kubernetes.talos.dev", namespace = "controlplane")]
#[resource(proto = "talos.resource.definitions.k8s.SecretsStatusSpec")]
#[resource(columns(("Ready", "{.ready}"), ("Secrets Version", "{.version}")))]
pub struct SecretStatus {
    #[spec(1, "ready")]
    pub ready: bool,
    #[spec(2, "version")]
    pub version: String,
}

/// Control plane addresses, one object per source.
///
/// Id: `kube-apiserver`, `discovery`, `controlplane`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "Endpoints.kubernetes.talos.dev", namespace = "controlplane")]
#[resource(proto = "talos.resource.definitions.k8s.EndpointSpec")]
#[resource(columns(("Addresses", "{.addresses}")))]
pub struct Endpoint {
    #[spec(1, "addresses")]
    pub addresses: Vec<Ip>,
}
