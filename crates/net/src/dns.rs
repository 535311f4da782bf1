//! A DNS cache for this machine: forwards questions, remembers answers.
//!
//! [`message`] and [`cache`] are pure, [`forward`] asks upstreams, [`server`] listens.

pub mod cache;
pub mod forward;
pub mod message;
pub mod server;

pub use forward::Forwarder;
pub use server::{Listener, serve};
