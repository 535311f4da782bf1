//! Machine configurations on this side of the wire: generate, patch, read out of a resource.

use std::collections::BTreeMap;

use ichor_client::resources::{proto_of, yaml_of};
use ichor_config::generate::{Input, Options, Secrets};
use ichor_config::patch::{Patch, PatchError};
use ichor_config::talosconfig::ClientConfig;
use ichor_config::v1alpha1::network::KubeSpan;
use ichor_config::{CommentMode, Diagnostics, Documents, patch};
use ichor_types::{MachineType, VersionContract};
use ichor_wire::cosi::resource::Resource;
use jiff::Timestamp;

use crate::failure::{Context as _, Failure};
use crate::files;

/// The image that installs a machine, without its tag.
const INSTALLER: &str = "ghcr.io/siderolabs/installer";

/// What configurations are generated from.
#[derive(Clone)]
pub struct Generate {
    /// The cluster's name.
    pub cluster: String,
    /// Its Kubernetes endpoint, a URL.
    pub endpoint: String,
    /// Version of Kubernetes, without `v`.
    pub kubernetes_version: String,
    /// Version contract; empty for the newest.
    pub talos_version: String,
    /// Domain of the cluster.
    pub dns_domain: String,
    /// More names for the certificates.
    pub additional_sans: Vec<String>,
    /// Mirrors as `host=URL`.
    pub registry_mirrors: Vec<String>,
    /// Machines find each other.
    pub discovery: bool,
    /// Traffic between machines is encrypted.
    pub kubespan: bool,
    /// The configuration outlives a reboot.
    pub persist: bool,
    /// Disk to install on.
    pub install_disk: String,
    /// Image to install from; empty for the one of this version.
    pub install_image: String,
    /// A secrets bundle to use; new secrets otherwise.
    pub secrets: Option<Vec<u8>>,
    /// Patches for all machines.
    pub patches: Vec<String>,
    /// Patches for control planes.
    pub controlplane_patches: Vec<String>,
    /// Patches for workers.
    pub worker_patches: Vec<String>,
    /// How much documentation is written along.
    pub comments: CommentMode,
}

impl Default for Generate {
    fn default() -> Self {
        Self {
            cluster: String::new(),
            endpoint: String::new(),
            kubernetes_version: crate::identity::KUBERNETES_VERSION.to_owned(),
            talos_version: String::new(),
            dns_domain: "cluster.local".to_owned(),
            additional_sans: Vec::new(),
            registry_mirrors: Vec::new(),
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

/// Looks at what can be wrong before keys are made, which takes a while.
pub fn check(input: &Generate) -> Result<(), Failure> {
    contract(&input.talos_version)?;
    mirrors(&input.registry_mirrors)?;
    for patches in [&input.patches, &input.controlplane_patches, &input.worker_patches] {
        load_patches(patches)?;
    }
    input.secrets.as_deref().map(load_secrets).transpose().map(drop)
}

/// Generates the configurations of a cluster.
pub fn generate(input: &Generate) -> Result<Generated, Failure> {
    let now = Timestamp::now();
    let contract = contract(&input.talos_version)?;
    let secrets = match &input.secrets {
        Some(bundle) => load_secrets(bundle)?,
        None => Secrets::generate(now, contract).context("generate secrets")?,
    };
    let image = if input.install_image.is_empty() { installer_image() } else { input.install_image.clone() };
    let mut options = Options {
        contract,
        persist: input.persist,
        install_disk: input.install_disk.clone(),
        install_image: image,
        registry_mirrors: mirrors(&input.registry_mirrors)?,
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
    let make = |machine_type: MachineType, own: &[String]| -> Result<Vec<u8>, Failure> {
        let documents = source.config(machine_type).context("generate a configuration")?;
        let patches: Vec<String> = input.patches.iter().chain(own).cloned().collect();
        if patches.is_empty() {
            return Ok(documents.encode(input.comments).into_bytes());
        }
        let patched = patched(documents.encode(CommentMode::None).into_bytes(), &patches)?;
        // Patching drops the comments; they are written anew where they were asked for.
        if input.comments == CommentMode::None {
            return Ok(patched);
        }
        let documents = Documents::load(&patched).context("the patched configuration")?;
        Ok(documents.encode(input.comments).into_bytes())
    };
    Ok(Generated {
        init: make(MachineType::Init, &input.controlplane_patches)?,
        controlplane: make(MachineType::ControlPlane, &input.controlplane_patches)?,
        worker: make(MachineType::Worker, &input.worker_patches)?,
        talosconfig: source.talosconfig(now).context("generate the client configuration")?,
    })
}

/// Reads a version contract; empty means the newest.
pub fn contract(text: &str) -> Result<VersionContract, Failure> {
    if text.is_empty() {
        return Ok(VersionContract::CURRENT);
    }
    text.parse().context(format!("--talos-version {text}"))
}

/// The installer image of this version; the environment variable `TAG` names another one.
pub fn installer_image() -> String {
    let tag = std::env::var("TAG").ok().filter(|tag| !tag.is_empty());
    format!("{INSTALLER}:{}", tag.as_deref().unwrap_or(crate::identity::TAG))
}

/// Reads and checks a secrets bundle.
pub fn load_secrets(bundle: &[u8]) -> Result<Secrets, Failure> {
    let secrets = Secrets::load(bundle).context("load the secrets bundle")?;
    let checked = secrets.validate();
    checked.map_err(|problems| {
        Failure::new(format!("the secrets bundle is not complete: {}", problems.trim_end()))
    })?;
    Ok(secrets)
}

fn mirrors(given: &[String]) -> Result<BTreeMap<String, Vec<String>>, Failure> {
    let mut mirrors: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for mirror in given {
        let Some((host, url)) = mirror.split_once('=') else {
            return Err(Failure::new(format!("invalid registry mirror spec: \"{mirror}\""))
                .hint("write it as host=URL"));
        };
        mirrors.entry(host.to_owned()).or_default().push(url.to_owned());
    }
    Ok(mirrors)
}

/// Applies patches to a configuration, in order; each is text, `@file` or a file's name. Without patches the
/// bytes stay as they are.
pub fn patched(config: Vec<u8>, arguments: &[String]) -> Result<Vec<u8>, Failure> {
    patched_file("configuration", config, arguments)
}

/// The same for the content of a file, which problems are told of.
pub fn patched_file(file: &str, config: Vec<u8>, arguments: &[String]) -> Result<Vec<u8>, Failure> {
    if arguments.is_empty() {
        return Ok(config);
    }
    let patches = load_patches(arguments)?;
    let text = String::from_utf8_lossy(&config).into_owned();
    let patched = patch::apply(patch::Target::Bytes(config), &patches).map_err(|error| match error {
        PatchError::Config(problems) => pointed(&problems, file, &text),
        error => Failure::new(format!("apply the patch: {}", crate::failure::chain(&error))),
    })?;
    Ok(patched.into_bytes())
}

/// Reads patches; a mistake in one is shown at its place.
pub fn load_patches(arguments: &[String]) -> Result<Vec<Patch>, Failure> {
    for (i, argument) in arguments.iter().enumerate() {
        let mut source = (format!("patch {}", i + 1), argument.clone().into_bytes());
        let read = |path: &str| {
            let content = std::fs::read(path)?;
            source = (path.to_owned(), content.clone());
            Ok(content)
        };
        let loaded = patch::load_all(std::slice::from_ref(argument), read);
        loaded.map_err(|error| match error {
            PatchError::Load(problems) => pointed(&problems, &source.0, &String::from_utf8_lossy(&source.1)),
            PatchError::Read { path, source } => {
                let failure = Failure::new(format!("open {path}: {}", files::go_error(&source)));
                match source.kind() {
                    std::io::ErrorKind::NotFound => failure.hint("a patch is text, or @FILE"),
                    _ => failure,
                }
            }
            error => Failure::new(format!("load {}: {}", source.0, crate::failure::chain(&error))),
        })?;
    }
    patch::load_all(arguments, |path| std::fs::read(path)).context("load the patch")
}

/// Problems with their places in a text.
fn pointed(problems: &Diagnostics, file: &str, text: &str) -> Failure {
    Failure::new(problems.render(file, text).trim_end().to_owned()).whole()
}

/// The configuration inside a resource.
pub fn text_of(resource: &Resource) -> Result<String, Failure> {
    // The protobuf form has one field, the text; the YAML form has it as one string.
    if let Some(text) = proto_text(proto_of(resource)) {
        return Ok(text);
    }
    let yaml = yaml_of(resource);
    let documents = ichor_yaml::parse(yaml).context("read the configuration")?;
    let text = documents.first().and_then(|document| document.root.as_str());
    Ok(text.unwrap_or(yaml).to_owned())
}

fn proto_text(bytes: &[u8]) -> Option<String> {
    /// `resource.config.MachineConfigSpec`.
    #[derive(prost::Message)]
    struct Spec {
        #[prost(bytes = "vec", tag = "1")]
        yaml_marshalled: Vec<u8>,
    }
    let spec = <Spec as prost::Message>::decode(bytes).ok()?;
    if spec.yaml_marshalled.is_empty() {
        return None;
    }
    String::from_utf8(spec.yaml_marshalled).ok()
}
