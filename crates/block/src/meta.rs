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
use std::path::Path;

use tlv::{COPY_LEN, Content, META_LEN, Tags};

/// Where the legacy block is.
const LEGACY_AT: u64 = (META_LEN - adv::LEN) as u64;

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

/// Reads META. A file that is not there is an error; one that is short, or has nothing but zeros, is not.
///
/// # Errors
/// The disk's.
pub fn read(path: &Path) -> io::Result<Image> {
    let file = File::open(path)?;
    let mut bytes = vec![0; META_LEN];
    let len = read_up_to(&file, &mut bytes)?;
    Ok(Image::parse(&bytes[..len]))
}

/// Writes the values, one copy after the other, each on disk before the next: a power cut leaves at least one of them
/// whole. The legacy block is written last, and only where it has to change. `None` when the values do not fit.
///
/// # Errors
/// The disk's.
pub fn write(path: &Path, tags: &Tags, legacy: &Tags) -> io::Result<Option<()>> {
    let Some(copy) = tlv::encode(tags) else { return Ok(None) };
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
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
    if let Some(folder) = path.parent().filter(|_| found.is_file()) {
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
