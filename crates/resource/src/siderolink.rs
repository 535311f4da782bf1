//! SideroLink.

use ichor_resource_derive::ResourceSpec;

use crate::value::IpPort;

/// SideroLink endpoint and join token.
///
/// Id: `siderolink`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "SiderolinkConfigs.siderolink.talos.dev", namespace = "config")]
#[resource(proto = "talos.resource.definitions.siderolink.ConfigSpec")]
#[resource(sensitive)]
#[resource(columns(("API Endpoint", "{.apiEndpoint}"), ("Tunnel", "{.tunnel}")))]
pub struct SiderolinkConfig {
    #[spec(1, "apiEndpoint")]
    pub api_endpoint: String,
    #[spec(2, "host")]
    pub host: String,
    #[spec(3, "joinToken")]
    pub join_token: String,
    #[spec(4, "insecure")]
    pub insecure: bool,
    #[spec(5, "tunnel")]
    pub tunnel: bool,
}

/// Whether the SideroLink tunnel is up.
///
/// Id: `siderolink-status`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "SiderolinkStatuses.siderolink.talos.dev", namespace = "config")]
#[resource(proto = "talos.resource.definitions.siderolink.StatusSpec")]
#[resource(columns(("Host", "{.host}"), ("Connected", "{.connected}")))]
pub struct SiderolinkStatus {
    #[spec(1, "host")]
    pub host: String,
    #[spec(2, "connected")]
    pub connected: bool,
    #[spec(3, "linkName")]
    pub link_name: String,
    #[spec(4, "grpcTunnel")]
    pub grpc_tunnel: bool,
}

/// Settings of the WireGuard-over-gRPC tunnel.
///
/// Id: `siderolink-tunnel`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "SiderolinkTunnels.siderolink.talos.dev", namespace = "config")]
#[resource(proto = "talos.resource.definitions.siderolink.TunnelSpec")]
#[resource(sensitive)]
#[resource(columns(
    ("API Endpoint", "{.apiEndpoint}"),
    ("Link name", "{.linkName}"),
    ("MTU", "{.mtu}"),
    ("Node address", "{.nodeAddress}"),
))]
pub struct SiderolinkTunnel {
    #[spec(1, "apiEndpoint")]
    pub api_endpoint: String,
    #[spec(2, "linkName")]
    pub link_name: String,
    #[spec(3, "mtu")]
    pub mtu: i64,
    #[spec(4, "nodeAddress")]
    pub node_address: IpPort,
}
