//! The machine API: what a client can ask of this node.

pub mod archive;
pub mod capture;
pub mod client_config;
pub mod configuration;
pub mod containers;
pub mod etcd;
pub mod files;
pub mod generate;
pub mod guard;
pub mod health;
pub mod host;
pub mod kubeconfig;
pub mod lifecycle;
pub mod log_file;
pub mod machine;
pub mod meta;
pub mod mode;
pub mod others;
pub mod proc;
pub mod ration;
pub mod reply;
pub mod server;
pub mod sockets;
pub mod streams;
pub mod walk;
pub mod why;
