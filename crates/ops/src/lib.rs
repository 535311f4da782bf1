//! Engines that act on a cluster from outside: bring-up, machines that come and go, upgrade, rotation, backup, health,
//! conformance, one action on many machines.
//!
//! Each takes typed options, reports typed events to a [`Sink`] and returns a typed [`Error`]. None prints, and none knows
//! the command line: `ichorctl` renders the events, other programs record them.

pub mod cluster;
pub mod conformance;
pub mod error;
pub mod etcd;
pub mod event;
pub mod fleet;
pub mod generate;
pub mod health;
pub mod inject;
pub mod kubeconfig;
pub mod many;
pub mod node_config;
mod patience;
pub mod providers;
pub mod rotate;
mod settled;
pub mod upgrade;
mod workloads;
pub mod yaml;

pub use error::{Error, Problem, Result};
pub use event::{Silent, Sink};
pub use fleet::Fleet;
