//! A DHCPv4 client.
//!
//! [`machine`] decides, [`message`] is the wire format, [`lease`] what a server granted, [`client`] the
//! sockets and the clock.

pub mod client;
pub mod lease;
pub mod machine;
pub mod message;
mod packet;

pub use client::{Event, run};
pub use lease::Lease;
pub use machine::{ClientId, Config};
