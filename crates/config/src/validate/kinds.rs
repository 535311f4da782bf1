//! Rules of the documents with a kind.

use std::net::IpAddr;

use ichor_cel::{Type, environments};

use super::{
    Report,
    text::{check_wireguard_key, split_host_port},
    volumes::{check_encryption, check_provisioning, check_user_volume, check_volume, check_volume_name},
};
use crate::{
    document::Document,
    kinds::{
        SideroLinkConfig,
        firewall::NetworkRuleConfig,
        link::{CommonLink, WireguardConfig},
        registry::{RegistryAuthConfig, RegistryMirrorConfig, RegistryTLSConfig},
        runtime::{ExtensionServiceConfig, KmsgLogConfig, OOMConfig, WatchdogTimerConfig},
        service::{AutoHostname, ClientIdentifier, HostnameConfig, TimeSyncConfig},
    },
    model::{Field, Path},
};

/// Shortest watchdog timeout.
const WATCHDOG_MIN_SECS: i64 = 10;
pub(super) fn check(report: &mut Report<'_>, document: &Document) {
    let root = Path::root();
    match document {
        Document::Config(_) => {}
        Document::VolumeConfig(volume) => check_volume(report, volume),
        Document::UserVolumeConfig(volume) => check_user_volume(report, volume),
        Document::RawVolumeConfig(volume) => {
            check_volume_name(report, &volume.name, true);
            check_provisioning(report, &volume.provisioning, true, true);
            check_encryption(report, &volume.encryption);
        }
        Document::SwapVolumeConfig(volume) => {
            check_volume_name(report, &volume.name, true);
            check_provisioning(report, &volume.provisioning, true, true);
            check_encryption(report, &volume.encryption);
        }
        Document::ExistingVolumeConfig(volume) => {
            check_volume_name(report, &volume.name, false);
            let expression = &volume.discovery.volume_selector.expression;
            let path = Path::of("discovery.volumeSelector.match");
            match expression.is_set() {
                false => report.error(&path, "volume selector is required"),
                true => {
                    let env = environments::volume();
                    report.expression(&path, "volume selector", &expression.0, &env, &Type::Bool);
                }
            }
        }
        Document::ZswapConfig(zswap) => {
            if zswap.max_pool_percent.is_some_and(|percent| !(0..=100).contains(&percent)) {
                report.error(&root.key("maxPoolPercent"), "maxPoolPercent must be between 0 and 100");
            }
        }
        Document::RegistryMirrorConfig(mirror) => check_mirror(report, mirror),
        Document::RegistryAuthConfig(auth) => check_auth(report, auth),
        Document::RegistryTLSConfig(tls) => check_tls(report, tls),
        Document::PCIDriverRebindConfig(_) | Document::TrustedRootsConfig(_) => {}
        Document::LinkConfig(link) => check_link(report, &**link),
        Document::DummyLinkConfig(link) => check_link(report, &**link),
        Document::BridgeConfig(link) => check_link(report, &**link),
        Document::BondConfig(bond) => {
            if bond.links.is_empty() {
                report.error(&root.key("links"), "at least one link must be specified");
            }
            if bond.bond_mode.is_none() {
                report.error(&root.key("bondMode"), "bond mode must be specified");
            }
            check_link(report, &**bond);
        }
        Document::VLANConfig(vlan) => {
            if !(1..=4094).contains(&vlan.vlan_id) {
                report.error(&root.key("vlanID"), "vlanID must be specified and between 1 and 4094");
            }
            if vlan.parent.is_empty() {
                report.error(&root.key("parent"), "parent must be specified");
            }
            check_link(report, &**vlan);
        }
        Document::WireguardConfig(wireguard) => check_wireguard(report, wireguard),
        Document::LinkAliasConfig(alias) => {
            need(report, "name", &alias.name, "name must be specified");
            let expression = &alias.selector.expression;
            let path = Path::of("selector.match");
            match expression.is_set() {
                false => report.error(&path, "link selector is required"),
                true => {
                    let env = environments::link();
                    report.expression(&path, "link selector", &expression.0, &env, &Type::Bool);
                }
            }
        }
        Document::EthernetConfig(ethernet) => need(report, "name", &ethernet.name, "name is required"),
        Document::DHCPv4Config(dhcp) => {
            check_dhcp(report, &dhcp.name, dhcp.client_identifier, dhcp.duid_raw.0.is_empty());
        }
        Document::DHCPv6Config(dhcp) => {
            check_dhcp(report, &dhcp.name, dhcp.client_identifier, dhcp.duid_raw.0.is_empty());
        }
        Document::Layer2VIPConfig(vip) => check_vip(report, &vip.name, &vip.link),
        Document::HCloudVIPConfig(vip) => {
            check_vip(report, &vip.name, &vip.link);
            need(report, "apiToken", &vip.api_token, "apiToken must be specified");
        }
        Document::HostnameConfig(hostname) => check_hostname(report, hostname),
        Document::ResolverConfig(_) | Document::KubeSpanEndpointsConfig(_) => {}
        Document::NetworkDefaultActionConfig(_) => {}
        Document::StaticHostConfig(host) => {
            need(report, "name", &host.name, "name is required");
            if host.name.parse::<IpAddr>().is_err() {
                report.error(&root.key("name"), "name must be a valid IP address");
            }
            if host.hostnames.is_empty() {
                report.error(&root.key("hostnames"), "at least one hostname is required");
            }
        }
        Document::TimeSyncConfig(time) => check_time(report, time),
        Document::NetworkRuleConfig(rule) => check_rule(report, rule),
        Document::EventSinkConfig(sink) => {
            if let Err(error) = split_host_port(&sink.endpoint) {
                report.error(&root.key("endpoint"), format!("event sink endpoint: {error}"));
            }
        }
        Document::KmsgLogConfig(log) => check_kmsg(report, log),
        Document::WatchdogTimerConfig(watchdog) => check_watchdog(report, watchdog),
        Document::OOMConfig(oom) => check_oom(report, oom),
        Document::ExtensionServiceConfig(service) => check_extension(report, service),
        Document::SideroLinkConfig(link) => check_siderolink(report, link),
    }
}

fn need(report: &mut Report<'_>, key: &str, value: &str, message: &str) {
    if value.is_empty() {
        report.error(&Path::root().key(key), message);
    }
}

fn check_mirror(report: &mut Report<'_>, mirror: &RegistryMirrorConfig) {
    need(report, "name", &mirror.name, "name must be specified");
    for (i, endpoint) in mirror.endpoints.iter().enumerate() {
        let at = Path::root().key("endpoints").index(i).key("url");
        if Field::is_empty(&endpoint.url) {
            report.error(&at, format!("endpoints[{i}].url must be specified"));
        } else if !matches!(endpoint.url.scheme.as_str(), "http" | "https") {
            let scheme = &endpoint.url.scheme;
            report.error(&at, format!("endpoints[{i}].url has unsupported scheme: {scheme:?}"));
        }
    }
}

fn check_auth(report: &mut Report<'_>, auth: &RegistryAuthConfig) {
    need(report, "name", &auth.name, "name must be specified");
    let (user, token) = (!auth.username.is_empty(), !auth.identity_token.is_empty());
    if user && token {
        let message = "only one of username/password or identityToken authentication can be specified";
        report.error(&Path::root().key("identityToken"), message);
    }
    if !auth.auth.is_empty() && (user || token) {
        let message = "only one of auth, username/password or identityToken authentication can be specified";
        report.error(&Path::root().key("auth"), message);
    }
}

fn check_tls(report: &mut Report<'_>, tls: &RegistryTLSConfig) {
    need(report, "name", &tls.name, "name must be specified");
    let root = Path::root();
    if !tls.ca.is_empty() && ichor_pki::CertInfo::parse(&tls.ca).is_err() {
        report.error(&root.key("ca"), "ca must be a valid PEM-encoded certificate");
    }
    if let Some(identity) = &tls.client_identity {
        let path = root.key("clientIdentity");
        if let Err(error) = ichor_pki::CertInfo::parse(&identity.cert) {
            report.error(&path.key("cert"), format!("client identity certificate is invalid: {error}"));
        }
        if let Err(error) = ichor_pki::PrivateKey::from_pem(&identity.key) {
            report.error(&path.key("key"), format!("client identity key is invalid: {error}"));
        }
    }
}

fn check_link(report: &mut Report<'_>, link: &impl CommonLink) {
    need(report, "name", link.name(), "name must be specified");
    for (i, address) in link.addresses().iter().enumerate() {
        let at = Path::root().key("addresses").index(i).key("address");
        match address.address.0 {
            None => report.error(&at, format!("address {i} must be specified")),
            Some(net) if net.addr().is_unspecified() => {
                report.error(&at, format!("address {i} must be a valid IP address"));
            }
            Some(_) => {}
        }
    }
    for (i, route) in link.routes().iter().enumerate() {
        let at = Path::root().key("routes").index(i);
        if route.destination.0.is_some_and(|net| net.addr().is_unspecified()) {
            let help = Some("leave `destination` out for a default route".to_owned());
            let message = format!("route {i} destination must be a valid IP prefix");
            report.error_with_help(&at.key("destination"), message, help);
        }
        for (key, address) in [("gateway", route.gateway.0), ("source", route.source.0)] {
            if address.is_some_and(|address| address.is_unspecified()) {
                report.error(&at.key(key), format!("route {i} {key} must be a valid IP address"));
            }
        }
    }
}

/// A key of a tunnel document; a wrong length is put in other words than in the older section.
fn check_key(key: &str) -> Result<(), String> {
    let plain = |error: String| {
        if error.starts_with("wrong key") { "invalid wireguard key length".to_owned() } else { error }
    };
    check_wireguard_key(key).map_err(plain)
}

fn check_wireguard(report: &mut Report<'_>, wireguard: &WireguardConfig) {
    let root = Path::root();
    if wireguard.private_key.is_empty() {
        report.error(&root.key("privateKey"), "wireguard private key must be specified");
    } else if let Err(error) = check_key(&wireguard.private_key) {
        report.error(&root.key("privateKey"), format!("wireguard private key is invalid: {error}"));
    }
    if !(0..=65535).contains(&wireguard.listen_port) {
        report.error(&root.key("listenPort"), "wireguard listen port must be between 0 and 65535");
    }
    for (i, peer) in wireguard.peers.iter().enumerate() {
        let at = root.key("peers").index(i);
        if peer.public_key.is_empty() {
            let message = format!("wireguard peer public key must be specified (peer index {i})");
            report.error(&at.key("publicKey"), message);
        } else if let Err(error) = check_key(&peer.public_key) {
            let message = format!("wireguard peer public key is invalid (peer index {i}): {error}");
            report.error(&at.key("publicKey"), message);
        }
        if !peer.preshared_key.is_empty()
            && let Err(error) = check_key(&peer.preshared_key)
        {
            let message = format!("wireguard peer preshared key is invalid (peer index {i}): {error}");
            report.error(&at.key("presharedKey"), message);
        }
        if peer.persistent_keepalive_interval.as_nanos() < 0 {
            let message =
                format!("wireguard peer persistent keepalive interval cannot be negative (peer index {i})");
            report.error(&at.key("persistentKeepaliveInterval"), message);
        }
    }
    check_link(report, wireguard);
}

fn check_dhcp(report: &mut Report<'_>, name: &str, identifier: Option<ClientIdentifier>, no_duid: bool) {
    need(report, "name", name, "name must be specified");
    let is_duid = identifier == Some(ClientIdentifier::Duid);
    let path = Path::root().key("duidRaw");
    if !no_duid && !is_duid {
        report.error(&path, "duidRaw can only be set if clientIdentifier is 'duid'");
    }
    if no_duid && is_duid {
        report.error(&path, "duidRaw must be set if clientIdentifier is 'duid'");
    }
}

fn check_vip(report: &mut Report<'_>, name: &str, link: &str) {
    if name.is_empty() {
        report.error(&Path::root().key("name"), "name must be specified");
    } else if name.parse::<IpAddr>().is_err() {
        let message = format!("name must be a valid IP address: ParseAddr({name:?}): unable to parse IP");
        report.error(&Path::root().key("name"), message);
    }
    need(report, "link", link, "link must be specified");
}

fn check_hostname(report: &mut Report<'_>, config: &HostnameConfig) {
    let root = Path::root();
    let auto = config.auto.unwrap_or_default();
    let name = &config.hostname;
    if auto == AutoHostname::Off && name.is_empty() {
        report.error(&root.key("auto"), "either 'auto' or 'hostname' must be set");
    }
    if auto != AutoHostname::Off && !name.is_empty() {
        report.error(&root.key("hostname"), "'auto' and 'hostname' cannot be set at the same time");
    }
    if auto == AutoHostname::TalosAddr {
        report.error(&root.key("auto"), format!("invalid value for 'auto': {auto}"));
    }
    if name.is_empty() {
        return;
    }
    if name.len() > 253 {
        report.error(&root.key("hostname"), format!("fqdn is too long: {}", name.len()));
    }
    let first = name.split('.').next().unwrap_or_default();
    if !(1..=63).contains(&first.len()) {
        report.error(&root.key("hostname"), format!("invalid hostname {first:?}"));
    }
}

fn check_time(report: &mut Report<'_>, time: &TimeSyncConfig) {
    if time.boot_timeout.as_nanos() < 0 {
        report.error(&Path::root().key("bootTimeout"), "bootTimeout cannot be negative");
    }
    if time.ntp.is_some() && time.ptp.is_some() {
        report.error(&Path::root().key("ptp"), "only one of ntp or ptp configuration can be specified");
    }
}

fn check_rule(report: &mut Report<'_>, rule: &NetworkRuleConfig) {
    need(report, "name", &rule.name, "name is required");
    let path = Path::of("portSelector.ports");
    let ports = &rule.port_selector.ports;
    if ports.is_empty() {
        report.error(&path, "portSelector.ports is required");
    }
    let mut sorted: Vec<_> = ports.iter().enumerate().collect();
    sorted.sort_by_key(|(_, range)| range.low);
    for (at, (i, range)) in sorted.iter().enumerate() {
        if range.low > range.high {
            report.error(&path.index(*i), format!("invalid port range: {range}"));
            continue;
        }
        if let Some((_, before)) = at.checked_sub(1).map(|before| sorted[before])
            && range.low <= before.high
        {
            let message = format!("invalid port range: {range}, overlaps with {before}");
            report.error(&path.index(*i), message);
        }
    }
    for (i, source) in rule.ingress.iter().enumerate() {
        if !source.subnet.is_set() {
            let at = Path::root().key("ingress").index(i).key("subnet");
            report.error(&at, "invalid subnet: invalid Prefix");
        }
    }
}

fn check_kmsg(report: &mut Report<'_>, log: &KmsgLogConfig) {
    need(report, "name", &log.name, "name is required");
    let path = Path::root().key("url");
    if Field::is_empty(&log.url) {
        report.error(&path, "url is required");
    } else if !matches!(log.url.scheme.as_str(), "tcp" | "udp") {
        report.error(&path, "url scheme must be tcp:// or udp://");
    } else if !matches!(log.url.path.as_str(), "" | "/") {
        report.error(&path, "url path must be empty");
    } else if log.url.port().is_empty() {
        report.error(&path, "url port is required");
    }
}

fn check_watchdog(report: &mut Report<'_>, watchdog: &WatchdogTimerConfig) {
    if watchdog.device.is_empty() {
        report.error(&Path::root().key("device"), "watchdog device: empty value");
    }
    let timeout = watchdog.timeout;
    let min = ichor_types::GoDuration::from_secs(WATCHDOG_MIN_SECS);
    if !timeout.is_zero() && timeout < min {
        report.error(&Path::root().key("timeout"), format!("watchdog timeout: minimum value is {min}"));
    }
}

fn check_oom(report: &mut Report<'_>, oom: &OOMConfig) {
    let root = Path::root();
    if oom.trigger_expression.is_set() {
        let (path, env) = (root.key("triggerExpression"), environments::oom_trigger());
        report.expression(&path, "OOM trigger expression", &oom.trigger_expression.0, &env, &Type::Bool);
    }
    if oom.cgroup_ranking_expression.is_set() {
        let (path, env) = (root.key("cgroupRankingExpression"), environments::oom_ranking());
        let text = &oom.cgroup_ranking_expression.0;
        report.expression(&path, "OOM cgroup scoring expression", text, &env, &Type::Double);
    }
    if oom.sample_interval.as_nanos() < 0 {
        report.error(&Path::root().key("sampleInterval"), "OOM sample interval must be longer than 0");
    }
}

fn check_extension(report: &mut Report<'_>, service: &ExtensionServiceConfig) {
    need(report, "name", &service.name, "name is required");
    if service.config_files.is_empty() && service.environment.is_empty() {
        let message = format!("no config files found for extension {:?}", service.name);
        report.error(&Path::root(), message);
    }
    for (i, file) in service.config_files.iter().enumerate() {
        let at = Path::root().key("configFiles").index(i);
        if file.content.is_empty() {
            let message = format!("extension content is required for extension {:?}", service.name);
            report.error(&at.key("content"), message);
        }
        if file.mount_path.is_empty() {
            let message = format!("extension mount path is required for extension {:?}", service.name);
            report.error(&at.key("mountPath"), message);
        }
    }
}

fn check_siderolink(report: &mut Report<'_>, link: &SideroLinkConfig) {
    let path = Path::root().key("apiUrl");
    if Field::is_empty(&link.api_url) {
        report.error(&path, "apiUrl is required");
    } else if !matches!(link.api_url.scheme.as_str(), "https" | "grpc") {
        report.error(&path, "apiUrl scheme must be https:// or grpc://");
    } else if !matches!(link.api_url.path.as_str(), "" | "/") {
        report.error(&path, "apiUrl path must be empty");
    }
}
