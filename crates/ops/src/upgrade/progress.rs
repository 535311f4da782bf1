//! The finished steps of an upgrade, kept in a file so that the next run resumes where the last one stopped.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Problem, Result};

/// The steps of one upgrade that are done.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Done {
    from: String,
    to: String,
    /// Such as `kube-apiserver/10.5.0.2`.
    steps: BTreeSet<String>,
}

/// The file, and what it says.
#[derive(Debug)]
pub(super) struct Progress {
    path: Option<PathBuf>,
    done: Done,
}

impl Progress {
    /// The progress of the upgrade of this cluster between these versions; that of another upgrade does not
    /// count. Without a path nothing is kept.
    pub(super) fn open(path: Option<PathBuf>, from: &str, to: &str) -> Self {
        let known = path.as_deref().and_then(read);
        let done = known.filter(|done| done.from == from && done.to == to).unwrap_or_else(|| Done {
            from: from.to_owned(),
            to: to.to_owned(),
            steps: BTreeSet::new(),
        });
        Self { path, done }
    }

    /// The version an interrupted upgrade to `to` began at. Versions found in a cluster that is half way are
    /// not it.
    pub(super) fn begun_from(path: &Path, to: &str) -> Option<String> {
        read(path).filter(|done| done.to == to && !done.steps.is_empty()).map(|done| done.from)
    }

    /// How many steps are done.
    pub(super) fn count(&self) -> usize {
        self.done.steps.len()
    }

    /// Whether this step is done.
    pub(super) fn is_done(&self, step: &str) -> bool {
        self.done.steps.contains(step)
    }

    /// Notes that a step is done.
    pub(super) fn note(&mut self, step: impl Into<String>) -> Result<()> {
        self.done.steps.insert(step.into());
        let Some(path) = &self.path else { return Ok(()) };
        let failed = |source| Problem::File { doing: "write", path: path.clone(), source };
        let text = serde_json::to_vec_pretty(&self.done).map_err(|error| failed(error.into()))?;
        replace(path, &text).map_err(failed)?;
        Ok(())
    }

    /// All is done: nothing is left to go on with.
    pub(super) fn finish(self) {
        if let Some(path) = &self.path {
            // A file that stays is read, and its steps are looked at, once more.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Replaces the file; its directory is made where it is missing.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    ichor_sys::file::replace(path, content, 0o600)
}

fn read(path: &Path) -> Option<Done> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upgrade_goes_on_where_it_was_broken_off_and_another_one_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("upgrade-k8s/lab.json");
        let mut progress = Progress::open(Some(path.clone()), "1.34.3", "1.35.0");
        assert_eq!(Progress::begun_from(&path, "1.35.0"), None);
        progress.note("kube-apiserver/10.5.0.2").unwrap();
        assert_eq!(Progress::begun_from(&path, "1.35.0").as_deref(), Some("1.34.3"));
        assert_eq!(Progress::begun_from(&path, "1.35.1"), None);
        let again = Progress::open(Some(path.clone()), "1.34.3", "1.35.0");
        assert!(again.is_done("kube-apiserver/10.5.0.2") && !again.is_done("kube-apiserver/10.5.0.3"));
        assert_eq!(Progress::open(Some(path.clone()), "1.35.0", "1.35.1").count(), 0);
        again.finish();
        assert_eq!(Progress::open(Some(path), "1.34.3", "1.35.0").count(), 0);
    }

    #[test]
    fn a_damaged_file_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lab.json");
        std::fs::write(&path, "{\"from\":").unwrap();
        assert_eq!(Progress::open(Some(path), "1.34.3", "1.35.0").count(), 0);
    }
}
