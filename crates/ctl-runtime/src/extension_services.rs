//! Services of system extensions: what their files in the image say, and when they start again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, strong};
use ichor_resource::runtime::ExtensionServiceConfigStatus;
use ichor_yaml::Node;
use tracing::warn;

/// Where the files are, below the root.
const SPECS: &str = "usr/local/etc/containers";

/// A longer file is not read, and more of them are not either.
const SPEC_LEN_MAX: u64 = 1 << 20;
const SPECS_MAX: usize = 256;

/// A service of an extension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtensionService {
    /// Its name; the service is called `ext-` and this.
    pub name: String,
    /// What it runs.
    pub container: ExtensionContainer,
    /// What has to be there first.
    pub depends: Vec<Dependency>,
    /// What happens when it ends.
    pub restart: Restart,
    /// Its log is on the console, too.
    pub log_to_console: bool,
}

/// What a service runs, and in what.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExtensionContainer {
    /// The program, relative to its root.
    pub entrypoint: String,
    /// Arguments, without the name of the program.
    pub args: Vec<String>,
    /// `NAME=value`.
    pub environment: Vec<String>,
    /// A file with more of them, which the service waits for.
    pub environment_file: Option<String>,
    /// What of the machine it sees.
    pub mounts: Vec<ExtensionMount>,
    /// It may write to its root.
    pub writable_root: bool,
    /// It may write to `/sys`.
    pub writable_sysfs: bool,
    /// Paths it sees empty; the usual ones if nothing is said.
    pub masked_paths: Option<Vec<String>>,
    /// Paths it cannot write to; the usual ones if nothing is said.
    pub readonly_paths: Option<Vec<String>>,
    /// How mounts spread between it and the machine.
    pub root_propagation: String,
}

/// One mount, as container runtimes write them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExtensionMount {
    /// What is shown.
    pub source: String,
    /// Where.
    pub destination: String,
    /// Its filesystem, or `bind`.
    pub kind: String,
    /// Options.
    pub options: Vec<String>,
}

/// What a service waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dependency {
    /// Another service.
    Service(String),
    /// A file.
    Path(String),
    /// Parts of the network.
    Network(BTreeSet<NetworkPart>),
    /// The right time.
    Time,
    /// A document with its configuration.
    Configuration,
}

/// A part of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NetworkPart {
    /// Addresses.
    Addresses,
    /// A way out.
    Connectivity,
    /// A host name.
    Hostname,
    /// `/etc/hosts` and `/etc/resolv.conf`.
    EtcFiles,
}

/// What happens when a service ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// It runs again.
    Always,
    /// It stays ended.
    Never,
    /// It runs again until it ends well.
    UntilSuccess,
}

impl ExtensionService {
    /// The id of the service.
    pub fn id(&self) -> String {
        format!("ext-{}", self.name)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let documents = ichor_yaml::parse(text).map_err(|error| error.to_string())?;
        let root = &documents.first().ok_or("the file is empty")?.root;
        let name = field(root, "name");
        let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        if name.is_empty() || !name.bytes().all(good) {
            return Err(format!("name {name:?} is not made of a-z, 0-9, - and _"));
        }
        let restart = match field(root, "restart").as_str() {
            "always" => Restart::Always,
            "never" => Restart::Never,
            "untilSuccess" => Restart::UntilSuccess,
            other => return Err(format!("restart {other:?} is none of always, never, untilSuccess")),
        };
        let depends = root.get("depends").and_then(Node::as_seq).unwrap_or_default();
        Ok(Self {
            name,
            container: container(root.get("container").ok_or("there is no container section")?)?,
            depends: depends.iter().map(dependency).collect::<Result<_, _>>()?,
            restart,
            log_to_console: is_true(root, "logToConsole"),
        })
    }
}

fn field(node: &Node, key: &str) -> String {
    node.get(key).and_then(Node::as_str).unwrap_or_default().to_owned()
}

fn is_true(node: &Node, key: &str) -> bool {
    node.get(key).and_then(Node::as_str) == Some("true")
}

fn strings(node: &Node, key: &str) -> Option<Vec<String>> {
    let items = node.get(key)?.as_seq()?.iter();
    Some(items.filter_map(|item| item.as_str().map(str::to_owned)).collect())
}

fn absolute(what: &str, path: String) -> Result<String, String> {
    match path.starts_with('/') {
        true => Ok(path),
        false => Err(format!("{what} {path:?} is not absolute")),
    }
}

fn container(node: &Node) -> Result<ExtensionContainer, String> {
    let entrypoint = field(node, "entrypoint");
    if entrypoint.is_empty() {
        return Err("container.entrypoint is missing".to_owned());
    }
    let environment = strings(node, "environment").unwrap_or_default();
    if let Some(odd) = environment.iter().find(|variable| !variable.contains('=')) {
        return Err(format!("container.environment: {odd:?} is not NAME=value"));
    }
    let environment_file = Some(field(node, "environmentFile")).filter(|path| !path.is_empty());
    let environment_file =
        environment_file.map(|path| absolute("container.environmentFile", path)).transpose()?;
    let mounts = node.get("mounts").and_then(Node::as_seq).unwrap_or_default();
    let mount = |mount: &Node| -> Result<ExtensionMount, String> {
        Ok(ExtensionMount {
            source: field(mount, "source"),
            destination: absolute("container.mounts: destination", field(mount, "destination"))?,
            kind: field(mount, "type"),
            options: strings(mount, "options").unwrap_or_default(),
        })
    };
    let nothing = Node::null();
    let security = node.get("security").unwrap_or(&nothing);
    let root_propagation = field(security, "rootfsPropagation");
    if !["", "shared", "slave", "private", "unbindable", "rshared", "rslave", "rprivate", "runbindable"]
        .contains(&root_propagation.as_str())
    {
        return Err(format!("container.security.rootfsPropagation {root_propagation:?} is not known"));
    }
    Ok(ExtensionContainer {
        entrypoint,
        args: strings(node, "args").unwrap_or_default(),
        environment,
        environment_file,
        mounts: mounts.iter().map(mount).collect::<Result<_, _>>()?,
        writable_root: is_true(security, "writeableRootfs"),
        writable_sysfs: is_true(security, "writeableSysfs"),
        masked_paths: strings(security, "maskedPaths"),
        readonly_paths: strings(security, "readonlyPaths"),
        root_propagation,
    })
}

fn dependency(node: &Node) -> Result<Dependency, String> {
    let mut found = Vec::new();
    let text = |key: &str| Some(field(node, key)).filter(|text| !text.is_empty());
    if let Some(service) = text("service") {
        found.push(Dependency::Service(service));
    }
    if let Some(path) = text("path") {
        found.push(Dependency::Path(absolute("depends: path", path)?));
    }
    if let Some(parts) = strings(node, "network").filter(|parts| !parts.is_empty()) {
        let part = |name: &String| match name.as_str() {
            "addresses" => Ok(NetworkPart::Addresses),
            "connectivity" => Ok(NetworkPart::Connectivity),
            "hostname" => Ok(NetworkPart::Hostname),
            "etcfiles" => Ok(NetworkPart::EtcFiles),
            other => Err(format!("depends: network {other:?} is not known")),
        };
        found.push(Dependency::Network(parts.iter().map(part).collect::<Result<_, _>>()?));
    }
    if is_true(node, "time") {
        found.push(Dependency::Time);
    }
    if is_true(node, "configuration") {
        found.push(Dependency::Configuration);
    }
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err("depends: an entry names nothing to wait for".to_owned()),
        _ => Err("depends: an entry names more than one thing".to_owned()),
    }
}

/// The services of the files in a folder, by file name. One that is wrong, or has the name of another, is told and left
/// out.
pub fn read_all(folder: &Path) -> Vec<ExtensionService> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "yaml"));
    paths.sort();
    let mut services: Vec<ExtensionService> = Vec::new();
    for path in paths.iter().take(SPECS_MAX) {
        let read = read(path).and_then(|text| ExtensionService::parse(&text));
        match read {
            Ok(service) if services.iter().any(|known| known.name == service.name) => {
                warn!(path = %path.display(), name = service.name, "extension service left out: another one has its name");
            }
            Ok(service) => services.push(service),
            Err(error) => warn!(path = %path.display(), error, "extension service left out"),
        }
    }
    services
}

fn read(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let file = fs::File::open(path).map_err(|error| error.to_string())?;
    let len = file.take(SPEC_LEN_MAX + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    match len as u64 > SPEC_LEN_MAX {
        true => Err("the file is too long".to_owned()),
        false => Ok(text),
    }
}

/// Runs services of extensions.
pub trait ExtensionPort: Send + Sync + 'static {
    /// Makes a service known and starts it.
    fn start(&self, service: &ExtensionService) -> Result<(), String>;

    /// Has a service that runs start again; one that waits reads its configuration when it starts.
    fn restart(&self, id: &str) -> impl Future<Output = Result<(), String>> + Send;
}

/// A service of an extension that cannot be run.
#[derive(Debug, thiserror::Error)]
#[error("extension service {id}: {reason}")]
pub struct ExtensionError {
    id: String,
    reason: String,
}

/// Starts the services of extensions, and starts them again when their configuration changes.
pub struct ExtensionServiceController<P> {
    port: P,
    root: PathBuf,
    /// Names of services with the configuration that they were started with; none before the first pass.
    started: Option<BTreeMap<String, Option<String>>>,
}

impl<P: ExtensionPort> ExtensionServiceController<P> {
    /// A controller for the system at `root`.
    pub fn new(port: P, root: impl Into<PathBuf>) -> Self {
        Self { port, root: root.into(), started: None }
    }
}

impl<P: ExtensionPort> Controller for ExtensionServiceController<P> {
    const NAME: &'static str = "runtime.ExtensionServiceController";

    fn inputs(&self) -> Vec<Input> {
        vec![strong::<ExtensionServiceConfigStatus>()]
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let statuses = ctx.list::<ExtensionServiceConfigStatus>()?;
        let version = |name: &str| {
            let status = statuses.iter().find(|status| status.id().as_str() == name);
            status.map(|status| status.spec_version.clone())
        };
        let Some(started) = &mut self.started else {
            let folder = self.root.join(SPECS);
            let services = tokio::task::spawn_blocking(move || read_all(&folder)).await?;
            let mut started = BTreeMap::new();
            for service in &services {
                // One that cannot be started keeps none of the others from it.
                if let Err(reason) = self.port.start(service) {
                    warn!(service = service.id(), reason, "extension service not started");
                }
                started.insert(service.name.clone(), version(&service.name));
            }
            self.started = Some(started);
            return Ok(());
        };
        for (name, known) in started {
            let now = version(name);
            if *known == now {
                continue;
            }
            let id = format!("ext-{name}");
            self.port.restart(&id).await.map_err(|reason| ExtensionError { id, reason })?;
            *known = now;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use ichor_testkit::Harness;

    use super::*;

    const HELLO: &str = "
name: hello-world
container:
  entrypoint: ./hello
  args: [--msg, hi]
  environment: [A=1]
  environmentFile: /var/etc/hello.env
  mounts:
    - {source: /var/log, destination: /log, type: bind, options: [rbind, ro]}
  security:
    writeableRootfs: true
    maskedPaths: []
    rootfsPropagation: shared
depends:
  - service: cri
  - path: /run/some.sock
  - network: [hostname, addresses]
  - time: true
  - configuration: true
restart: untilSuccess
logToConsole: true
";

    #[test]
    fn a_file_is_read_whole() {
        let service = ExtensionService::parse(HELLO).unwrap();
        assert_eq!((service.id().as_str(), service.restart), ("ext-hello-world", Restart::UntilSuccess));
        assert!(
            service.log_to_console && service.container.writable_root && !service.container.writable_sysfs
        );
        assert_eq!(service.container.args, ["--msg", "hi"]);
        assert_eq!(service.container.mounts[0].options, ["rbind", "ro"]);
        assert_eq!(service.container.masked_paths, Some(Vec::new()));
        assert_eq!(service.container.readonly_paths, None);
        let parts = [NetworkPart::Addresses, NetworkPart::Hostname].into();
        assert_eq!(
            service.depends,
            [
                Dependency::Service("cri".into()),
                Dependency::Path("/run/some.sock".into()),
                Dependency::Network(parts),
                Dependency::Time,
                Dependency::Configuration,
            ]
        );
    }

    #[test]
    fn what_is_wrong_is_told() {
        let cases = [
            ("name: hello-world", "name: Hello", "name \"Hello\" is not made of"),
            ("name: hello-world", "name: ''", "name \"\" is not made of"),
            ("entrypoint: ./hello", "image: x", "container.entrypoint is missing"),
            ("[A=1]", "[A]", "container.environment: \"A\" is not NAME=value"),
            ("/var/etc/hello.env", "hello.env", "container.environmentFile \"hello.env\" is not absolute"),
            (
                "destination: /log",
                "destination: log",
                "container.mounts: destination \"log\" is not absolute",
            ),
            ("rootfsPropagation: shared", "rootfsPropagation: odd", "rootfsPropagation \"odd\" is not known"),
            ("path: /run/some.sock", "path: some.sock", "depends: path \"some.sock\" is not absolute"),
            ("[hostname, addresses]", "[wifi]", "depends: network \"wifi\" is not known"),
            ("- time: true", "- time: false", "names nothing to wait for"),
            ("- service: cri", "- {service: cri, time: true}", "names more than one thing"),
            ("restart: untilSuccess", "restart: sometimes", "restart \"sometimes\" is none of"),
            ("container:", "others:", "there is no container section"),
        ];
        for (old, new, expected) in cases {
            let error = ExtensionService::parse(&HELLO.replace(old, new)).unwrap_err();
            assert!(error.contains(expected), "{new}: {error}");
        }
        ExtensionService::parse("").unwrap_err();
        ExtensionService::parse("[").unwrap_err();
    }

    #[derive(Clone, Default)]
    struct Fake(Arc<Mutex<Vec<String>>>);

    impl ExtensionPort for Fake {
        fn start(&self, service: &ExtensionService) -> Result<(), String> {
            self.0.lock().unwrap().push(format!("start {}", service.id()));
            Ok(())
        }

        async fn restart(&self, id: &str) -> Result<(), String> {
            self.0.lock().unwrap().push(format!("restart {id}"));
            Ok(())
        }
    }

    #[tokio::test]
    async fn services_start_once_and_again_when_their_configuration_changes() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join(SPECS);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("a.yaml"), HELLO).unwrap();
        fs::write(folder.join("b.yaml"), HELLO).unwrap();
        fs::write(folder.join("c.yaml"), "name: [").unwrap();
        fs::write(folder.join("d.yaml"), HELLO.replace("hello-world", "other")).unwrap();
        fs::write(folder.join("e.txt"), HELLO.replace("hello-world", "text")).unwrap();
        let (state, _) = ichor_testkit::state();
        let fake = Fake::default();
        let mut harness =
            Harness::new(&state, ExtensionServiceController::new(fake.clone(), root.path())).unwrap();
        let said = || std::mem::take(&mut *fake.0.lock().unwrap());
        harness.reconcile().await.unwrap();
        assert_eq!(said(), ["start ext-hello-world", "start ext-other"]);
        harness.reconcile().await.unwrap();
        assert_eq!(said(), [""; 0]);
        let put = |version: &str| {
            let spec_version = version.to_owned();
            state
                .modify::<ExtensionServiceConfigStatus>("runtime", "other", "", |status| {
                    status.spec_version.clone_from(&spec_version);
                })
                .unwrap();
        };
        for version in ["1", "1", "2"] {
            put(version);
            harness.reconcile().await.unwrap();
        }
        assert_eq!(said(), ["restart ext-other", "restart ext-other"]);
    }
}
