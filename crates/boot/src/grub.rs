//! GRUB: its configuration file, as the original writes and reads it, and its environment block.
//!
//! The configuration names the default slot, which changes only when another one was found good. A slot on trial is
//! started through `next_entry` in the environment block: the configuration has GRUB take the name out of the block and
//! write the block back, and follows it only if that worked. So a trial is started at most once.

pub mod config;
pub mod env;

pub use config::{Entry, GrubConfig, GrubError};
pub use env::{EnvBlock, EnvError};

/// The configuration, in the BOOT filesystem.
pub const CONFIG_PATH: &str = "grub/grub.cfg";
/// What the configuration is exchanged with: the new one before, the old one afterwards.
pub const SPARE_PATH: &str = "grub/grub.cfg.spare";
/// The environment block, in the BOOT filesystem.
pub const ENV_PATH: &str = "grub/grubenv";
/// The variable that names the entry to be started once.
pub const NEXT_ENTRY: &str = "next_entry";

/// The kernel of a slot, in the BOOT filesystem.
pub fn kernel_path(slot: crate::Slot) -> String {
    format!("{slot}/vmlinuz")
}

/// The initramfs of a slot, in the BOOT filesystem.
pub fn initramfs_path(slot: crate::Slot) -> String {
    format!("{slot}/initramfs.xz")
}
