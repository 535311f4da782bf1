//! What is said of slots and boots.

use std::fmt;

/// A place for a system on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slot {
    /// The first.
    A,
    /// The second.
    B,
}

impl Slot {
    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// Its name in boot loader files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::B => "B",
        }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The kernel's identifier of one boot; it tells a restarted machined from a restarted machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BootId(pub u128);

/// How the running kernel was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootPath {
    /// By firmware and boot loader: what happens after a power cut, too.
    Firmware,
    /// By another kernel. It says nothing about whether the slot starts from cold.
    Kexec,
}

impl BootPath {
    /// The type of boot loader that `kexec_file_load` enters for itself.
    const KEXEC: u32 = 0xd;

    /// Reads `/proc/sys/kernel/bootloader_type`: the type in the upper bits, the version in the lower four. Where there
    /// is no such file there is no kexec either.
    pub fn from_bootloader_type(number: Option<u32>) -> Self {
        match number {
            Some(number) if number >> 4 == Self::KEXEC => Self::Kexec,
            Some(_) | None => Self::Firmware,
        }
    }
}

/// What is known of the default slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It was not healthy yet: a first installation, or one that another installer made the default.
    Unproven,
    /// It was healthy.
    Good,
}

/// Where a trial is. It starts once: `tries left` is one until it was started, then none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trial {
    /// Written and verified; the one-shot entry may be set or not.
    Prepared {
        /// The boot that did it.
        by: BootId,
    },
    /// The one-shot entry is set: the next boot through the boot loader starts it.
    Armed {
        /// The boot that did it.
        by: BootId,
    },
    /// It runs, or ran, in this boot.
    Started {
        /// Which boot that is.
        boot: BootId,
    },
}

impl Trial {
    /// How often it may still be started.
    pub fn tries_left(self) -> u8 {
        match self {
            Self::Prepared { .. } | Self::Armed { .. } => 1,
            Self::Started { .. } => 0,
        }
    }
}

/// Why a slot did not become the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It was started and nothing was heard of it: kernel or init hung or panicked, or the power was cut.
    NeverCameUp,
    /// It came up and went down again before it was judged.
    EndedEarly,
    /// It was not healthy within the deadline.
    Unhealthy,
    /// It was started a second time, which the boot loader should not do.
    StartedTwice,
    /// A person gave it up.
    RolledBack,
}

/// What is in the slot that is not the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Other {
    /// Nothing, or something half written.
    Empty,
    /// Complete, and never started: the upgrade was interrupted or taken back.
    Untested,
    /// A system that was there before anybody kept a record.
    Unjudged,
    /// A system that was healthy: the way back.
    Good,
    /// A new system, not judged yet.
    Trial(Trial),
    /// A system that did not become the default.
    Failed {
        /// Why.
        failure: Failure,
        /// The boot that found it so.
        by: BootId,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NeverCameUp => "it never came up",
            Self::EndedEarly => "it went down before it was judged",
            Self::Unhealthy => "it was not healthy within the deadline",
            Self::StartedTwice => "it was started a second time",
            Self::RolledBack => "it was rolled back",
        })
    }
}
