//! Plans: ordered steps on files, firmware variables and META, and the loop that carries them out over a port.
//!
//! [`disk::BootDisk`] makes them from the operations of [`crate::slots`]. What each step promises about a power cut:
//!
//! | Step | After a power cut in the middle of it |
//! |---|---|
//! | `Write` | anything may be in the file, or no file; nothing refers to it yet |
//! | `Overwrite` | the old bytes or the new ones: one sector, in place, no metadata |
//! | `Exchange` | two files have each other's names, or not: both exist all the time |
//! | `Delete` | the name is gone or not; space may be lost, and is never used twice |
//! | `Flush` | — ; afterwards everything before it is on disk, **where the boot loader reads it** |
//! | `SetVariable`, `DeleteVariable` | the old value or the new one |
//! | `SetMeta`, `DeleteMeta` | the old values or the new ones: two copies, one after the other |
//!
//! GRUB reads XFS without replaying its log. So `Flush` of BOOT has to freeze and thaw the filesystem (or unmount it),
//! which empties the log; `fsync` alone is not enough. And `grub.cfg` is not replaced by a rename, which would free the
//! inode of the old file while GRUB may still see its name: the new file is exchanged with the old one and the old one is
//! kept as a spare.
//!
//! FAT has no log at all, and a rename there may leave two names for the same clusters, of which the deletion of one
//! destroys the other. So nothing is renamed on FAT: an image is written under its own name, which no boot loader takes
//! before the one-shot entry names it. `Delete` has to keep the file open while it removes the name, flush, and close it
//! then, so that clusters are free only when no name refers to them.

pub mod disk;
mod loader;

use crate::sdboot::variable::Variable;

/// A filesystem that a boot loader reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Volume {
    /// The EFI system partition, FAT.
    Efi,
    /// The partition of GRUB, XFS.
    Boot,
}

/// A part of a new system, wherever it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asset {
    /// The unified kernel image.
    Uki,
    /// The kernel of it.
    Kernel,
    /// The initramfs of it.
    Initramfs,
    /// systemd-boot.
    Loader,
}

/// What a file is to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// These bytes.
    Bytes(Vec<u8>),
    /// A part of the new system.
    Asset(Asset),
}

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Creates a file or replaces what is in it, with the folders above it.
    Write {
        /// Where.
        volume: Volume,
        /// The file.
        path: String,
        /// What.
        content: Content,
    },
    /// Replaces the first bytes of a file in place; it is not truncated first.
    Overwrite {
        /// Where.
        volume: Volume,
        /// The file.
        path: String,
        /// At most a sector that differs from what is there.
        bytes: Vec<u8>,
    },
    /// Reads a file back from the disk, past the page cache, and compares.
    Verify {
        /// Where.
        volume: Volume,
        /// The file.
        path: String,
        /// What it has to hold.
        asset: Asset,
    },
    /// Gives two files each other's names.
    Exchange {
        /// Where.
        volume: Volume,
        /// One.
        path: String,
        /// The other.
        with: String,
    },
    /// Deletes a file: its name first, then its space. One that is not there is fine.
    Delete {
        /// Where.
        volume: Volume,
        /// The file.
        path: String,
    },
    /// Puts everything before it where the boot loader reads it.
    Flush {
        /// Where.
        volume: Volume,
    },
    /// Sets a variable of the firmware.
    SetVariable {
        /// Which.
        variable: Variable,
        /// Attributes and value, as efivarfs takes them.
        bytes: Vec<u8>,
    },
    /// Deletes a variable of the firmware. One that is not there is fine.
    DeleteVariable {
        /// Which.
        variable: Variable,
    },
    /// Sets a value of META.
    SetMeta {
        /// The key.
        key: u8,
        /// The value.
        value: Vec<u8>,
    },
    /// Deletes a value of META. One that is not there is fine.
    DeleteMeta {
        /// The key.
        key: u8,
    },
    /// Clears a partition.
    Wipe {
        /// By its label.
        label: String,
    },
}

/// Carries out single steps; see the module for what a power cut may leave.
pub trait Port {
    /// What can go wrong.
    type Error;

    /// Carries out one step. It is on disk when this returns, except for `Write` and `Exchange`, which a `Flush`
    /// follows.
    ///
    /// # Errors
    /// When it could not be done; nothing after it is tried.
    fn carry_out(&mut self, step: &Step) -> Result<(), Self::Error>;
}

/// A step that failed.
#[derive(Debug, thiserror::Error)]
#[error("step {number} of {of}, {step}: not done; the system that was started stays the default")]
pub struct StepError<E: std::error::Error + 'static> {
    number: usize,
    of: usize,
    step: String,
    #[source]
    source: E,
}

/// Carries out a plan, one step after the other.
///
/// # Errors
/// The first that failed. What was done before it stays, and is what [`crate::slots::Slots::boot`] continues from.
pub fn execute<P: Port>(steps: &[Step], port: &mut P) -> Result<(), StepError<P::Error>>
where
    P::Error: std::error::Error + 'static,
{
    for (at, step) in steps.iter().enumerate() {
        port.carry_out(step).map_err(|source| StepError {
            number: at + 1,
            of: steps.len(),
            step: step.to_string(),
            source,
        })?;
    }
    Ok(())
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = |volume: &Volume| match volume {
            Volume::Efi => "EFI",
            Volume::Boot => "BOOT",
        };
        match self {
            Self::Write { volume, path, content: Content::Bytes(bytes) } => {
                write!(f, "write {} bytes to {path} on {}", bytes.len(), name(volume))
            }
            Self::Write { volume, path, content: Content::Asset(asset) } => {
                write!(f, "write {asset:?} to {path} on {}", name(volume))
            }
            Self::Overwrite { volume, path, .. } => write!(f, "overwrite {path} on {}", name(volume)),
            Self::Verify { volume, path, .. } => write!(f, "verify {path} on {}", name(volume)),
            Self::Exchange { volume, path, with } => {
                write!(f, "exchange {path} with {with} on {}", name(volume))
            }
            Self::Delete { volume, path } => write!(f, "delete {path} on {}", name(volume)),
            Self::Flush { volume } => write!(f, "flush {}", name(volume)),
            Self::SetVariable { variable, .. } => write!(f, "set {}", variable.file()),
            Self::DeleteVariable { variable } => write!(f, "delete {}", variable.file()),
            Self::SetMeta { key, .. } => write!(f, "set META 0x{key:02x}"),
            Self::DeleteMeta { key } => write!(f, "delete META 0x{key:02x}"),
            Self::Wipe { label } => write!(f, "wipe {label}"),
        }
    }
}
