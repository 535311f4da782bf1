//! Kubernetes versions: which upgrades there are, what they remove, how far one has come; runs of its tests,
//! objects in the form of its types.

pub mod conformance;
pub mod path;
pub mod patience;
pub mod progress;
pub mod quantity;
pub mod settled;
pub mod typed;
pub mod workloads;
