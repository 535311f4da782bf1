//! The local load balancer of the API server.

use ichor_resource_derive::{ResourceSpec, SpecMessage};

/// Local API load balancer listen address and backends.
///
/// Id: `k8s-loadbalancer-config`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "KubePrismConfigs.kubernetes.talos.dev", namespace = "k8s")]
#[resource(proto = "talos.resource.definitions.k8s.KubePrismConfigSpec")]
#[resource(columns(("Host", "{.host}"), ("Port", "{.port}"), ("Endpoints", "{.endpoints}")))]
pub struct KubePrismConfig {
    #[spec(1, "host")]
    pub host: String,
    #[spec(2, "port")]
    pub port: i64,
    #[spec(3, "endpoints")]
    pub endpoints: Vec<KubePrismEndpoint>,
}

/// Part of a spec: `k8s.KubePrismEndpoint`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.k8s.KubePrismEndpoint")]
pub struct KubePrismEndpoint {
    #[spec(1, "host")]
    pub host: String,
    #[spec(2, "port")]
    pub port: u32,
}

/// Backends of the local API load balancer.
///
/// Id: `k8s-cluster`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "KubePrismEndpoints.kubernetes.talos.dev", namespace = "k8s")]
#[resource(proto = "talos.resource.definitions.k8s.KubePrismEndpointsSpec")]
#[resource(columns(("Hosts", "{.endpoints[*].host}"), ("Ports", "{.endpoints[*].port}")))]
pub struct KubePrismEndpoints {
    #[spec(1, "endpoints")]
    pub endpoints: Vec<KubePrismEndpoint>,
}

/// Health of the local API load balancer.
///
/// Id: `k8s-loadbalancer`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "KubePrismStatuses.kubernetes.talos.dev", namespace = "k8s")]
#[resource(proto = "talos.resource.definitions.k8s.KubePrismStatusesSpec")]
#[resource(columns(("HOST", "{.host}"), ("HEALTHY", "{.healthy}")))]
pub struct KubePrismStatus {
    #[spec(1, "host")]
    pub host: String,
    #[spec(2, "healthy")]
    pub healthy: bool,
}
