//! Why a system could not be installed.

use std::io;
use std::path::PathBuf;

use crate::artifacts::ArtifactError;
use crate::layout::LayoutError;

/// Why a system could not be installed, or the slots of a disk not be changed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The disk.
    #[error("{what} {}", path.display())]
    Disk {
        /// What was being done.
        what: &'static str,
        /// To what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// Somebody uses the disk.
    #[error("{} is in use: a partition of it is mounted or part of another device", path.display())]
    InUse {
        /// The disk.
        path: PathBuf,
    },
    /// There is something on the disk.
    #[error(
        "{} is not empty: {found}; installing to it loses that. Set machine.install.wipe or pass --force to do so",
        path.display()
    )]
    NotEmpty {
        /// The disk.
        path: PathBuf,
        /// What is there.
        found: String,
    },
    /// The disk is not installed.
    #[error("{} is no system disk: {reason}; install instead of upgrading", path.display())]
    NotInstalled {
        /// The disk.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// The system does not fit.
    #[error("{what} has {len} bytes, and {place} has room for {room} of it twice; use a smaller image")]
    TooLarge {
        /// The part.
        what: &'static str,
        /// Its size.
        len: u64,
        /// The partition.
        place: &'static str,
        /// The room for one.
        room: u64,
    },
    /// What was read back differs.
    #[error("{}: {what} read back differs from what was written; the disk is not to be trusted", path.display())]
    Differs {
        /// The disk.
        path: PathBuf,
        /// Which part.
        what: &'static str,
    },
    /// The boot loader for this firmware is not part of the installer.
    #[error("the installer has no {0} for the firmware of this machine")]
    NoLoader(&'static str),
    /// META cannot be used.
    #[error("META of {}: {reason}", path.display())]
    Meta {
        /// The disk.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The configuration.
    #[error("the machine configuration cannot be used: {0}")]
    Config(String),
    /// A filesystem could not be mounted.
    #[error("{0}: {source}", source = .0.source)]
    Mount(#[from] ichor_sys::mount::MountError),
    /// The layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The parts.
    #[error(transparent)]
    Artifacts(#[from] ArtifactError),
    /// A filesystem that was to be made.
    #[error(transparent)]
    Image(#[from] ichor_image::Error),
    /// The slots.
    #[error(transparent)]
    Plan(#[from] ichor_boot::plan::disk::PlanError),
    /// The boot loader.
    #[error(transparent)]
    Boot(#[from] ichor_sys::boot_port::BootError),
    /// A step.
    #[error(transparent)]
    Step(#[from] ichor_boot::plan::StepError<ichor_sys::boot_port::BootError>),
    /// The partition table.
    #[error("{}", path.display())]
    Table {
        /// The disk.
        path: PathBuf,
        /// Why.
        #[source]
        source: ichor_block::gpt::GptError,
    },
}

/// The whole chain of an error in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.ends_with(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        next = cause.source();
    }
    text
}
