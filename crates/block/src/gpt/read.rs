//! Reading: the first good copy of the two.

use std::collections::BTreeMap;
use std::io;

use super::crc::crc32;
use super::layout::{
    ENTRY_COUNT_MAX, ENTRY_LEN, ENTRY_LEN_MAX, HEADER_LEN, SIGNATURE, entry, header, is_sector_size, mbr,
};
use super::{GptError, NAME_MAX, Partition, Table, alignment};
use crate::bytes::{le32, le64, take};
use crate::{Guid, Source};

/// Which copies of a table are good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Both, and where they belong.
    Whole,
    /// The first copy is damaged; the backup was read.
    PrimaryDamaged,
    /// The backup is damaged.
    BackupDamaged,
    /// The backup is good but not at the end of the device: the device has grown since the table was written.
    BackupMisplaced,
}

/// One copy, before it is believed.
struct Copy {
    other: u64,
    table: Table,
}

impl Table {
    /// The table of a device with sectors of this size. `None` when there is none, not even a damaged one.
    ///
    /// A device that has grown since gets a table of its new size; writing it moves the backup to the new end.
    ///
    /// # Errors
    /// [`GptError::Damaged`] when neither copy is whole, [`GptError::Io`] when the device fails.
    pub fn read(
        source: &(impl Source + ?Sized),
        sector_size: u32,
    ) -> Result<Option<(Self, Health)>, GptError> {
        let failed = |source| GptError::Io { what: "read", source };
        let sectors = source.size() / u64::from(sector_size.max(1));
        if !is_sector_size(sector_size) || sectors < 3 {
            return Ok(None);
        }
        let last = sectors - 1;
        let primary = read_copy(source, sector_size, 1).map_err(failed)?;
        let backup_at = match &primary {
            Ok(copy) if (2..last).contains(&copy.other) => copy.other,
            Ok(_) | Err(_) => last,
        };
        let mut backup = read_copy(source, sector_size, backup_at).map_err(failed)?;
        if backup.is_err() && backup_at != last {
            backup = read_copy(source, sector_size, last).map_err(failed)?;
        }
        let (mut table, health) = match (primary, backup) {
            (Ok(copy), Ok(_)) if backup_at == last => (copy.table, Health::Whole),
            (Ok(copy), Ok(_)) => (copy.table, Health::BackupMisplaced),
            (Ok(copy), Err(_)) => (copy.table, Health::BackupDamaged),
            (Err(_), Ok(copy)) => (copy.table, Health::PrimaryDamaged),
            (Err(NO_SIGNATURE), Err(NO_SIGNATURE)) => return Ok(None),
            (Err(primary), Err(backup)) => return Err(GptError::Damaged { primary, backup }),
        };
        table.bootable = is_bootable(source).map_err(failed)?;
        Ok(Some((table, health)))
    }
}

const NO_SIGNATURE: &str = "no signature";

/// The copy whose header is in this sector, or what is wrong with it.
fn read_copy(
    source: &(impl Source + ?Sized),
    sector_size: u32,
    at: u64,
) -> io::Result<Result<Copy, &'static str>> {
    let mut sector = vec![0; sector_size as usize];
    source.read_at(at * u64::from(sector_size), &mut sector)?;
    let sectors = source.size() / u64::from(sector_size);
    let head = match Head::parse(&sector, at, sectors) {
        Ok(head) => head,
        Err(reason) => return Ok(Err(reason)),
    };
    let len = head.entry_count as usize * head.entry_size as usize;
    let mut entries = vec![0; len];
    let offset = head.entries_at.checked_mul(u64::from(sector_size));
    let end = offset.and_then(|offset| offset.checked_add(len as u64));
    let (Some(offset), Some(true)) = (offset, end.map(|end| end <= source.size())) else {
        return Ok(Err("entries beyond the end of the device"));
    };
    source.read_at(offset, &mut entries)?;
    if crc32(&entries) != head.entries_crc {
        return Ok(Err("checksum of the entries does not match"));
    }
    Ok(head.table(&entries, sector_size, sectors, at))
}

/// The fields of a header that count.
struct Head {
    other: u64,
    disk_guid: Guid,
    entries_at: u64,
    entry_count: u32,
    entry_size: u32,
    entries_crc: u32,
}

impl Head {
    fn parse(sector: &[u8], at: u64, sectors: u64) -> Result<Self, &'static str> {
        const SHORT: &str = "short header";
        if sector.get(..8) != Some(SIGNATURE) {
            return Err(NO_SIGNATURE);
        }
        let len = le32(sector, header::LEN).ok_or(SHORT)?;
        if len < HEADER_LEN {
            return Err(SHORT);
        }
        let mut summed = sector.get(..len as usize).ok_or("header longer than a sector")?.to_vec();
        summed[header::CRC..header::CRC + 4].fill(0);
        if Some(crc32(&summed)) != le32(sector, header::CRC) {
            return Err("checksum of the header does not match");
        }
        if le64(sector, header::OWN) != Some(at) {
            return Err("header of another place");
        }
        let head = Self {
            other: le64(sector, header::OTHER).ok_or(SHORT)?,
            disk_guid: Guid::from_bytes(take(sector, header::DISK_GUID).ok_or(SHORT)?),
            entries_at: le64(sector, header::ENTRIES).ok_or(SHORT)?,
            entry_count: le32(sector, header::ENTRY_COUNT).ok_or(SHORT)?,
            entry_size: le32(sector, header::ENTRY_LEN).ok_or(SHORT)?,
            entries_crc: le32(sector, header::ENTRIES_CRC).ok_or(SHORT)?,
        };
        if !head.entry_size.is_power_of_two() || !(ENTRY_LEN..=ENTRY_LEN_MAX).contains(&head.entry_size) {
            return Err("entries of a size that no table has");
        }
        if !(1..=ENTRY_COUNT_MAX).contains(&head.entry_count) {
            return Err("number of entries that no table has");
        }
        if head.entries_at < 2 || head.entries_at >= sectors {
            return Err("entries beyond the end of the device");
        }
        Ok(head)
    }

    fn table(self, entries: &[u8], sector_size: u32, sectors: u64, at: u64) -> Result<Copy, &'static str> {
        // The backup does not say where the entries of the first copy are.
        let entries_at = if at == 1 { self.entries_at } else { 2 };
        let mut table = Table {
            disk_guid: self.disk_guid,
            sector_size,
            sectors,
            alignment: alignment(sector_size, 0),
            entries_at,
            entry_count: self.entry_count,
            entry_size: self.entry_size,
            bootable: false,
            partitions: BTreeMap::new(),
        };
        for (number, bytes) in (1..).zip(entries.chunks_exact(self.entry_size as usize)) {
            if let Some(partition) = read_entry(bytes) {
                if partition.first > partition.last || partition.last >= sectors {
                    return Err("partition beyond the end of the device");
                }
                table.partitions.insert(number, partition);
            }
        }
        if overlaps(&table.partitions) {
            return Err("partitions overlap");
        }
        Ok(Copy { other: self.other, table })
    }
}

/// An entry in use.
fn read_entry(bytes: &[u8]) -> Option<Partition> {
    let type_guid = Guid::from_bytes(take(bytes, entry::TYPE)?);
    if type_guid == Guid::NIL {
        return None;
    }
    let name = bytes.get(entry::NAME..entry::NAME + 2 * NAME_MAX)?.chunks_exact(2);
    let units: Vec<u16> =
        name.map(|pair| u16::from_le_bytes([pair[0], pair[1]])).take_while(|unit| *unit != 0).collect();
    Some(Partition {
        type_guid,
        guid: Guid::from_bytes(take(bytes, entry::GUID)?),
        first: le64(bytes, entry::FIRST)?,
        last: le64(bytes, entry::LAST)?,
        attributes: le64(bytes, entry::ATTRIBUTES)?,
        name: String::from_utf16_lossy(&units),
    })
}

fn overlaps(partitions: &BTreeMap<u32, Partition>) -> bool {
    let mut ranges: Vec<(u64, u64)> = partitions.values().map(|found| (found.first, found.last)).collect();
    ranges.sort_unstable();
    ranges.windows(2).any(|pair| pair[1].0 <= pair[0].1)
}

fn is_bootable(source: &(impl Source + ?Sized)) -> io::Result<bool> {
    let mut sector = [0; mbr::LEN];
    source.read_at(0, &mut sector)?;
    Ok(sector[mbr::ENTRY] == mbr::BOOTABLE && sector[mbr::ENTRY + 4] == mbr::PROTECTIVE)
}
