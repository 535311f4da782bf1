//! The configuration on disk: one file, replaced whole or not at all.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The file on STATE.
pub const FILE: &str = "config.yaml";

/// Holds secrets, so it is for root alone.
const MODE: u32 = 0o600;

/// The largest configuration that is read; the API takes no more than 32 MiB either.
pub const LEN_MAX: u64 = 32 * 1024 * 1024;

/// A place that keeps the configuration over reboots.
pub trait ConfigDisk: Send + Sync {
    /// Whether it can be used at all. One that cannot may hold a configuration that must not be replaced.
    fn available(&self) -> Result<(), DiskError> {
        Ok(())
    }

    /// What is kept, if anything.
    fn load(&self) -> Result<Option<Vec<u8>>, DiskError>;

    /// Replaces what is kept. When this returns, a power cut loses nothing.
    fn save(&self, yaml: &[u8]) -> Result<(), DiskError>;
}

/// The configuration could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{action} {}", path.display())]
pub struct DiskError {
    /// What was being done.
    pub action: &'static str,
    /// To which file.
    pub path: PathBuf,
    /// Why it failed.
    #[source]
    pub source: io::Error,
}

/// The STATE directory.
#[derive(Debug, Clone)]
pub struct StateDir(PathBuf);

impl StateDir {
    /// A STATE directory at `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self(dir.into())
    }
}

fn at<T>(action: &'static str, path: &Path, result: io::Result<T>) -> Result<T, DiskError> {
    result.map_err(|source| DiskError { action, path: path.to_path_buf(), source })
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    if fs::metadata(path)?.len() > LEN_MAX {
        return Err(io::Error::other("larger than 32 MiB"));
    }
    fs::read(path)
}

impl ConfigDisk for StateDir {
    fn load(&self) -> Result<Option<Vec<u8>>, DiskError> {
        let path = self.0.join(FILE);
        match read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => at("read", &path, read).map(Some),
        }
    }

    fn save(&self, yaml: &[u8]) -> Result<(), DiskError> {
        let path = self.0.join(FILE);
        at("write", &path, ichor_sys::file::replace(&path, yaml, MODE))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_saved_is_loaded_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let disk = StateDir::new(dir.path());
        assert!(disk.load().unwrap().is_none());
        disk.save(b"one").unwrap();
        disk.save(b"two").unwrap();
        assert_eq!(disk.load().unwrap().as_deref(), Some(&b"two"[..]));
        let mode = fs::metadata(dir.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_failed_save_leaves_the_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let disk = StateDir::new(dir.path());
        disk.save(b"good").unwrap();
        // A directory in the way: it cannot be written to, nor removed as a file.
        fs::create_dir(dir.path().join(".config.yaml.new")).unwrap();
        let error = disk.save(b"bad").unwrap_err();
        assert!(error.to_string().starts_with("write "), "{error}");
        assert_eq!(disk.load().unwrap().as_deref(), Some(&b"good"[..]));
    }
}
