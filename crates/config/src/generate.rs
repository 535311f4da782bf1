//! New configurations: from a name, an endpoint and a bundle of secrets to one configuration per role.

mod parts;
mod registries;
pub mod secrets;

use std::{collections::BTreeMap, net::IpAddr};

use ichor_types::{MachineType, VersionContract};
use jiff::Timestamp;

pub use secrets::Secrets;

use crate::{
    diagnostic::Diagnostics,
    documents::Documents,
    talosconfig::{self, ClientConfig},
    v1alpha1::{cluster::Cni, machine::MachineDisk, network::NetworkConfig},
    values::{BadUrl, Url},
};

/// The Kubernetes version that is used unless another is asked for.
pub const KUBERNETES_VERSION: &str = "1.35.0";

/// What configurations are made from.
#[derive(Clone, Debug)]
pub struct Input {
    /// Name of the cluster.
    pub cluster_name: String,
    /// URL of the Kubernetes API.
    pub endpoint: String,
    /// Kubernetes version without a leading `v`; empty leaves images out.
    pub kubernetes_version: String,
    /// Keys, certificates and tokens.
    pub secrets: Secrets,
    /// Everything that has a default.
    pub options: Options,
}

/// What can be chosen about new configurations.
#[derive(Clone, Debug)]
pub struct Options {
    /// Release that has to understand the configurations.
    pub contract: VersionContract,
    /// Stream service logs to the console.
    pub debug: bool,
    /// Value of `persist`.
    pub persist: bool,
    /// Disk to install on; empty leaves it out.
    pub install_disk: String,
    /// Installer image; empty leaves it out.
    pub install_image: String,
    /// Additional kernel arguments.
    pub extra_kernel_args: Vec<String>,
    /// Additional disks.
    pub disks: Vec<MachineDisk>,
    /// The network section to start from.
    pub network: NetworkConfig,
    /// Kernel parameters.
    pub sysctls: BTreeMap<String, String>,
    /// Mirrors by registry.
    pub registry_mirrors: BTreeMap<String, Vec<String>>,
    /// Certificate authorities by registry, as PEM text.
    pub registry_cas: BTreeMap<String, String>,
    /// Registries whose certificate is not checked.
    pub registry_insecure: Vec<String>,
    /// Domain of the cluster DNS.
    pub dns_domain: String,
    /// The network plugin.
    pub cni: Option<Cni>,
    /// Run workloads on control plane machines.
    pub allow_scheduling_on_control_planes: bool,
    /// Port the API server listens on; zero leaves it out.
    pub local_api_server_port: u16,
    /// Additional names and addresses in certificates.
    pub additional_sans: Vec<String>,
    /// Turn discovery on.
    pub discovery: bool,
    /// Port of the local load balancer: nothing for the default of the release, zero to leave it out.
    pub kube_prism_port: Option<u16>,
    /// Let the cluster DNS use the resolver of the host, also where the release does not by itself.
    pub forward_kube_dns_to_host: bool,
    /// Roles of the client certificate.
    pub roles: Vec<String>,
    /// Endpoints of the client configuration.
    pub endpoints: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            contract: VersionContract::CURRENT,
            debug: false,
            persist: true,
            install_disk: String::new(),
            install_image: String::new(),
            extra_kernel_args: Vec::new(),
            disks: Vec::new(),
            network: NetworkConfig::default(),
            sysctls: BTreeMap::new(),
            registry_mirrors: BTreeMap::new(),
            registry_cas: BTreeMap::new(),
            registry_insecure: Vec::new(),
            dns_domain: "cluster.local".to_owned(),
            cni: None,
            allow_scheduling_on_control_planes: false,
            local_api_server_port: 0,
            additional_sans: Vec::new(),
            discovery: true,
            kube_prism_port: None,
            forward_kube_dns_to_host: false,
            roles: vec!["os:admin".to_owned()],
            endpoints: Vec::new(),
        }
    }
}

/// Why no configuration could be made.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The endpoint of the cluster is not a URL.
    #[error("cluster endpoint: {0}")]
    Endpoint(#[source] BadUrl),
    /// A registry mirror is not a URL.
    #[error("failed to parse registry mirror endpoint {endpoint:?}")]
    Mirror {
        /// The text.
        endpoint: String,
        /// What is wrong with it.
        #[source]
        source: BadUrl,
    },
    /// There is no such role to make a configuration for.
    #[error("failed to determine config type to generate")]
    MachineType,
    /// The secrets have no usable certificate authority for the machine API.
    #[error("issue a client certificate")]
    Client(#[source] ichor_pki::PkiError),
    /// The documents cannot stand together.
    #[error(transparent)]
    Documents(#[from] Diagnostics),
    /// A secret is missing.
    #[error("secrets bundle has no {0}; generate a new one or check it")]
    Missing(&'static str),
}

impl Input {
    /// Makes the configuration of a role.
    pub fn config(&self, machine_type: MachineType) -> Result<Documents, GenerateError> {
        let root = match machine_type {
            MachineType::Init | MachineType::ControlPlane => parts::control_plane(self, machine_type)?,
            MachineType::Worker => parts::worker(self)?,
            MachineType::Unknown => return Err(GenerateError::MachineType),
        };
        Ok(Documents::new(parts::documents(self, root)?)?)
    }

    /// Makes the client configuration with a fresh certificate.
    pub fn talosconfig(&self, now: Timestamp) -> Result<ClientConfig, GenerateError> {
        let (ca, pair) = self.secrets.client_certificate(&self.options.roles, secrets::YEAR, now)?;
        let context = talosconfig::Context::new(&self.options.endpoints, &ca, &pair.crt, &pair.key);
        Ok(ClientConfig::single(&self.cluster_name, context))
    }

    pub(crate) fn endpoint_url(&self) -> Result<Url, GenerateError> {
        Url::parse(&self.endpoint).map_err(GenerateError::Endpoint)
    }

    /// Networks of pods and services; the endpoint decides the family only if it is a bare address.
    pub(crate) fn networks(&self) -> (&'static str, &'static str) {
        match self.endpoint.parse::<IpAddr>() {
            Ok(IpAddr::V6(_)) => ("fc00:db8:10::/56", "fc00:db8:20::/112"),
            _ => ("10.244.0.0/16", "10.96.0.0/12"),
        }
    }

    pub(crate) fn image(&self, repository: &str) -> String {
        match self.kubernetes_version.as_str() {
            "" => String::new(),
            version => format!("{repository}:v{version}"),
        }
    }
}
