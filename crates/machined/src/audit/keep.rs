//! The last lines of the audit log in two files of a memory file system, so that they outlive machined.
//!
//! Lines are written as they come, not gathered: a killed machined has no time to write the rest. A flood is counted
//! before it gets here, so writes are few.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tracing::warn;

/// A file that has grown to this is put aside, and the one that was aside before is gone.
const FILE_LEN_MAX: u64 = 128 * 1024;

/// The files.
#[derive(Debug)]
pub struct Keep {
    path: PathBuf,
    aside: PathBuf,
    file: Option<(File, u64)>,
    trouble: bool,
}

impl Keep {
    /// Opens the files in `folder` and gives the lines that are in them, oldest first. What cannot be read is not there.
    pub fn open(folder: &Path) -> (Self, Vec<u8>) {
        let (path, aside) = (folder.join("audit.log"), folder.join("audit.log.1"));
        let mut lines = fs::read(&aside).unwrap_or_default();
        let older = lines.len();
        lines.extend(fs::read(&path).unwrap_or_default());
        // The last line may have been cut by the end of its writer.
        let whole = lines.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1).max(older);
        if lines.len() > whole {
            lines.truncate(whole);
            let shorten = |file: File| file.set_len((whole - older) as u64);
            let _ = OpenOptions::new().write(true).open(&path).and_then(shorten);
        }
        (Self { path, aside, file: None, trouble: false }, lines)
    }

    /// Adds lines. Trouble is told once; the log in memory goes on without.
    pub fn append(&mut self, lines: &[u8]) {
        match self.try_append(lines) {
            Ok(()) => self.trouble = false,
            Err(error) => {
                self.file = None;
                if !self.trouble {
                    warn!(path = %self.path.display(), %error, "the audit log would not outlive a crash");
                }
                self.trouble = true;
            }
        }
    }

    fn try_append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.file.as_ref().is_some_and(|(_, len)| *len >= FILE_LEN_MAX) {
            self.file = None;
            fs::rename(&self.path, &self.aside)?;
        }
        let (file, len) = match &mut self.file {
            Some(open) => open,
            None => {
                let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)?;
                let len = file.metadata()?.len();
                self.file.insert((file, len))
            }
        };
        file.write_all(lines)?;
        *len += lines.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ichor_observe::{LogManager, Start};

    use super::*;
    use crate::audit::{Audit, LOG};

    fn log(logs: &LogManager) -> String {
        let mut reader = logs.ring(LOG).reader(Start::Oldest);
        let mut text = Vec::new();
        while let Some(part) = reader.read(4096) {
            text.extend_from_slice(&part);
        }
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn the_next_machined_goes_on_with_the_lines_of_the_one_that_died() {
        let folder = tempfile::tempdir().unwrap();
        let first = Audit::kept(&LogManager::new(), folder.path());
        first.write("{\"a\":1}\n");
        first.write("{\"a\":2}\n");
        // A line that was cut is not taken for one.
        fs::OpenOptions::new()
            .append(true)
            .open(folder.path().join("audit.log"))
            .unwrap()
            .write_all(b"{\"a")
            .unwrap();
        let logs = LogManager::new();
        let second = Audit::kept(&logs, folder.path());
        second.write("{\"a\":3}\n");
        assert_eq!(log(&logs), "{\"a\":1}\n{\"a\":2}\n{\"a\":3}\n");
        let logs = LogManager::new();
        Audit::kept(&logs, folder.path());
        assert_eq!(log(&logs), "{\"a\":1}\n{\"a\":2}\n{\"a\":3}\n");
    }

    #[test]
    fn however_much_is_written_the_files_stay_small_and_private() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (mut keep, _) = Keep::open(folder.path());
        let line = [b"x".repeat(999), b"\n".to_vec()].concat();
        for _ in 0..2000 {
            keep.append(&line);
        }
        let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap()).collect();
        assert_eq!(files.len(), 2);
        for file in files {
            let found = file.metadata().unwrap();
            assert!(found.len() <= FILE_LEN_MAX + 1000, "{}", found.len());
            assert_eq!(found.permissions().mode() & 0o777, 0o600);
        }
        let (_, lines) = Keep::open(folder.path());
        assert!(lines.len() as u64 >= FILE_LEN_MAX);
    }

    #[test]
    fn a_folder_that_is_not_there_costs_only_the_second_copy() {
        let logs = LogManager::new();
        let audit = Audit::kept(&logs, Path::new("/no/such/folder"));
        audit.write("line\n");
        assert_eq!(log(&logs), "line\n");
    }
}
