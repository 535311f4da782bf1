//! Is the cluster healthy? The checks of clients and nodes alike.
//!
//! [`checks`] decides from what was observed and knows no network; [`access`] asks machines; [`cluster`] joins
//! the two; [`run`] repeats a check until it passes, is skipped or its time is over.

pub mod access;
pub mod checks;
pub mod cluster;
pub mod kube;
pub mod objects;
pub mod run;
pub mod spec;
pub mod topology;

pub use access::{Access, Kubernetes, Objects, Resource};
pub use checks::Verdict;
pub use cluster::{Check, Cluster};
pub use kube::Lazy;
pub use run::{Report, Unhealthy, run, run_to_the_end};
pub use topology::{Kind, Machine, Topology};
