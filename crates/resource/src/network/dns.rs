//! Resolvers and the host DNS cache.

use ichor_resource_derive::ResourceSpec;

use super::enums::ConfigLayer;
use crate::value::{Ip, IpPort};

/// A listener of the host DNS cache.
///
/// Id: `<network>-<address>`, e.g. `udp-127.0.0.53:53`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "DNSResolveCaches.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.DNSResolveCacheSpec")]
#[resource(columns(("Status", "{.status}")))]
pub struct DNSResolveCache {
    #[spec(1, "status")]
    pub status: String,
}

/// Host DNS settings.
///
/// Id: `config`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "HostDNSConfigs.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.HostDNSConfigSpec")]
#[resource(columns(("Enabled", "{.enabled}")))]
pub struct HostDNSConfig {
    #[spec(1, "enabled")]
    pub enabled: bool,
    #[spec(2, "listenAddresses", omit)]
    pub listen_addresses: Vec<IpPort>,
    #[spec(3, "serviceHostDNSAddress", omit)]
    pub service_host_dns_address: Ip,
    #[spec(4, "resolveMemberNames", omit)]
    pub resolve_member_names: bool,
}

/// Wanted DNS servers and search domains, layered.
///
/// Id: `resolvers`; in `network-config` prefixed with the layer.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "ResolverSpecs.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.ResolverSpecSpec")]
#[resource(columns(
    ("Layer", "{.layer}"),
    ("Resolvers", "{.dnsServers}"),
    ("Search Domains", "{.searchDomains}"),
))]
pub struct ResolverSpec {
    #[spec(1, "dnsServers")]
    pub dns_servers: Vec<Ip>,
    #[spec(2, "layer")]
    pub layer: ConfigLayer,
    #[spec(3, "searchDomains", omit)]
    pub search_domains: Vec<String>,
}

/// DNS servers in effect.
///
/// Id: `resolvers`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "ResolverStatuses.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.ResolverStatusSpec")]
#[resource(aliases("resolvers"))]
#[resource(columns(("Resolvers", "{.dnsServers}"), ("Search Domains", "{.searchDomains}")))]
pub struct ResolverStatus {
    #[spec(1, "dnsServers")]
    pub dns_servers: Vec<Ip>,
    #[spec(2, "searchDomains")]
    pub search_domains: Vec<String>,
}
