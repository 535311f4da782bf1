//! Routes: wanted and present.

use ichor_resource_derive::ResourceSpec;

use super::enums::ConfigLayer;
use super::kernel::{Family, RouteFlags, RouteProtocol, RouteType, RoutingTable, Scope};
use crate::value::{Ip, IpPrefix};

/// Wanted route, layered.
///
/// Id: `[<table>/][<link>/]<family>/<gateway>/<destination>/<metric>`: table only when not main, link only
/// for IPv6.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "RouteSpecs.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.RouteSpecSpec")]
pub struct RouteSpec {
    #[spec(1, "family")]
    pub family: Family,
    #[spec(2, "dst")]
    pub dst: IpPrefix,
    #[spec(3, "src")]
    pub src: Ip,
    #[spec(4, "gateway")]
    pub gateway: Ip,
    #[spec(5, "outLinkName", omit)]
    pub out_link_name: String,
    #[spec(6, "table")]
    pub table: RoutingTable,
    #[spec(7, "priority", omit)]
    pub priority: u32,
    #[spec(8, "scope")]
    pub scope: Scope,
    #[spec(9, "type")]
    pub r#type: RouteType,
    #[spec(10, "flags")]
    pub flags: RouteFlags,
    #[spec(11, "protocol")]
    pub protocol: RouteProtocol,
    #[spec(12, "layer")]
    pub layer: ConfigLayer,
    #[spec(13, "mtu", omit)]
    pub mtu: u32,
}

/// Route the kernel has.
///
/// Id: same scheme as the spec.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "RouteStatuses.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.RouteStatusSpec")]
#[resource(aliases("route", "routes"))]
#[resource(columns(
    ("Destination", "{.dst}"),
    ("Gateway", "{.gateway}"),
    ("Link", "{.outLinkName}"),
    ("Metric", "{.priority}"),
))]
pub struct RouteStatus {
    #[spec(1, "family")]
    pub family: Family,
    #[spec(2, "dst")]
    pub dst: IpPrefix,
    #[spec(3, "src")]
    pub src: Ip,
    #[spec(4, "gateway")]
    pub gateway: Ip,
    #[spec(5, "outLinkIndex", omit)]
    pub out_link_index: u32,
    #[spec(6, "outLinkName", omit)]
    pub out_link_name: String,
    #[spec(7, "table")]
    pub table: RoutingTable,
    #[spec(8, "priority")]
    pub priority: u32,
    #[spec(9, "scope")]
    pub scope: Scope,
    #[spec(10, "type")]
    pub r#type: RouteType,
    #[spec(11, "flags")]
    pub flags: RouteFlags,
    #[spec(12, "protocol")]
    pub protocol: RouteProtocol,
    #[spec(13, "mtu", omit)]
    pub mtu: u32,
}
