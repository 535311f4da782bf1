//! Manifests and static pods.

use std::collections::BTreeMap;

use ichor_resource_derive::{ResourceSpec, SpecMessage};

use crate::value::Object;

/// Inputs of the built-in bootstrap manifests.
///
/// Id: `manifests`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "BootstrapManifestsConfigs.kubernetes.talos.dev", namespace = "controlplane")]
#[resource(proto = "talos.resource.definitions.k8s.BootstrapManifestsConfigSpec")]
pub struct BootstrapManifestsConfig {
    #[spec(1, "string")]
    pub server: String,
    #[spec(2, "clusterDomain")]
    pub cluster_domain: String,
    #[spec(3, "podCIDRs")]
    pub pod_cidrs: Vec<String>,
    #[spec(4, "proxyEnabled")]
    pub proxy_enabled: bool,
    #[spec(5, "proxyImage")]
    pub proxy_image: String,
    #[spec(6, "proxyArgs")]
    pub proxy_args: Vec<String>,
    #[spec(7, "coreDNSEnabled")]
    pub core_dns_enabled: bool,
    #[spec(8, "coreDNSImage")]
    pub core_dns_image: String,
    #[spec(9, "dnsServiceIP")]
    pub dns_service_ip: String,
    #[spec(10, "dnsServiceIPv6")]
    pub dns_service_ipv6: String,
    #[spec(11, "flannelEnabled")]
    pub flannel_enabled: bool,
    #[spec(12, "flannelImage")]
    pub flannel_image: String,
    #[spec(16, "flannelExtraArgs")]
    pub flannel_extra_args: Vec<String>,
    #[spec(17, "flannelKubeServiceHost")]
    pub flannel_kube_service_host: String,
    #[spec(18, "flannelKubeServicePort")]
    pub flannel_kube_service_port: String,
    #[spec(14, "podSecurityPolicyEnabled")]
    pub pod_security_policy_enabled: bool,
    #[spec(15, "talosAPIServiceEnabled")]
    pub talos_api_service_enabled: bool,
}

/// Extra manifests to fetch or apply. Holds headers of requests and whole manifests, hence sensitive.
///
/// Id: `extra-manifests`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "ExtraManifestsConfigs.kubernetes.talos.dev", namespace = "controlplane")]
#[resource(proto = "talos.resource.definitions.k8s.ExtraManifestsConfigSpec")]
#[resource(sensitive)]
pub struct ExtraManifestsConfig {
    #[spec(1, "extraManifests")]
    pub extra_manifests: Vec<ExtraManifest>,
}

/// Part of a spec: `k8s.ExtraManifest`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.k8s.ExtraManifest")]
pub struct ExtraManifest {
    #[spec(1, "name")]
    pub name: String,
    #[spec(2, "url")]
    pub url: String,
    #[spec(3, "priority")]
    pub priority: String,
    #[spec(4, "extraHeaders")]
    pub extra_headers: BTreeMap<String, String>,
    #[spec(5, "inlineManifest")]
    pub inline_manifest: String,
}

/// Manifests applied so far.
///
/// Id: `manifests`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "ManifestStatuses.kubernetes.talos.dev", namespace = "controlplane")]
#[resource(proto = "talos.resource.definitions.k8s.ManifestStatusSpec")]
pub struct ManifestStatus {
    #[spec(1, "manifestsApplied")]
    pub manifests_applied: Vec<String>,
}

/// One bootstrap manifest: the YAML spec is the list of its objects. One of them holds the bootstrap token, those of users
/// may hold any secret, hence sensitive.
///
/// Id: `<priority>-<name>`, e.g. `10-kube-proxy`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "Manifests.kubernetes.talos.dev", namespace = "controlplane")]
#[resource(proto = "talos.resource.definitions.k8s.ManifestSpec")]
#[resource(sensitive, transparent)]
pub struct Manifest {
    #[spec(1, "items")]
    pub items: Vec<SingleManifest>,
}

/// Part of a spec: `k8s.SingleManifest`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.k8s.SingleManifest", transparent)]
pub struct SingleManifest {
    #[spec(1, "object")]
    pub object: Object,
}

/// URL of the local server that kubelet pulls static pods from.
///
/// Id: `static-pod-server-status`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "StaticPodServerStatuses.kubernetes.talos.dev", namespace = "k8s")]
#[resource(proto = "talos.resource.definitions.k8s.StaticPodServerStatusSpec")]
pub struct StaticPodServerStatus {
    #[spec(1, "url")]
    pub url: String,
}

/// Pod status as kubelet reports it; the YAML spec is the status object itself.
///
/// Id: `<namespace>/<pod name>`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "StaticPodStatuses.kubernetes.talos.dev", namespace = "k8s")]
#[resource(proto = "talos.resource.definitions.k8s.StaticPodStatusSpec")]
#[resource(aliases("podstatus"), transparent)]
#[resource(columns(("Ready", "{.conditions[?(@.type==\"Ready\")].status}")))]
pub struct StaticPodStatus {
    #[spec(1, "pod_status")]
    pub pod_status: Object,
}

/// A static pod; the YAML spec is the pod object itself.
///
/// Id: `kube-apiserver`, `kube-controller-manager`, `kube-scheduler`, or `<namespace>-<name>` for user
/// pods.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "StaticPods.kubernetes.talos.dev", namespace = "k8s")]
#[resource(proto = "talos.resource.definitions.k8s.StaticPodSpec")]
#[resource(transparent)]
pub struct StaticPod {
    #[spec(1, "pod")]
    pub pod: Object,
}
