//! Links: wanted and present.

use ichor_resource_derive::{ResourceSpec, SpecMessage};

use super::enums::{
    ADLACPActive, ADSelect, ARPAllTargets, ARPValidate, BondMode, BondXmitHashPolicy, ConfigLayer,
    FailOverMAC, LACPRate, OperationalState, PrimaryReselect,
};
use super::kernel::{Duplex, LinkFlags, Port, VLANProtocol};
use super::link_type::LinkType;
use crate::value::{GoDuration, HardwareAddr, Ip, IpPrefix};

/// Alias to give to a link.
///
/// Id: link name.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "LinkAliasSpecs.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.LinkAliasSpecSpec")]
#[resource(columns(("Alias", "{.alias}")))]
pub struct LinkAliasSpec {
    #[spec(1, "alias")]
    pub alias: String,
}

/// Counter that forces a re-read of links when netlink sends no event.
///
/// Id: link kind, `wireguard`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "LinkRefreshes.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.LinkRefreshSpec")]
pub struct LinkRefresh {
    #[spec(1, "generation")]
    pub generation: i64,
}

/// Wanted link, layered like addresses.
///
/// Id: link name; in `network-config` prefixed with the layer.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "LinkSpecs.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.LinkSpecSpec")]
#[resource(sensitive)]
pub struct LinkSpec {
    #[spec(1, "name")]
    pub name: String,
    #[spec(2, "logical")]
    pub logical: bool,
    #[spec(3, "up")]
    pub up: bool,
    #[spec(4, "mtu")]
    pub mtu: u32,
    #[spec(5, "kind")]
    pub kind: String,
    #[spec(6, "type")]
    pub r#type: LinkType,
    #[spec(15, "hardwareAddr", omit)]
    pub hardware_addr: HardwareAddr,
    #[spec(7, "parentName", omit)]
    pub parent_name: String,
    #[spec(8, inline)]
    pub bond_slave: BondSlave,
    #[spec(9, "bridgeSlave", omit)]
    pub bridge_slave: BridgeSlave,
    #[spec(10, "vlan", omit)]
    pub vlan: VLANSpec,
    #[spec(11, "bondMaster", omit)]
    pub bond_master: BondMasterSpec,
    #[spec(12, "bridgeMaster", omit)]
    pub bridge_master: BridgeMasterSpec,
    #[spec(13, "wireguard", omit)]
    pub wireguard: WireguardSpec,
    #[spec(14, "layer")]
    pub layer: ConfigLayer,
    #[spec(16, "multicast", omit)]
    pub multicast: Option<bool>,
}

/// Part of a spec: `network.BondSlave`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.BondSlave")]
pub struct BondSlave {
    #[spec(1, "masterName", omit)]
    pub master_name: String,
    #[spec(2, "slaveIndex", omit)]
    pub slave_index: i64,
}

/// Part of a spec: `network.BridgeSlave`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.BridgeSlave")]
pub struct BridgeSlave {
    #[spec(1, "masterName", omit)]
    pub master_name: String,
}

/// Part of a spec: `network.VLANSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.VLANSpec")]
pub struct VLANSpec {
    #[spec(1, "vlanID")]
    pub vlan_id: u16,
    #[spec(2, "vlanProtocol")]
    pub vlan_protocol: VLANProtocol,
}

/// Part of a spec: `network.BondMasterSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.BondMasterSpec")]
pub struct BondMasterSpec {
    #[spec(1, "mode")]
    pub mode: BondMode,
    #[spec(2, "xmitHashPolicy")]
    pub xmit_hash_policy: BondXmitHashPolicy,
    #[spec(3, "lacpRate")]
    pub lacp_rate: LACPRate,
    #[spec(4, "arpValidate")]
    pub arp_validate: ARPValidate,
    #[spec(5, "arpAllTargets")]
    pub arp_all_targets: ARPAllTargets,
    #[spec(6, "primary", omit)]
    pub primary: Option<u32>,
    #[spec(7, "primaryReselect")]
    pub primary_reselect: PrimaryReselect,
    #[spec(8, "failOverMac")]
    pub fail_over_mac: FailOverMAC,
    #[spec(9, "adSelect", omit)]
    pub ad_select: ADSelect,
    #[spec(10, "miimon", omit)]
    pub miimon: u32,
    #[spec(11, "updelay", omit)]
    pub updelay: u32,
    #[spec(12, "downdelay", omit)]
    pub downdelay: u32,
    #[spec(13, "arpInterval", omit)]
    pub arp_interval: u32,
    #[spec(14, "resendIgmp", omit)]
    pub resend_igmp: u32,
    #[spec(15, "minLinks", omit)]
    pub min_links: u32,
    #[spec(16, "lpInterval", omit)]
    pub lp_interval: u32,
    #[spec(17, "packetsPerSlave", omit)]
    pub packets_per_slave: u32,
    #[spec(18, "numPeerNotif", omit)]
    pub num_peer_notif: u8,
    #[spec(19, "tlbLogicalLb", omit)]
    pub tlb_logical_lb: u8,
    #[spec(20, "allSlavesActive", omit)]
    pub all_slaves_active: u8,
    #[spec(21, "useCarrier", omit)]
    pub use_carrier: bool,
    #[spec(22, "adActorSysPrio", omit)]
    pub ad_actor_sys_prio: u16,
    #[spec(23, "adUserPortKey", omit)]
    pub ad_user_port_key: u16,
    #[spec(24, "peerNotifyDelay", omit)]
    pub peer_notify_delay: u32,
    #[spec(25, "arpIpTargets", omit)]
    pub arp_ip_targets: Vec<Ip>,
    #[spec(26, "nsIp6Targets", omit)]
    pub ns_ip6_targets: Vec<Ip>,
    #[spec(27, "adLacpActive", omit)]
    pub ad_lacp_active: ADLACPActive,
    #[spec(28, "missedMax", omit)]
    pub missed_max: u8,
}

/// Part of a spec: `network.BridgeMasterSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.BridgeMasterSpec")]
pub struct BridgeMasterSpec {
    #[spec(1, "stp", omit)]
    pub stp: STPSpec,
    #[spec(2, "vlan", omit)]
    pub vlan: BridgeVLANSpec,
}

/// Part of a spec: `network.STPSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.STPSpec")]
pub struct STPSpec {
    #[spec(1, "enabled")]
    pub enabled: bool,
}

/// Part of a spec: `network.BridgeVLANSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.BridgeVLANSpec")]
pub struct BridgeVLANSpec {
    #[spec(1, "filteringEnabled")]
    pub filtering_enabled: bool,
}

/// Part of a spec: `network.WireguardSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.WireguardSpec")]
pub struct WireguardSpec {
    #[spec(1, "privateKey", omit)]
    pub private_key: String,
    #[spec(2, "publicKey", omit)]
    pub public_key: String,
    #[spec(3, "listenPort")]
    pub listen_port: i64,
    #[spec(4, "firewallMark")]
    pub firewall_mark: i64,
    #[spec(5, "peers")]
    pub peers: Vec<WireguardPeer>,
}

/// Part of a spec: `network.WireguardPeer`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.WireguardPeer")]
pub struct WireguardPeer {
    #[spec(1, "publicKey")]
    pub public_key: String,
    #[spec(2, "presharedKey")]
    pub preshared_key: String,
    #[spec(3, "endpoint")]
    pub endpoint: String,
    #[spec(4, "persistentKeepaliveInterval")]
    pub persistent_keepalive_interval: GoDuration,
    #[spec(5, "allowedIPs")]
    pub allowed_ips: Vec<IpPrefix>,
}

/// Link as the kernel shows it.
///
/// Id: link name.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "LinkStatuses.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.LinkStatusSpec")]
#[resource(aliases("link", "links"))]
#[resource(columns(
    ("Alias", "{.alias}"),
    ("Type", "{.type}"),
    ("Kind", "{.kind}"),
    ("Hw Addr", "{.hardwareAddr}"),
    ("Oper State", "{.operationalState}"),
    ("Link State", "{.linkState}"),
))]
pub struct LinkStatus {
    #[spec(31, "alias", omit)]
    pub alias: String,
    #[spec(32, "altNames", omit)]
    pub alt_names: Vec<String>,
    #[spec(1, "index")]
    pub index: u32,
    #[spec(2, "type")]
    pub r#type: LinkType,
    #[spec(3, "linkIndex")]
    pub link_index: u32,
    #[spec(4, "flags")]
    pub flags: LinkFlags,
    #[spec(5, "hardwareAddr")]
    pub hardware_addr: HardwareAddr,
    #[spec(30, "permanentAddr")]
    pub permanent_addr: HardwareAddr,
    #[spec(6, "broadcastAddr")]
    pub broadcast_addr: HardwareAddr,
    #[spec(7, "mtu")]
    pub mtu: u32,
    #[spec(8, "queueDisc")]
    pub queue_disc: String,
    #[spec(9, "masterIndex", omit)]
    pub master_index: u32,
    #[spec(10, "operationalState")]
    pub operational_state: OperationalState,
    #[spec(11, "kind")]
    pub kind: String,
    #[spec(12, "slaveKind")]
    pub slave_kind: String,
    #[spec(13, "busPath", omit)]
    pub bus_path: String,
    #[spec(14, "pciID", omit)]
    pub pci_id: String,
    #[spec(15, "driver", omit)]
    pub driver: String,
    #[spec(16, "driverVersion", omit)]
    pub driver_version: String,
    #[spec(17, "firmwareVersion", omit)]
    pub firmware_version: String,
    #[spec(18, "productID", omit)]
    pub product_id: String,
    #[spec(19, "vendorID", omit)]
    pub vendor_id: String,
    #[spec(20, "product", omit)]
    pub product: String,
    #[spec(21, "vendor", omit)]
    pub vendor: String,
    #[spec(22, "linkState")]
    pub link_state: bool,
    #[spec(23, "speedMbit", omit)]
    pub speed_mbit: i64,
    #[spec(24, "port")]
    pub port: Port,
    #[spec(25, "duplex")]
    pub duplex: Duplex,
    #[spec(26, "vlan", omit)]
    pub vlan: VLANSpec,
    #[spec(27, "bridgeMaster", omit)]
    pub bridge_master: BridgeMasterSpec,
    #[spec(28, "bondMaster", omit)]
    pub bond_master: BondMasterSpec,
    #[spec(29, "wireguard", omit)]
    pub wireguard: WireguardSpec,
}
