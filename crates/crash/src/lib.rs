//! For tests only: power cuts of a machine with two slots.
//!
//! [`life::scenarios`] runs plans of `ichor-boot` on a [`disk::State`] that records every write. [`cuts::each`] gives what a
//! power cut may leave of each plan: every prefix of its writes, and subsets of what was not flushed. [`firmware`] and [`meta`]
//! read such a disk as firmware, boot loader and machine do, sharing no code with what wrote it, and [`Scenario::check`] says what
//! has to be true of it.

mod check;
pub mod cuts;
pub mod disk;
pub mod firmware;
pub mod life;
pub mod meta;
mod sha256;
pub mod state_volume;
mod write;

pub use cuts::Scenario;
pub use disk::State;
pub use firmware::Started;
pub use life::{Kind, Life, scenarios};
