//! Operators that keep up network configuration.

use ichor_resource_derive::{ResourceSpec, SpecMessage};

use super::enums::{ClientIdentifier, ConfigLayer, Operator};
use crate::value::Ip;

/// A network operator to run (DHCPv4, DHCPv6, VIP), layered like addresses.
///
/// Id: `<operator>/<link>`, for VIP `<operator>/<link>/<ip>`; in `network-config` prefixed with the layer.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "OperatorSpecs.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.OperatorSpecSpec")]
#[resource(sensitive)]
pub struct OperatorSpec {
    #[spec(1, "operator")]
    pub operator: Operator,
    #[spec(2, "linkName")]
    pub link_name: String,
    #[spec(3, "requireUp")]
    pub require_up: bool,
    #[spec(4, "dhcp4", omit)]
    pub dhcp4: DHCP4OperatorSpec,
    #[spec(5, "dhcp6", omit)]
    pub dhcp6: DHCP6OperatorSpec,
    #[spec(6, "vip", omit)]
    pub vip: VIPOperatorSpec,
    #[spec(7, "layer")]
    pub layer: ConfigLayer,
}

/// Part of a spec: `network.DHCP4OperatorSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.DHCP4OperatorSpec")]
pub struct DHCP4OperatorSpec {
    #[spec(1, "routeMetric")]
    pub route_metric: u32,
    #[spec(2, "skipHostnameRequest", omit)]
    pub skip_hostname_request: bool,
    #[spec(3, "clientIdentifier", omit)]
    pub client_identifier: ClientIdentifierSpec,
}

/// Part of a spec: `network.ClientIdentifierSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.ClientIdentifierSpec")]
pub struct ClientIdentifierSpec {
    #[spec(1, "clientIdentifier")]
    pub client_identifier: ClientIdentifier,
    #[spec(2, "duidRawHex", omit)]
    pub duid_raw_hex: String,
}

/// Part of a spec: `network.DHCP6OperatorSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.DHCP6OperatorSpec")]
pub struct DHCP6OperatorSpec {
    #[spec(2, "routeMetric")]
    pub route_metric: u32,
    #[spec(3, "skipHostnameRequest", omit)]
    pub skip_hostname_request: bool,
    #[spec(4, "clientIdentifier", omit)]
    pub client_identifier: ClientIdentifierSpec,
}

/// Part of a spec: `network.VIPOperatorSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.VIPOperatorSpec")]
pub struct VIPOperatorSpec {
    #[spec(1, "ip")]
    pub ip: Ip,
    #[spec(2, "gratuitousARP")]
    pub gratuitous_arp: bool,
    #[spec(3, "equinixMetal", omit)]
    pub equinix_metal: VIPEquinixMetalSpec,
    #[spec(4, "hcloud", omit)]
    pub hcloud: VIPHCloudSpec,
}

/// Part of a spec: `network.VIPEquinixMetalSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.VIPEquinixMetalSpec")]
pub struct VIPEquinixMetalSpec {
    #[spec(1, "projectID")]
    pub project_id: String,
    #[spec(2, "deviceID")]
    pub device_id: String,
    #[spec(3, "apiToken")]
    pub api_token: String,
}

/// Part of a spec: `network.VIPHCloudSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.VIPHCloudSpec")]
pub struct VIPHCloudSpec {
    #[spec(1, "deviceID")]
    pub device_id: i64,
    #[spec(2, "networkID")]
    pub network_id: i64,
    #[spec(3, "apiToken")]
    pub api_token: String,
}
