//! A registry that only gives: it serves the images of an OCI layout to container runtimes, over the pull half of the
//! distribution protocol. Local clusters and nodes with an image cache use it as a mirror of the official registries.
//!
//! Deciding is apart from doing: [`route`] reads requests, [`layout`] knows what there is, [`serve`] moves bytes.

pub mod layout;
pub mod route;
pub mod serve;
mod stall;

pub use layout::{Layout, LayoutError};
pub use serve::{Limits, serve, serve_all};
