//! The format of META: tagged values, kept twice, and the block that came before them.
//!
//! ```text
//! offset 0          first copy    256 KiB
//! offset 262144     second copy   256 KiB
//! offset 1047552    legacy block  2 × 512 bytes
//! ```
//!
//! [`read`] and [`write`] work on a file or a partition alike.

pub mod adv;
pub mod tlv;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::device::{Device, Lock};
use tlv::{COPY_LEN, Content, META_LEN, Tags};

/// Somebody else may keep the disk locked this long.
const LOCK_MAX: Duration = Duration::from_secs(10);
/// Where the legacy block is.
const LEGACY_AT: u64 = (META_LEN - adv::LEN) as u64;

/// Where META is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A file, made when it is first written.
    File(PathBuf),
    /// A partition, and the disk it is on, which is locked while META is read or written.
    Partition {
        /// The partition's node.
        partition: PathBuf,
        /// The disk's node.
        disk: PathBuf,
    },
}

impl Place {
    /// The file or the partition.
    pub fn path(&self) -> &Path {
        match self {
            Self::File(path) | Self::Partition { partition: path, .. } => path,
        }
    }

    /// Keeps everybody else off the disk until this is dropped.
    fn lock(&self, lock: Lock) -> io::Result<Option<Device>> {
        let Self::Partition { disk, .. } = self else { return Ok(None) };
        let disk = Device::open(disk)?;
        disk.lock_within(lock, LOCK_MAX)?;
        Ok(Some(disk))
    }

    fn open(&self, access: &mut OpenOptions) -> io::Result<File> {
        // A partition that is gone must not become a file of that name.
        let makes_file = matches!(self, Self::File(_));
        access.create(makes_file).mode(0o600).open(self.path())
    }
}

/// What META holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The values.
    pub content: Content,
    /// Values of the legacy block; those above win.
    pub legacy: Tags,
}

impl Image {
    /// META that was never written.
    pub const fn blank() -> Self {
        Self { content: Content::Blank, legacy: Tags::new() }
    }

    /// META in these bytes, which may be too few.
    pub fn parse(bytes: &[u8]) -> Self {
        let copies = bytes.get(..2 * COPY_LEN).unwrap_or(bytes);
        let legacy = bytes.get(LEGACY_AT as usize..META_LEN).map(adv::decode).unwrap_or_default();
        Self { content: tlv::decode_either(copies), legacy }
    }
}

/// Reads META. What is not there is an error; one that is short, or has nothing but zeros, is not.
///
/// # Errors
/// The disk's.
pub fn read(place: &Place) -> io::Result<Image> {
    let _locked = place.lock(Lock::Shared)?;
    let file = File::open(place.path())?;
    let mut bytes = vec![0; META_LEN];
    let len = read_up_to(&file, &mut bytes)?;
    Ok(Image::parse(&bytes[..len]))
}

/// Writes the values, one copy after the other, each on disk before the next: a power cut leaves at least one of them
/// whole. The legacy block is written last, and only where it has to change. `None` when the values do not fit.
///
/// # Errors
/// The disk's.
pub fn write(place: &Place, tags: &Tags, legacy: &Tags) -> io::Result<Option<()>> {
    let Some(copy) = tlv::encode(tags) else { return Ok(None) };
    let _locked = place.lock(Lock::Exclusive)?;
    let file = place.open(OpenOptions::new().read(true).write(true).truncate(false))?;
    let found = file.metadata()?;
    if found.is_file() && found.len() < META_LEN as u64 {
        file.set_len(META_LEN as u64)?;
    }
    for at in [0, COPY_LEN as u64] {
        file.write_all_at(&copy, at)?;
        file.sync_all()?;
    }
    let mut old = vec![0; adv::LEN];
    file.read_exact_at(&mut old, LEGACY_AT)?;
    if adv::decode(&old) != *legacy {
        file.write_all_at(&adv::encode(legacy), LEGACY_AT)?;
        file.sync_all()?;
    }
    if let Some(folder) = place.path().parent().filter(|_| found.is_file()) {
        File::open(folder)?.sync_all()?;
    }
    Ok(Some(()))
}

/// Fills the buffer as far as the file goes, and gives how far that is.
fn read_up_to(file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut at = 0;
    while at < buffer.len() {
        match file.read_at(&mut buffer[at..], at as u64)? {
            0 => break,
            read => at += read,
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_written_in_place_and_one_that_is_gone_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, partition) = (dir.path().join("sda"), dir.path().join("sda1"));
        std::fs::write(&disk, [0; 512]).unwrap();
        let place = Place::Partition { partition: partition.clone(), disk };
        let tags = Tags::from([(6, b"A".to_vec())]);
        assert_eq!(write(&place, &tags, &Tags::new()).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!partition.exists());
        std::fs::write(&partition, vec![0; META_LEN]).unwrap();
        assert_eq!(read(&place).unwrap(), Image::blank());
        write(&place, &tags, &Tags::new()).unwrap().unwrap();
        assert_eq!(read(&place).unwrap().content, Content::Values { tags, both: true });
    }

    /// The second copy is not touched before the first is on disk, so whatever a power cut leaves is old or new.
    #[test]
    fn a_write_that_is_cut_short_leaves_the_old_values_or_the_new_ones() {
        let old = Tags::from([(6, b"A".to_vec()), (0x0a, vec![b'o'; 3000])]);
        let new = Tags::from([(6, b"B".to_vec()), (0x0a, vec![b'n'; 9000])]);
        let (before, after) = (tlv::encode(&old).unwrap(), tlv::encode(&new).unwrap());
        for cut in (0..=2 * COPY_LEN).step_by(512) {
            let mut image = before.repeat(2);
            let wanted = after.repeat(2);
            image[..cut].copy_from_slice(&wanted[..cut]);
            let Content::Values { tags, .. } = Image::parse(&image).content else {
                panic!("nothing left at {cut}")
            };
            assert!(tags == old || tags == new, "mixed at {cut}");
        }
    }
}
