//! How machined has its services started by init, and finds them again after its own death.
//!
//! The two share a `SOCK_SEQPACKET` pair; machined inherits its end as [`SOCKET_FD`]. Each message is one
//! fixed [`wire::Frame`], a spawn request has a bounded tail of strings, and descriptors travel beside them.
//! The services are children of init, so their exit statuses wait there until machined releases them, and
//! their output waits in pipes whose reading ends init keeps. A new machined asks for the list and goes on.
//!
//! ```text
//! machined → init   Hello, List, Spawn, Signal, Release, Keep, Drop, Reboot
//! init → machined   one answer for each (same `seq`), and at any time Exited and Power
//! ```

pub mod client;
pub mod exec;
#[doc(hidden)]
pub mod fuzzing;
pub mod launch;
pub mod local;
mod root;
pub mod server;
mod view;
pub mod wire;

pub use client::{Child, ChildState, Client, Event, Seq, SpawnRequest};
pub use exec::Failure;
pub use launch::Launcher;
pub use server::{Outcome, Server};
pub use wire::{ChildId, GuardNotice, PowerRequest, RebootCommand, Stage};

/// Where machined finds its end of the socket.
pub const SOCKET_FD: i32 = 3;

/// The most children init keeps track of, running or waiting for release.
pub const CHILDREN_MAX: usize = 64;

/// The most descriptors init keeps for machined.
pub const KEPT_MAX: usize = 64;
