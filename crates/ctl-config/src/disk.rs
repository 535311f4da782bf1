//! The configuration on disk: one file, replaced whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The file on STATE.
pub const FILE: &str = "config.yaml";

/// Where it is written first.
const TEMPORARY: &str = "config.yaml-tmp";

/// Holds secrets, so it is for root alone.
const MODE: u32 = 0o600;

/// The largest configuration that is read; the API takes no more than 32 MiB either.
pub const LEN_MAX: u64 = 32 * 1024 * 1024;

/// A place that keeps the configuration over reboots.
pub trait ConfigDisk: Send + Sync {
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

/// What is done to files; tests put failures and power cuts between any two of these.
pub trait Files: Send + Sync {
    /// A file being written.
    type File;

    /// All of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes a file that is not there yet, for root alone.
    fn create(&self, path: &Path) -> io::Result<Self::File>;

    /// Writes all bytes.
    fn write(&self, file: &mut Self::File, bytes: &[u8]) -> io::Result<()>;

    /// Waits until the bytes of a file are on disk.
    fn sync(&self, file: &Self::File) -> io::Result<()>;

    /// Gives a file the place of another.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Waits until the names in a directory are on disk.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
}

/// The files of the system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemFiles;

impl Files for SystemFiles {
    type File = File;

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        if fs::metadata(path)?.len() > LEN_MAX {
            return Err(io::Error::other("larger than 32 MiB"));
        }
        fs::read(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        File::options().write(true).create_new(true).mode(MODE).open(path)
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}

/// The STATE directory.
#[derive(Debug, Clone)]
pub struct StateDir<F = SystemFiles> {
    dir: PathBuf,
    files: F,
}

impl StateDir {
    /// A STATE directory at `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self::with(dir, SystemFiles)
    }
}

impl<F> StateDir<F> {
    /// A STATE directory at `dir` whose files are reached in another way.
    pub fn with(dir: impl Into<PathBuf>, files: F) -> Self {
        Self { dir: dir.into(), files }
    }
}

fn at<T>(action: &'static str, path: &Path, result: io::Result<T>) -> Result<T, DiskError> {
    result.map_err(|source| DiskError { action, path: path.to_path_buf(), source })
}

impl<F: Files> ConfigDisk for StateDir<F> {
    fn load(&self) -> Result<Option<Vec<u8>>, DiskError> {
        let path = self.dir.join(FILE);
        match self.files.read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => at("read", &path, read).map(Some),
        }
    }

    fn save(&self, yaml: &[u8]) -> Result<(), DiskError> {
        let temporary = self.dir.join(TEMPORARY);
        let path = self.dir.join(FILE);
        // A leftover of an interrupted save may have another owner or mode.
        match self.files.remove(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return at("remove", &temporary, Err(error));
            }
            Ok(()) | Err(_) => {}
        }
        let write = || -> io::Result<()> {
            let mut file = self.files.create(&temporary)?;
            self.files.write(&mut file, yaml)?;
            self.files.sync(&file)
        };
        let replaced = at("write", &temporary, write())
            .and_then(|()| at("rename to", &path, self.files.rename(&temporary, &path)));
        if replaced.is_err() {
            // On a full disk half a file would be in the way of everything else.
            let _ = self.files.remove(&temporary);
        }
        replaced?;
        // The name is only safe once its directory is on disk too.
        at("sync", &self.dir, self.files.sync_dir(&self.dir))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Mutex;

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
        assert!(!dir.path().join(TEMPORARY).exists());
    }

    #[test]
    fn a_failed_save_leaves_the_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let disk = StateDir::new(dir.path());
        disk.save(b"good").unwrap();
        // A directory in the way: it cannot be written to, nor removed as a file.
        fs::create_dir(dir.path().join(TEMPORARY)).unwrap();
        let error = disk.save(b"bad").unwrap_err();
        assert!(error.to_string().starts_with("remove "), "{error}");
        assert_eq!(disk.load().unwrap().as_deref(), Some(&b"good"[..]));
    }

    #[test]
    fn an_interrupted_save_does_not_stop_the_next() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(TEMPORARY), "half").unwrap();
        let disk = StateDir::new(dir.path());
        assert!(disk.load().unwrap().is_none());
        disk.save(b"whole").unwrap();
        assert_eq!(disk.load().unwrap().as_deref(), Some(&b"whole"[..]));
    }

    /// A disk that knows what would be left after a power cut: bytes that were not synced may be there in part or not
    /// at all, and so may names.
    #[derive(Default)]
    struct Disk {
        /// Content by file: what programs see, and what is safe.
        inodes: Vec<(Vec<u8>, Vec<u8>)>,
        names: BTreeMap<PathBuf, usize>,
        /// Directories as they may be found after a cut; the last one is the present.
        past: Vec<BTreeMap<PathBuf, usize>>,
        /// Steps that still work.
        steps: usize,
    }

    struct FakeFiles(Mutex<Disk>);

    impl FakeFiles {
        /// Does a step, unless it is the one that fails or power is out.
        fn step<T>(&self, run: impl FnOnce(&mut Disk) -> T) -> io::Result<T> {
            let mut disk = self.0.lock().unwrap();
            if disk.steps == 0 {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            if disk.steps != usize::MAX {
                disk.steps -= 1;
            }
            let result = run(&mut disk);
            let names = disk.names.clone();
            disk.past.push(names);
            Ok(result)
        }

        /// Every content that the file may have after a power cut now.
        fn after_a_cut(&self) -> Vec<Option<Vec<u8>>> {
            let disk = self.0.lock().unwrap();
            let mut found = Vec::new();
            for names in &disk.past {
                let Some(inode) = names.get(Path::new("/state/config.yaml")) else {
                    found.push(None);
                    continue;
                };
                let (seen, safe) = &disk.inodes[*inode];
                found.push(Some(safe.clone()));
                if seen != safe {
                    // Anything between: nothing, half, zeros, all of it.
                    let half = seen[..seen.len() / 2].to_vec();
                    found.extend([
                        Some(Vec::new()),
                        Some(half),
                        Some(vec![0; seen.len()]),
                        Some(seen.clone()),
                    ]);
                }
            }
            found
        }
    }

    impl Files for &FakeFiles {
        type File = usize;

        fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
            let disk = self.0.lock().unwrap();
            let inode = disk.names.get(path).ok_or(io::ErrorKind::NotFound)?;
            Ok(disk.inodes[*inode].0.clone())
        }

        fn remove(&self, path: &Path) -> io::Result<()> {
            self.step(|disk| disk.names.remove(path))?.map(drop).ok_or(io::ErrorKind::NotFound.into())
        }

        fn create(&self, path: &Path) -> io::Result<usize> {
            self.step(|disk| {
                disk.inodes.push(Default::default());
                let inode = disk.inodes.len() - 1;
                disk.names.insert(path.to_path_buf(), inode);
                inode
            })
        }

        fn write(&self, file: &mut usize, bytes: &[u8]) -> io::Result<()> {
            // In two steps: the disk may be full in between.
            let (one, two) = bytes.split_at(bytes.len() / 2);
            self.step(|disk| disk.inodes[*file].0.extend(one))?;
            self.step(|disk| disk.inodes[*file].0.extend(two))
        }

        fn sync(&self, file: &usize) -> io::Result<()> {
            self.step(|disk| disk.inodes[*file].1 = disk.inodes[*file].0.clone())
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            self.step(|disk| {
                let inode = disk.names.remove(from);
                disk.names.extend(inode.map(|inode| (to.to_path_buf(), inode)));
            })
        }

        fn sync_dir(&self, _path: &Path) -> io::Result<()> {
            self.step(|disk| disk.past.clear())
        }
    }

    /// A disk with a configuration, on which so many steps still work.
    fn failing_after(steps: usize, leftover: bool) -> FakeFiles {
        let files = FakeFiles(Mutex::new(Disk { steps: usize::MAX, ..Disk::default() }));
        let disk = StateDir::with("/state", &files);
        disk.save(b"old").unwrap();
        if leftover {
            let mut file = (&files).create(Path::new("/state/config.yaml-tmp")).unwrap();
            (&files).write(&mut file, b"half").unwrap();
            (&files).sync_dir(Path::new("/state")).unwrap();
        }
        files.0.lock().unwrap().steps = steps;
        files
    }

    #[test]
    fn whatever_step_fails_and_whenever_power_goes_the_file_is_whole() {
        let mut succeeded = 0;
        for leftover in [false, true] {
            for steps in 0..12 {
                let files = failing_after(steps, leftover);
                let disk = StateDir::with("/state", &files);
                let saved = disk.save(b"a new configuration");
                for left in files.after_a_cut() {
                    let left = left.expect("the file is never gone");
                    let whole = left == b"old" || left == b"a new configuration";
                    assert!(whole, "{steps} steps: {:?}", String::from_utf8_lossy(&left));
                    assert!(saved.is_err() || left != b"old", "{steps} steps: told as saved, and lost");
                }
                let seen = disk.load().unwrap().unwrap();
                assert!(seen == b"old" || seen == b"a new configuration", "{steps} steps");
                assert!(saved.is_err() || seen == b"a new configuration");
                succeeded += usize::from(saved.is_ok());
                // Whatever was left behind, the next save works.
                files.0.lock().unwrap().steps = usize::MAX;
                disk.save(b"next").unwrap();
                assert!(
                    files.after_a_cut().iter().all(|left| left.as_deref() == Some(b"next")),
                    "{steps} steps"
                );
            }
        }
        assert!((2..20).contains(&succeeded), "{succeeded} saves were told as done");
    }
}
