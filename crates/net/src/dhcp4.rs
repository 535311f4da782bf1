//! A DHCPv4 client, and a small server.
//!
//! [`machine`] decides, [`message`] is the wire format, [`lease`] what a server granted, [`client`] the
//! sockets and the clock; [`server`] is the other side.

pub mod client;
pub mod lease;
pub mod machine;
pub mod message;
mod packet;
pub mod server;

pub use client::{Event, run};
pub use lease::Lease;
pub use machine::{ClientId, Config};
