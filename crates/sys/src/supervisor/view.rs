//! A root of a child's own: a small read-only filesystem with nothing in it but what the child was given.
//!
//! Runs between fork and exec, in the child's own mount namespace: nothing allocates.

use std::ffi::CStr;
use std::io;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_remount, unmount};

use crate::text::PathBuffer;

/// Where the new root is put together; what is there otherwise is not needed any more.
const STAGE: &CStr = c"/proc";
/// Directories and empty files to mount on, no more.
const STAGE_OPTIONS: &CStr = c"size=64k,nr_inodes=128,mode=0755";
/// Of all processes only its own, of all of `/proc` only those; older kernels know the first half.
const PROC_OPTIONS: [&CStr; 3] = [c"hidepid=invisible,subset=pid", c"hidepid=2", c""];

const QUIET: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// Moves into a root with `program` and `parts` (see `SpawnRequest::view`).
pub(super) fn enter<'a>(program: &CStr, parts: impl Iterator<Item = &'a CStr>) -> io::Result<()> {
    mount(c"none", STAGE, c"tmpfs", QUIET | MountFlags::NOEXEC, STAGE_OPTIONS)?;
    show(program.to_bytes(), program.to_bytes(), QUIET | MountFlags::RDONLY)?;
    for part in parts {
        let (mode, paths) = part.to_bytes().split_first().ok_or(Errno::INVAL)?;
        let read_only = match mode {
            b'r' => MountFlags::RDONLY,
            b'w' => MountFlags::empty(),
            _ => return Err(Errno::INVAL.into()),
        };
        let colon = paths.iter().position(|byte| *byte == b':');
        let (source, target) = match colon {
            Some(at) => (&paths[..at], &paths[at + 1..]),
            None => (paths, paths),
        };
        match show(source, target, QUIET | MountFlags::NOEXEC | read_only) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            done => done?,
        }
    }
    own_proc()?;
    mount_remount(STAGE, QUIET | MountFlags::NOEXEC | MountFlags::RDONLY, STAGE_OPTIONS)?;
    rustix::process::chdir(STAGE)?;
    // The old root on top of the new one, where "." then names it.
    rustix::process::pivot_root(c".", c".")?;
    unmount(c".", UnmountFlags::DETACH)?;
    rustix::process::chdir(c"/")?;
    Ok(())
}

/// Shows `source` at `target` in the new root, with what is mounted below it left out.
fn show(source: &[u8], target: &[u8], flags: MountFlags) -> io::Result<()> {
    if !target.starts_with(b"/") || target.windows(2).any(|pair| pair == b"..") {
        return Err(Errno::INVAL.into());
    }
    let source = PathBuffer::new(&[source])?;
    let found = rustix::fs::stat(source.as_c_str())?;
    let place = PathBuffer::new(&[STAGE.to_bytes(), target])?;
    for end in target.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/').map(|(at, _)| at) {
        make_directory(PathBuffer::new(&[STAGE.to_bytes(), &target[..end]])?.as_c_str())?;
    }
    if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
        make_directory(place.as_c_str())?;
    } else {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        drop(rustix::fs::open(place.as_c_str(), flags, Mode::from_raw_mode(0o444))?);
    }
    mount_bind(source.as_c_str(), place.as_c_str())?;
    // A bind mount takes its flags in a second call.
    mount_remount(place.as_c_str(), flags | MountFlags::BIND, c"")?;
    Ok(())
}

fn make_directory(path: &CStr) -> io::Result<()> {
    match rustix::fs::mkdir(path, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn own_proc() -> io::Result<()> {
    let place = PathBuffer::new(&[STAGE.to_bytes(), b"/proc"])?;
    make_directory(place.as_c_str())?;
    let flags = QUIET | MountFlags::NOEXEC | MountFlags::RDONLY;
    let mut last = Errno::INVAL;
    for options in PROC_OPTIONS {
        match mount(c"proc", place.as_c_str(), c"proc", flags, options) {
            Ok(()) => return Ok(()),
            Err(Errno::INVAL) => last = Errno::INVAL,
            Err(error) => {
                last = error;
                break;
            }
        }
    }
    // A kernel that gives no /proc here gives none: the daemons work without.
    match last {
        Errno::PERM | Errno::INVAL => Ok(()),
        error => Err(error.into()),
    }
}
