//! `cluster`: local clusters.

mod add;
mod create;
mod qemu;
mod remove;
mod screen;
mod show;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ichor_config::talosconfig::ClientConfig;
use ichor_ops::cluster::{self, Site};
use ichor_ops::kubeconfig;
use ichor_ops::providers::PROVIDERS;
use ichor_provision::{Power, Provider, ProvisionError, Store};

use self::screen::Screen;
use crate::failure::Failure;
use crate::parse::Call;
use crate::session::block_on;
use crate::table::{Args, Command, Complete, Flag, Group};
use crate::term;
use crate::{files, print, profile};

/// The parent.
pub static CLUSTER: Command = Command {
    name: "cluster",
    group: Group::Local,
    about: "Make, show, change and remove local clusters",
    shared_flags: &[
        Flag::text("name", "name of the cluster").default("talos-default").complete(Complete::Cluster),
        Flag::text("state", "directory of all clusters (default ~/.talos/clusters)").complete(Complete::File),
    ],
    subcommands: &[&create::CREATE, &DESTROY, &SHOW, &LIST, &START, &STOP, &add::ADD, &remove::REMOVE],
    ..Command::EMPTY
};

static SHOW: Command = Command {
    name: "show",
    about: "Show a cluster and its machines",
    flags: &[PROVISIONER],
    run: Some(show),
    ..Command::EMPTY
};

static LIST: Command =
    Command { name: "list", aliases: &["ls"], about: "List clusters", run: Some(list), ..Command::EMPTY };

static DESTROY: Command = Command {
    name: "destroy",
    about: "Remove a cluster and everything of it",
    long: "Removes a cluster and everything of it, whatever state it is in; its context leaves the client\n\
           configuration.",
    flags: &[
        Flag::switch("force", "remove it even when it does not stop in order").short('f'),
        Flag::text("talosconfig", "client configuration to take the context out of").complete(Complete::File),
        PROVISIONER,
    ],
    run: Some(destroy),
    ..Command::EMPTY
};

static START: Command = Command {
    name: "start",
    about: "Start the machines of a cluster, or some of them",
    args: Args::between("[MACHINE...]", 0, usize::MAX),
    flags: &[
        Flag::switch("wait", "wait until they answer").default("true"),
        Flag::duration("wait-timeout", "5m0s", "give up waiting after this time"),
        Flag::text("talosconfig", "client configuration with the cluster's context").complete(Complete::File),
    ],
    run: Some(start),
    ..Command::EMPTY
};

static STOP: Command = Command {
    name: "stop",
    about: "Shut the machines of a cluster down, or some of them; their state stays",
    args: Args::between("[MACHINE...]", 0, usize::MAX),
    run: Some(stop),
    ..Command::EMPTY
};

/// Who makes a new cluster, or made one whose state cannot be read.
const PROVISIONER: Flag = Flag::text("provisioner", "provider of the cluster").hidden();

/// Which cluster, resolved from the flags that all commands of it have.
struct ClusterFlags {
    name: String,
    store: Store,
    /// The provider, where the state of the cluster does not say.
    provisioner: String,
    talosconfig: Option<String>,
}

impl ClusterFlags {
    fn of(call: &Call) -> Result<Self, Failure> {
        let named = call.some_text("provisioner");
        Ok(Self {
            name: call.text("name").to_owned(),
            store: Store::new(state_dir(call.some_text("state"))?),
            provisioner: named.or(PROVIDERS.names().next()).unwrap_or_default().to_owned(),
            talosconfig: call.some_text("talosconfig").map(str::to_owned),
        })
    }

    /// The provider of the cluster.
    fn provider(&self) -> Result<Arc<dyn Provider>, Failure> {
        let found = PROVIDERS.of_cluster(&self.name, self.store.clone(), &self.provisioner);
        found.map_err(failed)
    }

    /// The cluster with the ways to it.
    fn site(&self, provider: &dyn Provider) -> Result<Site, Failure> {
        Ok(Site::new(provider, provider.show(&self.name).map_err(failed)?))
    }

    /// The client configuration, and its file.
    fn client_config(&self) -> Result<(ClientConfig, PathBuf), Failure> {
        profile::open_at(&profile::locate_at(self.talosconfig.as_deref())?)
    }
}

fn state_dir(given: Option<&str>) -> Result<PathBuf, Failure> {
    if let Some(state) = given {
        return std::path::absolute(state)
            .map_err(|error| Failure::new(format!("directory {state}: {error}")));
    }
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    match set("TALOS_HOME").filter(|path| path.is_absolute()) {
        Some(home) => Ok(home.join("clusters")),
        None => set("HOME").map(|home| home.join(".talos/clusters")).ok_or_else(|| {
            Failure::new("there is no place for clusters: HOME is not set").hint("name one with --state DIR")
        }),
    }
}

fn failed(error: ProvisionError) -> Failure {
    ichor_ops::Error::from(error).into()
}

/// The names of all clusters, for completion.
pub fn names(call: &Call) -> Vec<String> {
    let store = state_dir(call.some_text("state")).map(Store::new);
    store.ok().and_then(|store| store.names().ok()).unwrap_or_default()
}

fn show(call: &Call) -> Result<(), Failure> {
    let flags = ClusterFlags::of(call)?;
    let site = flags.site(&*flags.provider()?)?;
    print(&show::cluster_text(&site))
}

fn list(call: &Call) -> Result<(), Failure> {
    let store = ClusterFlags::of(call)?.store;
    let mut clusters = Vec::new();
    for name in PROVIDERS.names() {
        let provider = PROVIDERS.open(name, store.clone()).map_err(failed)?;
        clusters.extend(provider.list().map_err(failed)?);
    }
    clusters.sort_by(|a, b| a.name.cmp(&b.name));
    let known: Vec<&str> = clusters.iter().map(|cluster| cluster.name.as_str()).collect();
    let names = store.names().map_err(failed)?;
    let damaged: Vec<&String> = names.iter().filter(|name| !known.contains(&name.as_str())).collect();
    print(&show::list_text(&clusters))?;
    for name in damaged {
        term::warn(&format!(
            "cluster {name} was not made to its end; remove it with `ichorctl cluster destroy --name {name}`"
        ));
    }
    Ok(())
}

fn destroy(call: &Call) -> Result<(), Failure> {
    let flags = ClusterFlags::of(call)?;
    let provider = flags.provider()?;
    // What the client configuration holds of it is found by its addresses, so look before it is gone.
    let known = provider.store().load(&flags.name).ok().map(|cluster| Site::new(&*provider, cluster));
    let screen = Screen::default();
    screen.finish(block_on(async { Ok(cluster::destroy(&provider, &flags.name, &screen).await?) }))?;
    if let Some(site) = &known {
        forget_kubeconfig(site);
        forget_context(&flags, &site.endpoints())?;
    }
    Ok(())
}

/// Takes a cluster out of the kubeconfig it was merged into. A file that cannot be read or written is none of
/// ours.
fn forget_kubeconfig(site: &Site) {
    let Ok(path) = super::kubernetes::default_path() else { return };
    let Ok(text) = std::fs::read_to_string(&path) else { return };
    if let Ok(Some(text)) = kubeconfig::without(&text, &site.kubernetes_servers())
        && files::write(&path, text.as_bytes(), 0o600).is_ok()
    {
        eprintln!("removed {} from {}", site.cluster.name, path.display());
    }
}

/// Takes the contexts of a cluster out of the client configuration: those of its name that lead to it.
fn forget_context(flags: &ClusterFlags, endpoints: &[String]) -> Result<(), Failure> {
    let location = profile::locate_at(flags.talosconfig.as_deref())?;
    if endpoints.is_empty() || !location.writable || !location.path.exists() {
        return Ok(());
    }
    let mut config = profile::read(&location.path)?;
    let numbered = |name: &str| {
        name.strip_prefix(&flags.name).is_some_and(|rest| {
            rest.is_empty() || rest.strip_prefix('-').is_some_and(|number| number.parse::<u32>().is_ok())
        })
    };
    let gone: Vec<String> = config
        .contexts
        .iter()
        .filter(|(name, context)| {
            numbered(name)
                && !context.endpoints.is_empty()
                && context.endpoints.iter().all(|endpoint| endpoints.contains(endpoint))
        })
        .map(|(name, _)| name.clone())
        .collect();
    if gone.is_empty() {
        return Ok(());
    }
    for name in &gone {
        config.contexts.entries_mut().remove(name);
        eprintln!("removed talosconfig context \"{name}\"");
    }
    if gone.contains(&config.context) {
        config.context = profile::names(&config).pop().unwrap_or_default();
    }
    profile::save(&config, &location.path)
}

fn stop(call: &Call) -> Result<(), Failure> {
    let (flags, machines) = (ClusterFlags::of(call)?, call.args.clone());
    let provider = flags.provider()?;
    let screen = Screen::default();
    screen.step(format!("stopping {}", flags.name));
    let off = async { Ok(cluster::power(&provider, &flags.name, &machines, Power::Off).await?) };
    screen.finish(block_on(off))
}

/// The command line of `start`, resolved.
struct StartFlags {
    cluster: ClusterFlags,
    machines: Vec<String>,
    wait: Option<Duration>,
}

impl StartFlags {
    fn of(call: &Call) -> Result<Self, Failure> {
        Ok(Self {
            cluster: ClusterFlags::of(call)?,
            machines: call.args.clone(),
            wait: call.on("wait").then(|| call.duration("wait-timeout")),
        })
    }
}

fn start(call: &Call) -> Result<(), Failure> {
    let flags = StartFlags::of(call)?;
    let name = &flags.cluster.name;
    let provider = flags.cluster.provider()?;
    let screen = Screen::default();
    screen.step(format!("starting {name}"));
    let config = match flags.wait {
        Some(_) => Some(flags.cluster.client_config()?.0),
        None => None,
    };
    let wait_for = config.as_ref().zip(flags.wait);
    let on = async { Ok(cluster::start(&provider, name, &flags.machines, wait_for, &screen).await?) };
    screen.finish(block_on(on))
}
