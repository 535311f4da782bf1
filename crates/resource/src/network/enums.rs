//! Enums of network configuration.

use crate::value::enums::spec_enum;

spec_enum! {
    /// How node addresses are ordered.
    pub enum AddressSortAlgorithm = "talos.resource.definitions.enums.NethelpersAddressSortAlgorithm" {
        #[default]
        V1 = 0 => "v1",
        V2 = 1 => "v2",
    }
}

spec_enum! {
    /// Whether LACP frames are sent unasked.
    pub enum ADLACPActive = "talos.resource.definitions.enums.NethelpersADLACPActive" {
        #[default]
        Off = 0 => "off",
        On = 1 => "on",
    }
}

spec_enum! {
    /// How 802.3ad picks an aggregator.
    pub enum ADSelect = "talos.resource.definitions.enums.NethelpersADSelect" {
        #[default]
        Stable = 0 => "stable",
        Bandwidth = 1 => "bandwidth",
        Count = 2 => "count",
    }
}

spec_enum! {
    /// How many ARP targets must answer.
    pub enum ARPAllTargets = "talos.resource.definitions.enums.NethelpersARPAllTargets" {
        #[default]
        Any = 0 => "any",
        All = 1 => "all",
    }
}

spec_enum! {
    /// Which ARP traffic counts.
    pub enum ARPValidate = "talos.resource.definitions.enums.NethelpersARPValidate" {
        #[default]
        None = 0 => "none",
        Active = 1 => "active",
        Backup = 2 => "backup",
        All = 3 => "all",
        Filter = 4 => "filter",
        FilterActive = 5 => "filter-active",
        FilterBackup = 6 => "filter-backup",
    }
}

spec_enum! {
    /// How a bond uses its links.
    pub enum BondMode = "talos.resource.definitions.enums.NethelpersBondMode" {
        #[default]
        Roundrobin = 0 => "balance-rr",
        ActiveBackup = 1 => "active-backup",
        Xor = 2 => "balance-xor",
        Broadcast = 3 => "broadcast",
        Ieee8023Ad = 4 => "802.3ad",
        Tlb = 5 => "balance-tlb",
        Alb = 6 => "balance-alb",
    }
}

spec_enum! {
    /// How a bond spreads traffic.
    pub enum BondXmitHashPolicy = "talos.resource.definitions.enums.NethelpersBondXmitHashPolicy" {
        #[default]
        Layer2 = 0 => "layer2",
        Layer34 = 1 => "layer3+4",
        Layer23 = 2 => "layer2+3",
        Encap23 = 3 => "encap2+3",
        Encap34 = 4 => "encap3+4",
    }
}

spec_enum! {
    /// What a DHCP client calls itself.
    pub enum ClientIdentifier = "talos.resource.definitions.enums.NethelpersClientIdentifier" {
        #[default]
        None = 0 => "none",
        Mac = 1 => "mac",
        Duid = 2 => "duid",
    }
}

spec_enum! {
    /// Which hardware address a bond keeps on failover.
    pub enum FailOverMAC = "talos.resource.definitions.enums.NethelpersFailOverMAC" as number {
        #[default]
        None = 0 => "none",
        Active = 1 => "active",
        Follow = 2 => "follow",
    }
}

spec_enum! {
    /// How often LACP frames are asked for.
    pub enum LACPRate = "talos.resource.definitions.enums.NethelpersLACPRate" {
        #[default]
        Slow = 0 => "slow",
        Fast = 1 => "fast",
    }
}

spec_enum! {
    /// How names are compared.
    pub enum MatchOperator = "talos.resource.definitions.enums.NethelpersMatchOperator" {
        #[default]
        Equal = 0 => "==",
        NotEqual = 1 => "!=",
    }
}

spec_enum! {
    /// Where a chain is hooked in.
    pub enum NfTablesChainHook = "talos.resource.definitions.enums.NethelpersNfTablesChainHook" {
        #[default]
        Prerouting = 0 => "prerouting",
        Input = 1 => "input",
        Forward = 2 => "forward",
        Output = 3 => "output",
        Postrouting = 4 => "postrouting",
    }
}

spec_enum! {
    /// What happens to a packet.
    pub enum NfTablesVerdict = "talos.resource.definitions.enums.NethelpersNfTablesVerdict" {
        #[default]
        Drop = 0 => "drop",
        Accept = 1 => "accept",
    }
}

spec_enum! {
    /// The operational state of a link.
    pub enum OperationalState = "talos.resource.definitions.enums.NethelpersOperationalState" {
        #[default]
        Unknown = 0 => "unknown",
        NotPresent = 1 => "notPresent",
        Down = 2 => "down",
        LowerLayerDown = 3 => "lowerLayerDown",
        Testing = 4 => "testing",
        Dormant = 5 => "dormant",
        Up = 6 => "up",
    }
}

spec_enum! {
    /// When a bond returns to its primary link.
    pub enum PrimaryReselect = "talos.resource.definitions.enums.NethelpersPrimaryReselect" {
        #[default]
        Always = 0 => "always",
        Better = 1 => "better",
        Failure = 2 => "failure",
    }
}

spec_enum! {
    /// Where a piece of network configuration comes from; higher layers win.
    pub enum ConfigLayer = "talos.resource.definitions.enums.NetworkConfigLayer" {
        #[default]
        Default = 0 => "default",
        Cmdline = 1 => "cmdline",
        Platform = 2 => "platform",
        Operator = 3 => "operator",
        Configuration = 4 => "configuration",
    }
}

spec_enum! {
    /// A program that keeps up some network configuration.
    pub enum Operator = "talos.resource.definitions.enums.NetworkOperator" {
        #[default]
        Dhcp4 = 0 => "dhcp4",
        Dhcp6 = 1 => "dhcp6",
        Vip = 2 => "vip",
    }
}
