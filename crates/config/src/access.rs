//! What controllers ask of a configuration, with older sections and newer documents brought together.

use std::{collections::BTreeMap, net::IpAddr};

use ichor_types::{GoDuration, MachineType};
use ipnet::IpNet;

use crate::{
    document::Document,
    documents::Documents,
    kinds::{
        bond::BondConfig,
        link::{BridgeConfig, CommonLink, DummyLinkConfig, LinkConfig, VLANConfig, WireguardConfig},
        service::{AutoHostname, DHCPv4Config, DHCPv6Config},
    },
    v1alpha1::{ClusterConfig, MachineConfig, install::InstallConfig, network::Device},
    values::{PemPair, Url},
};

/// Where the host name comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostnameSource {
    /// It is given.
    Static(String),
    /// It is derived from the identity of the machine.
    Stable,
    /// It is derived from the first address.
    FromAddress,
}

/// What a configuration says about the clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimeSettings {
    /// Leave the clock alone.
    pub disabled: bool,
    /// NTP servers; the default ones when empty.
    pub servers: Vec<String>,
    /// PTP devices.
    pub devices: Vec<String>,
    /// How long booting waits; zero waits for ever.
    pub boot_timeout: GoDuration,
}

/// A link document of any kind.
#[derive(Clone, Copy, Debug)]
pub enum Link<'a> {
    /// A link that exists already.
    Physical(&'a LinkConfig),
    /// A dummy.
    Dummy(&'a DummyLinkConfig),
    /// A bridge.
    Bridge(&'a BridgeConfig),
    /// A bond.
    Bond(&'a BondConfig),
    /// A VLAN.
    Vlan(&'a VLANConfig),
    /// A WireGuard tunnel.
    Wireguard(&'a WireguardConfig),
}

impl<'a> Link<'a> {
    /// What every link has.
    pub fn common(&self) -> &'a dyn CommonLink {
        match self {
            Self::Physical(link) => *link,
            Self::Dummy(link) => *link,
            Self::Bridge(link) => *link,
            Self::Bond(link) => *link,
            Self::Vlan(link) => *link,
            Self::Wireguard(link) => *link,
        }
    }
}

/// Texts of a network that can be parsed; others are left out, as the original does.
fn parse_all<'a, T: std::str::FromStr>(texts: impl IntoIterator<Item = &'a String>) -> Vec<T> {
    texts.into_iter().filter_map(|text| text.parse().ok()).collect()
}

/// Basics of the machine.
impl Documents {
    /// The `machine` section.
    pub fn machine(&self) -> Option<&MachineConfig> {
        self.root()?.machine.as_deref()
    }

    /// The `cluster` section.
    pub fn cluster(&self) -> Option<&ClusterConfig> {
        self.root()?.cluster.as_deref()
    }

    /// Role of the machine; unknown without a machine section or with a word that is no role.
    pub fn machine_type(&self) -> MachineType {
        self.machine().and_then(|machine| machine.machine_type.parse().ok()).unwrap_or_default()
    }

    /// Stream service logs to the console.
    pub fn debug(&self) -> bool {
        self.root().and_then(|root| root.debug).unwrap_or(false)
    }

    /// Certificate authority of the machine API; the key is empty on workers.
    pub fn machine_ca(&self) -> Option<&PemPair> {
        self.machine()?.ca.as_ref()
    }

    /// Certificates that the machine API trusts, as PEM text: its own authority first.
    pub fn accepted_machine_cas(&self) -> Vec<&str> {
        let Some(machine) = self.machine() else { return Vec::new() };
        let own = machine.ca.iter().map(|ca| ca.crt.as_str());
        let more = machine.accepted_cas.iter().map(|ca| ca.crt.as_str());
        own.chain(more).filter(|crt| !crt.is_empty()).collect()
    }

    /// Token with which machines join the trust service.
    pub fn machine_token(&self) -> &str {
        self.machine().map_or("", |machine| &machine.token)
    }

    /// Additional names and addresses in the certificate of the machine API.
    pub fn machine_cert_sans(&self) -> &[String] {
        self.machine().map_or(&[], |machine| &machine.cert_sans)
    }

    /// Environment variables of services.
    pub fn env(&self) -> BTreeMap<&str, &str> {
        let env = self.machine().map(|machine| &machine.env);
        env.into_iter().flat_map(|env| env.iter()).map(|(k, v)| (k.as_str(), v.as_str())).collect()
    }

    /// Kernel parameters.
    pub fn sysctls(&self) -> BTreeMap<&str, &str> {
        let map = self.machine().map(|machine| &machine.sysctls);
        map.into_iter().flat_map(|map| map.iter()).map(|(k, v)| (k.as_str(), v.as_str())).collect()
    }

    /// Values below `/sys`, by dotted path.
    pub fn sysfs(&self) -> BTreeMap<&str, &str> {
        let map = self.machine().map(|machine| &machine.sysfs);
        map.into_iter().flat_map(|map| map.iter()).map(|(k, v)| (k.as_str(), v.as_str())).collect()
    }

    /// How the system is installed.
    pub fn install(&self) -> Option<&InstallConfig> {
        self.machine()?.install.as_ref()
    }

    /// The resolver of the host is on.
    pub fn host_dns_enabled(&self) -> bool {
        let features = self.machine().and_then(|machine| machine.features.as_ref());
        features.and_then(|features| features.host_dns.as_ref()?.enabled).unwrap_or(false)
    }

    /// Port of the local load balancer for the Kubernetes API, if it is on.
    pub fn kube_prism_port(&self) -> Option<u16> {
        let prism = self.machine()?.features.as_ref()?.kube_prism.as_ref()?;
        let port = if prism.port == 0 { 7445 } else { prism.port };
        prism.enabled.unwrap_or(false).then(|| u16::try_from(port).unwrap_or(7445))
    }

    /// Access to the machine API from inside Kubernetes: roles and namespaces, if it is on.
    pub fn kubernetes_api_access(&self) -> Option<(&[String], &[String])> {
        let access = self.machine()?.features.as_ref()?.kubernetes_talos_api_access.as_ref()?;
        let on = access.enabled.unwrap_or(false);
        on.then(|| (&*access.allowed_roles, &*access.allowed_kubernetes_namespaces))
    }
}

/// Network of the machine.
impl Documents {
    /// Where the host name comes from.
    pub fn hostname_source(&self) -> HostnameSource {
        for document in self.iter() {
            if let Document::HostnameConfig(config) = document {
                return match config.auto {
                    Some(AutoHostname::Stable) => HostnameSource::Stable,
                    Some(AutoHostname::TalosAddr) => HostnameSource::FromAddress,
                    Some(AutoHostname::Off) | None => HostnameSource::Static(config.hostname.clone()),
                };
            }
        }
        let machine = self.machine();
        let name = machine.and_then(|machine| machine.network.as_ref()).map(|network| &network.hostname);
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            return HostnameSource::Static(name.clone());
        }
        let features = machine.and_then(|machine| machine.features.as_ref());
        match features.and_then(|features| features.stable_hostname) {
            Some(true) => HostnameSource::Stable,
            _ => HostnameSource::FromAddress,
        }
    }

    /// Settings of links in the older form.
    pub fn legacy_devices(&self) -> &[Device] {
        self.machine().and_then(|machine| machine.network.as_ref()).map_or(&[], |network| &network.interfaces)
    }

    /// Link documents in order.
    pub fn links(&self) -> impl Iterator<Item = Link<'_>> {
        self.iter().filter_map(|document| match document {
            Document::LinkConfig(link) => Some(Link::Physical(link)),
            Document::DummyLinkConfig(link) => Some(Link::Dummy(link)),
            Document::BridgeConfig(link) => Some(Link::Bridge(link)),
            Document::BondConfig(link) => Some(Link::Bond(link)),
            Document::VLANConfig(link) => Some(Link::Vlan(link)),
            Document::WireguardConfig(link) => Some(Link::Wireguard(link)),
            _ => None,
        })
    }

    /// DHCP for IPv4, by document.
    pub fn dhcp4(&self) -> impl Iterator<Item = &DHCPv4Config> {
        self.iter().filter_map(|document| match document {
            Document::DHCPv4Config(config) => Some(&**config),
            _ => None,
        })
    }

    /// DHCP for IPv6, by document.
    pub fn dhcp6(&self) -> impl Iterator<Item = &DHCPv6Config> {
        self.iter().filter_map(|document| match document {
            Document::DHCPv6Config(config) => Some(&**config),
            _ => None,
        })
    }

    /// True if links are described at all, which turns off DHCP on every physical link.
    pub fn describes_links(&self) -> bool {
        let ours = |device: &&Device| device.ignore != Some(true);
        self.links().next().is_some()
            || self.dhcp4().next().is_some()
            || self.dhcp6().next().is_some()
            || self.legacy_devices().iter().any(|device| ours(&device))
    }

    /// Name servers; the default ones when empty.
    pub fn nameservers(&self) -> Vec<IpAddr> {
        for document in self.iter() {
            if let Document::ResolverConfig(config) = document {
                return config.nameservers.iter().filter_map(|server| server.address.0).collect();
            }
        }
        let network = self.machine().and_then(|machine| machine.network.as_ref());
        network.map(|network| parse_all(network.nameservers.iter())).unwrap_or_default()
    }

    /// Domains that are tried for short names.
    pub fn search_domains(&self) -> &[String] {
        for document in self.iter() {
            if let Document::ResolverConfig(config) = document {
                return &config.search_domains.domains;
            }
        }
        self.machine()
            .and_then(|machine| machine.network.as_ref())
            .map_or(&[], |network| &network.search_domains)
    }

    /// Do not derive a search domain from the host name.
    pub fn search_domain_disabled(&self) -> bool {
        for document in self.iter() {
            if let Document::ResolverConfig(config) = document {
                return config.search_domains.disable_default.unwrap_or(false);
            }
        }
        let network = self.machine().and_then(|machine| machine.network.as_ref());
        network.and_then(|network| network.disable_search_domain).unwrap_or(false)
    }

    /// Additional entries of the hosts file: the older ones first.
    pub fn static_hosts(&self) -> Vec<(&str, &[String])> {
        let network = self.machine().and_then(|machine| machine.network.as_ref());
        let entries = network.map_or(&[][..], |network| &network.extra_host_entries);
        let old = entries.iter().map(|entry| (entry.ip.as_str(), &*entry.aliases));
        let new = self.iter().filter_map(|document| match document {
            Document::StaticHostConfig(host) => Some((host.name.as_str(), &*host.hostnames)),
            _ => None,
        });
        old.chain(new).collect()
    }

    /// What is said about the clock.
    pub fn time(&self) -> TimeSettings {
        for document in self.iter() {
            if let Document::TimeSyncConfig(config) = document {
                return TimeSettings {
                    disabled: config.enabled == Some(false),
                    servers: config.ntp.as_ref().map(|ntp| ntp.servers.to_vec()).unwrap_or_default(),
                    devices: config.ptp.as_ref().map(|ptp| ptp.devices.to_vec()).unwrap_or_default(),
                    boot_timeout: config.boot_timeout,
                };
            }
        }
        let Some(time) = self.machine().and_then(|machine| machine.time.as_ref()) else {
            return TimeSettings::default();
        };
        let (devices, servers) = time.servers.iter().cloned().partition(|server| server.starts_with("/dev/"));
        TimeSettings {
            disabled: time.disabled.unwrap_or(false),
            servers,
            devices,
            boot_timeout: time.boot_timeout,
        }
    }

    /// The WireGuard mesh is on.
    pub fn kubespan_enabled(&self) -> bool {
        let network = self.machine().and_then(|machine| machine.network.as_ref());
        network.and_then(|network| network.kubespan.as_ref()?.enabled).unwrap_or(false)
    }
}

/// Receivers of logs and events.
impl Documents {
    /// Receivers of service logs.
    pub fn log_destinations(&self) -> Vec<&Url> {
        let logging = self.machine().and_then(|machine| machine.logging.as_ref());
        let destinations = logging.map_or(&[][..], |logging| &logging.destinations);
        destinations.iter().filter_map(|destination| destination.endpoint.as_ref()).collect()
    }

    /// Receivers of the kernel log.
    pub fn kmsg_destinations(&self) -> Vec<&Url> {
        let mut urls = Vec::new();
        for document in self.iter() {
            if let Document::KmsgLogConfig(config) = document {
                urls.push(&config.url);
            }
        }
        urls
    }

    /// Receiver of events, `host:port`.
    pub fn event_sink(&self) -> Option<&str> {
        self.iter().find_map(|document| match document {
            Document::EventSinkConfig(config) => Some(config.endpoint.as_str()),
            _ => None,
        })
    }

    /// Where remote management is.
    pub fn siderolink_url(&self) -> Option<&Url> {
        self.iter().find_map(|document| match document {
            Document::SideroLinkConfig(config) => Some(&config.api_url),
            _ => None,
        })
    }
}

/// The cluster.
impl Documents {
    /// Name of the cluster.
    pub fn cluster_name(&self) -> &str {
        self.cluster().map_or("", |cluster| &cluster.cluster_name)
    }

    /// Identifier of the cluster.
    pub fn cluster_id(&self) -> &str {
        self.cluster().map_or("", |cluster| &cluster.id)
    }

    /// Shared secret of the cluster.
    pub fn cluster_secret(&self) -> &str {
        self.cluster().map_or("", |cluster| &cluster.secret)
    }

    /// URL of the Kubernetes API.
    pub fn cluster_endpoint(&self) -> Option<&Url> {
        self.cluster()?.control_plane.as_ref()?.endpoint.as_ref()
    }

    /// Port the API server listens on.
    pub fn api_server_port(&self) -> u16 {
        let control_plane = self.cluster().and_then(|cluster| cluster.control_plane.as_ref());
        let port = control_plane.map_or(0, |control_plane| control_plane.local_api_server_port);
        u16::try_from(port).ok().filter(|port| *port != 0).unwrap_or(6443)
    }

    /// Networks of pods.
    pub fn pod_subnets(&self) -> Vec<IpNet> {
        let network = self.cluster().and_then(|cluster| cluster.network.as_ref());
        let subnets = network.map_or(&[][..], |network| &network.pod_subnets);
        if subnets.is_empty() { default_net("10.244.0.0/16") } else { parse_all(subnets) }
    }

    /// Networks of services.
    pub fn service_subnets(&self) -> Vec<IpNet> {
        let network = self.cluster().and_then(|cluster| cluster.network.as_ref());
        let subnets = network.map_or(&[][..], |network| &network.service_subnets);
        if subnets.is_empty() { default_net("10.96.0.0/12") } else { parse_all(subnets) }
    }

    /// Domain of the cluster DNS.
    pub fn dns_domain(&self) -> &str {
        let network = self.cluster().and_then(|cluster| cluster.network.as_ref());
        network
            .map(|network| network.dns_domain.as_str())
            .filter(|domain| !domain.is_empty())
            .unwrap_or("cluster.local")
    }

    /// Members find each other.
    pub fn discovery_enabled(&self) -> bool {
        let discovery = self.cluster().and_then(|cluster| cluster.discovery.as_ref());
        discovery.and_then(|discovery| discovery.enabled).unwrap_or(false)
    }
}

fn default_net(text: &str) -> Vec<IpNet> {
    text.parse().into_iter().collect()
}
