//! Links: physical, bridge, VLAN, dummy, WireGuard, aliases, Ethernet settings. Bonds are next door.

use ichor_types::{GoDuration, HardwareAddr};

use crate::{
    model::{List, Map, choices, section},
    values::{Addr, AddrPort, Expression, Prefix, RoutingTable},
};

section! {
    /// An address of a link.
    pub struct LinkAddress {
        /// The address with its prefix length.
        @always
        "address" => address: Prefix,
        /// Priority of the route that comes with it.
        "routePriority" => route_priority: Option<u32>,
    }
}

section! {
    /// A route over a link.
    pub struct LinkRoute {
        /// Destination; the default route when left out.
        "destination" => destination: Prefix,
        /// Gateway.
        "gateway" => gateway: Addr,
        /// Source address.
        "source" => source: Addr,
        /// Metric.
        "metric" => metric: u32,
        /// MTU.
        "mtu" => mtu: u32,
        /// Routing table: a number from 1 to 252, `default`, `main` or `local`.
        "table" => table: RoutingTable,
    }
}

/// What every kind of link can have.
pub trait CommonLink {
    /// Name of the link.
    fn name(&self) -> &str;
    /// Whether it is up; up when left out.
    fn up(&self) -> Option<bool>;
    /// MTU; zero leaves it alone.
    fn mtu(&self) -> u32;
    /// Addresses.
    fn addresses(&self) -> &[LinkAddress];
    /// Routes.
    fn routes(&self) -> &[LinkRoute];
    /// Whether it receives multicast.
    fn multicast(&self) -> Option<bool>;
}

/// A section whose own keys are followed by those that all links share.
macro_rules! link_document {
    ($(#[doc = $doc:literal])* pub struct $name:ident { $($own:tt)* }) => {
        $crate::model::section! {
            $(#[doc = $doc])*
            pub struct $name {
                $($own)*
                /// Bring the link up.
                @shared
                @default("true")
                "up" => up: Option<bool>,
                /// MTU.
                @shared
                "mtu" => mtu: u32,
                /// Static addresses.
                @shared
                "addresses" => addresses: $crate::model::List<$crate::kinds::link::LinkAddress>,
                /// Static routes.
                @shared
                "routes" => routes: $crate::model::List<$crate::kinds::link::LinkRoute>,
                /// Receive multicast.
                @shared
                "multicast" => multicast: Option<bool>,
            }
        }

        impl $crate::kinds::link::CommonLink for $name {
            fn name(&self) -> &str {
                &self.name
            }

            fn up(&self) -> Option<bool> {
                self.up
            }

            fn mtu(&self) -> u32 {
                self.mtu
            }

            fn addresses(&self) -> &[$crate::kinds::link::LinkAddress] {
                &self.addresses
            }

            fn routes(&self) -> &[$crate::kinds::link::LinkRoute] {
                &self.routes
            }

            fn multicast(&self) -> Option<bool> {
                self.multicast
            }
        }
    };
}

pub(crate) use link_document;

link_document! {
    /// Settings of a link that exists already.
    pub struct LinkConfig {
        /// Name or alias of the link.
        @always
        "name" => name: String,
    }
}

link_document! {
    /// A link without hardware.
    pub struct DummyLinkConfig {
        /// Name of the link.
        @always
        "name" => name: String,
        /// Hardware address.
        "hardwareAddr" => hardware_addr: HardwareAddr,
    }
}

link_document! {
    /// A bridge of links.
    pub struct BridgeConfig {
        /// Name of the link.
        @always
        "name" => name: String,
        /// Hardware address.
        "hardwareAddr" => hardware_addr: HardwareAddr,
        /// Members.
        "links" => links: List<String>,
        /// Spanning tree.
        "stp" => stp: BridgeStp,
        /// VLANs on the bridge.
        "vlan" => vlan: BridgeVlan,
    }
}

section! {
    /// Spanning tree.
    pub struct BridgeStp {
        /// Turn it on.
        "enabled" => enabled: Option<bool>,
    }
}

section! {
    /// VLANs on a bridge.
    pub struct BridgeVlan {
        /// Filter by VLAN.
        "filtering" => filtering: Option<bool>,
    }
}

choices! {
    /// Kind of VLAN tags.
    pub enum VlanProtocol {
        Q = "802.1q",
        Ad = "802.1ad",
    }
}

link_document! {
    /// A VLAN on top of a link.
    pub struct VLANConfig {
        /// Name of the link.
        @always
        "name" => name: String,
        /// Number of the VLAN, 1 to 4094.
        "vlanID" => vlan_id: u16,
        /// Kind of tags: `802.1q` or `802.1ad`.
        @default("802.1q")
        "vlanMode" => vlan_mode: Option<VlanProtocol>,
        /// The link below.
        "parent" => parent: String,
    }
}

link_document! {
    /// A WireGuard tunnel.
    pub struct WireguardConfig {
        /// Name of the link.
        @always
        "name" => name: String,
        /// Private key, base64.
        "privateKey" => private_key: String,
        /// Port it listens on.
        "listenPort" => listen_port: i64,
        /// Mark of its own packets.
        "firewallMark" => firewall_mark: i64,
        /// Peers.
        "peers" => peers: List<WireguardPeer>,
    }
}

section! {
    /// The other end of a tunnel.
    pub struct WireguardPeer {
        /// Its public key, base64.
        "publicKey" => public_key: String,
        /// A further shared key, base64.
        "presharedKey" => preshared_key: String,
        /// Where it listens.
        "endpoint" => endpoint: AddrPort,
        /// How often to send something so that translators keep the way open.
        "persistentKeepaliveInterval" => persistent_keepalive_interval: GoDuration,
        /// Networks behind it.
        "allowedIPs" => allowed_ips: List<Prefix>,
    }
}

section! {
    /// Gives a link a second name.
    pub struct LinkAliasConfig {
        /// The second name.
        @always
        "name" => name: String,
        /// Selects the link; exactly one must match.
        "selector" => selector: LinkSelector,
    }
}

section! {
    /// Selects a link by an expression.
    pub struct LinkSelector {
        /// Expression over `link`.
        @example("match: mac(link.permanent_addr) == \"00:1a:2b:3c:4d:5e\"")
        "match" => expression: Expression,
    }
}

choices! {
    /// What wakes a machine over the network.
    pub enum WOLMode {
        Phy = "phy",
        Unicast = "unicast",
        Multicast = "multicast",
        Broadcast = "broadcast",
        Magic = "magic",
        MagicSecure = "magicsecure",
        Filter = "filter",
    }
}

section! {
    /// Ethernet settings of a link.
    pub struct EthernetConfig {
        /// The link.
        @always
        "name" => name: String,
        /// Features of the driver, on or off.
        @example("features:\n    tx-checksum-ipv4: true")
        "features" => features: Map<bool>,
        /// Sizes of rings.
        "rings" => rings: Option<EthernetRings>,
        /// Numbers of channels.
        "channels" => channels: Option<EthernetChannels>,
        /// What wakes the machine; an empty list turns it off.
        "wakeOnLan" => wake_on_lan: List<WOLMode>,
    }
}

section! {
    /// Sizes of rings.
    pub struct EthernetRings {
        /// Receive.
        "rx" => rx: Option<u32>,
        /// Transmit.
        "tx" => tx: Option<u32>,
        /// Receive, mini.
        "rx-mini" => rx_mini: Option<u32>,
        /// Receive, jumbo.
        "rx-jumbo" => rx_jumbo: Option<u32>,
        /// Length of receive buffers.
        "rx-buf-len" => rx_buf_len: Option<u32>,
        /// Size of completion queue entries.
        "cqe-size" => cqe_size: Option<u32>,
        /// Push on transmit.
        "tx-push" => tx_push: Option<bool>,
        /// Push on receive.
        "rx-push" => rx_push: Option<bool>,
        /// Length of transmit push buffers.
        "tx-push-buf-len" => tx_push_buf_len: Option<u32>,
        /// Split header and data of TCP.
        "tcp-data-split" => tcp_data_split: Option<bool>,
    }
}

section! {
    /// Numbers of channels.
    pub struct EthernetChannels {
        /// Receive.
        "rx" => rx: Option<u32>,
        /// Transmit.
        "tx" => tx: Option<u32>,
        /// Other.
        "other" => other: Option<u32>,
        /// Combined.
        "combined" => combined: Option<u32>,
    }
}
