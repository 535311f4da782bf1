//! Puts content onto a disk and reads it back.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt;

use ichor_image::Content;
use rustix::fs::Advice;

/// Bytes that are moved at once.
const CHUNK: usize = 1 << 20;

/// Calls `each` with the pieces of a content and where they are in it. Zeros at the end are left out: no filesystem looks
/// at them, and writing gigabytes of them takes minutes.
fn pieces(content: &Content, mut each: impl FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<()> {
    let (mut reader, mut buffer) = (content.reader(), vec![0; CHUNK]);
    let mut at = 0;
    while at < content.len() && reader.zeros_ahead() < content.len() - at {
        let len = reader.read(&mut buffer)?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        each(at, &buffer[..len])?;
        at += len as u64;
    }
    Ok(())
}

/// Writes content to a disk; it is there when this returns.
///
/// # Errors
/// The disk's, or of where the content comes from.
pub fn write(disk: &File, start: u64, content: &Content) -> io::Result<()> {
    pieces(content, |at, bytes| disk.write_all_at(bytes, start + at))?;
    disk.sync_all()
}

/// Whether the disk holds this content, read from the disk and not from memory.
///
/// # Errors
/// The disk's, or of where the content comes from.
pub fn holds(disk: &File, start: u64, content: &Content) -> io::Result<bool> {
    rustix::fs::fadvise(disk, start, std::num::NonZeroU64::new(content.len()), Advice::DontNeed)?;
    let (mut found, mut same) = (vec![0; CHUNK], true);
    pieces(content, |at, bytes| {
        let found = &mut found[..bytes.len()];
        disk.read_exact_at(found, start + at)?;
        same &= found == bytes;
        Ok(())
    })?;
    Ok(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_bytes_between_new_ones_are_gone_and_those_behind_them_are_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::write(&path, vec![0xff; 64]).unwrap();
        let disk = File::options().read(true).write(true).open(&path).unwrap();
        let mut content = Content::bytes(*b"ab");
        content.append(Content::zeros(4));
        content.append_bytes(*b"cd");
        content.append(Content::zeros(8));
        write(&disk, 8, &content).unwrap();
        assert!(holds(&disk, 8, &content).unwrap());
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(&bytes[6..20], b"\xff\xffab\0\0\0\0cd\xff\xff\xff\xff");
        disk.write_all_at(b"x", 9).unwrap();
        assert!(!holds(&disk, 8, &content).unwrap(), "another byte");
    }
}
