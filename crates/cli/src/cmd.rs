//! The commands, and the table that holds them all.

pub mod apply;
pub mod audit;
pub mod cgroups;
pub mod cluster;
pub mod completion;
pub mod config;
pub mod conformance;
pub mod containers;
pub mod copy;
pub mod dashboard;
pub mod edit;
pub mod etcd;
mod etcd_backup;
mod etcd_snapshot;
pub mod events;
pub mod files;
pub mod gen_config;
pub mod gen_pki;
pub mod gen_secureboot;
pub mod get;
pub mod health;
pub mod image;
mod image_build;
mod image_bundle;
pub mod image_cache;
pub mod image_cert;
pub mod inject;
pub mod inspect;
pub mod kubernetes;
pub mod lifecycle;
pub mod logs;
pub mod machineconfig;
pub mod memory;
pub mod meta;
pub mod mounts;
pub mod netstat;
pub mod old;
pub mod patch;
pub mod pcap;
pub mod processes;
pub mod rotate_ca;
pub mod service;
pub mod support;
pub mod time;
pub mod upgrade;
pub mod upgrade_k8s;
pub mod usage;
pub mod version;
pub mod why;
pub mod wipe;

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
        &audit::AUDIT,
        &etcd::BOOTSTRAP,
        &cgroups::CGROUPS,
        &config::CONFIG,
        &conformance::CONFORMANCE,
        &containers::CONTAINERS,
        &copy::COPY,
        &dashboard::DASHBOARD,
        &logs::DMESG,
        &edit::EDIT,
        &etcd::ETCD,
        &events::EVENTS,
        &get::GET,
        &health::HEALTH,
        &image::IMAGE,
        &inspect::INSPECT,
        &kubernetes::KUBECONFIG,
        &files::LIST,
        &logs::LOGS,
        &memory::MEMORY,
        &meta::META,
        &mounts::MOUNTS,
        &netstat::NETSTAT,
        &patch::PATCH,
        &pcap::PCAP,
        &processes::PROCESSES,
        &files::READ,
        &lifecycle::REBOOT,
        &lifecycle::RESET,
        &containers::RESTART,
        &upgrade::ROLLBACK,
        &rotate_ca::ROTATE_CA,
        &service::SERVICE,
        &lifecycle::SHUTDOWN,
        &containers::STATS,
        &support::SUPPORT,
        &time::TIME,
        &upgrade::UPGRADE,
        &upgrade_k8s::UPGRADE_K8S,
        &usage::USAGE,
        &version::VERSION,
        &why::WHY,
        &wipe::WIPE,
        &old::CRASHDUMP,
        &old::DISKS,
        &old::INTERFACES,
        &old::ROUTES,
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
