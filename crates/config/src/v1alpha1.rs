//! The root document: `version`, `debug`, `persist`, `machine`, `cluster`.

pub mod cluster;
pub mod control_plane;
pub mod encryption;
pub mod features;
pub mod install;
pub mod kubelet;
pub mod machine;
pub mod network;
pub mod registries;

pub use cluster::ClusterConfig;
pub use machine::MachineConfig;

use crate::model::section;

section! {
    /// The root document of a machine configuration.
    ///
    /// It has no `apiVersion` and no `kind`; one of `machine`, `cluster`, `debug`, `persist` marks it.
    pub struct Config {
        /// Version of the document format; by convention `v1alpha1`.
        @always
        "version" => version: String,
        /// Stream the logs of all services to the console.
        @default("false")
        "debug" => debug: Option<bool>,
        /// Keep the configuration across reboots. Only `true` is accepted.
        @deprecated("leave it out, configuration is always kept")
        @default("true")
        "persist" => persist: Option<bool>,
        /// How this machine is set up.
        @always
        "machine" => machine: Option<Box<MachineConfig>>,
        /// The cluster this machine belongs to.
        @always
        "cluster" => cluster: Option<Box<ClusterConfig>>,
    }
}
