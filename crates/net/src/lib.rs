//! Links, addresses, routes over netlink; DHCP and other small protocols.
//!
//! Knows nothing of resources or configuration: plain values in, plain values out.

pub mod address;
pub mod arp;
pub mod balancer;
pub mod capture;
pub mod cmdline;
pub mod dhcp4;
pub mod dhcp6;
pub mod dns;
pub mod error;
pub mod hostname;
mod kept;
pub mod link;
pub mod neighbour;
pub mod netlink;
pub mod netns;
pub mod nftables;
mod raw;
pub mod route;
pub mod rule;
pub mod sntp;
pub mod sockets;
pub mod tap;
pub mod watch;

pub use error::{KernelError, NetError};
pub use netlink::Netlink;
