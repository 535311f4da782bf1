//! The kubelet's files on the machine: what is there, and the steps of a plan.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::plan::{Found, KUBERNETES, OWN, Step};
use super::{KubeletServiceError, client};

/// Longest certificate or state file that is read.
const FILE_MAX: u64 = 1 << 20;

/// The files below a root.
#[derive(Debug)]
pub(super) struct Files {
    root: PathBuf,
    /// What the running kubelet was started with; in memory so that it is gone after a reboot.
    mark: PathBuf,
}

impl Files {
    pub(super) fn new(root: PathBuf, mark: PathBuf) -> Self {
        Self { root, mark }
    }

    /// What an earlier kubelet left.
    pub(super) fn find(&self) -> Found {
        let own = self.root.join(OWN);
        let current = own.join("pki").join(client::CURRENT);
        Found {
            certificate: read(&current),
            has_certificate_link: fs::symlink_metadata(&current).is_ok(),
            cpu_state: read(&own.join("cpu_manager_state")),
            has_kubeconfig: self.root.join(KUBERNETES).join("kubeconfig-kubelet").exists(),
        }
    }

    /// Takes steps in their order; the first that fails ends them.
    pub(super) fn apply(&self, steps: &[Step]) -> Result<(), KubeletServiceError> {
        steps.iter().try_for_each(|step| match step {
            Step::Directory(path, mode) => make_directory(&self.root.join(path), *mode),
            Step::Write(path, content, mode) => put(&self.root.join(path), content, *mode),
            Step::Link(path, target) => link(&self.root.join(path), target),
            Step::Remove(path) => remove(&self.root.join(path)),
            Step::RemoveTree(path) => remove_tree(&self.root.join(path)),
        })
    }

    /// The mark of the plan that the running kubelet was started with.
    pub(super) fn mark(&self) -> Option<Vec<u8>> {
        read(&self.mark)
    }

    pub(super) fn set_mark(&self, mark: &str) -> Result<(), KubeletServiceError> {
        make_directory(self.mark.parent().unwrap_or(Path::new("/")), 0o755)?;
        put(&self.mark, mark.as_bytes(), 0o600)
    }
}

fn at<T>(what: &'static str, path: &Path, done: io::Result<T>) -> Result<T, KubeletServiceError> {
    done.map_err(|source| KubeletServiceError::File { what, path: path.to_owned(), source })
}

fn make_directory(path: &Path, mode: u32) -> Result<(), KubeletServiceError> {
    at("create", path, fs::DirBuilder::new().recursive(true).mode(mode).create(path))
}

fn link(path: &Path, target: &Path) -> Result<(), KubeletServiceError> {
    match std::os::unix::fs::symlink(target, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        done => at("link", path, done),
    }
}

fn remove_tree(path: &Path) -> Result<(), KubeletServiceError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => at("remove", path, done),
    }
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let fits = fs::metadata(path).is_ok_and(|found| found.len() <= FILE_MAX);
    fits.then(|| fs::read(path).ok())?
}

/// Replaces a file; one that says the same stays.
fn put(path: &Path, content: &[u8], mode: u32) -> Result<(), KubeletServiceError> {
    at("write", path, ichor_sys::file::replace_if_changed(path, content, mode, None)).map(drop)
}

fn remove(path: &Path) -> Result<(), KubeletServiceError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => at("remove", path, done),
    }
}
