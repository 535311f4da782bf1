//! `machine.network`: the older way to describe links, superseded by documents of their own.

use ichor_types::GoDuration;

use crate::model::{Keyed, KeyedList, List, section};

section! {
    /// Network of the machine.
    pub struct NetworkConfig {
        /// Static host name.
        @deprecated("use a `HostnameConfig` document")
        "hostname" => hostname: String,
        /// Settings of links.
        @deprecated("use `LinkConfig`, `BondConfig`, `BridgeConfig`, `VLANConfig`, `WireguardConfig` and `DHCPv4Config` documents")
        "interfaces" => interfaces: KeyedList<Device>,
        /// Addresses of name servers.
        @deprecated("use a `ResolverConfig` document")
        "nameservers" => nameservers: List<String>,
        /// Domains that are tried for short names.
        @deprecated("use a `ResolverConfig` document")
        "searchDomains" => search_domains: List<String>,
        /// Additional entries of the hosts file.
        @deprecated("use `StaticHostConfig` documents")
        "extraHostEntries" => extra_host_entries: List<ExtraHost>,
        /// The WireGuard mesh between machines.
        @example("kubespan:\n    enabled: true")
        "kubespan" => kubespan: Option<KubeSpan>,
        /// Do not derive a search domain from the host name.
        @deprecated("use a `ResolverConfig` document")
        @default("false")
        "disableSearchDomain" => disable_search_domain: Option<bool>,
    }
}

section! {
    /// An entry of the hosts file.
    pub struct ExtraHost {
        /// The address.
        @always
        "ip" => ip: String,
        /// Its names.
        @always
        "aliases" => aliases: List<String>,
    }
}

section! {
    /// The WireGuard mesh between machines.
    pub struct KubeSpan {
        /// Turn it on; needs cluster discovery.
        @default("false")
        "enabled" => enabled: Option<bool>,
        /// Announce the pod networks of this machine to its peers.
        @default("false")
        "advertiseKubernetesNetworks" => advertise_kubernetes_networks: Option<bool>,
        /// Send traffic outside the tunnel while a peer is down.
        @default("false")
        "allowDownPeerBypass" => allow_down_peer_bypass: Option<bool>,
        /// Collect further endpoints of peers from what is seen on the wire.
        @default("false")
        "harvestExtraEndpoints" => harvest_extra_endpoints: Option<bool>,
        /// MTU of the link, at least 1280.
        @default("1420")
        "mtu" => mtu: Option<u32>,
        /// What is announced to peers.
        "filters" => filters: Option<KubeSpanFilters>,
    }
}

section! {
    /// What is announced to peers.
    pub struct KubeSpanFilters {
        /// Networks of announced endpoints; a leading `!` excludes.
        @example("endpoints:\n    - 0.0.0.0/0\n    - '!192.168.0.0/16'")
        "endpoints" => endpoints: List<String>,
    }
}

section! {
    /// Settings of one link.
    pub struct Device {
        /// Name of the link.
        "interface" => interface: String,
        /// Selects the link by its properties instead of its name.
        "deviceSelector" => device_selector: Option<DeviceSelector>,
        /// Static addresses.
        "addresses" => addresses: List<String>,
        /// A single static address.
        @deprecated("use `addresses`")
        "cidr" => cidr: String,
        /// Static routes.
        "routes" => routes: List<Route>,
        /// Make this link a bond.
        "bond" => bond: Option<Box<Bond>>,
        /// Make this link a bridge.
        "bridge" => bridge: Option<Bridge>,
        /// Make this link a port of a bridge.
        "bridgePort" => bridge_port: Option<BridgePort>,
        /// VLANs on top of this link.
        "vlans" => vlans: KeyedList<Vlan>,
        /// MTU.
        "mtu" => mtu: i64,
        /// Ask for an address by DHCP.
        @default("false")
        "dhcp" => dhcp: Option<bool>,
        /// Leave this link alone.
        @default("false")
        "ignore" => ignore: Option<bool>,
        /// Create a dummy link with this name.
        @default("false")
        "dummy" => dummy: Option<bool>,
        /// Details of DHCP.
        "dhcpOptions" => dhcp_options: Option<DhcpOptions>,
        /// Make this link a WireGuard tunnel.
        "wireguard" => wireguard: Option<Wireguard>,
        /// An address that control plane machines share.
        "vip" => vip: Option<Vip>,
    }
}

impl Keyed for Device {
    const KEY: &'static str = "interface or deviceSelector";

    fn same_item(&self, other: &Self) -> bool {
        if !other.interface.is_empty() {
            return self.interface == other.interface;
        }
        match (&self.device_selector, &other.device_selector) {
            // Two optional booleans are never the same value in the reference, so such selectors never match.
            (Some(left), Some(right)) => left.physical.is_none() && right.physical.is_none() && left == right,
            _ => false,
        }
    }
}

section! {
    /// Selects a link by its properties; texts may contain wildcards.
    pub struct DeviceSelector {
        /// Path on its bus.
        "busPath" => bus_path: String,
        /// Current hardware address.
        "hardwareAddr" => hardware_addr: String,
        /// Hardware address given by the maker.
        "permanentAddr" => permanent_addr: String,
        /// PCI vendor and product.
        "pciID" => pci_id: String,
        /// Kernel driver.
        "driver" => driver: String,
        /// Only physical links.
        "physical" => physical: Option<bool>,
    }
}

section! {
    /// A static route.
    pub struct Route {
        /// Destination; the default route when empty.
        @always
        "network" => network: String,
        /// Gateway.
        @always
        "gateway" => gateway: String,
        /// Source address.
        "source" => source: String,
        /// Metric.
        "metric" => metric: u32,
        /// MTU.
        "mtu" => mtu: u32,
    }
}

section! {
    /// Details of DHCP.
    pub struct DhcpOptions {
        /// Metric of the routes that DHCP gives.
        @always
        "routeMetric" => route_metric: u32,
        /// Ask for an IPv4 address.
        @default("true")
        "ipv4" => ipv4: Option<bool>,
        /// Ask for an IPv6 address.
        @default("false")
        "ipv6" => ipv6: Option<bool>,
        /// Identifier of this client for IPv6, in hex.
        "duidv6" => duidv6: String,
    }
}

section! {
    /// A WireGuard tunnel.
    pub struct Wireguard {
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
        /// Where it listens, `host:port`.
        "endpoint" => endpoint: String,
        /// How often to send something so that translators keep the way open.
        "persistentKeepaliveInterval" => persistent_keepalive_interval: GoDuration,
        /// Networks behind it.
        "allowedIPs" => allowed_ips: List<String>,
    }
}

section! {
    /// An address that control plane machines share.
    pub struct Vip {
        /// The address.
        "ip" => ip: String,
        /// Move it with the Equinix Metal API.
        "equinixMetal" => equinix_metal: Option<VipEquinixMetal>,
        /// Move it with the Hetzner Cloud API.
        "hcloud" => hcloud: Option<VipHCloud>,
    }
}

section! {
    /// Access to the Equinix Metal API.
    pub struct VipEquinixMetal {
        /// Token.
        @always
        "apiToken" => api_token: String,
    }
}

section! {
    /// Access to the Hetzner Cloud API.
    pub struct VipHCloud {
        /// Token.
        @always
        "apiToken" => api_token: String,
    }
}

section! {
    /// A bond of links.
    pub struct Bond {
        /// Members by name.
        @always
        "interfaces" => interfaces: List<String>,
        /// Members by property.
        "deviceSelectors" => device_selectors: List<DeviceSelector>,
        /// Not supported.
        "arpIPTarget" => arp_ip_target: List<String>,
        /// How traffic is spread: `balance-rr`, `active-backup`, `balance-xor`, `broadcast`, `802.3ad`,
        /// `balance-tlb`, `balance-alb`.
        @always
        "mode" => mode: String,
        /// What is hashed to choose a member.
        "xmitHashPolicy" => xmit_hash_policy: String,
        /// How often LACP speaks: `slow`, `fast`.
        "lacpRate" => lacp_rate: String,
        /// Not supported.
        "adActorSystem" => ad_actor_system: String,
        /// Which ARP replies are checked.
        "arpValidate" => arp_validate: String,
        /// Whether any or all ARP targets must answer.
        "arpAllTargets" => arp_all_targets: String,
        /// The preferred member.
        "primary" => primary: String,
        /// When the preferred member takes over again.
        "primaryReselect" => primary_reselect: String,
        /// How the hardware address moves on failover.
        "failOverMac" => fail_over_mac: String,
        /// How the active aggregator is chosen.
        "adSelect" => ad_select: String,
        /// Milliseconds between checks of the link state.
        "miimon" => miimon: u32,
        /// Milliseconds before a member that came up is used.
        "updelay" => updelay: u32,
        /// Milliseconds before a member that went down is left.
        "downdelay" => downdelay: u32,
        /// Milliseconds between ARP probes.
        "arpInterval" => arp_interval: u32,
        /// IGMP reports after a failover.
        "resendIgmp" => resend_igmp: u32,
        /// Members that must be up.
        "minLinks" => min_links: u32,
        /// Seconds between learning packets.
        "lpInterval" => lp_interval: u32,
        /// Packets per member in round robin.
        "packetsPerSlave" => packets_per_slave: u32,
        /// Announcements after a failover.
        "numPeerNotif" => num_peer_notif: u8,
        /// Rebalance flows by load.
        "tlbDynamicLb" => tlb_dynamic_lb: u8,
        /// Deliver duplicates that inactive members receive.
        "allSlavesActive" => all_slaves_active: u8,
        /// Ask the driver for the carrier.
        @default("true")
        "useCarrier" => use_carrier: Option<bool>,
        /// LACP system priority.
        "adActorSysPrio" => ad_actor_sys_prio: u16,
        /// Upper bits of the LACP port key.
        "adUserPortKey" => ad_user_port_key: u16,
        /// Milliseconds between announcements.
        "peerNotifyDelay" => peer_notify_delay: u32,
    }
}

section! {
    /// A bridge of links.
    pub struct Bridge {
        /// Members by name.
        @always
        "interfaces" => interfaces: List<String>,
        /// Spanning tree.
        "stp" => stp: Option<BridgeStp>,
        /// VLANs on the bridge.
        "vlan" => vlan: Option<BridgeVlan>,
    }
}

section! {
    /// Spanning tree.
    pub struct BridgeStp {
        /// Turn it on.
        @default("true")
        "enabled" => enabled: Option<bool>,
    }
}

section! {
    /// VLANs on a bridge.
    pub struct BridgeVlan {
        /// Filter by VLAN.
        @default("false")
        "vlanFiltering" => vlan_filtering: Option<bool>,
    }
}

section! {
    /// Membership in a bridge.
    pub struct BridgePort {
        /// The bridge.
        "master" => master: String,
    }
}

section! {
    /// A VLAN on top of a link.
    pub struct Vlan {
        /// Static addresses.
        "addresses" => addresses: List<String>,
        /// A single static address.
        @deprecated("use `addresses`")
        "cidr" => cidr: String,
        /// Static routes.
        @always
        "routes" => routes: List<Route>,
        /// Ask for an address by DHCP.
        @default("false")
        "dhcp" => dhcp: Option<bool>,
        /// Number of the VLAN.
        @always
        "vlanId" => vlan_id: u16,
        /// MTU.
        "mtu" => mtu: u32,
        /// An address that control plane machines share.
        "vip" => vip: Option<Vip>,
        /// Details of DHCP.
        "dhcpOptions" => dhcp_options: Option<DhcpOptions>,
    }
}

impl Keyed for Vlan {
    const KEY: &'static str = "vlanId";

    fn same_item(&self, other: &Self) -> bool {
        self.vlan_id == other.vlan_id
    }
}
