//! The end of a machine: `reboot(2)` and what comes before it.

use std::io;
use std::path::Path;

use rustix::mount::UnmountFlags;

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

/// Unmounts what comes from a block device, innermost first; what is busy becomes read-only. Best effort.
pub fn unmount_disks() {
    let Ok(mounts) = crate::mountinfo::mounts() else {
        return;
    };
    let on_disk = |mount: &&crate::mountinfo::Mount| mount.source.starts_with("/dev/");
    for mount in mounts.iter().rev().filter(on_disk) {
        let target = Path::new(&mount.target);
        if mount.target == "/" || rustix::mount::unmount(target, UnmountFlags::NOFOLLOW).is_err() {
            let flags = crate::mount::MountFlags::RDONLY;
            let _ = rustix::mount::mount_remount(target, flags, c"");
        }
    }
}
