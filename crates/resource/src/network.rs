//! Network: wanted and present state.

mod address;
mod device;
mod dns;
mod enums;
mod ethernet;
mod features;
mod host;
mod kernel;
mod link;
mod link_type;
mod nftables;
mod operator;
mod route;
mod upstream;

pub use address::{
    AddressSpec, AddressStatus, HardwareAddress, NodeAddress, NodeAddressFilter, NodeAddressSortAlgorithm,
};
pub use device::DeviceConfigSpec;
pub use dns::{DNSResolveCache, HostDNSConfig, ResolverSpec, ResolverStatus};
pub use enums::*;
pub use ethernet::{
    EthernetChannelsSpec, EthernetChannelsStatus, EthernetRingsSpec, EthernetRingsStatus, EthernetSpec,
    EthernetStatus,
};
pub use features::{EthernetFeature, EthernetFeatures};
pub use host::{
    HostnameSpec, HostnameStatus, NetworkStatus, PlatformConfig, ProbeSpec, ProbeStatus, TCPProbeSpec,
    TimeServerSpec, TimeServerStatus,
};
pub use kernel::*;
pub use link::{
    BondMasterSpec, BondSlave, BridgeMasterSpec, BridgeSlave, BridgeVLANSpec, LinkAliasSpec, LinkRefresh,
    LinkSpec, LinkStatus, STPSpec, VLANSpec, WireguardPeer, WireguardSpec,
};
pub use link_type::*;
pub use nftables::{
    NfTablesAddressMatch, NfTablesChain, NfTablesClampMSS, NfTablesConntrackStateMatch,
    NfTablesICMPTypeMatch, NfTablesIfNameMatch, NfTablesLayer4Match, NfTablesLimitMatch, NfTablesMark,
    NfTablesPortMatch, NfTablesRule, PortRange,
};
pub use operator::{
    ClientIdentifierSpec, DHCP4OperatorSpec, DHCP6OperatorSpec, OperatorSpec, VIPEquinixMetalSpec,
    VIPHCloudSpec, VIPOperatorSpec,
};
pub use route::{RouteSpec, RouteStatus};
pub use upstream::DNSUpstream;
