//! The machine API: what a client can ask of this node.

pub mod archive;
pub mod files;
pub mod mode;
pub mod proc;
pub mod reply;
pub mod walk;
