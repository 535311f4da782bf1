//! Network services: DHCP, shared addresses, host name, resolver, time, KubeSpan endpoints.

use ichor_types::{GoDuration, HardwareAddr};

use crate::{
    model::{List, choices, section},
    values::{Addr, AddrPort},
};

choices! {
    /// How a DHCP client names itself.
    pub enum ClientIdentifier {
        None = "none",
        Mac = "mac",
        Duid = "duid",
    }
}

section! {
    /// DHCP for IPv4 on a link.
    pub struct DHCPv4Config {
        /// The link.
        @always
        "name" => name: String,
        /// Metric of the routes it gives.
        @default("1024")
        @example("routeMetric: 1024")
        "routeMetric" => route_metric: u32,
        /// Do not take the host name it gives.
        @default("false")
        "ignoreHostname" => ignore_hostname: Option<bool>,
        /// How the client names itself: `none`, `mac` or `duid`.
        @default("mac")
        "clientIdentifier" => client_identifier: Option<ClientIdentifier>,
        /// The identifier, with `duid` only.
        "duidRaw" => duid_raw: HardwareAddr,
    }
}

section! {
    /// DHCP for IPv6 on a link.
    pub struct DHCPv6Config {
        /// The link.
        @always
        "name" => name: String,
        /// Metric of the routes it gives.
        @default("1024")
        "routeMetric" => route_metric: u32,
        /// Do not take the host name it gives.
        @default("false")
        "ignoreHostname" => ignore_hostname: Option<bool>,
        /// How the client names itself: `none`, `mac` or `duid`.
        @default("mac")
        "clientIdentifier" => client_identifier: Option<ClientIdentifier>,
        /// The identifier, with `duid` only.
        "duidRaw" => duid_raw: HardwareAddr,
    }
}

section! {
    /// An address that control plane machines share, moved by announcing it on the link.
    pub struct Layer2VIPConfig {
        /// The address.
        @always
        "name" => name: String,
        /// The link.
        @always
        "link" => link: String,
    }
}

section! {
    /// An address that control plane machines share, moved with the Hetzner Cloud API.
    pub struct HCloudVIPConfig {
        /// The address.
        @always
        "name" => name: String,
        /// The link.
        @always
        "link" => link: String,
        /// Token of the API.
        @always
        "apiToken" => api_token: String,
    }
}

choices! {
    /// How a host name is made up.
    pub enum AutoHostname {
        Off = "off",
        TalosAddr = "talos-addr",
        Stable = "stable",
    }
}

section! {
    /// The host name.
    pub struct HostnameConfig {
        /// `stable` derives it from the identity of the machine; `off` needs `hostname`.
        @example("auto: stable")
        "auto" => auto: Option<AutoHostname>,
        /// The name itself, perhaps with a domain.
        "hostname" => hostname: String,
    }
}

section! {
    /// Name servers and search domains.
    pub struct ResolverConfig {
        /// Name servers; 1.1.1.1 and 8.8.8.8 when left out.
        @example("nameservers:\n    - address: 10.0.0.1")
        "nameservers" => nameservers: List<Nameserver>,
        /// Domains that are tried for short names.
        "searchDomains" => search_domains: SearchDomains,
    }
}

section! {
    /// A name server.
    pub struct Nameserver {
        /// Its address.
        @always
        "address" => address: Addr,
    }
}

section! {
    /// Domains that are tried for short names.
    pub struct SearchDomains {
        /// The domains.
        "domains" => domains: List<String>,
        /// Do not derive one from the host name.
        @default("false")
        "disableDefault" => disable_default: Option<bool>,
    }
}

section! {
    /// An entry of the hosts file.
    pub struct StaticHostConfig {
        /// The address.
        @always
        "name" => name: String,
        /// Its names.
        @always
        "hostnames" => hostnames: List<String>,
    }
}

section! {
    /// Time synchronisation.
    pub struct TimeSyncConfig {
        /// Turn it on.
        @default("true")
        "enabled" => enabled: Option<bool>,
        /// How long booting waits for the clock; zero waits for ever.
        "bootTimeout" => boot_timeout: GoDuration,
        /// Time from the network.
        @example("ntp:\n    servers:\n        - time.cloudflare.com")
        "ntp" => ntp: Option<Ntp>,
        /// Time from a device.
        "ptp" => ptp: Option<Ptp>,
    }
}

section! {
    /// Time from the network.
    pub struct Ntp {
        /// The servers; `time.cloudflare.com` when left out.
        "servers" => servers: List<String>,
    }
}

section! {
    /// Time from a device.
    pub struct Ptp {
        /// The devices.
        "devices" => devices: List<String>,
    }
}

section! {
    /// Further endpoints this machine announces to its KubeSpan peers.
    pub struct KubeSpanEndpointsConfig {
        /// Addresses with ports.
        @always
        "extraAnnouncedEndpoints" => extra_announced_endpoints: List<AddrPort>,
    }
}
