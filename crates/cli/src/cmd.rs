//! The commands, and the table that holds them all.

pub mod apply;
pub mod cluster;
pub mod completion;
pub mod config;
pub mod copy;
pub mod edit;
pub mod events;
pub mod files;
pub mod gen_config;
pub mod gen_pki;
pub mod get;
pub mod inject;
pub mod inspect;
pub mod lifecycle;
pub mod logs;
pub mod machineconfig;
pub mod memory;
pub mod mounts;
pub mod patch;
pub mod processes;
pub mod service;
pub mod time;
pub mod version;
pub mod why;

use crate::table::{Command, Group};

/// The whole table, by its root.
pub static ROOT: Command = Command {
    name: "ichorctl",
    group: Group::Other,
    about: "Manage Ichor machines",
    long: "ichorctl manages machines and clusters through the machine API.\n\n\
           Connection flags (-n, -e, --talosconfig, --context) may stand before or after the command.",
    subcommands: &[
        &apply::APPLY,
        &config::CONFIG,
        &copy::COPY,
        &logs::DMESG,
        &edit::EDIT,
        &events::EVENTS,
        &get::GET,
        &inspect::INSPECT,
        &files::LIST,
        &logs::LOGS,
        &memory::MEMORY,
        &mounts::MOUNTS,
        &patch::PATCH,
        &processes::PROCESSES,
        &files::READ,
        &lifecycle::REBOOT,
        &lifecycle::RESET,
        &service::SERVICE,
        &lifecycle::SHUTDOWN,
        &time::TIME,
        &version::VERSION,
        &why::WHY,
        &gen_config::GEN,
        &inject::INJECT,
        &machineconfig::MACHINECONFIG,
        &machineconfig::VALIDATE,
        &cluster::CLUSTER,
        &completion::COMPLETION,
        &completion::DOCS,
    ],
    ..Command::EMPTY
};
