//! Has the kernel pass bridged packets to the packet filter, in the network namespaces of machines.
//!
//! A pod that calls a service may get a pod on its own node for an answer, whose packets come back over the bridge of
//! the node: without `br_netfilter` nobody translates their address back. Machines cannot load modules, so the
//! supervisor does it for them.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::scope::PATH;

const MODULE: &str = "br_netfilter";
const SETTINGS: &str = "/proc/sys/net/bridge";
/// What the module turns on in every namespace, that of the host included.
const CALLS: [&str; 3] = ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables", "bridge-nf-call-arptables"];

/// Loads the module if it is missing, and keeps bridges of the host itself as they were: not filtered. Runs in the
/// network namespace of the host. A machine without it works but for such calls, so that is only told.
pub(crate) fn load() {
    if Path::new(SETTINGS).is_dir() {
        return;
    }
    let done = Command::new("modprobe").env("PATH", PATH).arg(MODULE).stdin(Stdio::null()).output();
    if !Path::new(SETTINGS).is_dir() {
        let reason = match done {
            Ok(done) => String::from_utf8_lossy(&done.stderr).trim().to_owned(),
            Err(error) => format!("modprobe: {error}"),
        };
        eprintln!("pods cannot reach services through pods of their own node: no module {MODULE}: {reason}");
        return;
    }
    for call in CALLS {
        if let Err(error) = fs::write(Path::new(SETTINGS).join(call), "0") {
            eprintln!("{SETTINGS}/{call}: {error}; bridges of this host are filtered now");
        }
    }
}
