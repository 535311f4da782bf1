//! Walks a tree in the order of names, a bounded piece at a time.
//!
//! Every step is short blocking work; between steps a slow client costs nothing but this value.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};

/// Directories open at once below the root; deeper trees are cut there with an error.
const DEPTH_MAX: usize = 256;

/// Entries of one directory; their names are in memory at once.
const ENTRIES_MAX: usize = 256 * 1024;

/// One thing found.
pub struct Found {
    /// Its full path.
    pub path: PathBuf,
    /// Its path from the root, `.` for the root itself.
    pub relative: PathBuf,
    /// What it is, or why that is not known.
    pub metadata: io::Result<Metadata>,
}

/// A walk in progress.
pub struct Walk {
    root: PathBuf,
    depth_max: Option<usize>,
    started: bool,
    /// Names still to visit, one list per open directory, last first.
    levels: Vec<Vec<PathBuf>>,
    /// A directory whose reading failed, told after the directory itself.
    failed: Option<(PathBuf, io::Error)>,
}

impl Walk {
    /// A walk of `root`. With a depth of one only the root's own entries come.
    pub fn new(root: PathBuf, depth_max: Option<usize>) -> Self {
        Self { root, depth_max, started: false, levels: Vec::new(), failed: None }
    }

    /// Whether nothing is left.
    pub fn is_done(&self) -> bool {
        self.started && self.failed.is_none() && self.levels.iter().all(Vec::is_empty)
    }

    fn found(&self, path: PathBuf, metadata: io::Result<Metadata>) -> Found {
        let relative = match path.strip_prefix(&self.root) {
            Ok(rest) if rest.as_os_str().is_empty() => PathBuf::from("."),
            Ok(rest) => rest.to_path_buf(),
            Err(_) => path.clone(),
        };
        Found { path, relative, metadata }
    }

    fn open(&mut self, dir: &Path) {
        if self.levels.len() >= DEPTH_MAX {
            self.failed = Some((dir.to_path_buf(), io::Error::other("tree is too deep")));
            return;
        }
        match fs::read_dir(dir) {
            Ok(entries) => {
                let mut paths: Vec<PathBuf> =
                    entries.flatten().take(ENTRIES_MAX + 1).map(|entry| entry.path()).collect();
                if paths.len() > ENTRIES_MAX {
                    paths.truncate(ENTRIES_MAX);
                    let text = format!("only the first {ENTRIES_MAX} entries are shown");
                    self.failed = Some((dir.to_path_buf(), io::Error::other(text)));
                }
                paths.sort_unstable_by(|a, b| b.cmp(a));
                self.levels.push(paths);
            }
            Err(error) => self.failed = Some((dir.to_path_buf(), error)),
        }
    }
}

impl Iterator for Walk {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        if let Some((path, error)) = self.failed.take() {
            return Some(self.found(path, Err(error)));
        }
        let path = if self.started {
            loop {
                let level = self.levels.last_mut()?;
                match level.pop() {
                    Some(path) => break path,
                    None => {
                        self.levels.pop();
                    }
                }
            }
        } else {
            self.started = true;
            self.root.clone()
        };
        let metadata = fs::symlink_metadata(&path);
        let below = self.depth_max.is_none_or(|max| self.levels.len() < max);
        if below && metadata.as_ref().is_ok_and(Metadata::is_dir) {
            self.open(&path);
        }
        Some(self.found(path, metadata))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("b/c")).unwrap();
        fs::write(dir.path().join("a"), "1").unwrap();
        fs::write(dir.path().join("b/c/d"), "2").unwrap();
        fs::write(dir.path().join("z"), "3").unwrap();
        dir
    }

    fn names(walk: Walk) -> Vec<String> {
        walk.map(|found| found.relative.display().to_string()).collect()
    }

    #[test]
    fn everything_comes_in_name_order() {
        let dir = tree();
        assert_eq!(names(Walk::new(dir.path().into(), None)), [".", "a", "b", "b/c", "b/c/d", "z"]);
    }

    #[test]
    fn the_depth_is_a_limit() {
        let dir = tree();
        assert_eq!(names(Walk::new(dir.path().into(), Some(1))), [".", "a", "b", "z"]);
        assert_eq!(names(Walk::new(dir.path().into(), Some(2))), [".", "a", "b", "b/c", "z"]);
    }

    #[test]
    fn links_are_not_followed() {
        let dir = tree();
        std::os::unix::fs::symlink(dir.path(), dir.path().join("b/loop")).unwrap();
        assert_eq!(names(Walk::new(dir.path().into(), None)).len(), 7);
    }

    #[test]
    fn a_missing_root_is_one_error() {
        let found: Vec<Found> = Walk::new("/no/such/place".into(), None).collect();
        assert_eq!(found.len(), 1);
        assert!(found[0].metadata.is_err());
    }
}
