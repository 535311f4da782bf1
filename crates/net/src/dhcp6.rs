//! A DHCPv6 client for addresses (RFC 8415, without prefix delegation).
//!
//! [`machine`] decides, [`message`] is the wire format, [`lease`] what a server granted, [`client`] the
//! socket and the clock.

pub mod client;
pub mod lease;
pub mod machine;
pub mod message;

pub use client::run;
pub use lease::Lease;
pub use machine::{Config, Duid};

/// What happened to the lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A lease is there, or was renewed.
    Bound(Box<Lease>),
    /// The lease is gone.
    Lost,
    /// Nobody answers; told once per silence.
    Silent(String),
}
