//! Sequencer, services and the machine API of a node.

pub mod api;
pub mod events;
pub mod platform;
pub mod reactor;
pub mod sequencer;
pub mod services;
pub mod supervisor;
