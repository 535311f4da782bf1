//! Places and numbers of the format.

/// The first bytes of a header.
pub(super) const SIGNATURE: &[u8; 8] = b"EFI PART";
/// Version 1.0.
pub(super) const REVISION: u32 = 0x0001_0000;
/// Bytes of a header that count.
pub(super) const HEADER_LEN: u32 = 92;
/// Bytes of an entry.
pub(super) const ENTRY_LEN: u32 = 128;
/// Entries of a table that is read, at most.
pub(super) const ENTRY_COUNT_MAX: u32 = 1024;
/// Bytes of an entry of a table that is read, at most.
pub(super) const ENTRY_LEN_MAX: u32 = 4096;

/// Fields of a header.
pub(super) mod header {
    pub(in super::super) const REVISION: usize = 8;
    pub(in super::super) const LEN: usize = 12;
    pub(in super::super) const CRC: usize = 16;
    pub(in super::super) const OWN: usize = 24;
    pub(in super::super) const OTHER: usize = 32;
    pub(in super::super) const FIRST_USABLE: usize = 40;
    pub(in super::super) const LAST_USABLE: usize = 48;
    pub(in super::super) const DISK_GUID: usize = 56;
    pub(in super::super) const ENTRIES: usize = 72;
    pub(in super::super) const ENTRY_COUNT: usize = 80;
    pub(in super::super) const ENTRY_LEN: usize = 84;
    pub(in super::super) const ENTRIES_CRC: usize = 88;
}

/// Fields of an entry.
pub(super) mod entry {
    pub(in super::super) const TYPE: usize = 0;
    pub(in super::super) const GUID: usize = 16;
    pub(in super::super) const FIRST: usize = 32;
    pub(in super::super) const LAST: usize = 40;
    pub(in super::super) const ATTRIBUTES: usize = 48;
    pub(in super::super) const NAME: usize = 56;
}

/// The part of the first sector that a table owns: the code before it is a boot loader's.
pub(super) mod mbr {
    /// Where the disk's signature, and with it this part, begins.
    pub(in super::super) const START: usize = 440;
    /// The first of four entries.
    pub(in super::super) const ENTRY: usize = 446;
    /// Whole length.
    pub(in super::super) const LEN: usize = 512;
    /// The type of the entry that covers a disk with another table.
    pub(in super::super) const PROTECTIVE: u8 = 0xee;
    /// The flag of an entry to boot from.
    pub(in super::super) const BOOTABLE: u8 = 0x80;
}

/// Whether sectors of this size exist.
pub(super) fn is_sector_size(size: u32) -> bool {
    size.is_power_of_two() && (512..=65_536).contains(&size)
}
