//! Machines of QEMU: a real kernel, real firmware and disks, with KVM where it works and without it elsewhere.
//!
//! A machine is a QEMU process in the namespaces of its cluster's supervisor (`provision-local`), with a tap on the
//! cluster's bridge for each interface. At the gateway the supervisor answers for addresses (DHCP), names, the time, and
//! the machines' configurations.
//!
//! ```text
//! supervisor (PID 1 of the fleet: bridge, DHCP, DNS, NTP, configurations)
//!   └─ boot <machine> (one per boot: taps, monitor)
//!        └─ qemu-system-x86_64
//! ```
//!
//! QEMU ends with each restart of its machine, and the supervisor starts it again: like this a machine boots from its disk
//! once something is installed there.

mod arguments;
mod boot;
mod disk;
mod host;
mod kind;
mod options;
mod qmp;
mod serve;
pub mod snapshot;
mod start;

use std::path::Path;
use std::process::ExitCode;

use ichor_provision_local::{Local, supervisor_main};

/// Machines of QEMU.
pub type Qemu = Local<kind::Virtual>;

/// The provider, for a program's list of them.
pub const REGISTRATION: ichor_provision::Registration = ichor_provision::Registration {
    name: Qemu::NAME,
    open: |store| std::sync::Arc::new(Qemu::new(store)),
    helper: Some(hidden_main),
};

/// The first argument of the processes that make up a cluster.
const HIDDEN: &str = "__qemu";

/// Runs one of the provider's own processes when the arguments (without the program's name) ask for it.
///
/// Every program that uses [`Qemu`] calls this first in `main`, before it starts any thread.
pub fn hidden_main(args: &[String]) -> Option<ExitCode> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        [HIDDEN, "supervisor", ..] => supervisor_main::<kind::Virtual>(&args),
        [HIDDEN, "boot", dir, machine] => Some(boot::main(Path::new(dir), machine)),
        [HIDDEN, ..] => Some(ExitCode::from(2)),
        _ => None,
    }
}
