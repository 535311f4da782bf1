//! Packet filter chains.

use ichor_resource_derive::{ResourceSpec, SpecMessage};

use super::enums::{MatchOperator, NfTablesChainHook, NfTablesVerdict};
use super::kernel::{ConntrackState, ICMPType, NfTablesChainPriority, Protocol};
use crate::value::IpPrefix;

/// nftables chain with its rules.
///
/// Id: chain name: `ingress`, `prerouting`, `kubespan_prerouting`, `kubespan_outgoing`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "NfTablesChains.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.NfTablesChainSpec")]
#[resource(aliases("chain", "chains"))]
#[resource(columns(
    ("Type", "{.type}"),
    ("Hook", "{.hook}"),
    ("Priority", "{.priority}"),
    ("Policy", "{.policy}"),
))]
pub struct NfTablesChain {
    #[spec(1, "type")]
    pub r#type: String,
    #[spec(2, "hook")]
    pub hook: NfTablesChainHook,
    #[spec(3, "priority")]
    pub priority: NfTablesChainPriority,
    #[spec(5, "policy")]
    pub policy: NfTablesVerdict,
    #[spec(4, "rules")]
    pub rules: Vec<NfTablesRule>,
}

/// Part of a spec: `network.NfTablesRule`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.NfTablesRule")]
pub struct NfTablesRule {
    #[spec(8, "matchIIfName", omit)]
    pub match_iif_name: Option<NfTablesIfNameMatch>,
    #[spec(1, "matchOIfName", omit)]
    pub match_oif_name: Option<NfTablesIfNameMatch>,
    #[spec(3, "matchMark", omit)]
    pub match_mark: Option<NfTablesMark>,
    #[spec(11, "matchConntrackState", omit)]
    pub match_conntrack_state: Option<NfTablesConntrackStateMatch>,
    #[spec(5, "matchSourceAddress", omit)]
    pub match_source_address: Option<NfTablesAddressMatch>,
    #[spec(6, "matchDestinationAddress", omit)]
    pub match_destination_address: Option<NfTablesAddressMatch>,
    #[spec(7, "matchLayer4", omit)]
    pub match_layer4: Option<NfTablesLayer4Match>,
    #[spec(10, "matchLimit", omit)]
    pub match_limit: Option<NfTablesLimitMatch>,
    #[spec(9, "clampMSS", omit)]
    pub clamp_mss: Option<NfTablesClampMSS>,
    #[spec(4, "setMark", omit)]
    pub set_mark: Option<NfTablesMark>,
    #[spec(12, "anonymousCounter", omit)]
    pub anonymous_counter: bool,
    #[spec(2, "verdict", omit)]
    pub verdict: Option<NfTablesVerdict>,
}

/// Part of a spec: `network.NfTablesIfNameMatch`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.NfTablesIfNameMatch")]
pub struct NfTablesIfNameMatch {
    #[spec(3, "interfaceName")]
    pub interface_name: Vec<String>,
    #[spec(2, "operator")]
    pub operator: MatchOperator,
}

/// Part of a spec: `network.NfTablesMark`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.NfTablesMark")]
pub struct NfTablesMark {
    #[spec(1, "mask", omit)]
    pub mask: u32,
    #[spec(2, "xor", omit)]
    pub xor: u32,
    #[spec(3, "value", omit)]
    pub value: u32,
}

/// Part of a spec: `network.NfTablesConntrackStateMatch`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.NfTablesConntrackStateMatch")]
pub struct NfTablesConntrackStateMatch {
    #[spec(1, "states")]
    pub states: Vec<ConntrackState>,
}

/// Part of a spec: `network.NfTablesAddressMatch`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.NfTablesAddressMatch")]
pub struct NfTablesAddressMatch {
    #[spec(1, "includeSubnets", omit)]
    pub include_subnets: Vec<IpPrefix>,
    #[spec(2, "excludeSubnets", omit)]
    pub exclude_subnets: Vec<IpPrefix>,
    #[spec(3, "invert", omit)]
    pub invert: bool,
}

/// Part of a spec: `network.NfTablesLayer4Match`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.NfTablesLayer4Match")]
pub struct NfTablesLayer4Match {
    #[spec(1, "protocol")]
    pub protocol: Protocol,
    #[spec(2, "matchSourcePort", omit)]
    pub match_source_port: Option<NfTablesPortMatch>,
    #[spec(3, "matchDestinationPort", omit)]
    pub match_destination_port: Option<NfTablesPortMatch>,
    #[spec(4, "matchICMPType", omit)]
    pub match_icmp_type: Option<NfTablesICMPTypeMatch>,
}

/// Part of a spec: `network.NfTablesPortMatch`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.NfTablesPortMatch")]
pub struct NfTablesPortMatch {
    #[spec(1, "ranges", omit)]
    pub ranges: Vec<PortRange>,
}

/// Part of a spec: `network.PortRange`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.PortRange")]
pub struct PortRange {
    #[spec(1, "lo")]
    pub lo: u16,
    #[spec(2, "hi")]
    pub hi: u16,
}

/// Part of a spec: `network.NfTablesICMPTypeMatch`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.NfTablesICMPTypeMatch")]
pub struct NfTablesICMPTypeMatch {
    #[spec(1, "types")]
    pub types: Vec<ICMPType>,
}

/// Part of a spec: `network.NfTablesLimitMatch`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.NfTablesLimitMatch")]
pub struct NfTablesLimitMatch {
    #[spec(1, "packetRatePerSecond")]
    pub packet_rate_per_second: u64,
}

/// Part of a spec: `network.NfTablesClampMSS`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.NfTablesClampMSS")]
pub struct NfTablesClampMSS {
    #[spec(1, "mtu")]
    pub mtu: u16,
}
