//! Kubernetes versions: which upgrades there are, what they remove, and how far one has come.

pub mod path;
pub mod progress;
pub mod settled;
pub mod workloads;
