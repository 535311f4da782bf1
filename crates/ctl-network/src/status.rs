//! Statuses: what the kernel has, and what follows from it.

pub mod address;
pub mod event;
pub mod link;
pub mod network;
pub mod node_address;
pub mod probe;
pub mod route;
