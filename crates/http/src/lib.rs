//! The HTTP/1.1 client and server of the workspace, on hyper: everything that is neither gRPC nor the Kubernetes API.
//!
//! Both are bounded: connections, the time for a request or a response to begin, the time between two pieces of a
//! body, the size of what is collected.

mod body;
pub mod client;
pub mod server;

pub use body::{BoxError, Pieces, RequestBody, empty, full};
pub use client::{Client, ClientError};
