//! KubeSpan.

use ichor_resource_derive::ResourceSpec;

use crate::value::enums::spec_enum;
use crate::value::{Ip, IpPort, IpPrefix, Timestamp};

spec_enum! {
    /// State of a peer.
    pub enum PeerState = "talos.resource.definitions.enums.KubespanPeerState" {
        #[default]
        Unknown = 0 => "unknown",
        Up = 1 => "up",
        Down = 2 => "down",
    }
}

/// KubeSpan settings.
///
/// Id: `kubespan`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "KubeSpanConfigs.kubespan.talos.dev", namespace = "config")]
#[resource(proto = "talos.resource.definitions.kubespan.ConfigSpec")]
#[resource(sensitive)]
pub struct KubeSpanConfig {
    #[spec(1, "enabled")]
    pub enabled: bool,
    #[spec(2, "clusterId")]
    pub cluster_id: String,
    #[spec(3, "sharedSecret")]
    pub shared_secret: String,
    #[spec(4, "forceRouting")]
    pub force_routing: bool,
    #[spec(5, "advertiseKubernetesNetworks")]
    pub advertise_kubernetes_networks: bool,
    #[spec(6, "mtu", omit)]
    pub mtu: u32,
    #[spec(7, "endpointFilters", omit)]
    pub endpoint_filters: Vec<String>,
    #[spec(8, "harvestExtraEndpoints")]
    pub harvest_extra_endpoints: bool,
    #[spec(9, "extraEndpoints", omit)]
    pub extra_endpoints: Vec<IpPort>,
}

/// Endpoint under which a peer was last seen, to be shared through discovery.
///
/// Id: peer public key.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "KubeSpanEndpoints.kubespan.talos.dev", namespace = "kubespan")]
#[resource(proto = "talos.resource.definitions.kubespan.EndpointSpec")]
#[resource(columns(("Endpoint", "{.endpoint}"), ("Affiliate ID", "{.affiliateID}")))]
pub struct KubeSpanEndpoint {
    #[spec(1, "affiliateID")]
    pub affiliate_id: String,
    #[spec(2, "endpoint")]
    pub endpoint: IpPort,
}

/// This node's WireGuard key pair and KubeSpan address.
///
/// Id: `local`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "KubeSpanIdentities.kubespan.talos.dev", namespace = "kubespan")]
#[resource(proto = "talos.resource.definitions.kubespan.IdentitySpec")]
#[resource(sensitive)]
#[resource(columns(("Address", "{.address}"), ("PublicKey", "{.publicKey}")))]
pub struct KubeSpanIdentity {
    #[spec(1, "address")]
    pub address: IpPrefix,
    #[spec(2, "subnet")]
    pub subnet: IpPrefix,
    #[spec(3, "privateKey")]
    pub private_key: String,
    #[spec(4, "publicKey")]
    pub public_key: String,
}

/// A peer to configure.
///
/// Id: peer public key.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "KubeSpanPeerSpecs.kubespan.talos.dev", namespace = "kubespan")]
#[resource(proto = "talos.resource.definitions.kubespan.PeerSpecSpec")]
#[resource(columns(("Label", "{.label}"), ("Endpoints", "{.endpoints}")))]
pub struct KubeSpanPeerSpec {
    #[spec(1, "address")]
    pub address: Ip,
    #[spec(2, "allowedIPs")]
    pub allowed_ips: Vec<IpPrefix>,
    #[spec(3, "endpoints")]
    pub endpoints: Vec<IpPort>,
    #[spec(4, "label")]
    pub label: String,
}

/// State of a peer.
///
/// Id: peer public key.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "KubeSpanPeerStatuses.kubespan.talos.dev", namespace = "kubespan")]
#[resource(proto = "talos.resource.definitions.kubespan.PeerStatusSpec")]
#[resource(columns(
    ("Label", "{.label}"),
    ("Endpoint", "{.endpoint}"),
    ("State", "{.state}"),
    ("Rx", "{.receiveBytes}"),
    ("Tx", "{.transmitBytes}"),
))]
pub struct KubeSpanPeerStatus {
    #[spec(1, "endpoint")]
    pub endpoint: IpPort,
    #[spec(2, "label")]
    pub label: String,
    #[spec(3, "state")]
    pub state: PeerState,
    #[spec(4, "receiveBytes")]
    pub receive_bytes: i64,
    #[spec(5, "transmitBytes")]
    pub transmit_bytes: i64,
    #[spec(6, "lastHandshakeTime")]
    pub last_handshake_time: Timestamp,
    #[spec(7, "lastUsedEndpoint")]
    pub last_used_endpoint: IpPort,
    #[spec(8, "lastEndpointChange")]
    pub last_endpoint_change: Timestamp,
}
