//! Writes zip archives: entries are deflated one by one, the directory follows at the end.

use std::io::{self, Write};

use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// The version of the format that readers need: deflate and directories.
const VERSION: u16 = 20;
/// Names are UTF-8.
const FLAGS: u16 = 1 << 11;
const DEFLATED: u16 = 8;

/// An archive that is being written.
pub struct Archive<W> {
    out: W,
    offset: u32,
    directory: Vec<u8>,
    entries: u16,
}

impl<W: Write> Archive<W> {
    /// An empty archive.
    pub fn new(out: W) -> Self {
        Self { out, offset: 0, directory: Vec::new(), entries: 0 }
    }

    /// Adds a file. Sizes and offsets have 32 bits in this format; what does not fit is an error.
    pub fn add(&mut self, name: &str, content: &[u8], time: Timestamp) -> io::Result<()> {
        let mut crc = Crc::new();
        crc.update(content);
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(content)?;
        let packed = encoder.finish()?;
        let mut common = Vec::with_capacity(30);
        for part in [VERSION, FLAGS, DEFLATED] {
            common.extend(part.to_le_bytes());
        }
        common.extend(dos_time(time).to_le_bytes());
        for part in [crc.sum(), fits(packed.len())?, fits(content.len())?] {
            common.extend(part.to_le_bytes());
        }
        let name_length = u16::try_from(name.len()).map_err(|_| io::Error::other("the name is too long"))?;
        common.extend(name_length.to_le_bytes());
        common.extend(0_u16.to_le_bytes());
        let entries = self.entries.checked_add(1).ok_or_else(|| io::Error::other("too many files"))?;
        // What comes after the common part in the directory: comment, disk, attributes (a file, mode 0644).
        self.directory.extend(b"PK\x01\x02");
        self.directory.extend((VERSION | 3 << 8).to_le_bytes());
        self.directory.extend(&common);
        self.directory.extend([0; 6]);
        self.directory.extend((0o100_644_u32 << 16).to_le_bytes());
        self.directory.extend(self.offset.to_le_bytes());
        self.directory.extend(name.as_bytes());
        let mut header = b"PK\x03\x04".to_vec();
        header.extend(&common);
        header.extend(name.as_bytes());
        let length = fits(header.len() + packed.len())?;
        self.offset =
            self.offset.checked_add(length).ok_or_else(|| io::Error::other("the archive is too large"))?;
        self.entries = entries;
        self.out.write_all(&header)?;
        self.out.write_all(&packed)
    }

    /// Writes the directory and hands the writer back.
    pub fn finish(mut self) -> io::Result<W> {
        let size = fits(self.directory.len())?;
        self.out.write_all(&self.directory)?;
        let mut end = b"PK\x05\x06\0\0\0\0".to_vec();
        end.extend(self.entries.to_le_bytes());
        end.extend(self.entries.to_le_bytes());
        end.extend(size.to_le_bytes());
        end.extend(self.offset.to_le_bytes());
        end.extend([0, 0]);
        self.out.write_all(&end)?;
        self.out.flush()?;
        Ok(self.out)
    }
}

fn fits(size: usize) -> io::Result<u32> {
    u32::try_from(size).map_err(|_| io::Error::other("the archive is too large"))
}

/// Date and time of day in the 16 + 16 bits of old; years before 1980 do not exist.
fn dos_time(time: Timestamp) -> u32 {
    let time = time.to_zoned(TimeZone::UTC).datetime();
    let part = |value: i8| u32::from(value.unsigned_abs());
    let year = u32::try_from(time.year() - 1980).unwrap_or_default().min(127);
    let date = year << 9 | part(time.month()) << 5 | part(time.day());
    date << 16 | part(time.hour()) << 11 | part(time.minute()) << 5 | (part(time.second()) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_can_be_found_from_the_end() {
        let mut archive = Archive::new(Vec::new());
        let time: Timestamp = "2026-11-15T10:20:30Z".parse().unwrap();
        archive.add("a/b.txt", b"hello hello hello", time).unwrap();
        archive.add("c", b"", time).unwrap();
        let bytes = archive.finish().unwrap();
        let end = &bytes[bytes.len() - 22..];
        assert_eq!(&end[..4], b"PK\x05\x06");
        assert_eq!(u16::from_le_bytes([end[8], end[9]]), 2);
        let start = u32::from_le_bytes([end[16], end[17], end[18], end[19]]) as usize;
        assert_eq!(&bytes[start..start + 4], b"PK\x01\x02");
        assert_eq!(&bytes[start + 46..start + 53], b"a/b.txt");
        // 10:20:30 on 2026-11-15.
        assert_eq!(u16::from_le_bytes([bytes[start + 12], bytes[start + 13]]), 10 << 11 | 20 << 5 | 15);
        assert_eq!(u16::from_le_bytes([bytes[start + 14], bytes[start + 15]]), 46 << 9 | 11 << 5 | 15);
    }
}
