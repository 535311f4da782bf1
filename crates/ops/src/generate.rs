//! The configurations of a cluster: generated from what was asked for, patched in order.

use std::collections::BTreeMap;

use ichor_config::generate::{Input, Options, Secrets};
use ichor_config::patch::{self, Patch};
use ichor_config::talosconfig::ClientConfig;
use ichor_config::v1alpha1::network::KubeSpan;
use ichor_config::{CommentMode, Documents};
use ichor_types::{MachineType, VersionContract};
use jiff::Timestamp;

use crate::error::{Doing as _, Problem, Result};

/// The Kubernetes version of configurations that name none.
pub const KUBERNETES_VERSION: &str = "1.35.0";

/// What configurations are generated from.
#[derive(Clone)]
pub struct Generate {
    /// The cluster's name.
    pub cluster: String,
    /// Its Kubernetes endpoint, a URL.
    pub endpoint: String,
    /// Version of Kubernetes, without `v`.
    pub kubernetes_version: String,
    /// Version contract.
    pub contract: VersionContract,
    /// Domain of the cluster.
    pub dns_domain: String,
    /// More names for the certificates.
    pub additional_sans: Vec<String>,
    /// Mirrors by registry host.
    pub registry_mirrors: BTreeMap<String, Vec<String>>,
    /// Machines find each other.
    pub discovery: bool,
    /// Traffic between machines is encrypted.
    pub kubespan: bool,
    /// The configuration outlives a reboot.
    pub persist: bool,
    /// Disk to install on.
    pub install_disk: String,
    /// Image to install from.
    pub install_image: String,
    /// Secrets to use; new ones otherwise.
    pub secrets: Option<Secrets>,
    /// Patches for all machines.
    pub patches: Vec<Patch>,
    /// Patches for control planes.
    pub controlplane_patches: Vec<Patch>,
    /// Patches for workers.
    pub worker_patches: Vec<Patch>,
    /// How much documentation is written along.
    pub comments: CommentMode,
}

impl Default for Generate {
    fn default() -> Self {
        Self {
            cluster: String::new(),
            endpoint: String::new(),
            kubernetes_version: KUBERNETES_VERSION.to_owned(),
            contract: VersionContract::CURRENT,
            dns_domain: "cluster.local".to_owned(),
            additional_sans: Vec::new(),
            registry_mirrors: BTreeMap::new(),
            discovery: true,
            kubespan: false,
            persist: true,
            install_disk: "/dev/sda".to_owned(),
            install_image: String::new(),
            secrets: None,
            patches: Vec::new(),
            controlplane_patches: Vec::new(),
            worker_patches: Vec::new(),
            comments: CommentMode::None,
        }
    }
}

/// What was generated.
#[derive(Clone)]
pub struct Generated {
    /// Configuration of a control plane that starts etcd by itself.
    pub init: Vec<u8>,
    /// Configuration of control planes.
    pub controlplane: Vec<u8>,
    /// Configuration of workers.
    pub worker: Vec<u8>,
    /// Client configuration.
    pub talosconfig: ClientConfig,
}

/// Generates the configurations of a cluster.
pub fn generate(input: &Generate) -> Result<Generated> {
    let now = Timestamp::now();
    let secrets = match &input.secrets {
        Some(secrets) => secrets.clone(),
        None => Secrets::generate(now, input.contract).doing("generate secrets")?,
    };
    let mut options = Options {
        contract: input.contract,
        persist: input.persist,
        install_disk: input.install_disk.clone(),
        install_image: input.install_image.clone(),
        registry_mirrors: input.registry_mirrors.clone(),
        dns_domain: input.dns_domain.clone(),
        additional_sans: input.additional_sans.clone(),
        discovery: input.discovery,
        ..Options::default()
    };
    if input.kubespan {
        options.network.kubespan = Some(KubeSpan { enabled: Some(true), ..KubeSpan::default() });
    }
    let source = Input {
        cluster_name: input.cluster.clone(),
        endpoint: input.endpoint.clone(),
        kubernetes_version: input.kubernetes_version.clone(),
        secrets,
        options,
    };
    let make = |machine_type: MachineType, own: &[Patch]| -> Result<Vec<u8>> {
        let documents = source.config(machine_type).doing("generate a configuration")?;
        let patches: Vec<Patch> = input.patches.iter().chain(own).cloned().collect();
        if patches.is_empty() {
            return Ok(documents.encode(input.comments).into_bytes());
        }
        let patched = patched("configuration", documents.encode(CommentMode::None).into_bytes(), &patches)?;
        // Patching drops the comments; they are written anew where they were asked for.
        if input.comments == CommentMode::None {
            return Ok(patched);
        }
        let documents = Documents::load(&patched).doing("the patched configuration")?;
        Ok(documents.encode(input.comments).into_bytes())
    };
    Ok(Generated {
        init: make(MachineType::Init, &input.controlplane_patches)?,
        controlplane: make(MachineType::ControlPlane, &input.controlplane_patches)?,
        worker: make(MachineType::Worker, &input.worker_patches)?,
        talosconfig: source.talosconfig(now).doing("generate the client configuration")?,
    })
}

/// Applies patches to a configuration, in order; without patches the bytes stay as they are. `name` is what errors call
/// the configuration.
pub fn patched(name: &str, config: Vec<u8>, patches: &[Patch]) -> Result<Vec<u8>> {
    if patches.is_empty() {
        return Ok(config);
    }
    let text = String::from_utf8_lossy(&config).into_owned();
    let patched = patch::apply(patch::Target::Bytes(config), patches).map_err(|source| Problem::Patch {
        name: name.to_owned(),
        text,
        source: Box::new(source),
    })?;
    Ok(patched.into_bytes())
}
