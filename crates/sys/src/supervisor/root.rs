//! The root of a container: an overlay of an image's layers, with parts of the machine shown in it.
//!
//! Runs between fork and exec, in the child's own mount namespace: nothing allocates. What the container is to see
//! is taken hold of first, as detached copies of mounts; then the root is changed, and the copies are put into
//! place from inside, so that a link in an image leads nowhere but into the image.
//!
//! The machine's mounts stay peers of their copies: what is mounted below a shared one later shows on both sides.
//! So nothing may be mounted or unmounted on a copy of a shared mount on the way: the overlay goes on a mount made
//! private before, and the old root is made a slave before it is let go.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_change,
    mount_move, mount_remount, move_mount, open_tree, unmount,
};

use super::wire::STRINGS_MAX;
use crate::text::PathBuffer;

/// Where the new root is put together: a mount of its own on every machine, and not needed any more.
const STAGE: &CStr = c"/proc";

/// The most that a container can be shown.
const SHOWN_MAX: usize = STRINGS_MAX / 2;

/// Starts the options of a root that is a directory already.
pub(super) const BIND: &[u8] = b"bind:";

/// Comes before the options of a root that the container cannot write to.
pub(super) const READ_ONLY: &[u8] = b"ro:";

/// Something of the machine, held.
struct Held<'a> {
    tree: OwnedFd,
    directory: bool,
    read_only: bool,
    spread: Spread,
    target: &'a CStr,
}

/// Which mounts come along, and where later ones show.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spread {
    /// None, and nowhere else.
    Alone,
    /// All below, and on both sides.
    Shared,
    /// All below, and nowhere else.
    Separate,
}

/// Moves into the root that `parts` describe (see `SpawnRequest::root`).
pub(super) fn enter<'a>(mut parts: impl Iterator<Item = &'a CStr> + Clone) -> io::Result<()> {
    let base = parts.next().ok_or(Errno::INVAL)?;
    let options = parts.next().ok_or(Errno::INVAL)?;
    let (options, read_only) = match options.to_bytes_with_nul().strip_prefix(READ_ONLY) {
        Some(rest) => (CStr::from_bytes_with_nul(rest).map_err(|_| Errno::INVAL)?, true),
        None => (options, false),
    };
    let mut held = [const { None }; SHOWN_MAX];
    let mut slots = held.iter_mut();
    // What lies below the stage is taken before it is covered, all else after: kernels list mounts by age, and
    // programs take the youngest that fits a path for the one it is on.
    hold_all(parts.clone(), true, &mut slots)?;
    mount_change(STAGE, MountPropagationFlags::PRIVATE)?;
    // Layers are named from their common directory: the kernel takes one page of options.
    rustix::process::chdir(base)?;
    match options.to_bytes().strip_prefix(BIND) {
        Some(directory) => {
            let tree = clone(PathBuffer::new(&[directory])?.as_c_str(), false)?;
            attach(&tree, STAGE)?;
            mount_change(STAGE, MountPropagationFlags::PRIVATE)?;
        }
        None => mount(c"overlay", STAGE, c"overlay", MountFlags::empty(), options)?,
    }
    hold_all(parts, false, &mut slots)?;
    change_root()?;
    for shown in held.iter().flatten() {
        show(shown)?;
    }
    if read_only {
        // The places to mount on are made by now.
        mount_remount(c"/", MountFlags::BIND | MountFlags::RDONLY | kept_flags(c"/")?, c"")?;
    }
    // With nobody but itself: a kubelet in a root that is not shared would mount its directory once more.
    Ok(mount_change(c"/", MountPropagationFlags::SHARED)?)
}

/// Takes hold of what lies below the stage, or of all else.
fn hold_all<'a, 'b>(
    mut parts: impl Iterator<Item = &'a CStr>,
    below_stage: bool,
    slots: &mut impl Iterator<Item = &'b mut Option<Held<'a>>>,
) -> io::Result<()>
where
    'a: 'b,
{
    while let Some(source) = parts.next() {
        let target = parts.next().ok_or(Errno::INVAL)?;
        let path = source.to_bytes().get(1..).unwrap_or_default();
        let inside =
            path.strip_prefix(STAGE.to_bytes()).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
        if inside != below_stage {
            continue;
        }
        let slot = slots.next().ok_or(Errno::NOSPC)?;
        *slot = match hold(source, target) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
            done => Some(done?),
        };
    }
    Ok(())
}

fn hold<'a>(source: &'a CStr, target: &'a CStr) -> io::Result<Held<'a>> {
    let (mode, path) = source.to_bytes_with_nul().split_first().ok_or(Errno::INVAL)?;
    let (read_only, spread) = match mode {
        b'r' => (true, Spread::Alone),
        b'w' => (false, Spread::Alone),
        b'R' => (true, Spread::Shared),
        b'W' => (false, Spread::Shared),
        b's' => (true, Spread::Separate),
        b'S' => (false, Spread::Separate),
        _ => return Err(Errno::INVAL.into()),
    };
    let path = CStr::from_bytes_with_nul(path).map_err(|_| Errno::INVAL)?;
    let bytes = target.to_bytes();
    if !bytes.starts_with(b"/") || bytes.split(|byte| *byte == b'/').any(|part| part == b"..") {
        return Err(Errno::INVAL.into());
    }
    let found = rustix::fs::stat(path)?;
    let directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
    Ok(Held { tree: clone(path, spread != Spread::Alone)?, directory, read_only, spread, target })
}

/// A copy of a mount at `path`, peer of the mount it is of where that is shared.
fn clone(path: &CStr, with_all_below: bool) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if with_all_below {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    Ok(open_tree(rustix::fs::CWD, path, flags)?)
}

fn attach(tree: &OwnedFd, place: &CStr) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS;
    Ok(move_mount(tree.as_fd(), c"", rustix::fs::CWD, place, flags)?)
}

/// Makes the stage the root, and lets go of the old one without a word to the machine.
fn change_root() -> io::Result<()> {
    let directory = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
    let old = rustix::fs::open(c"/", directory, Mode::empty())?;
    rustix::process::chdir(STAGE)?;
    match rustix::process::pivot_root(c".", c".") {
        Ok(()) => {
            rustix::process::fchdir(&old)?;
            mount_change(c".", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
            unmount(c".", UnmountFlags::DETACH)?;
        }
        // The first root of a kernel, and one on a shared mount, cannot be left; it can be covered.
        Err(Errno::INVAL) => {
            mount_move(c".", c"/")?;
            rustix::process::chroot(c".")?;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(rustix::process::chdir(c"/")?)
}

fn show(held: &Held<'_>) -> io::Result<()> {
    make_place(held.target.to_bytes(), held.directory)?;
    attach(&held.tree, held.target)?;
    if held.read_only {
        let flags = MountFlags::BIND | MountFlags::RDONLY | kept_flags(held.target)?;
        mount_remount(held.target, flags, c"")?;
    }
    let propagation = match held.spread {
        Spread::Shared => MountPropagationFlags::SHARED | MountPropagationFlags::REC,
        Spread::Separate => MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
        Spread::Alone => MountPropagationFlags::PRIVATE,
    };
    Ok(mount_change(held.target, propagation)?)
}

/// A remount sets all flags, so those that are there are named again.
fn kept_flags(path: &CStr) -> io::Result<MountFlags> {
    let found = rustix::fs::statvfs(path)?.f_flag;
    let mut kept = MountFlags::empty();
    for (flag, mount) in [
        (rustix::fs::StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (rustix::fs::StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (rustix::fs::StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (rustix::fs::StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (rustix::fs::StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ] {
        if found.contains(flag) {
            kept |= mount;
        }
    }
    Ok(kept)
}

/// The directories on the way, and what is mounted on at its end, where they are missing.
fn make_place(target: &[u8], directory: bool) -> io::Result<()> {
    let slashes = target.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/');
    for end in slashes.map(|(at, _)| at) {
        make_directory(PathBuffer::new(&[&target[..end]])?.as_c_str())?;
    }
    let place = PathBuffer::new(&[target])?;
    if directory {
        return make_directory(place.as_c_str());
    }
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::open(place.as_c_str(), flags | OFlags::EXCL, Mode::from_raw_mode(0o644)) {
        Ok(_) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn make_directory(path: &CStr) -> io::Result<()> {
    match rustix::fs::mkdir(path, Mode::from_raw_mode(0o755)) {
        // What is there may be a link to a directory that the image does not have.
        Ok(()) => Ok(()),
        Err(Errno::EXIST | Errno::ROFS) => match rustix::fs::stat(path) {
            Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        },
        Err(error) => Err(error.into()),
    }
}
