//! The end of a machine: `reboot(2)` and what comes before it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::mount::UnmountFlags;

use crate::bounded::{self, Ended};

pub use crate::supervisor::RebootCommand;

/// The inode number the kernel gives the first pid namespace.
const FIRST_PID_NAMESPACE: u64 = 0xefff_fffc;

/// Calls `reboot(2)`. In a pid namespace it ends the namespace's PID 1 with SIGHUP or SIGINT.
pub fn reboot(command: RebootCommand) -> io::Result<()> {
    use rustix::system::RebootCommand as Kernel;
    let command = match command {
        RebootCommand::Restart => Kernel::Restart,
        RebootCommand::PowerOff => Kernel::PowerOff,
        RebootCommand::Halt => Kernel::Halt,
        RebootCommand::Kexec => Kernel::Kexec,
    };
    Ok(rustix::system::reboot(command)?)
}

/// Has the kernel send SIGINT to PID 1 on Ctrl-Alt-Del instead of restarting at once.
pub fn hand_over_ctrl_alt_del() -> io::Result<()> {
    Ok(rustix::system::reboot(rustix::system::RebootCommand::CadOff)?)
}

/// Whether this process sees the machine's own processes, not those of a container.
pub fn in_first_pid_namespace() -> bool {
    rustix::fs::stat("/proc/self/ns/pid").is_ok_and(|found| found.st_ino == FIRST_PID_NAMESPACE)
}

/// Writes all dirty pages out.
pub fn sync() {
    rustix::fs::sync();
}

/// Ends the machine at once, without the orderly part of `reboot(2)` that waits for drivers. For when that hangs.
///
/// # Errors
/// When the kernel does not offer it.
pub fn force(command: RebootCommand) -> io::Result<()> {
    let key = match command {
        RebootCommand::Restart | RebootCommand::Kexec => "b",
        RebootCommand::PowerOff | RebootCommand::Halt => "o",
    };
    std::fs::write("/proc/sysrq-trigger", key)
}

/// Where block devices are mounted, innermost first.
pub fn disk_mounts() -> Vec<PathBuf> {
    let mounts = crate::mountinfo::mounts().unwrap_or_default();
    let on_disk = mounts.into_iter().rev().filter(|mount| mount.source.starts_with("/dev/"));
    on_disk.map(|mount| PathBuf::from(mount.target)).collect()
}

/// Unmounts `target`; when it is busy, or the root, makes its filesystem read-only. Best effort; may hang with its disk.
pub fn unmount_disk(target: &Path) {
    if target == Path::new("/") || rustix::mount::unmount(target, UnmountFlags::NOFOLLOW).is_err() {
        let _ = rustix::mount::mount_remount(target, crate::mount::MountFlags::RDONLY, c"");
    }
}

/// Does `unmount` to each of the targets, in a child with a deadline of its own: a disk that hangs does not keep the
/// others from being unmounted. Tells `late` of those that took longer. Only for a program with one thread.
pub fn unmount_each(
    targets: &[PathBuf],
    limit: Duration,
    unmount: impl Fn(&Path),
    mut late: impl FnMut(&Path),
) {
    for target in targets {
        match bounded::run(limit, || unmount(target)) {
            Ended::Done => {}
            Ended::Late => late(target),
            // Without a child the call could hang for ever; the deadline of all of them ends it.
            Ended::NotStarted(_) => unmount(target),
        }
    }
}
