//! Sequencer, services and the machine API of a node.

pub mod api;
pub mod audit;
pub mod cri;
pub mod daemons;
pub mod download;
pub mod drain;
pub mod environment;
pub mod etcd;
pub mod event_sink;
pub mod events;
pub mod families;
pub mod images;
pub mod kernel_log;
mod kube;
pub mod kubelet;
pub mod lanes;
pub mod maintenance;
pub mod meta;
pub mod node;
pub mod platform;
pub mod pods;
pub mod prism;
mod programs;
pub mod reactor;
pub mod registryd;
pub mod sequencer;
pub mod service_controller;
pub mod services;
pub mod sources;
pub mod start;
pub mod supervisor;
pub mod tasks;
pub mod trust;
pub mod udevd;
pub mod version;

pub use start::main;
