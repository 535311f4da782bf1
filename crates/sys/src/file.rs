//! Replaces files durably: write beside, sync, rename, sync the directory.
//!
//! After a crash or a power cut at any moment the file has its old content or the new one, never a part; and once a
//! replacement is reported as done it stays. Readers see one or the other as well.

#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Replaces a file.
///
/// # Errors
/// When a step fails; the file is the old one then, except that a failed sync of the directory leaves open which of
/// the two survives a power cut.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    replace_on(System, path, content, mode)
}

/// [`replace`] on files that need not be those of the system.
///
/// # Errors
/// As [`replace`].
pub fn replace_on<F: Files>(files: F, path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut draft = Draft::begin(files, path, "new", mode)?;
    draft.files.write(&mut draft.file, content)?;
    draft.place()
}

/// Replaces a file unless it has this content already; its owner and group become `owner` where one is given. Tells
/// whether it was replaced.
///
/// # Errors
/// As [`replace`].
pub fn replace_if_changed(path: &Path, content: &[u8], mode: u32, owner: Option<u32>) -> io::Result<bool> {
    if holds(path, content) {
        return Ok(false);
    }
    let mut draft = Draft::create(path, mode)?;
    draft.write_all(content)?;
    if let Some(id) = owner {
        fchown(&draft.file, Some(id), Some(id))?;
    }
    draft.commit().map(|()| true)
}

/// Whether a file has this content; the length decides before anything is read.
fn holds(path: &Path, content: &[u8]) -> bool {
    let length = |found: fs::Metadata| found.is_file() && found.len() == content.len() as u64;
    fs::metadata(path).is_ok_and(length) && fs::read(path).is_ok_and(|held| held == content)
}

/// Moves a file or directory to another name of the same filesystem, and waits until the move is on disk.
///
/// # Errors
/// When a step fails.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_directory(to)?;
    if directory(from) == directory(to) { Ok(()) } else { sync_directory(from) }
}

/// The new version of a file while it is written. Dropped without [`Draft::commit`] it leaves nothing behind.
#[derive(Debug)]
pub struct Draft<F: Files = System> {
    files: F,
    file: F::File,
    temporary: PathBuf,
    path: PathBuf,
    placed: bool,
}

impl Draft {
    /// Begins a new version beside the file, as `.NAME.new`. One writer at a time may do so.
    ///
    /// # Errors
    /// When the file beside it cannot be made, or another writer has it open.
    pub fn create(path: &Path, mode: u32) -> io::Result<Self> {
        Self::create_as(path, "new", mode)
    }

    /// The same as `.NAME.ENDING`, for files that several processes may replace at the same time.
    ///
    /// # Errors
    /// When the file beside it cannot be made.
    pub fn create_as(path: &Path, ending: &str, mode: u32) -> io::Result<Self> {
        Self::begin(System, path, ending, mode)
    }

    /// The file that is written; what was written can be read back.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Puts the new version in place of the old one.
    ///
    /// # Errors
    /// As [`replace`].
    pub fn commit(self) -> io::Result<()> {
        self.place()
    }
}

impl Write for Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl<F: Files> Draft<F> {
    fn begin(files: F, path: &Path, ending: &str, mode: u32) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        // A leading dot: directories of configuration are read by their names' endings.
        let name = [OsStr::new("."), name, OsStr::new("."), OsStr::new(ending)].join(OsStr::new(""));
        let temporary = path.with_file_name(name);
        match files.remove_stale(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let file = files.create(&temporary, mode)?;
        Ok(Self { files, file, temporary, path: path.to_owned(), placed: false })
    }

    fn place(mut self) -> io::Result<()> {
        self.files.sync(&self.file)?;
        self.files.rename(&self.temporary, &self.path)?;
        self.placed = true;
        // The name is only safe once its directory is on disk, too.
        self.files.sync_directory(&self.path)
    }
}

impl<F: Files> Drop for Draft<F> {
    fn drop(&mut self) {
        if !self.placed {
            // On a full disk half a file would be in the way of everything else.
            let _ = self.files.remove(&self.temporary);
        }
    }
}

/// What is done to files; tests put failures and power cuts between any two of these.
pub trait Files {
    /// A file being written.
    type File;

    /// Removes what an interrupted replacement left: it may have another owner or mode. Fails with
    /// [`io::ErrorKind::ResourceBusy`] when its writer is still alive.
    fn remove_stale(&self, path: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes a file that is not there yet, locked until it is closed.
    fn create(&self, path: &Path, mode: u32) -> io::Result<Self::File>;

    /// Writes all these bytes to the end of a file.
    fn write(&self, file: &mut Self::File, bytes: &[u8]) -> io::Result<()>;

    /// Waits until the bytes of a file are on disk.
    fn sync(&self, file: &Self::File) -> io::Result<()>;

    /// Gives a file the place of another.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Waits until the names in the directory of a file are on disk.
    fn sync_directory(&self, of: &Path) -> io::Result<()>;
}

/// The files of the system.
#[derive(Debug, Clone, Copy, Default)]
pub struct System;

impl Files for System {
    type File = File;

    fn remove_stale(&self, path: &Path) -> io::Result<()> {
        // Neither a link nor a pipe that somebody put there is followed or waited for.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        if let Ok(file) = File::options().read(true).custom_flags(flags).open(path) {
            lock(&file)?;
        }
        fs::remove_file(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn create(&self, path: &Path, mode: u32) -> io::Result<File> {
        let file = File::options().read(true).write(true).create_new(true).mode(mode).open(path)?;
        lock(&file)?;
        // The umask may have taken something away.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        Ok(file)
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

    fn sync_directory(&self, of: &Path) -> io::Result<()> {
        sync_directory(of)
    }
}

/// Locks a file that is being written; some network filesystems have no locks.
fn lock(file: &File) -> io::Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            Err(io::Error::new(io::ErrorKind::ResourceBusy, "another writer is replacing it"))
        }
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

fn sync_directory(of: &Path) -> io::Result<()> {
    File::open(directory(of))?.sync_all()
}

fn directory(of: &Path) -> &Path {
    of.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
