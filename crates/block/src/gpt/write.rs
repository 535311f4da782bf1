//! Writing: the backup first, then the first copy.

use std::io::{self, Seek, SeekFrom, Write};

use super::crc::crc32;
use super::layout::{HEADER_LEN, REVISION, SIGNATURE, entry, header, mbr};
use super::{GptError, Table};

impl Table {
    /// What has to be written where. Each group has to be on the device before the next: a table of which only a part
    /// of one group got there is still readable from its other copy.
    pub fn encode(&self) -> [Vec<(u64, Vec<u8>)>; 2] {
        let sector = u64::from(self.sector_size);
        let entries = self.encode_entries();
        let last = self.sectors - 1;
        let backup_entries = last - self.entry_sectors();
        let backup = self.encode_header(last, 1, backup_entries, &entries);
        let primary = self.encode_header(1, last, self.entries_at, &entries);
        [
            vec![(backup_entries * sector, entries.clone()), (last * sector, backup)],
            vec![
                (mbr::START as u64, self.encode_mbr()),
                (self.entries_at * sector, entries),
                (sector, primary),
            ],
        ]
    }

    /// Writes both copies and flushes after each. Code of a boot loader in the first sector stays.
    ///
    /// On a device, flushing does not reach the disk: use [`crate::device::Device::write_table`] there.
    ///
    /// # Errors
    /// The writer's.
    pub fn write(&self, device: &mut (impl Write + Seek)) -> Result<(), GptError> {
        self.write_with(device, Write::flush)
    }

    /// As [`Table::write`], with another way to make sure that a copy is on the device.
    pub(crate) fn write_with<D: Write + Seek>(
        &self,
        device: &mut D,
        mut sync: impl FnMut(&mut D) -> io::Result<()>,
    ) -> Result<(), GptError> {
        let mut write = || -> io::Result<()> {
            for group in self.encode() {
                for (offset, bytes) in group {
                    device.seek(SeekFrom::Start(offset))?;
                    device.write_all(&bytes)?;
                }
                sync(device)?;
            }
            Ok(())
        };
        write().map_err(|source| GptError::Io { what: "write", source })
    }

    fn encode_entries(&self) -> Vec<u8> {
        let size = self.entry_size as usize;
        let mut out = vec![0; self.entry_count as usize * size];
        for (number, partition) in &self.partitions {
            let Some(slot) = out.chunks_exact_mut(size).nth(*number as usize - 1) else { continue };
            put(slot, entry::TYPE, &partition.type_guid.to_bytes());
            put(slot, entry::GUID, &partition.guid.to_bytes());
            put(slot, entry::FIRST, &partition.first.to_le_bytes());
            put(slot, entry::LAST, &partition.last.to_le_bytes());
            put(slot, entry::ATTRIBUTES, &partition.attributes.to_le_bytes());
            for (at, unit) in partition.name.encode_utf16().take(super::NAME_MAX).enumerate() {
                put(slot, entry::NAME + 2 * at, &unit.to_le_bytes());
            }
        }
        out
    }

    fn encode_header(&self, own: u64, other: u64, entries_at: u64, entries: &[u8]) -> Vec<u8> {
        let mut out = vec![0; self.sector_size as usize];
        put(&mut out, 0, SIGNATURE);
        put(&mut out, header::REVISION, &REVISION.to_le_bytes());
        put(&mut out, header::LEN, &HEADER_LEN.to_le_bytes());
        put(&mut out, header::OWN, &own.to_le_bytes());
        put(&mut out, header::OTHER, &other.to_le_bytes());
        put(&mut out, header::FIRST_USABLE, &self.first_listed().to_le_bytes());
        put(&mut out, header::LAST_USABLE, &self.last_usable().to_le_bytes());
        put(&mut out, header::DISK_GUID, &self.disk_guid.to_bytes());
        put(&mut out, header::ENTRIES, &entries_at.to_le_bytes());
        put(&mut out, header::ENTRY_COUNT, &self.entry_count.to_le_bytes());
        put(&mut out, header::ENTRY_LEN, &self.entry_size.to_le_bytes());
        put(&mut out, header::ENTRIES_CRC, &crc32(entries).to_le_bytes());
        let sum = crc32(&out[..HEADER_LEN as usize]);
        put(&mut out, header::CRC, &sum.to_le_bytes());
        out
    }

    /// The first usable sector as the header has it: other tools may have put a partition before ours would start.
    fn first_listed(&self) -> u64 {
        let first = self.partitions.values().map(|partition| partition.first).min();
        first.unwrap_or(u64::MAX).min(self.first_usable())
    }

    fn encode_mbr(&self) -> Vec<u8> {
        let mut out = vec![0; mbr::LEN];
        let covered = u32::try_from(self.sectors - 1).unwrap_or(u32::MAX);
        let flag = if self.bootable { mbr::BOOTABLE } else { 0 };
        // From the second sector to the end, in cylinders and heads that nobody has used for decades.
        put(&mut out, mbr::ENTRY, &[flag, 0x00, 0x02, 0x00, mbr::PROTECTIVE, 0xff, 0xff, 0xff]);
        put(&mut out, mbr::ENTRY + 8, &1_u32.to_le_bytes());
        put(&mut out, mbr::ENTRY + 12, &covered.to_le_bytes());
        put(&mut out, mbr::LEN - 2, &[0x55, 0xaa]);
        out.split_off(mbr::START)
    }
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}
