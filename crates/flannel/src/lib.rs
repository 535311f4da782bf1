//! Joins the pods of all nodes into one network, in the place of flannel: same names, flags, annotations and files, so
//! that either can take over from the other.
//!
//! One program with three names: `flanneld` runs on every node and programs the kernel ([`daemon`]), `flannel` is the
//! CNI plugin that container runtimes call ([`cni`]), `cp` puts the network's configuration in place ([`copy`]).

pub mod args;
pub mod cni;
pub mod copy;
pub mod daemon;
pub mod kernel;
pub mod lease;
pub mod masquerade;
pub mod net_conf;
pub mod plan;
pub mod subnet_env;
pub mod uplink;

use std::process::ExitCode;

/// What this program stands in for.
pub const VERSION: &str = "v0.27.4";

/// Runs the program that the name (the last part of the first argument) asks for.
pub fn run(args: Vec<String>) -> ExitCode {
    let mut args = args.into_iter();
    let path = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    match path.rsplit('/').next().unwrap_or_default() {
        "cp" => copy::main(&rest),
        "flanneld" => daemon::main(&rest),
        _ => cni::main(),
    }
}
