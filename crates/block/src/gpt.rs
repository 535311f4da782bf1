//! GPT partition tables: read, change, write.
//!
//! A [`Table`] is a value. [`Table::read`] takes it from any [`Source`], with either of its two copies damaged;
//! [`Table::write`] puts it onto anything that can seek, the backup first, so that a write that is cut short leaves one
//! whole copy. Nothing here touches a device by itself or makes a random number: the same calls give the same bytes.
//!
//! ```
//! use std::io::Cursor;
//! use ichor_block::gpt::{Geometry, NewPartition, Table};
//! use ichor_block::Guid;
//!
//! let geometry = Geometry { size: 64 << 20, sector_size: 512, io_size: 0 };
//! let mut table = Table::new(geometry, Guid::from_random([1; 16])).unwrap();
//! let meta = NewPartition::new("META", Guid::LINUX_DATA, Guid::from_random([2; 16]));
//! assert_eq!(table.add(&meta.size(1 << 20)).unwrap(), 1);
//! let mut image = Cursor::new(vec![0; 64 << 20]);
//! table.write(&mut image).unwrap();
//! let (read, _) = Table::read(image.get_ref(), 512).unwrap().unwrap();
//! assert_eq!(read.offset_and_size(1), Some((1 << 20, 1 << 20)));
//! ```

mod allocate;
mod crc;
mod layout;
mod read;
mod write;

use std::collections::BTreeMap;
use std::io;

pub use allocate::{FreeRange, NewPartition};
pub use read::Health;

use crate::Guid;

/// Entries of a table.
pub const ENTRIES: u32 = 128;
/// Partitions start at multiples of this, or of the device's optimal I/O size if that is larger.
pub const ALIGNMENT: u64 = 1 << 20;
/// UTF-16 units of a name.
pub const NAME_MAX: usize = 36;
/// The attribute of a partition that old firmware may boot from.
pub const LEGACY_BOOTABLE: u64 = 1 << 2;

/// What cannot be done with a table.
#[derive(Debug, thiserror::Error)]
pub enum GptError {
    /// Sizes that no table fits.
    #[error("no partition table fits a device of {size} bytes with sectors of {sector_size}")]
    Geometry {
        /// The device.
        size: u64,
        /// Its sectors.
        sector_size: u32,
    },
    /// There is a table, and neither copy of it is whole.
    #[error(
        "both copies of the partition table are damaged (primary: {primary}; backup: {backup}); wipe the disk to start over"
    )]
    Damaged {
        /// What is wrong with the first.
        primary: &'static str,
        /// What is wrong with the second.
        backup: &'static str,
    },
    /// No free range is large enough.
    #[error("no room for partition {name:?} of {wanted} bytes: the largest free range has {largest}")]
    NoRoom {
        /// The partition.
        name: String,
        /// What it needs.
        wanted: u64,
        /// What there is.
        largest: u64,
    },
    /// All entries are taken.
    #[error("no room for partition {name:?}: all {entries} entries of the table are in use")]
    NoEntry {
        /// The partition.
        name: String,
        /// How many there are.
        entries: u32,
    },
    /// The name is too long.
    #[error("partition name {name:?} is longer than {NAME_MAX} characters")]
    Name {
        /// The name.
        name: String,
    },
    /// There is no such partition.
    #[error("the table has no partition {number}")]
    NoPartition {
        /// Its number.
        number: u32,
    },
    /// The device.
    #[error("{what} the partition table")]
    Io {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

/// What a table has to know of its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of the whole device.
    pub size: u64,
    /// Bytes of a logical sector.
    pub sector_size: u32,
    /// The optimal I/O size, 0 when it has none.
    pub io_size: u64,
}

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// What it is for.
    pub type_guid: Guid,
    /// Which one it is.
    pub guid: Guid,
    /// Its first sector.
    pub first: u64,
    /// Its last sector.
    pub last: u64,
    /// Attribute bits.
    pub attributes: u64,
    /// Its name, also called label.
    pub name: String,
}

impl Partition {
    /// How many sectors it has.
    pub fn sectors(&self) -> u64 {
        self.last - self.first + 1
    }
}

/// A partition table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    disk_guid: Guid,
    sector_size: u32,
    /// Sectors of the device.
    sectors: u64,
    /// Sectors between starts of partitions.
    alignment: u64,
    /// Where the entries of the first copy are.
    entries_at: u64,
    entry_count: u32,
    entry_size: u32,
    /// Whether the protective MBR says that the disk can be booted by old firmware.
    bootable: bool,
    partitions: BTreeMap<u32, Partition>,
}

impl Table {
    /// An empty table for a device.
    ///
    /// # Errors
    /// [`GptError::Geometry`] when the device is too small, or its sectors are of no known size.
    pub fn new(geometry: Geometry, disk_guid: Guid) -> Result<Self, GptError> {
        let Geometry { size, sector_size, io_size } = geometry;
        let bad = GptError::Geometry { size, sector_size };
        if !layout::is_sector_size(sector_size) {
            return Err(bad);
        }
        let table = Self {
            disk_guid,
            sector_size,
            sectors: size / u64::from(sector_size),
            alignment: alignment(sector_size, io_size),
            entries_at: 2,
            entry_count: ENTRIES,
            entry_size: layout::ENTRY_LEN,
            bootable: false,
            partitions: BTreeMap::new(),
        };
        if table.first_usable() > table.last_usable() { Err(bad) } else { Ok(table) }
    }

    /// The same table with its entries at another sector: some boards read their boot loader from where they are.
    ///
    /// # Errors
    /// [`GptError::Geometry`] when nothing would be left between the two copies.
    pub fn with_entries_at(mut self, sector: u64) -> Result<Self, GptError> {
        self.entries_at = sector.max(2);
        match self.first_usable() <= self.last_usable() {
            true => Ok(self),
            false => Err(GptError::Geometry { size: self.size(), sector_size: self.sector_size }),
        }
    }

    /// The same table with the first entry of its protective MBR marked as one to boot from.
    pub fn with_bootable(mut self, bootable: bool) -> Self {
        self.bootable = bootable;
        self
    }

    /// The GUID of the disk.
    pub fn disk_guid(&self) -> Guid {
        self.disk_guid
    }

    /// Bytes of a sector.
    pub fn sector_size(&self) -> u32 {
        self.sector_size
    }

    /// Partitions by number, from 1.
    pub fn partitions(&self) -> &BTreeMap<u32, Partition> {
        &self.partitions
    }

    /// The partition with this name, and its number; the first of several.
    pub fn find(&self, name: &str) -> Option<(u32, &Partition)> {
        self.partitions
            .iter()
            .find(|(_, partition)| partition.name == name)
            .map(|(number, found)| (*number, found))
    }

    /// Where a partition starts and how long it is, in bytes.
    pub fn offset_and_size(&self, number: u32) -> Option<(u64, u64)> {
        let partition = self.partitions.get(&number)?;
        let sector = u64::from(self.sector_size);
        Some((partition.first.checked_mul(sector)?, partition.sectors().checked_mul(sector)?))
    }

    /// Takes a partition out of the table.
    ///
    /// # Errors
    /// [`GptError::NoPartition`].
    pub fn remove(&mut self, number: u32) -> Result<Partition, GptError> {
        self.partitions.remove(&number).ok_or(GptError::NoPartition { number })
    }

    /// Aligns new partitions for a device with this optimal I/O size.
    pub fn align_to(&mut self, io_size: u64) {
        self.alignment = alignment(self.sector_size, io_size);
    }

    fn size(&self) -> u64 {
        self.sectors.saturating_mul(u64::from(self.sector_size))
    }

    /// Sectors of the entries of one copy.
    fn entry_sectors(&self) -> u64 {
        (u64::from(self.entry_count) * u64::from(self.entry_size)).div_ceil(u64::from(self.sector_size))
    }

    /// The first sector a partition may have, aligned.
    fn first_usable(&self) -> u64 {
        let first = self.entries_at.saturating_add(self.entry_sectors());
        first.checked_next_multiple_of(self.alignment).unwrap_or(u64::MAX)
    }

    /// The last sector a partition may have.
    fn last_usable(&self) -> u64 {
        self.sectors.saturating_sub(self.entry_sectors() + 2)
    }
}

/// Sectors between starts of partitions.
fn alignment(sector_size: u32, io_size: u64) -> u64 {
    // Some controllers report sizes that are no power of two; nothing is gained by following them.
    let bytes = if io_size.is_power_of_two() { io_size.max(ALIGNMENT) } else { ALIGNMENT };
    (bytes / u64::from(sector_size)).max(1)
}

/// The kernel's name of a partition of a disk.
pub fn partition_name(disk: &str, number: u32) -> String {
    let infix = if disk.ends_with(|last: char| last.is_ascii_digit()) { "p" } else { "" };
    format!("{disk}{infix}{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_named_as_the_kernel_does() {
        assert_eq!(partition_name("sda", 1), "sda1");
        assert_eq!(partition_name("nvme0n1", 12), "nvme0n1p12");
    }

    #[test]
    fn a_device_that_no_table_fits_is_refused() {
        for (size, sector_size) in
            [(0, 512), (1 << 20, 512), (64 << 20, 0), (64 << 20, 513), (u64::MAX, 1 << 30)]
        {
            let made = Table::new(Geometry { size, sector_size, io_size: 0 }, Guid::NIL);
            assert!(matches!(made, Err(GptError::Geometry { .. })), "{size} {sector_size}");
        }
        let small = Table::new(Geometry { size: 4 << 20, sector_size: 512, io_size: 0 }, Guid::NIL).unwrap();
        assert!(small.with_entries_at(8000).is_err());
    }
}
