//! Machines made of namespaces: no container engine, no virtual machine.
//!
//! One supervisor process per cluster owns everything: it lives in mount, network and process id namespaces of
//! its own, so its death takes all machines, mounts, links and loop devices along. A machine is a process that
//! boots the root image as PID 1 of further namespaces; `reboot(2)` in there ends it with a signal, and the
//! supervisor plays the firmware. Nothing of the host changes but a directory, cgroups, listening sockets on
//! the host's loopback that lead to the machines, and kernel modules that stay loaded.
//!
//! ```text
//! ichorctl ── spawns ──> supervisor (host side: waits)
//!                          └─ supervisor (PID 1 of the fleet: control socket, forwarders, machines)
//!                               └─ boot <machine> (one per boot)
//!                                    └─ /sbin/init (PID 1 of the machine)
//! ```
//!
//! These processes are the same executable again, called with a hidden first argument: see [`hidden_main`].

mod boot;
mod bridge_filter;
mod cgroups;
mod cleanup;
mod control;
mod error;
mod fleet;
mod forward;
mod ipv4;
mod layout;
mod plan;
mod provider;
mod reload;
mod rootfs;
mod runc;
mod scope;
mod supervisor;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub use provider::Sandbox;

/// The provider, for a program's list of them.
pub const REGISTRATION: ichor_provision::Registration = ichor_provision::Registration {
    name: Sandbox::NAME,
    open: |store| std::sync::Arc::new(Sandbox::new(store)),
    helper: Some(hidden_main),
};

/// The file of this program. It may have been replaced since it was started; its successor does as well.
fn own_program() -> std::io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let text = own.to_string_lossy();
    Ok(text.strip_suffix(" (deleted)").map(PathBuf::from).unwrap_or_else(|| own.clone()))
}

/// The first argument of the processes that make up a cluster.
const HIDDEN: &str = "__sandbox";

/// Runs one of the provider's own processes when the arguments (without the program's name) ask for it.
///
/// Every program that uses [`Sandbox`] calls this first in `main`, before it starts any thread.
pub fn hidden_main(args: &[String]) -> Option<ExitCode> {
    if let Some(code) = runc::main() {
        return Some(code);
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        [HIDDEN, "supervisor", dir] => Some(supervisor::main(Path::new(dir))),
        [HIDDEN, "boot", dir, machine] => Some(boot::main(Path::new(dir), machine)),
        [HIDDEN, "cleanup", dir] => Some(cleanup::main(Path::new(dir))),
        [HIDDEN, ..] => Some(ExitCode::from(2)),
        _ => None,
    }
}
