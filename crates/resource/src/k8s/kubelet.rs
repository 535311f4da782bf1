//! Settings of kubelet.

use std::collections::BTreeMap;

use ichor_resource_derive::ResourceSpec;

use crate::k8s::ExtraMount;
use crate::value::Object;

/// kubelet settings from the machine configuration.
///
/// Id: `kubelet`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "KubeletConfigs.kubernetes.talos.dev", namespace = "k8s")]
#[resource(proto = "talos.resource.definitions.k8s.KubeletConfigSpec")]
pub struct KubeletConfig {
    #[spec(1, "image")]
    pub image: String,
    #[spec(2, "clusterDNS")]
    pub cluster_dns: Vec<String>,
    #[spec(3, "clusterDomain")]
    pub cluster_domain: String,
    #[spec(4, "extraArgs", omit)]
    pub extra_args: BTreeMap<String, String>,
    #[spec(5, "extraMounts", omit)]
    pub extra_mounts: Vec<ExtraMount>,
    #[spec(6, "extraConfig", omit)]
    pub extra_config: Object,
    #[spec(7, "cloudProviderExternal")]
    pub cloud_provider_external: bool,
    #[spec(8, "defaultRuntimeSeccompEnabled")]
    pub default_runtime_seccomp_enabled: bool,
    #[spec(9, "skipNodeRegistration")]
    pub skip_node_registration: bool,
    #[spec(10, "staticPodListURL")]
    pub static_pod_list_url: String,
    #[spec(11, "disableManifestsDirectory")]
    pub disable_manifests_directory: bool,
    #[spec(12, "enableFSQuotaMonitoring")]
    pub enable_fs_quota_monitoring: bool,
    #[spec(13, "credentialProviderConfig", omit)]
    pub credential_provider_config: Object,
    #[spec(14, "allowSchedulingOnControlPlane")]
    pub allow_scheduling_on_control_plane: bool,
}

/// Exists while kubelet has workloads; finalizers on it (the VIP operator puts one) hold back stopping the
/// pods at shutdown.
///
/// Id: `kubelet`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "KubeletLifecycles.kubernetes.talos.dev", namespace = "k8s")]
pub struct KubeletLifecycle {}

/// Final kubelet run parameters and configuration file.
///
/// Id: `kubelet`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "KubeletSpecs.kubernetes.talos.dev", namespace = "k8s")]
#[resource(proto = "talos.resource.definitions.k8s.KubeletSpecSpec")]
pub struct KubeletSpec {
    #[spec(1, "image")]
    pub image: String,
    #[spec(2, "args", omit)]
    pub args: Vec<String>,
    #[spec(3, "extraMounts", omit)]
    pub extra_mounts: Vec<ExtraMount>,
    #[spec(4, "expectedNodename", omit)]
    pub expected_nodename: String,
    #[spec(5, "config")]
    pub config: Object,
    #[spec(6, "credentialProviderConfig", omit)]
    pub credential_provider_config: Object,
}
