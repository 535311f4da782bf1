//! Numbers that the kernel may extend: families, scopes, tables, protocols, flags.

use crate::value::enums::{flag_set, open_enum};

open_enum! {
    /// State of a tracked connection.
    pub struct ConntrackState("ConntrackState({})") = "talos.resource.definitions.enums.NethelpersConntrackState" {
        NEW = 8 => "new",
        RELATED = 4 => "related",
        ESTABLISHED = 2 => "established",
        INVALID = 1 => "invalid",
    }
}

open_enum! {
    /// Duplex of a link.
    pub struct Duplex("Duplex({})") = "talos.resource.definitions.enums.NethelpersDuplex" {
        HALF = 0 => "Half",
        FULL = 1 => "Full",
        UNKNOWN = 255 => "Unknown",
    }
}

open_enum! {
    /// Address family.
    pub struct Family("Family({})") = "talos.resource.definitions.enums.NethelpersFamily" {
        INET4 = 2 => "inet4",
        INET6 = 10 => "inet6",
    }
}

open_enum! {
    /// Type of an ICMP message.
    pub struct ICMPType("ICMPType({})") = "talos.resource.definitions.enums.NethelpersICMPType" as number {
        TIMESTAMP_REQUEST = 13 => "TimestampRequest",
        TIMESTAMP_REPLY = 14 => "TimestampReply",
        ADDRESS_MASK_REQUEST = 17 => "AddressMaskRequest",
        ADDRESS_MASK_REPLY = 18 => "AddressMaskReply",
    }
}

open_enum! {
    /// Order of chains at one hook.
    pub struct NfTablesChainPriority("NfTablesChainPriority({})") = "talos.resource.definitions.enums.NethelpersNfTablesChainPriority" {
        FIRST = -2147483648 => "first",
        CONNTRACK_DEFRAG = -400 => "conntrack-defrag",
        RAW = -300 => "raw",
        SE_LINUX_FIRST = -225 => "selinux-first",
        CONNTRACK = -200 => "conntrack",
        MANGLE = -150 => "mangle",
        NAT_DEST = -100 => "nat-dest",
        FILTER = 0 => "filter",
        SECURITY = 50 => "security",
        NAT_SOURCE = 100 => "nat-source",
        SE_LINUX_LAST = 225 => "selinux-last",
        CONNTRACK_HELPER = 300 => "conntrack-helper",
        LAST = 2147483647 => "last",
    }
}

open_enum! {
    /// Connector of a link.
    pub struct Port("Port({})") = "talos.resource.definitions.enums.NethelpersPort" {
        TWISTED_PAIR = 0 => "TwistedPair",
        AUI = 1 => "AUI",
        MII = 2 => "MII",
        FIBRE = 3 => "",
        BNC = 4 => "BNC",
        DIRECT_ATTACH = 5 => "DirectAttach",
        NONE = 239 => "None",
        OTHER = 255 => "Other",
    }
}

open_enum! {
    /// Protocol over IP.
    pub struct Protocol("Protocol({})") = "talos.resource.definitions.enums.NethelpersProtocol" {
        ICMP = 1 => "icmp",
        TCP = 6 => "tcp",
        UDP = 17 => "udp",
        ICMPV6 = 58 => "icmpv6",
    }
}

open_enum! {
    /// Who made a route.
    pub struct RouteProtocol("RouteProtocol({})") = "talos.resource.definitions.enums.NethelpersRouteProtocol" {
        UNSPEC = 0 => "unspec",
        REDIRECT = 1 => "redirect",
        KERNEL = 2 => "kernel",
        BOOT = 3 => "boot",
        STATIC = 4 => "static",
        RA = 9 => "ra",
        MRT = 10 => "mrt",
        ZEBRA = 11 => "zebra",
        BIRD = 12 => "bird",
        DNROUTED = 13 => "dnrouted",
        XORP = 14 => "xorp",
        NTK = 15 => "ntk",
        DHCP = 16 => "dhcp",
        MRTD = 17 => "mrtd",
        KEEPALIVED = 18 => "keepalived",
        BABEL = 42 => "babel",
        OPENR = 99 => "openr",
        BGP = 186 => "bgp",
        ISIS = 187 => "isis",
        OSPF = 188 => "ospf",
        RIP = 189 => "rip",
        EIGRP = 192 => "eigrp",
    }
}

open_enum! {
    /// What a route does.
    pub struct RouteType("RouteType({})") = "talos.resource.definitions.enums.NethelpersRouteType" {
        UNSPEC = 0 => "unspec",
        UNICAST = 1 => "unicast",
        LOCAL = 2 => "local",
        BROADCAST = 3 => "broadcast",
        ANYCAST = 4 => "anycast",
        MULTICAST = 5 => "multicast",
        BLACKHOLE = 6 => "blackhole",
        UNREACHABLE = 7 => "unreachable",
        PROHIBIT = 8 => "prohibit",
        THROW = 9 => "throw",
        NAT = 10 => "nat",
        XRESOLVE = 11 => "xresolve",
    }
}

open_enum! {
    /// A routing table.
    pub struct RoutingTable("{}") = "talos.resource.definitions.enums.NethelpersRoutingTable" {
        UNSPEC = 0 => "unspec",
        DEFAULT = 253 => "default",
        MAIN = 254 => "main",
        LOCAL = 255 => "local",
    }
}

open_enum! {
    /// How far an address or route reaches.
    pub struct Scope("Scope({})") = "talos.resource.definitions.enums.NethelpersScope" {
        GLOBAL = 0 => "global",
        SITE = 200 => "site",
        LINK = 253 => "link",
        HOST = 254 => "host",
        NOWHERE = 255 => "nowhere",
    }
}

open_enum! {
    /// Protocol of a VLAN tag.
    pub struct VLANProtocol("VLANProtocol({})") = "talos.resource.definitions.enums.NethelpersVLANProtocol" {
        DOT1Q = 33024 => "802.1q",
        DOT1AD = 34984 => "802.1ad",
    }
}

open_enum! {
    /// A way to wake a link.
    pub struct WOLMode("WOLMode({})") = "talos.resource.definitions.enums.NethelpersWOLMode" {
        PHY = 1 => "phy",
        UNICAST = 2 => "unicast",
        MULTICAST = 4 => "multicast",
        BROADCAST = 8 => "broadcast",
        MAGIC = 32 => "magic",
        MAGIC_SECURE = 64 => "magicsecure",
        FILTER = 128 => "filter",
    }
}

flag_set! {
    /// Flags of an address.
    pub struct AddressFlags {
        TEMPORARY = 1 => "temporary",
        NO_DAD = 2 => "nodad",
        OPTIMISTIC = 4 => "optimistic",
        DAD_FAILED = 8 => "dadfailed",
        HOME = 16 => "homeaddress",
        DEPRECATED = 32 => "deprecated",
        TENTATIVE = 64 => "tentative",
        PERMANENT = 128 => "permanent",
        MANAGEMENT_TEMP = 256 => "mngmtmpaddr",
        NO_PREFIX_ROUTE = 512 => "noprefixroute",
        MC_AUTO_JOIN = 1024 => "mcautojoin",
        STABLE_PRIVACY = 2048 => "stableprivacy",
    }
}

flag_set! {
    /// Flags of a route.
    pub struct RouteFlags {
        NOTIFY = 256 => "notify",
        CLONED = 512 => "cloned",
        EQUALIZE = 1024 => "equalize",
        PREFIX = 2048 => "prefix",
        LOOKUP_TABLE = 4096 => "lookup_table",
        FIB_MATCH = 8192 => "fib_match",
        OFFLOAD = 16384 => "offload",
        TRAP = 32768 => "trap",
    }
}

flag_set! {
    /// Flags of a link.
    pub struct LinkFlags {
        UP = 1 => "UP",
        BROADCAST = 2 => "BROADCAST",
        DEBUG = 4 => "DEBUG",
        LOOPBACK = 8 => "LOOPBACK",
        POINTTOPOINT = 16 => "POINTTOPOINT",
        NOTRAILERS = 32 => "NOTRAILERS",
        RUNNING = 64 => "RUNNING",
        NOARP = 128 => "NOARP",
        PROMISC = 256 => "PROMISC",
        ALLMULTI = 512 => "ALLMULTI",
        MASTER = 1024 => "MASTER",
        SLAVE = 2048 => "SLAVE",
        MULTICAST = 4096 => "MULTICAST",
        PORTSEL = 8192 => "PORTSEL",
        AUTOMEDIA = 16384 => "AUTOMEDIA",
        DYNAMIC = 32768 => "DYNAMIC",
        LOWER_UP = 65536 => "LOWER_UP",
        DORMANT = 131072 => "DORMANT",
        ECHO = 262144 => "ECHO",
    }
}
