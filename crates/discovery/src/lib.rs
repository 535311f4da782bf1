//! How the nodes of a cluster find each other. A discovery service passes on what nodes tell about themselves; all of
//! it is sealed with a key only the nodes have, so the service learns nothing but who is in touch with it.
//!
//! - [`affiliate`]: what a node tells, and how it is sealed. Pure.
//! - [`directory`]: what a service keeps, for how long, and within which bounds. Pure.
//! - [`service`]: the directory over gRPC.
//! - [`client`]: a node's side, which keeps trying.

pub mod affiliate;
pub mod client;
pub mod directory;
pub mod rate;
pub mod service;

pub use affiliate::{Affiliate, ControlPlane, Endpoint, KubeSpan};
pub use client::{Client, Local, Options};
pub use directory::Directory;
pub use service::Discovery;
