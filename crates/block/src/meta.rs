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

/// What META is written to. The order of these calls decides what a power cut leaves; tests record them.
pub trait Medium {
    /// Fills the buffer with what is at this place.
    ///
    /// # Errors
    /// The disk's, or when it ends before.
    fn read_at(&mut self, buffer: &mut [u8], at: u64) -> io::Result<()>;

    /// Writes all bytes to this place.
    ///
    /// # Errors
    /// The disk's.
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Waits until everything written before is on disk.
    ///
    /// # Errors
    /// The disk's.
    fn sync(&mut self) -> io::Result<()>;
}

impl Medium for &File {
    fn read_at(&mut self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.read_exact_at(buffer, at)
    }

    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

/// Writes the values as [`write_to`] does, with the disk locked. `None` when they do not fit.
///
/// # Errors
/// The disk's.
pub fn write(place: &Place, tags: &Tags, legacy: &Tags) -> io::Result<Option<()>> {
    if !tlv::fits(tags) {
        return Ok(None);
    }
    let _locked = place.lock(Lock::Exclusive)?;
    let file = place.open(OpenOptions::new().read(true).write(true).truncate(false))?;
    let found = file.metadata()?;
    if found.is_file() && found.len() < META_LEN as u64 {
        file.set_len(META_LEN as u64)?;
    }
    let written = write_to(&mut &file, tags, legacy)?;
    if let Some(folder) = place.path().parent().filter(|_| found.is_file()) {
        File::open(folder)?.sync_all()?;
    }
    Ok(written)
}

/// Writes the values, one copy after the other, each on disk before the next: a power cut leaves the old values or the
/// new ones. `None` when they do not fit.
///
/// The first good copy is what readers take, so the second one is brought to the same values before the first is
/// touched: after an earlier power cut it may be damaged, or hold values that were replaced since. The legacy block only
/// ever loses values and is written first: the other order would show a value of it for a moment when both are deleted.
///
/// # Errors
/// The disk's.
pub fn write_to(medium: &mut impl Medium, tags: &Tags, legacy: &Tags) -> io::Result<Option<()>> {
    let Some(copy) = tlv::encode(tags) else { return Ok(None) };
    let mut old = vec![0; adv::LEN];
    medium.read_at(&mut old, LEGACY_AT)?;
    if adv::decode(&old) != *legacy {
        medium.write_at(&adv::encode(legacy), LEGACY_AT)?;
        medium.sync()?;
    }
    let mut copies = vec![0; 2 * COPY_LEN];
    medium.read_at(&mut copies, 0)?;
    let (first, second) = copies.split_at(COPY_LEN);
    if first != second && tlv::decode(first).is_some() {
        medium.write_at(first, COPY_LEN as u64)?;
        medium.sync()?;
    }
    for at in [0, COPY_LEN as u64] {
        medium.write_at(&copy, at)?;
        medium.sync()?;
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

    /// Bytes in memory, on which the power goes after so many calls that change something.
    struct Cut {
        bytes: Vec<u8>,
        writes: usize,
    }

    impl Medium for Cut {
        fn read_at(&mut self, buffer: &mut [u8], at: u64) -> io::Result<()> {
            buffer.copy_from_slice(&self.bytes[at as usize..][..buffer.len()]);
            Ok(())
        }

        fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
            if self.writes == 0 {
                // Half of it is there.
                let half = bytes.len() / 2;
                self.bytes[at as usize..][..half].copy_from_slice(&bytes[..half]);
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.writes -= 1;
            self.bytes[at as usize..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        }

        fn sync(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn values(text: &str) -> Tags {
        Tags::from([(6, text.into()), (0x0a, vec![text.as_bytes()[0]; 150_000])])
    }

    #[test]
    fn a_second_power_cut_does_not_take_the_only_good_copy() {
        let image = [tlv::encode(&values("A")).unwrap().repeat(2), vec![0; META_LEN - 2 * COPY_LEN]].concat();
        for first in 0..2 {
            let mut disk = Cut { bytes: image.clone(), writes: first };
            write_to(&mut disk, &values("B"), &Tags::new()).unwrap_err();
            let Content::Values { tags: found, .. } = Image::parse(&disk.bytes).content else {
                panic!("nothing left after {first} writes")
            };
            for second in 0..3 {
                let mut disk = Cut { bytes: disk.bytes.clone(), writes: second };
                let done = write_to(&mut disk, &values("C"), &Tags::new());
                let Content::Values { tags, .. } = Image::parse(&disk.bytes).content else {
                    panic!("nothing left after {first} and {second} writes")
                };
                assert!(tags == found || tags == values("C"), "an older value after {first} and {second}");
                assert!(done.is_err() || tags == values("C"));
            }
        }
    }

    #[test]
    fn a_value_that_is_deleted_is_not_replaced_by_one_of_the_legacy_block() {
        let (newer, older) = (Tags::from([(6, b"B".to_vec())]), Tags::from([(6, b"A".to_vec())]));
        let mut image = tlv::encode(&newer).unwrap().repeat(2);
        image.resize(LEGACY_AT as usize, 0);
        image.extend(adv::encode(&older));
        for writes in 0..4 {
            let mut disk = Cut { bytes: image.clone(), writes };
            let _ = write_to(&mut disk, &Tags::new(), &Tags::new());
            let found = Image::parse(&disk.bytes);
            let Content::Values { tags, .. } = found.content else { panic!("nothing left at {writes}") };
            let value = tags.get(&6).or_else(|| found.legacy.get(&6));
            assert!(value.is_none_or(|value| value == b"B"), "{value:?} after {writes} writes");
        }
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
