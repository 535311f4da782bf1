//! `gen config` and `gen secrets`: everything a cluster starts from, as files.

use std::path::{Path, PathBuf};

use ichor_config::CommentMode;
use ichor_config::Documents;
use ichor_config::generate::Secrets;
use ichor_config::generate::secrets::KubernetesPki;
use ichor_config::values::{PemKey, PemPair};
use ichor_ops::generate::{Generate, Generated, generate};
use jiff::Timestamp;

use crate::cmd::{gen_pki, gen_secureboot};
use crate::failure::{Context as _, Failure};
use crate::machineconfig;
use crate::parse::Call;
use crate::table::{Args, Command, Complete, Flag, Group};
use crate::{files, print, profile};

/// The parent.
pub static GEN: Command = Command {
    name: "gen",
    group: Group::Offline,
    about: "Generate configurations, secrets, keys and certificates",
    shared_flags: &[Flag::switch("force", "overwrite files that exist").short('f')],
    subcommands: &[
        &CONFIG,
        &SECRETS,
        &gen_pki::CA,
        &gen_pki::KEY,
        &gen_pki::CSR,
        &gen_pki::CRT,
        &gen_pki::KEYPAIR,
        &gen_secureboot::SECUREBOOT,
    ],
    ..Command::EMPTY
};

const TYPES: &[&str] = &["controlplane", "worker", "talosconfig"];

static CONFIG: Command = Command {
    name: "config",
    about: "Generate the configurations of a cluster",
    examples: &[
        "gen config lab https://10.5.0.2:6443",
        "gen config lab https://10.5.0.2:6443 -t worker -o -",
    ],
    args: Args::between("NAME ENDPOINT", 2, 2),
    flags: &[
        Flag::list("additional-sans", "more names for the certificates"),
        Flag::repeated("config-patch", "patch for all machines, as text or @file"),
        Flag::repeated("config-patch-control-plane", "patch for control plane machines"),
        Flag::repeated("config-patch-worker", "patch for worker machines"),
        Flag::text("dns-domain", "domain of the cluster").default("cluster.local"),
        Flag::text("install-disk", "disk to install on").default("/dev/sda"),
        Flag::text("install-image", "image to install from").default("ghcr.io/siderolabs/installer:v1.12.1"),
        Flag::text("kubernetes-version", "version of Kubernetes")
            .default(crate::identity::KUBERNETES_VERSION),
        Flag::text("output", "directory for the files; a file or - for one type")
            .short('o')
            .complete(Complete::File),
        Flag::text("output-dir", "directory for the files").hidden().complete(Complete::File),
        Flag::list("output-types", "what to write: controlplane, worker, talosconfig")
            .short('t')
            .default("controlplane,worker,talosconfig")
            .complete(Complete::Words(TYPES)),
        Flag::switch("persist", "let the configuration outlive a reboot").short('p').default("true"),
        Flag::repeated("registry-mirror", "mirror of a registry, as host=URL"),
        Flag::text("talos-version", "version contract of the configurations"),
        Flag::text("version", "version of the configuration format").default("v1alpha1"),
        Flag::switch("with-cluster-discovery", "let machines find each other").default("true"),
        Flag::switch("with-docs", "describe every key").default("true"),
        Flag::switch("with-examples", "show samples of keys that are not set").default("true"),
        Flag::switch("with-kubespan", "encrypt traffic between machines"),
        Flag::text("with-secrets", "use this secrets bundle").complete(Complete::File),
    ],
    run: Some(config),
    ..Command::EMPTY
};

static SECRETS: Command = Command {
    name: "secrets",
    about: "Generate the secrets of a cluster",
    flags: &[
        Flag::text("output-file", "file to write, - for standard output")
            .short('o')
            .default("secrets.yaml")
            .complete(Complete::File),
        Flag::text("talos-version", "version contract of the secrets"),
        Flag::text("from-controlplane-config", "take the secrets out of this control plane configuration")
            .complete(Complete::File),
        Flag::text("from-kubernetes-pki", "take over the certificates in this directory")
            .short('p')
            .complete(Complete::File),
        Flag::text("kubernetes-bootstrap-token", "take over this bootstrap token").short('t'),
    ],
    run: Some(secrets),
    ..Command::EMPTY
};

fn config(call: &Call) -> Result<(), Failure> {
    if call.text("version") != "v1alpha1" {
        return Err(Failure::new(format!("unknown config version: \"{}\"", call.text("version")))
            .hint("use v1alpha1"));
    }
    let (destination, force) = (Destination::of(call)?, call.on("force"));
    check_endpoint(call.arg(1))?;
    destination.check_absent(force)?;
    let secrets = call.some_text("with-secrets").map(|path| files::read(Path::new(path))).transpose()?;
    let input = Generate {
        cluster: call.arg(0).to_owned(),
        endpoint: call.arg(1).to_owned(),
        kubernetes_version: call.text("kubernetes-version").trim_start_matches('v').to_owned(),
        contract: machineconfig::contract(call.text("talos-version"))?,
        dns_domain: call.text("dns-domain").to_owned(),
        additional_sans: call.list("additional-sans"),
        registry_mirrors: machineconfig::mirrors(&call.list("registry-mirror"))?,
        discovery: call.on("with-cluster-discovery"),
        kubespan: call.on("with-kubespan"),
        persist: call.on("persist"),
        install_disk: call.text("install-disk").to_owned(),
        install_image: match call.given("install-image").then(|| call.text("install-image")) {
            Some(image) if !image.is_empty() => image.to_owned(),
            _ => machineconfig::installer_image(),
        },
        patches: machineconfig::load_patches(&call.list("config-patch"))?,
        controlplane_patches: machineconfig::load_patches(&call.list("config-patch-control-plane"))?,
        worker_patches: machineconfig::load_patches(&call.list("config-patch-worker"))?,
        secrets: secrets.as_deref().map(machineconfig::load_secrets).transpose()?,
        comments: comments(call.on("with-docs"), call.on("with-examples")),
    };
    write(&input, &destination)
}

pub(crate) fn comments(docs: bool, examples: bool) -> CommentMode {
    match (docs, examples) {
        (true, true) => CommentMode::All,
        (true, false) => CommentMode::Docs,
        (false, true) => CommentMode::Examples,
        (false, false) => CommentMode::None,
    }
}

/// Where the generated files go.
pub enum Destination {
    /// Files of the usual names in a directory.
    Directory(PathBuf, Vec<String>),
    /// One type into this file.
    File(PathBuf, String),
    /// One type onto standard output.
    Stdout(String),
}

impl Destination {
    /// All files in the current directory.
    pub fn here() -> Self {
        Self::Directory(PathBuf::new(), TYPES.iter().map(|name| (*name).to_owned()).collect())
    }

    /// The files to write, each with its type.
    fn files(&self) -> Vec<(PathBuf, &String)> {
        match self {
            Self::Directory(directory, types) => {
                types.iter().map(|name| (directory.join(file_name(name)), name)).collect()
            }
            Self::File(path, name) => vec![(path.clone(), name)],
            Self::Stdout(_) => Vec::new(),
        }
    }

    /// Fails when one of the files exists and may not be replaced.
    pub fn check_absent(&self, force: bool) -> Result<(), Failure> {
        self.files().iter().try_for_each(|(path, _)| files::check_absent(path, force))
    }

    fn of(call: &Call) -> Result<Self, Failure> {
        let types = call.list("output-types");
        if let Some(bad) = types.iter().find(|name| !TYPES.contains(&name.as_str())) {
            return Err(Failure::new(format!("invalid output type: \"{bad}\""))
                .hint(format!("use any of {}", TYPES.join(", "))));
        }
        if types.is_empty() {
            return Err(Failure::new("at least one output type must be specified"));
        }
        if let Some(directory) = call.some_text("output-dir") {
            if call.given("output") {
                return Err(Failure::new(
                    "only one of the flags --output and --output-dir can be used at once",
                ));
            }
            return Ok(Self::Directory(directory.into(), types));
        }
        match (call.some_text("output"), types.as_slice()) {
            (None, _) => Ok(Self::Directory(PathBuf::new(), types)),
            (Some("-"), [one]) => Ok(Self::Stdout(one.clone())),
            (Some("-"), _) => Err(Failure::new("can't use multiple output types with stdout")
                .hint("choose one with --output-types, such as -t controlplane")),
            (Some(path), [one]) if !Path::new(path).is_dir() => Ok(Self::File(path.into(), one.clone())),
            (Some(path), _) => Ok(Self::Directory(path.into(), types)),
        }
    }
}

/// Generates the configurations and writes them.
pub fn write(input: &Generate, destination: &Destination) -> Result<(), Failure> {
    eprintln!("generating PKI and tokens");
    let generated = generate(input)?;
    if let Destination::Stdout(name) = destination {
        return print(&String::from_utf8_lossy(&content(&generated, name)));
    }
    let contents: Vec<(PathBuf, Vec<u8>)> =
        destination.files().into_iter().map(|(path, name)| (path, content(&generated, name))).collect();
    files::write_together(&contents, 0o644)?;
    for (path, _) in contents {
        eprintln!("Created {}", path.display());
    }
    Ok(())
}

fn file_name(name: &str) -> String {
    if name == "talosconfig" { name.to_owned() } else { format!("{name}.yaml") }
}

fn content(generated: &Generated, name: &str) -> Vec<u8> {
    match name {
        "controlplane" => generated.controlplane.clone(),
        "worker" => generated.worker.clone(),
        _ => profile::encode(&generated.talosconfig),
    }
}

/// The endpoint must be a whole https URL; what is missing is said with an example.
pub fn check_endpoint(endpoint: &str) -> Result<(), Failure> {
    let Some((scheme, rest)) = endpoint.split_once("://") else {
        let has_port = endpoint.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let (what, port) = if has_port { ("no scheme", "") } else { ("no scheme and port", ":6443") };
        return Err(Failure::new(format!("{what} specified for the cluster endpoint URL"))
            .hint(format!("try: \"https://{endpoint}{port}\"")));
    };
    let host = rest.split(['/', '?']).next().unwrap_or_default();
    if scheme != "https" {
        return Err(Failure::new(format!(
            "the control plane endpoint URL should have scheme \"https\", not \"{scheme}\""
        ))
        .hint(format!("try: \"https://{rest}\"")));
    }
    if host.is_empty() || host.starts_with(':') {
        return Err(
            Failure::new("the cluster endpoint URL has no host").hint("try: \"https://10.5.0.2:6443\"")
        );
    }
    Ok(())
}

fn secrets(call: &Call) -> Result<(), Failure> {
    let output = call.text("output-file");
    let to_stdout = output == "-";
    if !to_stdout {
        files::check_parent(Path::new(output))?;
        files::check_absent(Path::new(output), call.on("force"))?;
    }
    let now = Timestamp::now();
    let contract = machineconfig::contract(call.text("talos-version"))?;
    let secrets = if let Some(file) = call.some_text("from-controlplane-config") {
        let documents = Documents::load(&files::read(Path::new(file))?).context(format!("load {file}"))?;
        let secrets = Secrets::from_config(&documents)
            .ok_or_else(|| Failure::new(format!("{file} is not a control plane configuration")))?;
        secrets.validate().map_err(|problems| {
            Failure::new(format!("{file} does not have all secrets: {}", problems.trim_end()))
                .hint("only the configuration of a control plane has them")
        })?;
        secrets
    } else if let Some(directory) = call.some_text("from-kubernetes-pki") {
        let token = call.text("kubernetes-bootstrap-token");
        let pki = kubernetes_pki(Path::new(directory))?;
        Secrets::from_kubernetes_pki(pki, token, now, contract).context(format!("take over {directory}"))?
    } else {
        Secrets::generate(now, contract).context("generate secrets")?
    };
    let text = secrets.to_yaml();
    if to_stdout {
        print(&text)
    } else {
        files::write_new(Path::new(output), text.as_bytes(), 0o600, call.on("force"))
    }
}

fn kubernetes_pki(directory: &Path) -> Result<KubernetesPki, Failure> {
    let text = |name: &str| -> Result<String, Failure> {
        let path = directory.join(name);
        String::from_utf8(files::read(&path)?)
            .map_err(|_| Failure::new(format!("{} is not a PEM file", path.display())))
    };
    let pair = |name: &str| -> Result<PemPair, Failure> {
        let (crt, key) = (text(&format!("{name}.crt"))?, text(&format!("{name}.key"))?);
        Ok(PemPair { crt: crt.as_str().into(), key: key.into() })
    };
    Ok(KubernetesPki {
        ca: pair("ca")?,
        etcd: pair("etcd/ca")?,
        front_proxy: pair("front-proxy-ca")?,
        service_account: PemKey { key: text("sa.key")?.into() },
    })
}
