//! Archives in the `newc` format of cpio, as the kernel unpacks them: fixed owners, inodes and times.

use crate::{Content, Error};

const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const TRAILER: &str = "TRAILER!!!";

/// An archive under construction. The same entries give the same bytes.
#[derive(Debug, Default)]
pub struct Archive {
    content: Content,
    inode: u32,
}

impl Archive {
    /// Adds a directory; what is in it comes after it.
    pub fn directory(&mut self, name: &str, mode: u32) -> Result<(), Error> {
        self.entry(name, DIRECTORY | mode, 2, Content::default())
    }

    /// Adds a file.
    pub fn file(&mut self, name: &str, mode: u32, data: Content) -> Result<(), Error> {
        self.entry(name, FILE | mode, 1, data)
    }

    fn entry(&mut self, name: &str, mode: u32, links: u32, data: Content) -> Result<(), Error> {
        self.inode += 1;
        let too_large = |len, max| Error::TooLarge { what: format!("cpio entry {name:?}"), len, max };
        let size = u32::try_from(data.len()).map_err(|_| too_large(data.len(), u64::from(u32::MAX)))?;
        let name_size = u32::try_from(name.len() + 1).map_err(|_| too_large(name.len() as u64, 4096))?;
        let fields = [self.inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0];
        let mut header = b"070701".to_vec();
        for field in fields {
            header.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        header.extend_from_slice(name.as_bytes());
        header.push(0);
        header.resize(header.len().next_multiple_of(4), 0);
        self.content.append_bytes(header);
        self.content.append(data);
        self.content.align(4);
        Ok(())
    }

    /// The whole archive.
    pub fn finish(mut self) -> Result<Content, Error> {
        self.entry(TRAILER, 0, 1, Content::default())?;
        Ok(self.content)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn archive() -> Content {
        let mut archive = Archive::default();
        archive.directory("etc", 0o755).unwrap();
        archive.file("etc/name", 0o644, Content::bytes(*b"hello")).unwrap();
        archive.file("init", 0o755, Content::zeros(10_000)).unwrap();
        archive.finish().unwrap()
    }

    #[test]
    fn the_archive_has_the_newc_shape() {
        let mut archive = Archive::default();
        archive.file("a", 0o644, Content::bytes(*b"hi")).unwrap();
        let bytes = archive.finish().unwrap().read(1 << 20).unwrap();
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[110..112], b"a\0");
        assert_eq!(&bytes[112..114], b"hi");
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.windows(10).any(|window| window == b"TRAILER!!!"));
    }

    #[test]
    fn cpio_lists_and_unpacks_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("archive");
        archive().write_to(&mut std::fs::File::create(&file).unwrap()).unwrap();
        let listed = Command::new("cpio")
            .args(["-itv", "--quiet", "--numeric-uid-gid"])
            .env("TZ", "UTC")
            .stdin(Stdio::from(std::fs::File::open(&file).unwrap()))
            .output()
            .expect("cpio");
        let text = String::from_utf8(listed.stdout).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "drwxr-xr-x   2 0        0               0 Jan  1  1970 etc",
                "-rw-r--r--   1 0        0               5 Jan  1  1970 etc/name",
                "-rwxr-xr-x   1 0        0           10000 Jan  1  1970 init",
            ]
        );
    }

    #[test]
    fn a_file_larger_than_the_format_allows_is_refused() {
        let error = Archive::default().file("big", 0o644, Content::zeros(1 << 32)).unwrap_err();
        assert_eq!(error.to_string(), "cpio entry \"big\" has 4294967296 bytes, at most 4294967295 fit");
    }
}
