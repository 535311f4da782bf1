//! Mounting and unmounting.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use rustix::mount::{MountPropagationFlags, UnmountFlags};

pub use rustix::mount::MountFlags;

/// A mount call that failed, with what it was about.
#[derive(Debug, thiserror::Error)]
#[error("{what} {}", target.display())]
pub struct MountError {
    /// The attempt, as `mount tmpfs on`.
    pub what: String,
    /// Where.
    pub target: PathBuf,
    /// Why not.
    #[source]
    pub source: io::Error,
}

impl MountError {
    fn new(what: String, target: &Path, errno: rustix::io::Errno) -> Self {
        Self { what, target: target.to_owned(), source: errno.into() }
    }

    /// Whether the kernel does not have this filesystem, or not here.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.source.raw_os_error(), Some(libc::ENODEV | libc::EPERM | libc::EINVAL | libc::ENOENT))
    }
}

/// Whether something is mounted exactly at `path`.
pub fn is_mounted(path: &Path) -> bool {
    rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT, StatxFlags::empty())
        .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Mounts a new filesystem of type `kind`.
pub fn mount(
    source: &str,
    target: &Path,
    kind: &str,
    flags: MountFlags,
    data: &str,
) -> Result<(), MountError> {
    let data = std::ffi::CString::new(data).unwrap_or_default();
    rustix::mount::mount(source, target, kind, flags, data.as_c_str())
        .map_err(|errno| MountError::new(format!("mount {kind} on"), target, errno))
}

/// Mounts a read-only overlay of these directories on `target`, the highest first.
pub fn overlay_read_only(lower: &[String], target: &Path) -> Result<(), MountError> {
    let fail = |errno| MountError::new("mount overlay on".to_owned(), target, errno);
    match overlay_by_layer(lower, target) {
        Ok(()) => Ok(()),
        // Kernels before 6.8 take all layers as one option, and the old call has room for a page of them.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            let data = std::ffi::CString::new(format!("lowerdir={}", lower.join(":"))).unwrap_or_default();
            rustix::mount::mount("overlay", target, "overlay", MountFlags::RDONLY, data.as_c_str())
                .map_err(fail)
        }
        Err(errno) => Err(fail(errno)),
    }
}

/// The same with an option for each layer.
fn overlay_by_layer(lower: &[String], target: &Path) -> rustix::io::Result<()> {
    use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags};
    let context = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(&context, "source", "overlay")?;
    for dir in lower {
        rustix::mount::fsconfig_set_string(&context, "lowerdir+", dir.as_str())?;
    }
    rustix::mount::fsconfig_set_flag(&context, "ro")?;
    rustix::mount::fsconfig_create(&context)?;
    let made =
        rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)?;
    rustix::mount::move_mount(&made, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Makes `source` visible at `target` too; with `recursive` also what is mounted below it.
pub fn bind(source: &Path, target: &Path, recursive: bool) -> Result<(), MountError> {
    let done = if recursive {
        rustix::mount::mount_bind_recursive(source, target)
    } else {
        rustix::mount::mount_bind(source, target)
    };
    done.map_err(|errno| MountError::new(format!("bind {} on", source.display()), target, errno))
}

/// Changes the flags of the one mount at `target`, not of its filesystem.
pub fn remount_bind(target: &Path, flags: MountFlags) -> Result<(), MountError> {
    rustix::mount::mount_remount(target, flags | MountFlags::BIND, c"")
        .map_err(|errno| MountError::new("remount".to_owned(), target, errno))
}

/// Changes the flags of the filesystem at `target`, and of this mount of it.
pub fn remount(target: &Path, flags: MountFlags) -> Result<(), MountError> {
    rustix::mount::mount_remount(target, flags, c"")
        .map_err(|errno| MountError::new("remount".to_owned(), target, errno))
}

/// Binds `source` on `target`, read-only.
pub fn bind_read_only(source: &Path, target: &Path) -> Result<(), MountError> {
    bind(source, target, false)?;
    remount_bind(target, MountFlags::RDONLY)
}

/// Moves a mount.
pub fn move_mount(source: &Path, target: &Path) -> Result<(), MountError> {
    rustix::mount::mount_move(source, target)
        .map_err(|errno| MountError::new(format!("move {} to", source.display()), target, errno))
}

/// How mounts below a point spread to other namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// Both ways.
    Shared,
    /// Inwards only.
    Slave,
    /// Not at all.
    Private,
}

/// Sets the propagation of `target` and everything below it.
pub fn set_propagation(target: &Path, propagation: Propagation) -> Result<(), MountError> {
    let flags = match propagation {
        Propagation::Shared => MountPropagationFlags::SHARED,
        Propagation::Slave => MountPropagationFlags::DOWNSTREAM,
        Propagation::Private => MountPropagationFlags::PRIVATE,
    };
    rustix::mount::mount_change(target, flags | MountPropagationFlags::REC)
        .map_err(|errno| MountError::new("change propagation of".to_owned(), target, errno))
}

/// Unmounts `target`, with everything below it, as soon as nobody uses it any more.
pub fn detach(target: &Path) -> Result<(), MountError> {
    rustix::mount::unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
        .map_err(|errno| MountError::new("unmount".to_owned(), target, errno))
}

/// Unmounts `target` now, or fails because it is in use.
pub fn unmount(target: &Path) -> Result<(), MountError> {
    rustix::mount::unmount(target, UnmountFlags::NOFOLLOW)
        .map_err(|errno| MountError::new("unmount".to_owned(), target, errno))
}

/// Unmounts `target` although requests to its device may be under way.
pub fn unmount_by_force(target: &Path) -> Result<(), MountError> {
    rustix::mount::unmount(target, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW)
        .map_err(|errno| MountError::new("unmount by force".to_owned(), target, errno))
}

/// Writes out what the filesystem at `target` has not written yet.
pub fn sync(target: &Path) -> io::Result<()> {
    let open = std::fs::File::open(target)?;
    Ok(rustix::fs::syncfs(&open)?)
}

/// Makes `new_root`, a mount point, the root of this mount namespace and lets the old one go.
pub fn enter_root(new_root: &Path) -> Result<(), MountError> {
    let fail = |errno| MountError::new("make a root of".to_owned(), new_root, errno);
    rustix::process::chdir(new_root).map_err(fail)?;
    // Old root on top of the new one: no directory for it is needed, and "." then names it.
    rustix::process::pivot_root(".", ".").map_err(fail)?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(fail)?;
    rustix::process::chdir("/").map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_told_from_a_directory() {
        assert!(is_mounted(Path::new("/proc")));
        assert!(!is_mounted(Path::new("/proc/self")));
        assert!(!is_mounted(Path::new("/does/not/exist")));
    }

    #[test]
    fn an_error_names_the_attempt_and_the_place() {
        let error =
            mount("none", Path::new("/does/not/exist"), "tmpfs", MountFlags::empty(), "").unwrap_err();
        assert_eq!(error.to_string(), "mount tmpfs on /does/not/exist");
    }
}
