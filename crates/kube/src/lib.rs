//! A small client of the Kubernetes API: objects are JSON values, kinds are found by asking the server.
//!
//! One HTTP/2 connection carries all calls of a [`Client`]; it is made when needed and made again when it breaks.
//! Every call has a deadline, every answer a largest size. [`Watch`] is a list followed by changes, taken up again
//! where it broke off.

mod access;
mod client;
mod drain;
mod error;
mod http2;
mod kind;
pub mod manifest;
mod transport;
mod watch;

pub use access::{Access, AccessError};
pub use client::{Client, Delete, List, Patch, Select, Write};
pub use drain::{Drain, DrainError, Drained, Limits, drain};
pub use error::{Error, Status, chain};
pub use ichor_rpc::Endpoint;
pub use kind::{Kind, Target};
pub use transport::{Chunks, Reply, Request, Transport};
pub use watch::{Event, Watch};
