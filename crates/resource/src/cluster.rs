//! Cluster membership and discovery.

use ichor_resource_derive::{ResourceSpec, SpecMessage};
use ichor_types::MachineType;

use crate::value::{IntBytes, Ip, IpPort, IpPrefix};

/// A machine known to discovery. Raw finds live in `cluster-raw`, the merged view and the local affiliate
/// in `cluster`.
///
/// Id: node identity; in `cluster-raw`: `service/<node id>` or `k8s/<node id>`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "Affiliates.cluster.talos.dev", namespace = "cluster")]
#[resource(proto = "talos.resource.definitions.cluster.AffiliateSpec")]
#[resource(columns(
    ("Hostname", "{.hostname}"),
    ("Machine Type", "{.machineType}"),
    ("Addresses", "{.addresses}"),
))]
pub struct Affiliate {
    #[spec(1, "nodeId")]
    pub node_id: String,
    #[spec(2, "addresses")]
    pub addresses: Vec<Ip>,
    #[spec(3, "hostname")]
    pub hostname: String,
    #[spec(4, "nodename", omit)]
    pub nodename: String,
    #[spec(5, "operatingSystem")]
    pub operating_system: String,
    #[spec(6, "machineType")]
    pub machine_type: MachineType,
    #[spec(7, "kubespan", omit)]
    pub kubespan: KubeSpanAffiliateSpec,
    #[spec(8, "controlPlane", omit)]
    pub control_plane: Option<ControlPlane>,
}

/// Part of a spec: `cluster.KubeSpanAffiliateSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.cluster.KubeSpanAffiliateSpec")]
pub struct KubeSpanAffiliateSpec {
    #[spec(1, "publicKey")]
    pub public_key: String,
    #[spec(2, "address")]
    pub address: Ip,
    #[spec(3, "additionalAddresses")]
    pub additional_addresses: Vec<IpPrefix>,
    #[spec(4, "endpoints")]
    pub endpoints: Vec<IpPort>,
}

/// Part of a spec: `cluster.ControlPlane`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.cluster.ControlPlane")]
pub struct ControlPlane {
    #[spec(1, "port")]
    pub port: i64,
}

/// Discovery settings derived from the machine configuration.
///
/// Id: `cluster`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "DiscoveryConfigs.cluster.talos.dev", namespace = "config")]
#[resource(proto = "talos.resource.definitions.cluster.ConfigSpec")]
#[resource(sensitive)]
pub struct DiscoveryConfig {
    #[spec(1, "discoveryEnabled")]
    pub discovery_enabled: bool,
    #[spec(2, "registryKubernetesEnabled")]
    pub registry_kubernetes_enabled: bool,
    #[spec(3, "registryServiceEnabled")]
    pub registry_service_enabled: bool,
    #[spec(4, "serviceEndpoint")]
    pub service_endpoint: String,
    #[spec(5, "serviceEndpointInsecure", omit)]
    pub service_endpoint_insecure: bool,
    #[spec(6, "serviceEncryptionKey")]
    pub service_encryption_key: IntBytes,
    #[spec(7, "serviceClusterID")]
    pub service_cluster_id: String,
}

/// This node's stable random identity.
///
/// Id: `local`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "Identities.cluster.talos.dev", namespace = "cluster")]
#[resource(proto = "talos.resource.definitions.cluster.IdentitySpec")]
#[resource(columns(("ID", "{.nodeId}")))]
pub struct Identity {
    #[spec(1, "nodeId")]
    pub node_id: String,
}

/// Cluster id and name.
///
/// Id: `current`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "Infos.cluster.talos.dev", namespace = "cluster")]
#[resource(proto = "talos.resource.definitions.cluster.InfoSpec")]
#[resource(columns(("Cluster ID", "{.clusterId}"), ("Cluster Name", "{.clusterName}")))]
pub struct Info {
    #[spec(1, "clusterId")]
    pub cluster_id: String,
    #[spec(2, "clusterName")]
    pub cluster_name: String,
}

/// Affiliates that belong to the cluster, keyed for people.
///
/// Id: Kubernetes node name.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "Members.cluster.talos.dev", namespace = "cluster")]
#[resource(proto = "talos.resource.definitions.cluster.MemberSpec")]
#[resource(columns(
    ("Hostname", "{.hostname}"),
    ("Machine Type", "{.machineType}"),
    ("OS", "{.operatingSystem}"),
    ("Addresses", "{.addresses}"),
))]
pub struct Member {
    #[spec(1, "nodeId")]
    pub node_id: String,
    #[spec(2, "addresses")]
    pub addresses: Vec<Ip>,
    #[spec(3, "hostname")]
    pub hostname: String,
    #[spec(4, "machineType")]
    pub machine_type: MachineType,
    #[spec(5, "operatingSystem")]
    pub operating_system: String,
    #[spec(6, "controlPlane", omit)]
    pub control_plane: Option<ControlPlane>,
}
