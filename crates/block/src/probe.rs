//! What is on a device: filesystems, volume managers and partition tables, told by their signatures.
//!
//! [`probe`] names the first thing found, [`probe_all`] everything, with the places of the signatures: wiping those makes
//! a device look empty. Sources may hold anything; a number in them is used only after it was checked.

mod containers;
mod filesystems;

use std::io;

use crate::gpt::{Partition, Table};
use crate::source::Window;
use crate::{Guid, Source};

/// Bytes at the start of a source that all signatures but a few lie in.
const HEAD_LEN: usize = 68 << 10;

/// Something that was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signature {
    /// What it is, such as `xfs` or `gpt`.
    pub name: &'static str,
    /// Its UUID.
    pub uuid: Option<String>,
    /// Its label.
    pub label: Option<String>,
    /// Bytes of its smallest unit of I/O, 0 when it has none.
    pub block_size: u32,
    /// Bytes of its unit of allocation, 0 when it has none.
    pub filesystem_block_size: u32,
    /// Bytes it says it covers, 0 when it does not.
    pub probed_size: u64,
    /// Offset and length of what gives it away.
    pub ranges: Vec<(u64, u64)>,
}

/// What is on a device and in its partitions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// What is on the whole device.
    pub signature: Option<Signature>,
    /// Its partitions, by number, if it has a partition table.
    pub partitions: Vec<PartitionContents>,
}

/// A partition and what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionContents {
    /// Its number.
    pub number: u32,
    /// Its entry in the table.
    pub entry: Partition,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub size: u64,
    /// What is in it.
    pub signature: Option<Signature>,
}

/// The part of a source that probes look at first.
pub(crate) struct Head<'a> {
    source: &'a dyn Source,
    bytes: Vec<u8>,
}

type Probe = fn(&Head<'_>) -> io::Result<Option<Signature>>;

/// In the order of the original: where a device carries two signatures, both name the same one.
const BEFORE_TABLE: [Probe; 5] =
    [filesystems::xfs, filesystems::ext, filesystems::vfat, containers::swap, containers::lvm];
const AFTER_TABLE: [Probe; 6] = [
    containers::zfs,
    filesystems::squashfs,
    containers::talosmeta,
    containers::luks,
    filesystems::iso9660,
    containers::bluestore,
];

impl<'a> Head<'a> {
    fn read(source: &'a dyn Source) -> io::Result<Self> {
        Ok(Self { source, bytes: source.read_up_to(0, HEAD_LEN)? })
    }

    /// Whether these bytes are at this place.
    fn has(&self, at: usize, magic: &[u8]) -> bool {
        at.checked_add(magic.len()).and_then(|end| self.bytes.get(at..end)) == Some(magic)
    }
}

/// What is on a source that is no whole disk: partition tables are not looked for.
///
/// # Errors
/// When the source cannot be read.
pub fn probe(source: &dyn Source) -> io::Result<Option<Signature>> {
    let head = Head::read(source)?;
    first(&head, BEFORE_TABLE.iter().chain(&AFTER_TABLE))
}

fn first<'p>(head: &Head<'_>, probes: impl Iterator<Item = &'p Probe>) -> io::Result<Option<Signature>> {
    for probe in probes {
        if let Some(found) = probe(head)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// What is on a disk with sectors of this size, and in its partitions.
///
/// A partition that cannot be read counts as one with nothing known in it; the others are still named.
///
/// # Errors
/// When the start of the disk cannot be read.
pub fn probe_disk(source: &dyn Source, sector_size: u32) -> io::Result<Contents> {
    let head = Head::read(source)?;
    if let Some(found) = first(&head, BEFORE_TABLE.iter())? {
        return Ok(Contents { signature: Some(found), partitions: Vec::new() });
    }
    // A table of which both copies are damaged is no table; other signatures may still be there.
    if let Ok(Some((table, _))) = Table::read(source, sector_size) {
        let partitions = table.partitions().iter().filter_map(|(number, entry)| {
            let (offset, size) = table.offset_and_size(*number)?;
            let window = Window::new(source, offset, size)?;
            let signature = probe(&window).unwrap_or(None);
            Some(PartitionContents { number: *number, entry: entry.clone(), offset, size, signature })
        });
        let partitions = partitions.collect();
        return Ok(Contents { signature: Some(table_signature(source, &table)), partitions });
    }
    Ok(Contents { signature: first(&head, AFTER_TABLE.iter())?, partitions: Vec::new() })
}

/// Everything that is on a source, partition tables too.
///
/// # Errors
/// When the source cannot be read.
pub fn probe_all(source: &dyn Source, sector_size: u32) -> io::Result<Vec<Signature>> {
    let head = Head::read(source)?;
    let mut found = Vec::new();
    for probe in BEFORE_TABLE.iter().chain(&AFTER_TABLE) {
        found.extend(probe(&head)?);
    }
    if let Ok(Some((table, _))) = Table::read(source, sector_size) {
        found.push(table_signature(source, &table));
    }
    Ok(found)
}

fn table_signature(source: &dyn Source, table: &Table) -> Signature {
    let sector = u64::from(table.sector_size());
    let last = (source.size() / sector).saturating_sub(1);
    let ranges = vec![(0, 512), (sector, 512), (last * sector, 512)];
    let guid = table.disk_guid();
    Signature {
        name: "gpt",
        uuid: (guid != Guid::NIL).then(|| guid.to_string()),
        block_size: table.sector_size(),
        probed_size: source.size() / sector * sector,
        ranges,
        ..Signature::default()
    }
}
