//! The client of the node API: contexts, endpoints, nodes, replies, resources, watches, actions.

pub mod channel;
pub mod client;
pub mod definitions;
pub mod endpoint;
pub mod events;
pub mod json;
pub mod lines;
pub mod profile;
pub mod reply;
pub mod resources;
pub mod target;
pub mod track;

pub use channel::{Channel, Unreachable};
pub use client::{Client, Identity, Routed};
pub use definitions::{Definitions, UnknownType};
pub use endpoint::Endpoint;
pub use ichor_rpc::ClientTls;
pub use ichor_rpc::dial::DialError;
pub use reply::{NodeError, Reply, Split, sort, split, status_text};
pub use target::Target;
