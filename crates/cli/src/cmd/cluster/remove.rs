//! `cluster remove`: machines leave a cluster that runs, in order.

use ichor_ops::cluster::{self, RemoveOptions, context_of, follow};

use super::ClusterFlags;
use super::screen::Screen;
use crate::failure::Failure;
use crate::parse::Call;
use crate::profile;
use crate::session::block_on;
use crate::table::{Args, Command, Complete, Flag};

/// The command.
pub(super) static REMOVE: Command = Command {
    name: "remove",
    aliases: &["rm"],
    about: "Take machines out of a cluster that runs",
    long: "Takes machines out of a cluster that runs, one after the other. A machine is drained, leaves etcd and is wiped,\n\
           as `reset` does; then it is removed, and its node with it. What would cost etcd its quorum is refused.\n\n\
           The address of the Kubernetes API stays, whichever machine goes.",
    examples: &["cluster remove --name lab lab-worker-1", "cluster remove --name lab 10.5.0.3"],
    args: Args::between("MACHINE...", 1, usize::MAX),
    flags: &[
        Flag::switch("force", "do not let it say goodbye, and do not mind the quorum").short('f'),
        Flag::duration("wait-timeout", "10m0s", "give up waiting for a machine after this time"),
        Flag::text("talosconfig", "client configuration with the cluster's context").complete(Complete::File),
    ],
    run: Some(run),
    ..Command::EMPTY
};

/// The command line, resolved.
struct RemoveFlags {
    cluster: ClusterFlags,
    machines: Vec<String>,
    options: RemoveOptions,
}

impl RemoveFlags {
    fn of(call: &Call) -> Result<Self, Failure> {
        Ok(Self {
            cluster: ClusterFlags::of(call)?,
            machines: call.args.clone(),
            options: RemoveOptions { force: call.on("force"), limit: call.duration("wait-timeout") },
        })
    }
}

fn run(call: &Call) -> Result<(), Failure> {
    let flags = RemoveFlags::of(call)?;
    let provider = flags.cluster.provider()?;
    let (mut config, path) = flags.cluster.client_config()?;
    for name in &flags.machines {
        let before = flags.cluster.site(&*provider)?;
        let machine = before.find(name)?;
        let context = context_of(&config, &before);
        let screen = Screen::default();
        let removed = async {
            let context = context.as_ref();
            Ok(cluster::remove(&provider, &before, &machine, context, flags.options, &screen).await?)
        };
        let after = screen.finish(block_on(removed))?;
        config = follow(config, &before, &after);
        profile::save(&config, &path)?;
        eprintln!("removed {} ({}) from {}", machine.name, machine.address(), before.cluster.name);
    }
    Ok(())
}
