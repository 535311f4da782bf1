//! Bonds of links.

use ichor_types::HardwareAddr;
use ichor_yaml::Node;

use super::link::link_document;
use crate::{
    model::{Decoder, Field, List, MergeError, Shape, choices},
    values::Addr,
};

choices! {
    /// How a bond spreads traffic.
    pub enum BondMode {
        BalanceRr = "balance-rr",
        ActiveBackup = "active-backup",
        BalanceXor = "balance-xor",
        Broadcast = "broadcast",
        Lacp = "802.3ad",
        BalanceTlb = "balance-tlb",
        BalanceAlb = "balance-alb",
    }
}

choices! {
    /// What is hashed to choose a member.
    pub enum XmitHashPolicy {
        Layer2 = "layer2",
        Layer34 = "layer3+4",
        Layer23 = "layer2+3",
        Encap23 = "encap2+3",
        Encap34 = "encap3+4",
    }
}

choices! {
    /// Which ARP replies are checked.
    pub enum ArpValidate {
        None = "none",
        Active = "active",
        Backup = "backup",
        All = "all",
        Filter = "filter",
        FilterActive = "filter-active",
        FilterBackup = "filter-backup",
    }
}

choices! {
    /// Whether any or all ARP targets must answer.
    pub enum ArpAllTargets {
        Any = "any",
        All = "all",
    }
}

choices! {
    /// How often LACP speaks.
    pub enum LacpRate {
        Slow = "slow",
        Fast = "fast",
    }
}

choices! {
    /// How the hardware address moves on failover.
    pub enum FailOverMac {
        None = "none",
        Active = "active",
        Follow = "follow",
    }
}

choices! {
    /// How the active aggregator is chosen.
    pub enum AdSelect {
        Stable = "stable",
        Bandwidth = "bandwidth",
        Count = "count",
    }
}

choices! {
    /// Whether LACP speaks first.
    pub enum AdLacpActive {
        Off = "off",
        On = "on",
    }
}

choices! {
    /// When the preferred member takes over again.
    pub enum PrimaryReselect {
        Always = "always",
        Better = "better",
        Failure = "failure",
    }
}

/// The same as a number, which is how the original writes this one key; words are read as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailOverMacNumber(pub FailOverMac);

impl Field for FailOverMacNumber {
    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        let numbered = |text: &str| match text {
            "0" => Some(FailOverMac::None),
            "1" => Some(FailOverMac::Active),
            "2" => Some(FailOverMac::Follow),
            word => FailOverMac::parse(word),
        };
        Self(decoder.choice(node, "FailOverMac", FailOverMac::TEXTS, numbered))
    }

    fn encode(&self) -> Node {
        Node::plain((self.0 as u8).to_string())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        *self = *right;
        Ok(())
    }

    fn shape() -> Shape {
        FailOverMac::shape()
    }
}

link_document! {
    /// A bond of links.
    pub struct BondConfig {
        /// Name of the link.
        @always
        "name" => name: String,
        /// Hardware address.
        "hardwareAddr" => hardware_addr: HardwareAddr,
        /// Members.
        "links" => links: List<String>,
        /// How traffic is spread.
        "bondMode" => bond_mode: Option<BondMode>,
        /// Milliseconds between checks of the link state.
        "miimon" => miimon: Option<u32>,
        /// Milliseconds before a member that came up is used.
        "updelay" => updelay: Option<u32>,
        /// Milliseconds before a member that went down is left.
        "downdelay" => downdelay: Option<u32>,
        /// Ask the driver for the carrier.
        "useCarrier" => use_carrier: Option<bool>,
        /// What is hashed to choose a member.
        "xmitHashPolicy" => xmit_hash_policy: Option<XmitHashPolicy>,
        /// Milliseconds between ARP probes.
        "arpInterval" => arp_interval: Option<u32>,
        /// Addresses probed by ARP.
        "arpIpTargets" => arp_ip_targets: List<Addr>,
        /// Addresses probed by neighbour solicitation.
        "nsIp6Targets" => ns_ip6_targets: List<Addr>,
        /// Which replies are checked.
        "arpValidate" => arp_validate: Option<ArpValidate>,
        /// Whether any or all targets must answer.
        "arpAllTargets" => arp_all_targets: Option<ArpAllTargets>,
        /// How often LACP speaks.
        "lacpRate" => lacp_rate: Option<LacpRate>,
        /// How the hardware address moves on failover.
        "failOverMac" => fail_over_mac: Option<FailOverMacNumber>,
        /// How the active aggregator is chosen.
        "adSelect" => ad_select: Option<AdSelect>,
        /// LACP system priority.
        "adActorSysPrio" => ad_actor_sys_prio: Option<u16>,
        /// Upper bits of the LACP port key.
        "adUserPortKey" => ad_user_port_key: Option<u16>,
        /// Whether LACP speaks first.
        "adLACPActive" => ad_lacp_active: Option<AdLacpActive>,
        /// When the preferred member takes over again.
        "primaryReselect" => primary_reselect: Option<PrimaryReselect>,
        /// IGMP reports after a failover.
        "resendIGMP" => resend_igmp: Option<u32>,
        /// Members that must be up.
        "minLinks" => min_links: Option<u32>,
        /// Seconds between learning packets.
        "lpInterval" => lp_interval: Option<u32>,
        /// Packets per member in round robin.
        "packetsPerSlave" => packets_per_slave: Option<u32>,
        /// Announcements after a failover.
        "numPeerNotif" => num_peer_notif: Option<u8>,
        /// Rebalance flows by load.
        "tlbLogicalLb" => tlb_logical_lb: Option<u8>,
        /// Deliver duplicates that inactive members receive.
        "allSlavesActive" => all_slaves_active: Option<u8>,
        /// Milliseconds between announcements.
        "peerNotifDelay" => peer_notif_delay: Option<u32>,
        /// Missed ARP probes before a member is down.
        "missedMax" => missed_max: Option<u8>,
    }
}
