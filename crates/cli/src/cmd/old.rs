//! Commands of old: they only name what took their place.

use crate::failure::Failure;
use crate::parse::Call;
use crate::table::{Command, Flag, Group};

/// `crashdump`.
pub static CRASHDUMP: Command = Command {
    flags: &[
        Flag::text("init-node", "no longer used"),
        Flag::list("control-plane-nodes", "no longer used"),
        Flag::list("worker-nodes", "no longer used"),
    ],
    ..gone("crashdump", &[])
};
/// `disks`.
pub static DISKS: Command = gone("disks", &[]);
/// `interfaces`.
pub static INTERFACES: Command = gone("interfaces", &[]);
/// `routes`.
pub static ROUTES: Command = gone("routes", &["route"]);

const fn gone(name: &'static str, aliases: &'static [&'static str]) -> Command {
    Command {
        name,
        aliases,
        group: Group::Machines,
        about: "Replaced by other commands",
        hidden: true,
        run: Some(run),
        ..Command::EMPTY
    }
}

fn run(call: &Call) -> Result<(), Failure> {
    let instead = match call.command().name {
        "crashdump" => "`ichorctl support`",
        "disks" => "`ichorctl get disks`, `ichorctl get systemdisk` or `ichorctl get discoveredvolumes`",
        "interfaces" => "`ichorctl get addresses` and `ichorctl get links`",
        _ => "`ichorctl get routes`",
    };
    Err(Failure::new(format!("`{}` is deprecated, use {instead}", call.path_text())).whole())
}
