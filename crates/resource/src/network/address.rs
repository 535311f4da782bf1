//! Addresses: wanted, present and computed.

use ichor_resource_derive::ResourceSpec;

use super::enums::{AddressSortAlgorithm, ConfigLayer};
use super::kernel::{AddressFlags, Family, Scope};
use crate::value::{HardwareAddr, Ip, IpPrefix};

/// Address to assign; `network-config` holds one object per source and layer, `network` the merged result.
///
/// Id: `<link>/<prefix>`; in `network-config` prefixed with the layer, e.g. `platform/eth0/10.0.0.2/24`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "AddressSpecs.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.AddressSpecSpec")]
pub struct AddressSpec {
    #[spec(1, "address")]
    pub address: IpPrefix,
    #[spec(2, "linkName")]
    pub link_name: String,
    #[spec(3, "family")]
    pub family: Family,
    #[spec(4, "scope")]
    pub scope: Scope,
    #[spec(5, "flags")]
    pub flags: AddressFlags,
    #[spec(6, "announceWithARP", omit)]
    pub announce_with_arp: bool,
    #[spec(8, "priority", omit)]
    pub priority: u32,
    #[spec(7, "layer")]
    pub layer: ConfigLayer,
}

/// Address the kernel has.
///
/// Id: `<link>/<prefix>`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "AddressStatuses.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.AddressStatusSpec")]
#[resource(aliases("address", "addresses"))]
#[resource(columns(("Address", "{.address}"), ("Link", "{.linkName}")))]
pub struct AddressStatus {
    #[spec(1, "address")]
    pub address: IpPrefix,
    #[spec(2, "local", omit)]
    pub local: Ip,
    #[spec(3, "broadcast", omit)]
    pub broadcast: Ip,
    #[spec(4, "anycast", omit)]
    pub anycast: Ip,
    #[spec(5, "multicast", omit)]
    pub multicast: Ip,
    #[spec(6, "linkIndex")]
    pub link_index: u32,
    #[spec(7, "linkName")]
    pub link_name: String,
    #[spec(8, "family")]
    pub family: Family,
    #[spec(9, "scope")]
    pub scope: Scope,
    #[spec(10, "flags")]
    pub flags: AddressFlags,
    #[spec(11, "priority")]
    pub priority: u32,
}

/// Hardware address of the first physical link.
///
/// Id: `first`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "HardwareAddresses.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.HardwareAddrSpec")]
pub struct HardwareAddress {
    #[spec(1, "name")]
    pub name: String,
    #[spec(2, "hardwareAddr")]
    pub hardware_addr: HardwareAddr,
}

/// Subnet filter used to derive filtered node address sets.
///
/// Id: `only-k8s`, `no-k8s`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "NodeAddressFilters.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.NodeAddressFilterSpec")]
#[resource(columns(("Include Subnets", "{.includeSubnets}"), ("Exclude Subnets", "{.excludeSubnets}")))]
pub struct NodeAddressFilter {
    #[spec(1, "includeSubnets")]
    pub include_subnets: Vec<IpPrefix>,
    #[spec(2, "excludeSubnets")]
    pub exclude_subnets: Vec<IpPrefix>,
}

/// How node addresses are ordered.
///
/// Id: `default`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "NodeAddressSortAlgorithms.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.NodeAddressSortAlgorithmSpec")]
#[resource(columns(("Algorithm", "{.algorithm}")))]
pub struct NodeAddressSortAlgorithm {
    #[spec(1, "algorithm")]
    pub algorithm: AddressSortAlgorithm,
}

/// Computed sets of node addresses.
///
/// Id: `default`, `current`, `routed`, `accumulative`, and each with a filter: `<kind>-<filter>`, e.g.
/// `current-no-k8s`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "NodeAddresses.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.NodeAddressSpec")]
#[resource(columns(("Addresses", "{.addresses}"), ("SortAlgorithm", "{.sortAlgorithm}")))]
pub struct NodeAddress {
    #[spec(1, "addresses")]
    pub addresses: Vec<IpPrefix>,
    #[spec(2, "sortAlgorithm")]
    pub sort_algorithm: AddressSortAlgorithm,
}
