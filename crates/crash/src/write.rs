//! What can be written and flushed, one by one.

use std::collections::BTreeMap;
use std::sync::Arc;

use ichor_boot::plan::Volume;

/// What a disk writes whole or not at all.
pub const SECTOR: usize = 512;

/// Sectors by their number.
pub type Sectors = BTreeMap<usize, Arc<[u8]>>;

/// The number of a file.
pub type Inode = u32;

/// What flushes by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Domain {
    /// A filesystem of the boot loader.
    Volume(Volume),
    /// The partition META.
    Meta,
    /// The volume of the configuration.
    State,
    /// The variables of the firmware.
    Firmware,
}

/// One write that a disk does in one piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// A sector of a file.
    Data {
        /// Which file.
        inode: Inode,
        /// Which sector.
        sector: usize,
        /// What.
        bytes: Arc<[u8]>,
    },
    /// How many sectors of it can be found: the chain of FAT, the extents of XFS.
    Extent {
        /// Which file.
        inode: Inode,
        /// How many.
        sectors: usize,
    },
    /// FAT's short entry, XFS's name: a size comes with it (FAT) or not (XFS).
    Name {
        /// On which filesystem.
        volume: Volume,
        /// The path.
        path: String,
        /// The file, and its size.
        entry: Option<(Inode, Option<usize>)>,
        /// Whether it goes with another one.
        part: Part,
    },
    /// The size in the inode, XFS and the volume of the configuration.
    Size {
        /// Which file.
        inode: Inode,
        /// Bytes.
        len: usize,
    },
    /// Whether FAT's long name is there: without it the short one is what is seen.
    LongName {
        /// The path.
        path: String,
        /// Whether it is.
        is_there: bool,
    },
    /// A variable of the firmware.
    Variable {
        /// Its name in efivarfs.
        file: String,
        /// Attributes and value.
        value: Option<Vec<u8>>,
    },
    /// A sector of META.
    Meta {
        /// Which.
        sector: usize,
        /// What.
        bytes: Arc<[u8]>,
    },
    /// A name on the volume of the configuration.
    Entry {
        /// The name.
        name: String,
        /// The file.
        inode: Option<Inode>,
    },
    /// A file takes the place of another on the volume of the configuration.
    Rename {
        /// The old name.
        from: String,
        /// The new one.
        to: String,
        /// The file.
        inode: Inode,
    },
}

/// Names that change together: two sectors for who reads past the log, one entry of it for who replays it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// A name by itself.
    Whole,
    /// The first of two that are exchanged.
    First,
    /// The second.
    Second,
}

/// What is on the disk once it was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Barrier {
    /// Everything.
    Of(Domain),
    /// Bytes and size of a file of the configuration's volume.
    File(Inode),
    /// Names on that volume.
    Names,
}

impl Barrier {
    /// Whether it has this write on disk.
    pub fn covers(self, domain: Domain, write: &Write) -> bool {
        match self {
            Self::Of(other) => other == domain,
            Self::File(file) => {
                let is_of_file = match write {
                    Write::Data { inode, .. } | Write::Size { inode, .. } => *inode == file,
                    _ => false,
                };
                domain == Domain::State && is_of_file
            }
            Self::Names => {
                domain == Domain::State && matches!(write, Write::Entry { .. } | Write::Rename { .. })
            }
        }
    }
}

/// What happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// A write, which is on disk after the next barrier that covers it.
    Write(Domain, Write),
    /// A barrier.
    Barrier(Barrier),
}
