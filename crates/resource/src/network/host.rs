//! Host name, time servers, probes and readiness.

use ichor_resource_derive::{ResourceSpec, SpecMessage};

use super::address::AddressSpec;
use super::dns::ResolverSpec;
use super::enums::ConfigLayer;
use super::link::LinkSpec;
use super::operator::OperatorSpec;
use super::route::RouteSpec;
use crate::runtime::PlatformMetadata;
use crate::value::{GoDuration, Ip};

/// Wanted hostname, layered like addresses.
///
/// Id: `hostname`; in `network-config` prefixed with the layer.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "HostnameSpecs.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.HostnameSpecSpec")]
pub struct HostnameSpec {
    #[spec(1, "hostname")]
    pub hostname: String,
    #[spec(2, "domainname")]
    pub domainname: String,
    #[spec(3, "layer")]
    pub layer: ConfigLayer,
}

/// Hostname in effect.
///
/// Id: `hostname`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "HostnameStatuses.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.HostnameStatusSpec")]
#[resource(aliases("hostname"))]
#[resource(columns(("Hostname", "{.hostname}"), ("Domainname", "{.domainname}")))]
pub struct HostnameStatus {
    #[spec(1, "hostname")]
    pub hostname: String,
    #[spec(2, "domainname")]
    pub domainname: String,
}

/// Readiness summary that services wait on.
///
/// Id: `status`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "NetworkStatuses.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.StatusSpec")]
#[resource(aliases("netstatus", "netstatuses"))]
#[resource(columns(
    ("Address", "{.addressReady}"),
    ("Connectivity", "{.connectivityReady}"),
    ("Hostname", "{.hostnameReady}"),
    ("Etc", "{.etcFilesReady}"),
))]
pub struct NetworkStatus {
    #[spec(1, "addressReady")]
    pub address_ready: bool,
    #[spec(2, "connectivityReady")]
    pub connectivity_ready: bool,
    #[spec(3, "hostnameReady")]
    pub hostname_ready: bool,
    #[spec(4, "etcFilesReady")]
    pub etc_files_ready: bool,
}

/// Wanted time servers, layered.
///
/// Id: `timeservers`; in `network-config` prefixed with the layer.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "TimeServerSpecs.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.TimeServerSpecSpec")]
pub struct TimeServerSpec {
    #[spec(1, "timeServers")]
    pub time_servers: Vec<String>,
    #[spec(2, "layer")]
    pub layer: ConfigLayer,
}

/// Time servers in effect.
///
/// Id: `timeservers`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "TimeServerStatuses.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.TimeServerStatusSpec")]
#[resource(aliases("timeserver", "timeservers"))]
#[resource(columns(("Timeservers", "{.timeServers}")))]
pub struct TimeServerStatus {
    #[spec(1, "timeServers")]
    pub time_servers: Vec<String>,
}

/// Connectivity probe to run.
///
/// Id: `tcp:<endpoint>`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "ProbeSpecs.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.ProbeSpecSpec")]
pub struct ProbeSpec {
    #[spec(1, "interval")]
    pub interval: GoDuration,
    #[spec(2, "failureThreshold")]
    pub failure_threshold: i64,
    #[spec(3, "tcp", omit)]
    pub tcp: TCPProbeSpec,
    #[spec(4, "layer")]
    pub layer: ConfigLayer,
}

/// Part of a spec: `network.TCPProbeSpec`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.network.TCPProbeSpec")]
pub struct TCPProbeSpec {
    #[spec(1, "endpoint")]
    pub endpoint: String,
    #[spec(2, "timeout")]
    pub timeout: GoDuration,
}

/// Result of a probe.
///
/// Id: same as the spec.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "ProbeStatuses.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.ProbeStatusSpec")]
#[resource(aliases("probe", "probes"))]
#[resource(columns(("Success", "{.success}")))]
pub struct ProbeStatus {
    #[spec(1, "success")]
    pub success: bool,
    #[spec(2, "lastError")]
    pub last_error: String,
}

/// Network configuration supplied by the platform, and its copy cached on disk. Its links may hold keys of tunnels, hence
/// sensitive as `LinkSpecs` are.
///
/// Id: `active`, `cached`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "PlatformConfigs.net.talos.dev", namespace = "network")]
#[resource(proto = "talos.resource.definitions.network.PlatformConfigSpec")]
#[resource(sensitive)]
pub struct PlatformConfig {
    #[spec(1, "addresses")]
    pub addresses: Vec<AddressSpec>,
    #[spec(2, "links")]
    pub links: Vec<LinkSpec>,
    #[spec(3, "routes")]
    pub routes: Vec<RouteSpec>,
    #[spec(4, "hostnames")]
    pub hostnames: Vec<HostnameSpec>,
    #[spec(5, "resolvers")]
    pub resolvers: Vec<ResolverSpec>,
    #[spec(6, "timeServers")]
    pub time_servers: Vec<TimeServerSpec>,
    #[spec(7, "operators")]
    pub operators: Vec<OperatorSpec>,
    #[spec(8, "externalIPs")]
    pub external_ips: Vec<Ip>,
    #[spec(9, "probes", omit)]
    pub probes: Vec<ProbeSpec>,
    #[spec(10, "metadata", omit)]
    pub metadata: Option<PlatformMetadata>,
}
