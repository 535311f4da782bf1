//! `cluster`: local clusters of sandbox machines.

mod add;
mod bring_up;
mod create;
mod inherit;
mod ready;
mod remove;
mod show;

use std::path::PathBuf;

use ichor_provision::{Cluster, Machine, MachineStatus, Provider as _, ProvisionError, Store};
use ichor_provision_sandbox::Sandbox;

use crate::failure::{Failure, chain};
use crate::parse::Call;
use crate::session::block_on;
use crate::table::{Args, Command, Complete, Flag, Group};
use crate::term::{self, Progress};
use crate::{files, kubeconfig, print, profile};

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
    flags: &[Flag::text("provisioner", "provider of the cluster").default("sandbox").hidden()],
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
        Flag::text("provisioner", "provider of the cluster").default("sandbox").hidden(),
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

/// The provider with its clusters where the flags say.
fn sandbox(call: &Call) -> Result<Sandbox, Failure> {
    Ok(Sandbox::new(Store::new(state_dir(call)?)))
}

fn state_dir(call: &Call) -> Result<PathBuf, Failure> {
    if let Some(state) = call.some_text("state") {
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

/// The sentences of the provider are whole; only the causes are added.
fn failed(error: &ProvisionError) -> Failure {
    Failure::new(chain(error)).whole()
}

/// The names of all clusters, for completion.
pub fn names(call: &Call) -> Vec<String> {
    let store = state_dir(call).map(Store::new);
    store.ok().and_then(|store| store.names().ok()).unwrap_or_default()
}

fn show(call: &Call) -> Result<(), Failure> {
    let cluster = sandbox(call)?.show(call.text("name")).map_err(|error| failed(&error))?;
    print(&show::cluster_text(&cluster))
}

fn list(call: &Call) -> Result<(), Failure> {
    let provider = sandbox(call)?;
    let clusters = provider.list().map_err(|error| failed(&error))?;
    let known: Vec<&str> = clusters.iter().map(|cluster| cluster.name.as_str()).collect();
    let names = provider.store().names().map_err(|error| failed(&error))?;
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
    let provider = sandbox(call)?;
    let name = call.text("name");
    // What the client configuration holds of it is found by its addresses, so look before it is gone.
    let known = provider.store().load(name).ok();
    let loopbacks =
        |cluster: &Cluster| cluster.machines.iter().map(|machine| machine.loopback.to_string()).collect();
    let endpoints: Vec<String> = known.as_ref().map(loopbacks).unwrap_or_default();
    let mut progress = Progress::new();
    let removed = provider.destroy(name, &mut |step| progress.step(step));
    if let Err(error) = removed {
        progress.failed();
        return Err(failed(&error));
    }
    progress.done();
    if let Some(cluster) = &known {
        forget_kubeconfig(cluster);
    }
    forget_context(call, name, &endpoints)
}

/// Takes a cluster out of the kubeconfig it was merged into. A file that cannot be read or written is none of
/// ours.
fn forget_kubeconfig(cluster: &Cluster) {
    let Ok(path) = super::kubernetes::default_path() else { return };
    let Ok(text) = std::fs::read_to_string(&path) else { return };
    if let Ok(Some(text)) = kubeconfig::without(&text, &bring_up::servers(cluster))
        && files::write(&path, text.as_bytes(), 0o600).is_ok()
    {
        eprintln!("removed {} from {}", cluster.name, path.display());
    }
}

/// Takes the contexts of a cluster out of the client configuration: those of its name that lead to it.
fn forget_context(call: &Call, cluster: &str, endpoints: &[String]) -> Result<(), Failure> {
    let location = profile::locate_at(call.some_text("talosconfig"))?;
    if endpoints.is_empty() || !location.writable || !location.path.exists() {
        return Ok(());
    }
    let mut config = profile::read(&location.path)?;
    let numbered = |name: &str| {
        name.strip_prefix(cluster).is_some_and(|rest| {
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

/// Runs `change` for the named machines, or for all at once.
fn each(
    call: &Call,
    change: impl Fn(&Sandbox, &str, Option<&str>) -> Result<(), ProvisionError>,
) -> Result<(), Failure> {
    let provider = sandbox(call)?;
    let name = call.text("name");
    if call.args.is_empty() {
        return change(&provider, name, None).map_err(|error| failed(&error));
    }
    for machine in &call.args {
        change(&provider, name, Some(machine)).map_err(|error| failed(&error))?;
    }
    Ok(())
}

fn stop(call: &Call) -> Result<(), Failure> {
    let mut progress = Progress::new();
    progress.step(format!("stopping {}", call.text("name")));
    each(call, |provider, cluster, machine| provider.stop(cluster, machine))
        .inspect_err(|_| progress.failed())?;
    progress.done();
    Ok(())
}

fn start(call: &Call) -> Result<(), Failure> {
    let name = call.text("name");
    let mut progress = Progress::new();
    progress.step(format!("starting {name}"));
    each(call, |provider, cluster, machine| provider.start(cluster, machine))
        .inspect_err(|_| progress.failed())?;
    progress.done();
    if !call.on("wait") {
        return Ok(());
    }
    let cluster = sandbox(call)?.show(name).map_err(|error| failed(&error))?;
    let machines: Vec<_> = cluster
        .machines
        .iter()
        .filter(|machine| call.args.is_empty() || call.args.contains(&machine.name))
        .cloned()
        .collect();
    let location = profile::locate_at(call.some_text("talosconfig"))?;
    let (config, _) = profile::open_at(&location)?;
    let access = ready::Access::find(&config, &cluster);
    let provider = sandbox(call)?;
    // A machine that was still going down when it was to start has gone down since.
    let again = |machine: &Machine| {
        let shown = provider.show(name).ok();
        let now = shown.as_ref().and_then(|cluster| cluster.machine(&machine.name).ok());
        if now.is_some_and(|now| now.status == MachineStatus::Stopped) {
            let _ = provider.start(name, Some(&machine.name));
        }
    };
    block_on(ready::wait(&access, &machines, call.duration("wait-timeout"), &mut progress, again))
}
