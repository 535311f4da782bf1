//! `cluster add`: more machines for a cluster that runs.

use std::time::Duration;

use ichor_config::talosconfig::ClientConfig;
use ichor_ops::Problem;
use ichor_ops::cluster::{self, AddOptions, Site, context_of, follow};

use super::create::count;
use super::screen::Screen;
use super::{ClusterFlags, show};
use crate::failure::Failure;
use crate::parse::Call;
use crate::session::block_on;
use crate::table::{Command, Complete, Flag};
use crate::{machineconfig, print, profile};

/// The command.
pub(super) static ADD: Command = Command {
    name: "add",
    about: "Add machines to a cluster that runs",
    long: "Adds machines to a cluster that runs. They get the configuration that a machine of their kind has now, so\n\
           they join whatever has become of the cluster since it was made. Control planes become members of etcd one\n\
           after the other. The command ends when the whole cluster is healthy.",
    examples: &["cluster add --name lab --workers 1", "cluster add --name lab --controlplanes 2"],
    flags: &[
        Flag::int("controlplanes", "0", "number of control plane machines to add"),
        Flag::int("workers", "0", "number of worker machines to add"),
        Flag::repeated("config-patch", "patch for the new machines, as text or @file"),
        Flag::switch("wait", "wait until the cluster is healthy").default("true"),
        Flag::duration("wait-timeout", "20m0s", "give up waiting after this time"),
        Flag::switch(
            "skip-k8s-node-readiness-check",
            "do not wait for nodes to be ready, as without a network for pods",
        ),
        Flag::text("talosconfig", "client configuration with the cluster's context").complete(Complete::File),
    ],
    run: Some(run),
    ..Command::EMPTY
};

/// The command line, resolved.
struct AddFlags {
    cluster: ClusterFlags,
    options: AddOptions,
    wait: bool,
    limit: Duration,
    nodes: bool,
}

impl AddFlags {
    fn of(call: &Call) -> Result<Self, Failure> {
        let (control_planes, workers) = (count(call, "controlplanes")?, count(call, "workers")?);
        if control_planes + workers == 0 {
            return Err(Failure::new("there is nothing to add")
                .hint("say how many with --controlplanes or --workers"));
        }
        let patches = machineconfig::load_patches(&call.list("config-patch"))?;
        Ok(Self {
            cluster: ClusterFlags::of(call)?,
            options: AddOptions { control_planes, workers, patches },
            wait: call.on("wait"),
            limit: call.duration("wait-timeout"),
            nodes: !call.on("skip-k8s-node-readiness-check"),
        })
    }
}

fn run(call: &Call) -> Result<(), Failure> {
    let flags = AddFlags::of(call)?;
    let provider = flags.cluster.provider()?;
    let before = flags.cluster.site(&*provider)?;
    let (config, path) = flags.cluster.client_config()?;
    let context = context(&config, &before)?;
    let screen = Screen::default();
    let added = async { Ok(cluster::add(&provider, &before, &context, &flags.options, &screen).await?) };
    let mut site = screen.finish(block_on(added))?;
    let config = follow(config, &before, &site);
    profile::save(&config, &path)?;
    if flags.wait {
        let context = self::context(&config, &site)?;
        let waited = async { Ok(site.wait(&context, flags.nodes, flags.limit, &screen).await?) };
        screen.finish(block_on(waited))?;
    }
    if let Ok(shown) = provider.show(&site.cluster.name) {
        site = Site::new(&*provider, shown);
    }
    print(&show::cluster_text(&site))?;
    eprint!("\n{}", screen.times());
    Ok(())
}

/// The client configuration with the cluster as its current context.
fn context(config: &ClientConfig, site: &Site) -> Result<ClientConfig, Failure> {
    let none = || ichor_ops::Error::from(Problem::NoContext { cluster: site.cluster.name.clone() });
    Ok(context_of(config, site).ok_or_else(none)?)
}
