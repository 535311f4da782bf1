//! `rotate-ca`: replaces the authorities of the machine API and of Kubernetes while everything goes on.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ichor_config::values::PemPair;
use ichor_health::Machine;
use ichor_ops::fleet::Members;
use ichor_ops::rotate::{self, Authority, Change, ClientContext, Event, Options, Trust};
use ichor_ops::{Problem, fleet as ops_fleet};

use super::upgrade_k8s::{CONFIG_TEXT_FLAGS, comments};
use crate::connection::Connection;
use crate::failure::Failure;
use crate::parse::Call;
use crate::session::{Session, block_on};
use crate::table::{Command, Complete, Flag, Group};
use crate::{files, fleet, profile, say};

/// `rotate-ca`.
pub static ROTATE_CA: Command = Command {
    name: "rotate-ca",
    group: Group::Machines,
    about: "Replace the CAs of the machine API and of Kubernetes",
    long: "Makes new authorities for the machine API and for Kubernetes and brings them to all machines in three\n\
           steps, each on all machines: the new one is accepted, becomes the issuing one, and the old one is\n\
           dropped. The new client configuration goes to the file of --output. Without --dry-run=false nothing\n\
           changes.",
    examples: &["rotate-ca", "rotate-ca --dry-run=false", "rotate-ca --dry-run=false --kubernetes=false"],
    flags: &[
        Flag::list("control-plane-nodes", "control plane machines, when they are not to be discovered"),
        Flag::switch("dry-run", "show what would be done").default("true"),
        Flag::text("init-node", "the first control plane machine of old clusters"),
        Flag::text("k8s-endpoint", "address of the Kubernetes API"),
        Flag::switch("kubernetes", "replace the CA of Kubernetes").default("true"),
        Flag::text("output", "file of the new client configuration")
            .short('o')
            .default("talosconfig")
            .complete(Complete::File),
        Flag::switch("talos", "replace the CA of the machine API").default("true"),
        Flag::list("worker-nodes", "worker machines, when they are not to be discovered"),
    ],
    shared_flags: CONFIG_TEXT_FLAGS,
    run: Some(run),
    ..Command::EMPTY
};

/// The command line, resolved.
struct RotateFlags {
    connection: Connection,
    members: Members,
    endpoint: String,
    machines: bool,
    kubernetes: bool,
    output: String,
    options: Options,
}

impl RotateFlags {
    fn of(call: &Call) -> Self {
        Self {
            connection: call.connection(),
            members: fleet::members(call),
            endpoint: call.text("k8s-endpoint").to_owned(),
            machines: call.on("talos"),
            kubernetes: call.on("kubernetes"),
            output: call.text("output").to_owned(),
            options: Options { dry_run: call.on("dry-run"), comments: comments(call) },
        }
    }
}

fn run(call: &Call) -> Result<(), Failure> {
    let flags = RotateFlags::of(call);
    if !flags.machines && !flags.kubernetes {
        return Ok(());
    }
    block_on(rotate(&flags))
}

const DRY_RUN_HINT: &str = "> Dry-run mode enabled, no changes were made to the cluster, re-run with `--dry-run=false` to apply the changes.";

async fn rotate(flags: &RotateFlags) -> Result<(), Failure> {
    let route = fleet::route(&flags.connection, &flags.endpoint)?;
    let session = Session::open(&flags.connection).await?;
    let cluster = fleet::open(&session, &flags.members, &route).await?;
    let secrets = rotate::new_authorities()?;
    let mut client = session.endpoint();
    let told = |event: Event| tell(&event);
    if flags.machines {
        let context = context(&flags.connection)?;
        let rotated =
            rotate::machines(&client, &cluster.topology, &context, &secrets, flags.options, &told).await;
        let config = rotated.map_err(|error| explained(error, "error rotating Talos CA"))?;
        if flags.options.dry_run {
            say(DRY_RUN_HINT);
        } else {
            say(&format!("> Writing new talosconfig to {:?}", flags.output));
            files::write(Path::new(&flags.output), &profile::encode(&config), 0o600)?;
            client = rotate::client_of(&config)?;
        }
    }
    if flags.kubernetes {
        let fleet = ops_fleet::over(ops_fleet::access(&client), cluster.topology, &route);
        let rotated = rotate::kubernetes(&client, &fleet, &secrets, flags.options, &told).await;
        rotated.map_err(|error| explained(error, "error rotating Kubernetes CA"))?;
        say(match flags.options.dry_run {
            true => DRY_RUN_HINT,
            false => {
                "> Kubernetes CA rotation done, new 'kubeconfig' can be fetched with `ichorctl kubeconfig`."
            }
        });
    }
    Ok(())
}

/// The context of the client configuration, with the endpoints of the command line if there are any.
fn context(connection: &Connection) -> Result<ClientContext, Failure> {
    let (config, _) = profile::open(connection)?;
    let (name, context) = profile::context(&config, connection.context.as_deref())?;
    let endpoints = match connection.endpoints.is_empty() {
        true => context.endpoints.iter().cloned().collect(),
        false => connection.endpoints.clone(),
    };
    Ok(ClientContext { name: name.to_owned(), endpoints, nodes: context.nodes.iter().cloned().collect() })
}

fn explained(error: ichor_ops::Error, doing: &str) -> Failure {
    let hidden = matches!(error.problem(), Problem::HiddenAuthority);
    let failure = Failure::from(error).within(doing);
    if hidden { failure.hint("the role os:admin is needed") } else { failure }
}

fn quoted<'a>(items: impl Iterator<Item = &'a String>) -> String {
    items.map(|item| format!("{item:?}")).collect::<Vec<_>>().join(" ")
}

fn name(authority: Authority) -> &'static str {
    match authority {
        Authority::Machine => "Talos",
        Authority::Kubernetes => "Kubernetes",
    }
}

fn pair(title: &str, authority: Authority, pair: &PemPair) {
    say(&format!("> {title} {} CA:", name(authority)));
    say(&format!("  crt: {}", STANDARD.encode(&pair.crt.0)));
    say(&format!("  key: {}", STANDARD.encode(&pair.key.0)));
}

/// Prints an event.
fn tell(event: &Event) {
    match event {
        Event::Started { authority, dry_run } => {
            say(&format!("> Starting {} API PKI rotation, dry-run mode {dry_run}...", name(*authority)));
        }
        Event::ClientContext { name, endpoints } => {
            say(&format!("> Using config context: {name:?}"));
            say(&format!("> Using Talos API endpoints: [{}]", quoted(endpoints.iter())));
        }
        Event::Topology(topology) => {
            let list = |machines: &[Machine]| quoted(machines.iter().map(|machine| &machine.address));
            say("> Cluster topology:");
            say(&format!("  - control plane nodes: [{}]", list(topology.control_planes())));
            say(&format!("  - worker nodes: [{}]", list(topology.workers())));
        }
        Event::Current(authority, current) => pair("Current", *authority, current),
        Event::New(authority, new) => pair("New", *authority, new),
        Event::ClientConfig(config) => {
            say("> Generating new talosconfig:");
            say(&String::from_utf8_lossy(&profile::encode(config)));
        }
        Event::KubernetesClient(Trust::New) => say("> Building new Kubernetes client..."),
        Event::KubernetesClient(_) => say("> Building current Kubernetes client..."),
        Event::Verifying(authority, trust) => {
            let label = match trust {
                Trust::Existing => "existing PKI",
                Trust::NewClientOldServers => "new client cert, but old server CA",
                Trust::New => "new PKI",
            };
            let end = if *authority == Authority::Machine { ":" } else { "..." };
            say(&format!("> Verifying connectivity with {label}{end}"));
        }
        Event::Verified { node, version: Some(tag) } => say(&format!("  - {node}: OK (version {tag})")),
        Event::Verified { node, version: None } => say(&format!("  - {node}: OK (dry-run)")),
        Event::NodesReady(Some(count)) => say(&format!(" - OK ({count} nodes ready)")),
        Event::NodesReady(None) => say(" - OK (dry-run mode)"),
        Event::Changing(authority, change) => {
            let name = name(*authority);
            say(&match change {
                Change::Accept => format!("> Adding new {name} CA as accepted..."),
                Change::Swap => {
                    format!("> Making new {name} CA the issuing CA, old {name} CA the accepted CA...")
                }
                Change::Drop => format!("> Removing old {name} CA from the accepted CAs..."),
            });
        }
        Event::Changed { node, skipped } => {
            say(&format!("  - {node}: {}", if *skipped { "skipped (dry-run)" } else { "OK" }));
        }
        Event::RestartingWorkloads => {
            say("> Restarting workloads of the system, so that they accept the new CA...");
        }
        Event::WorkloadRestarted(workload) => say(&format!("  - {workload}: OK")),
    }
}
