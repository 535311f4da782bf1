//! META of a system disk, for the length of one operation. The caller has locked the disk.

use std::io;
use std::path::{Path, PathBuf};

use ichor_block::device::Device;
use ichor_block::gpt::{Table, partition_name};
use ichor_block::meta::tlv::{Content, Tags};
use ichor_block::meta::{self as format, Place};
use ichor_block::wipe;
use ichor_boot::record::{Record, SLOTS_KEY, UPGRADE_KEY};
use ichor_sys::boot_port::Outside;

use crate::error::InstallError;

/// The values of META.
#[derive(Debug)]
pub struct DiskMeta {
    place: Place,
    tags: Tags,
    legacy: Tags,
}

impl DiskMeta {
    /// Reads META in a file or partition.
    ///
    /// # Errors
    /// When it cannot be read, or both copies are damaged.
    pub fn read(path: &Path) -> Result<Self, InstallError> {
        // The whole disk is locked already, and a second lock would wait for the first.
        let place = Place::File(path.to_owned());
        let disk = |source| InstallError::Disk { what: "read META in", path: path.to_owned(), source };
        if !path.exists() {
            return Err(disk(io::ErrorKind::NotFound.into()));
        }
        let image = format::read(&place).map_err(disk)?;
        let tags = match image.content {
            Content::Blank => Tags::new(),
            Content::Values { tags, .. } => tags,
            Content::Damaged => {
                let reason =
                    "both copies are damaged; reset META (`reset --system-labels-to-wipe META`)".to_owned();
                return Err(InstallError::Meta { path: path.to_owned(), reason });
            }
        };
        Ok(Self { place, tags, legacy: image.legacy })
    }

    /// No META at all: for steps that have nothing to do with it. Nothing can be set.
    pub fn none() -> Self {
        Self { place: Place::File(PathBuf::from("/dev/null/meta")), tags: Tags::new(), legacy: Tags::new() }
    }

    /// As [`DiskMeta::read`], with nothing in place of one that is damaged: for a reset, which writes it anew.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read_or_blank(path: &Path) -> Result<Self, InstallError> {
        match Self::read(path) {
            Err(InstallError::Meta { .. }) => {
                Ok(Self { place: Place::File(path.to_owned()), tags: Tags::new(), legacy: Tags::new() })
            }
            read => read,
        }
    }

    /// A value as text.
    pub fn text(&self, key: u8) -> Option<String> {
        let value = self.tags.get(&key).or_else(|| self.legacy.get(&key))?;
        Some(String::from_utf8_lossy(value).into_owned())
    }

    /// The record of the slots; one that cannot be read counts as none.
    pub fn record(&self) -> Option<Record> {
        Record::parse(&self.text(SLOTS_KEY)?).ok()
    }

    /// The label that the original wants to go back to.
    pub fn previous(&self) -> Option<String> {
        self.text(UPGRADE_KEY)
    }

    /// Sets a value; it is on disk when this returns.
    ///
    /// # Errors
    /// The disk's.
    pub fn set(&mut self, key: u8, value: &[u8]) -> io::Result<()> {
        if self.tags.get(&key).is_some_and(|known| known == value) {
            return Ok(());
        }
        self.tags.insert(key, value.to_vec());
        self.write()
    }

    /// Deletes a value.
    ///
    /// # Errors
    /// The disk's.
    pub fn delete(&mut self, key: u8) -> io::Result<()> {
        let known = [self.tags.remove(&key), self.legacy.remove(&key)];
        if known.iter().any(Option::is_some) { self.write() } else { Ok(()) }
    }

    fn write(&self) -> io::Result<()> {
        let written = format::write(&self.place, &self.tags, &self.legacy)?;
        written.ok_or_else(|| io::Error::new(io::ErrorKind::StorageFull, "no space left in META"))
    }
}

/// META, and the partitions of the disk it is on.
#[derive(Debug)]
pub struct DiskOutside<'a> {
    /// META.
    pub meta: &'a mut DiskMeta,
    /// The locked disk and its table; none where nothing may be wiped.
    pub disk: Option<(&'a Device, Table)>,
}

impl Outside for DiskOutside<'_> {
    fn set_meta(&mut self, key: u8, value: &[u8]) -> io::Result<()> {
        self.meta.set(key, value)
    }

    fn delete_meta(&mut self, key: u8) -> io::Result<()> {
        self.meta.delete(key)
    }

    fn wipe(&mut self, label: &str) -> io::Result<()> {
        let (disk, table) = self.disk.as_mut().ok_or(io::ErrorKind::Unsupported)?;
        let number = table.find(label).map(|(number, _)| number);
        let number = number.ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("there is no partition {label}"))
        })?;
        let node = Device::open_unused(&partition_node(disk.path(), number))?;
        wipe::fast(&node)?;
        drop(node);
        table.remove(number).map_err(io::Error::other)?;
        disk.write_table(table).map_err(|error| io::Error::other(crate::error::chain(&error)))
    }
}

/// The node of a partition.
pub fn partition_node(disk: &Path, number: u32) -> PathBuf {
    let name = disk.file_name().unwrap_or_default().to_string_lossy();
    disk.with_file_name(partition_name(&name, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_on_disk_and_a_damaged_meta_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("meta");
        assert!(DiskMeta::read(&path).is_err(), "a partition that is gone is not made");
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let mut meta = DiskMeta::read(&path).unwrap();
        meta.set(6, b"A").unwrap();
        meta.set(7, b"x").unwrap();
        meta.delete(7).unwrap();
        let again = DiskMeta::read(&path).unwrap();
        assert_eq!((again.previous().as_deref(), again.text(7)), (Some("A"), None));
        std::fs::write(&path, vec![0x5a; 1 << 20]).unwrap();
        let error = DiskMeta::read(&path).unwrap_err().to_string();
        assert!(error.contains("both copies are damaged"), "{error}");
    }

    #[test]
    fn nodes_are_named_as_the_kernel_does() {
        assert_eq!(partition_node(Path::new("/dev/vda"), 2), Path::new("/dev/vda2"));
        assert_eq!(partition_node(Path::new("/dev/nvme0n1"), 2), Path::new("/dev/nvme0n1p2"));
    }
}
