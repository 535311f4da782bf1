//! What the family asks of the machine around it.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Small files that the kernel makes up: reading and writing them does not wait.
pub trait Files: Send + Sync + 'static {
    /// The whole contents.
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;

    /// Replaces the contents of a file that exists.
    fn write(&self, path: &str, contents: &[u8]) -> io::Result<()>;
}

/// Where the node keeps who it is.
pub trait IdentityStore: Send + Sync + 'static {
    /// The file's contents, `None` when there is no file.
    fn load(&self, name: &str) -> io::Result<Option<Vec<u8>>>;

    /// Makes the file, for its owner's eyes only; fails when it exists. It is on disk when this returns.
    fn create(&self, name: &str, contents: &[u8]) -> io::Result<()>;
}

/// The real files, under the real root or another.
#[derive(Debug, Clone)]
pub struct HostFiles {
    root: PathBuf,
    state: PathBuf,
}

impl HostFiles {
    /// Files under `root`, and the state directory, which is not moved under it.
    pub fn new(root: impl Into<PathBuf>, state: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), state: state.into() }
    }

    fn under_root(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

impl Files for HostFiles {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        fs::read(self.under_root(path))
    }

    fn write(&self, path: &str, contents: &[u8]) -> io::Result<()> {
        // Kernel files want one write, and must not be made.
        fs::OpenOptions::new().write(true).truncate(true).open(self.under_root(path))?.write_all(contents)
    }
}

impl IdentityStore for HostFiles {
    fn load(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.state.join(name)) {
            Ok(contents) => Ok(Some(contents)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn create(&self, name: &str, contents: &[u8]) -> io::Result<()> {
        let (path, draft) = (self.state.join(name), self.state.join(format!("{name}-tmp")));
        write_synced(&draft, contents)?;
        // A link fails when the name is taken, and never shows half a file.
        let made = fs::hard_link(&draft, &path);
        fs::remove_file(&draft)?;
        made?;
        fs::File::open(&self.state)?.sync_all()
    }
}

fn write_synced(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(contents)?;
    file.sync_all()
}
