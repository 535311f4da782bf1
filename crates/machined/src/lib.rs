//! Sequencer, services and the machine API of a node.

pub mod api;
pub mod daemons;
pub mod events;
pub mod node;
pub mod platform;
pub mod reactor;
pub mod sequencer;
pub mod services;
pub mod supervisor;
pub mod tasks;
pub mod version;
