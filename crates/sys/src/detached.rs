//! Filesystems that are mounted before anybody sees them, so that what they need can be done first.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags};

/// Words of the kernel about one mount; it keeps no more than a few lines.
const WORDS_MAX: usize = 1024;

/// A filesystem that no path leads to yet. It is unmounted when this is dropped.
#[derive(Debug)]
pub struct DetachedMount {
    tree: OwnedFd,
}

impl DetachedMount {
    /// Mounts the filesystem of type `kind` on the device `source`, with options of the filesystem such as `prjquota`.
    ///
    /// # Errors
    /// The kernel's, with its words where it has any.
    pub fn open(source: &str, kind: &str, options: &[&str], read_only: bool) -> io::Result<Self> {
        let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        let configure = || -> rustix::io::Result<()> {
            rustix::mount::fsconfig_set_string(&context, "source", source)?;
            for option in options {
                rustix::mount::fsconfig_set_flag(&context, *option)?;
            }
            if read_only {
                rustix::mount::fsconfig_set_flag(&context, "ro")?;
            }
            rustix::mount::fsconfig_create(&context)
        };
        configure().map_err(|errno| explained(errno, &context))?;
        let attributes = if read_only { MountAttrFlags::MOUNT_ATTR_RDONLY } else { MountAttrFlags::empty() };
        let tree = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        Ok(Self { tree })
    }

    /// A path to its root, for as long as this lives.
    pub fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.tree.as_raw_fd()))
    }

    /// Shows it at `target`; what is there is hidden.
    ///
    /// # Errors
    /// The kernel's.
    pub fn attach(self, target: &Path) -> io::Result<()> {
        let empty_path = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        Ok(rustix::mount::move_mount(self.tree.as_fd(), "", CWD, target, empty_path)?)
    }
}

/// The error with what the kernel says about it. The number stays: callers decide by it.
fn explained(errno: Errno, context: &OwnedFd) -> io::Error {
    let mut words = vec![0; WORDS_MAX];
    match rustix::io::read(context, &mut words) {
        Ok(len) if len > 0 => {
            let text = String::from_utf8_lossy(&words[..len]).trim().to_owned();
            tracing::warn!(error = %errno, "mount: {text}");
        }
        Ok(_) | Err(_) => {}
    }
    errno.into()
}
