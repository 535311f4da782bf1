//! What controllers ask of a configuration, with older sections and newer documents brought together.

use ichor_types::MachineType;
use ipnet::IpNet;

use crate::{
    document::Document,
    documents::Documents,
    v1alpha1::{ClusterConfig, MachineConfig, network::Device},
    values::Url,
};

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
    /// Settings of links in the older form.
    pub fn legacy_devices(&self) -> &[Device] {
        self.machine().and_then(|machine| machine.network.as_ref()).map_or(&[], |network| &network.interfaces)
    }
}

/// Receivers of logs and events.
impl Documents {
    /// Receiver of events, `host:port`.
    pub fn event_sink(&self) -> Option<&str> {
        self.iter().find_map(|document| match document {
            Document::EventSinkConfig(config) => Some(config.endpoint.as_str()),
            _ => None,
        })
    }
}

/// The cluster.
impl Documents {
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
