//! What is started from a system disk, and how that changes: slots, boot loader files and variables, plans.
//!
//! Everything here decides; nothing touches a disk. [`slots`] says which slot may be written, started and kept, in durable
//! operations; [`plan`] turns those into steps on files, variables and META for [`grub`] and [`sdboot`], and runs them
//! over a port; [`health`] says when a slot on trial is good, [`last_boot`] why the machine went down.
//!
//! The rule behind all of it: **the default slot is never a write target and stays the default until another one was
//! started through firmware and boot loader and found healthy.**

pub mod cmdline;
pub mod grub;
pub mod health;
pub mod last_boot;
pub mod plan;
pub mod record;
pub mod sdboot;
pub mod slots;

pub use slots::{Slot, Slots};
