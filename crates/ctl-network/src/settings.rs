//! What the machine configuration says about the network, whichever documents say it.
//!
//! The sources below read this view; how documents and the older `machine.network` become it is in
//! [`crate::documents`].

use std::net::IpAddr;

use ichor_resource::network::{
    AddressSortAlgorithm, BondMasterSpec, BridgeMasterSpec, ClientIdentifierSpec, VLANSpec, WireguardSpec,
};
use ichor_types::{GoDuration, HardwareAddr};
use ipnet::IpNet;

/// The network part of an accepted machine configuration.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    /// The host name, when it is given.
    pub hostname: Option<String>,
    /// How it is made up otherwise.
    pub auto_hostname: AutoHostname,
    /// Links, in the order of the configuration.
    pub links: Vec<LinkSetting>,
    /// A document describes links: nothing is configured by default any more.
    pub explicit_links: bool,
    /// Name servers.
    pub nameservers: Vec<IpAddr>,
    /// Search domains.
    pub search_domains: Vec<String>,
    /// Do not search the machine's own domain.
    pub disable_default_search: bool,
    /// Time servers.
    pub time_servers: Vec<String>,
    /// The clock is somebody else's business.
    pub time_disabled: bool,
    /// How long booting waits for the clock; zero for ever.
    pub time_boot_timeout: GoDuration,
    /// How node addresses are ordered.
    pub sort_algorithm: AddressSortAlgorithm,
    /// Lines of `/etc/hosts`: address and names.
    pub extra_hosts: Vec<(IpAddr, Vec<String>)>,
    /// Host DNS.
    pub host_dns: HostDnsSetting,
    /// Networks of pods and services.
    pub kubernetes_subnets: Vec<IpNet>,
    /// Addresses shared by control plane machines.
    pub vips: Vec<VipSetting>,
}

/// An address shared by control plane machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VipSetting {
    /// The link that gets it.
    pub link: String,
    /// The address.
    pub address: IpAddr,
    /// How it is moved.
    pub kind: VipKind,
}

/// How a shared address is moved from one machine to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VipKind {
    /// The neighbours are told.
    Announced,
    /// Through the Equinix Metal API, with this token.
    EquinixMetal(String),
    /// Through the Hetzner Cloud API, with this token.
    HCloud(String),
}

/// How a host name is made up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AutoHostname {
    /// From the default address.
    #[default]
    FromAddress,
    /// From the node's identity.
    Stable,
    /// Not at all.
    Off,
}

/// The host DNS cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostDnsSetting {
    /// It runs.
    pub enabled: bool,
    /// Pods use it too.
    pub forward_kube_dns: bool,
    /// It answers for cluster members.
    pub resolve_member_names: bool,
}

/// One link of the configuration.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LinkSetting {
    /// Its name.
    pub name: String,
    /// Leave it alone.
    pub ignore: bool,
    /// Bring it up. `None`: the configuration does not say, which means yes.
    pub up: Option<bool>,
    /// MTU; 0 for the present one.
    pub mtu: u32,
    /// Hardware address to set; empty for the present one.
    pub hardware_addr: HardwareAddr,
    /// Multicast flag to set.
    pub multicast: Option<bool>,
    /// What kind of link it is.
    pub kind: LinkKind,
    /// The bond it belongs to, and its place in it.
    pub bond: Option<(String, i64)>,
    /// The bridge it belongs to.
    pub bridge: Option<String>,
    /// Static addresses.
    pub addresses: Vec<AddressSetting>,
    /// Routes.
    pub routes: Vec<RouteSetting>,
    /// DHCPv4.
    pub dhcp4: Option<DhcpSetting>,
    /// DHCPv6.
    pub dhcp6: Option<DhcpSetting>,
}

/// What kind of link it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum LinkKind {
    /// A device, or one that somebody else makes.
    #[default]
    Device,
    /// A dummy.
    Dummy,
    /// A VLAN on another link.
    Vlan(String, VLANSpec),
    /// A bridge.
    Bridge(BridgeMasterSpec),
    /// A bond.
    Bond(Box<BondMasterSpec>),
    /// A WireGuard tunnel.
    Wireguard(WireguardSpec),
}

/// A static address.
#[derive(Debug, Clone, PartialEq)]
pub struct AddressSetting {
    /// Address and prefix length.
    pub prefix: IpNet,
    /// Metric of the route to the prefix.
    pub priority: u32,
}

/// A static route.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RouteSetting {
    /// Destination; `None` for everywhere.
    pub destination: Option<IpNet>,
    /// Next hop.
    pub gateway: Option<IpAddr>,
    /// Preferred source.
    pub source: Option<IpAddr>,
    /// Metric; 0 for the default.
    pub metric: u32,
    /// MTU; 0 for the link's.
    pub mtu: u32,
    /// Number of the routing table; 0 for the main one.
    pub table: u8,
}

/// A DHCP client.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DhcpSetting {
    /// Metric of its routes; 0 for the default.
    pub route_metric: u32,
    /// Do not take the host name.
    pub ignore_hostname: bool,
    /// How the client names itself.
    pub client_identifier: ClientIdentifierSpec,
}
