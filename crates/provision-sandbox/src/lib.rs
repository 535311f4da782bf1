//! Machines made of namespaces: no container engine, no virtual machine.
//!
//! A machine is a process that boots the root image as PID 1 of further namespaces than those of the cluster's
//! supervisor (`provision-local`), whose death takes machines, mounts, links and loop devices along; `reboot(2)` in there
//! ends it with a signal, and the supervisor plays the firmware. Nothing of the host changes but a directory, cgroups,
//! listening sockets on the host's loopback that lead to the machines, and kernel modules that stay loaded.
//!
//! ```text
//! supervisor (PID 1 of the fleet)
//!   └─ boot <machine> (one per boot)
//!        └─ /sbin/init (PID 1 of the machine)
//! ```
//!
//! These processes are the same executable again, called with a hidden first argument: see [`hidden_main`].

mod boot;
mod bridge_filter;
mod cgroups;
mod cleanup;
mod error;
mod image;
mod kind;
mod layout;
mod rootfs;
mod runc;
mod scope;

use std::path::Path;
use std::process::ExitCode;

use ichor_provision_local::{Local, supervisor_main};

/// Machines made of namespaces.
pub type Sandbox = Local<kind::Namespaced>;

/// The provider, for a program's list of them.
pub const REGISTRATION: ichor_provision::Registration = ichor_provision::Registration {
    name: Sandbox::NAME,
    open: |store| std::sync::Arc::new(Sandbox::new(store)),
    helper: Some(hidden_main),
};

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
        [HIDDEN, "supervisor", ..] => supervisor_main::<kind::Namespaced>(&args),
        [HIDDEN, "boot", dir, machine] => Some(boot::main(Path::new(dir), machine)),
        [HIDDEN, "cleanup", dir] => Some(cleanup::main(Path::new(dir))),
        [HIDDEN, ..] => Some(ExitCode::from(2)),
        _ => None,
    }
}
