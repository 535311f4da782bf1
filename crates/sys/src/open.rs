//! Opening files under names that others control: nothing but the intended kind of file is opened, and no open waits.
//!
//! A name is resolved to a handle first (`O_PATH`, which opens nothing), the handle is examined, and the very same file
//! is then opened through it. Between the look and the open nobody can put something else in its place.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};

/// Opens a regular file to read. No part of the path may be a symbolic link, so whoever may write to a directory on the
/// way cannot lead a privileged reader elsewhere.
///
/// # Errors
/// `ELOOP` where there is a link, `InvalidInput` for what is no regular file, else the kernel's.
pub fn regular(path: &Path) -> io::Result<File> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let handle = handle(CWD, path, resolve)?;
    if kind(&handle)? != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    read(&handle)
}

/// Resolves a path below `dir` without opening what it names.
pub(crate) fn handle(dir: impl AsFd, path: &Path, resolve: ResolveFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(dir, path, flags, Mode::empty(), resolve)?)
}

/// What kind of file a handle stands for.
pub(crate) fn kind(handle: &OwnedFd) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(handle)?.st_mode))
}

/// Opens the file of a handle to read, without waiting and without taking a terminal.
pub(crate) fn read(handle: &OwnedFd) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let through = format!("/proc/self/fd/{}", handle.as_raw_fd());
    Ok(rustix::fs::open(through, flags, Mode::empty())?.into())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_anywhere_in_the_path_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        std::fs::create_dir(base.join("pod")).unwrap();
        std::fs::write(base.join("pod/0.log"), "a line\n").unwrap();
        std::fs::write(base.join("secret"), "key").unwrap();
        let mut text = String::new();
        regular(&base.join("pod/0.log")).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "a line\n");
        symlink("../secret", base.join("pod/1.log")).unwrap();
        symlink("pod", base.join("other")).unwrap();
        for path in ["pod/1.log", "other/0.log"] {
            let error = regular(&base.join(path)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ELOOP), "{path}: {error}");
        }
    }

    #[test]
    fn what_is_no_regular_file_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let fifo = base.join("fifo");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        for path in [fifo.as_path(), &base, Path::new("/dev/zero")] {
            assert_eq!(regular(path).unwrap_err().to_string(), "not a regular file");
        }
        assert_eq!(regular(&base.join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
