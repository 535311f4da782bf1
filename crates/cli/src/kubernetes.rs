//! Kubernetes versions: which upgrades there are, what they remove, how far one has come; runs of its tests.

pub mod conformance;
pub mod path;
pub mod progress;
pub mod settled;
pub mod workloads;
