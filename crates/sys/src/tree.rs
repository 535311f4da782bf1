//! Emptying a directory, however deep the tree below it is.
//!
//! Names are resolved from open directories, so no path is longer than one name: a tree that a workload made by going
//! down step by step may be deeper than any path the kernel takes.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

/// Directories open at a time; a deeper one is moved to the top first.
const DEPTH_MAX: usize = 128;
/// Failures that are told; more would only repeat.
const FAILURES_MAX: usize = 64;
/// Bytes of a path in a failure.
const SHOWN_MAX: usize = 1024;

/// Something that could not be removed.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct Failure {
    /// Its path, cut where it is very long.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub source: io::Error,
}

/// Removes everything in `dir` and leaves the directory itself. Mount points inside stay, emptied; links are removed,
/// not followed. A directory that is not there is empty.
///
/// Gives what could not be removed; the rest is gone.
pub fn clear(dir: &Path) -> Vec<Failure> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = match rustix::fs::openat(CWD, dir, flags, Mode::empty()) {
        Ok(root) => root,
        Err(Errno::NOENT) => return Vec::new(),
        Err(error) => return vec![Failure { path: dir.to_owned(), source: error.into() }],
    };
    let mut moved = 0;
    loop {
        let mut pass =
            Pass { root: &root, path: dir, levels: Vec::new(), moved, removed: 0, failures: Vec::new() };
        pass.run();
        // What was moved to the top is there for the next pass; one that removed nothing would go on for ever.
        if pass.moved == moved || pass.removed == 0 {
            return pass.failures;
        }
        moved = pass.moved;
    }
}

/// An open directory of the tree.
struct Level {
    dir: Dir,
    name: CString,
    /// Whether something in it stays, so that it stays too.
    kept: bool,
}

/// One walk over the tree.
struct Pass<'a> {
    root: &'a OwnedFd,
    path: &'a Path,
    levels: Vec<Level>,
    /// Directories that were moved to the top, in all passes.
    moved: usize,
    removed: usize,
    failures: Vec<Failure>,
}

impl Pass<'_> {
    fn run(&mut self) {
        match Dir::read_from(self.root) {
            Ok(dir) => self.levels.push(Level { dir, name: CString::default(), kept: false }),
            Err(error) => return self.fail(None, error),
        }
        while let Some(level) = self.levels.last_mut() {
            match level.dir.read() {
                Some(Ok(entry)) => {
                    let name = entry.file_name();
                    if name != c"." && name != c".." {
                        let name = name.to_owned();
                        self.entry(&name, entry.file_type());
                    }
                }
                Some(Err(error)) => {
                    self.fail(None, error);
                    self.leave();
                }
                None => self.leave(),
            }
        }
    }

    /// Removes one name of the innermost directory, or goes into it.
    fn entry(&mut self, name: &CStr, kind: FileType) {
        if kind != FileType::Directory {
            match self.unlink(name, AtFlags::empty()) {
                Ok(()) => return self.removed += 1,
                Err(Errno::NOENT) => return,
                // A filesystem that does not tell kinds.
                Err(Errno::ISDIR) if kind == FileType::Unknown => {}
                Err(error) => return self.fail(Some(name), error),
            }
        }
        if self.levels.len() >= DEPTH_MAX {
            return self.move_up(name);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = self.innermost().and_then(|dir| rustix::fs::openat(dir, name, flags, Mode::empty()));
        match opened.and_then(Dir::new) {
            Ok(dir) => self.levels.push(Level { dir, name: name.to_owned(), kept: false }),
            Err(error) => self.fail(Some(name), error),
        }
    }

    /// Gives a directory that is too deep a place at the top, where the next pass finds it.
    fn move_up(&mut self, name: &CStr) {
        loop {
            self.moved += 1;
            let place = format!(".clearing-{}", self.moved);
            let moved = self.innermost().and_then(|dir| rustix::fs::renameat(dir, name, self.root, &place));
            match moved {
                Ok(()) => return self.removed += 1,
                // Left by a machine that was switched off in the middle.
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {}
                Err(error) => return self.fail(Some(name), error),
            }
        }
    }

    /// Goes out of the innermost directory and removes it.
    fn leave(&mut self) {
        let Some(done) = self.levels.pop() else { return };
        if self.levels.is_empty() {
            return;
        }
        if done.kept {
            return self.keep();
        }
        match self.unlink(&done.name, AtFlags::REMOVEDIR) {
            Ok(()) => self.removed += 1,
            Err(Errno::NOENT) => {}
            // Something is mounted there.
            Err(Errno::BUSY) => self.keep(),
            Err(error) => self.fail(Some(&done.name), error),
        }
    }

    fn keep(&mut self) {
        if let Some(level) = self.levels.last_mut() {
            level.kept = true;
        }
    }

    fn innermost(&self) -> rustix::io::Result<rustix::fd::BorrowedFd<'_>> {
        match self.levels.last() {
            Some(level) => level.dir.fd(),
            None => Ok(self.root.as_fd()),
        }
    }

    fn unlink(&self, name: &CStr, flags: AtFlags) -> rustix::io::Result<()> {
        rustix::fs::unlinkat(self.innermost()?, name, flags)
    }

    /// Notes a failure about a name in the innermost directory, or about that directory; it stays then.
    fn fail(&mut self, name: Option<&CStr>, error: Errno) {
        if self.failures.len() < FAILURES_MAX {
            let mut path = self.path.to_owned();
            let names = self.levels.iter().skip(1).map(|level| level.name.as_c_str()).chain(name);
            for name in names {
                if path.as_os_str().len() > SHOWN_MAX {
                    path.push("...");
                    break;
                }
                path.push(name.to_string_lossy().as_ref());
            }
            self.failures.push(Failure { path, source: error.into() });
        }
        self.keep();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Makes a tree of directories one below the other, from inside, with a file at its end.
    fn dig(dir: &Path, levels: usize, name: &str) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = rustix::fs::openat(CWD, dir, flags, Mode::empty()).unwrap();
        for _ in 0..levels {
            rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o755)).unwrap();
            at = rustix::fs::openat(&at, name, flags, Mode::empty()).unwrap();
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        rustix::fs::openat(&at, "bottom", flags, Mode::from_raw_mode(0o644)).unwrap();
    }

    fn count(dir: &Path) -> usize {
        std::fs::read_dir(dir).unwrap().count()
    }

    #[test]
    fn a_tree_deeper_than_a_path_may_be_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        // 3 000 levels of 100 bytes: 300 KiB, where a path has 4 KiB.
        dig(dir.path(), 3_000, &"d".repeat(100));
        std::fs::write(dir.path().join("beside"), "x").unwrap();
        std::fs::create_dir(dir.path().join(".clearing-1")).unwrap();
        std::fs::write(dir.path().join(".clearing-1/left"), "x").unwrap();
        assert!(clear(dir.path()).is_empty());
        assert_eq!(count(dir.path()), 0);
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(other.path().join("kept"), "x").unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        symlink(other.path(), dir.path().join("a/b/link")).unwrap();
        assert!(clear(dir.path()).is_empty());
        assert_eq!((count(dir.path()), count(other.path())), (0, 1));
    }

    #[test]
    fn what_is_not_there_is_empty_and_what_is_no_directory_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(clear(&dir.path().join("none")).is_empty());
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let failures = clear(&file);
        assert_eq!(failures.len(), 1);
        assert!(failures[0].to_string().starts_with(&format!("{}: ", file.display())), "{}", failures[0]);
    }
}
