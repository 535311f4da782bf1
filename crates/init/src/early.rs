//! The first filesystems and control groups of a machine.
//!
//! Everything is made only where it is missing, so a provider that prepared some of it (a sandbox has its own
//! `/dev`) changes nothing here. What the kernel does not have is left out: a machine with less still starts.

use std::path::Path;

use ichor_sys::cgroup::{Cgroups, Limits, MOUNT_POINT};
use ichor_sys::mount::{self, MountFlags};

const NOSUID: MountFlags = MountFlags::NOSUID;
const NOEXEC: MountFlags = MountFlags::NOEXEC;
const NODEV: MountFlags = MountFlags::NODEV;
const RELATIME: MountFlags = MountFlags::RELATIME;
const RDONLY: MountFlags = MountFlags::RDONLY;

/// Whether a missing mount is worth a word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Must,
    May,
}

struct Entry {
    target: &'static str,
    kind: &'static str,
    flags: &'static [MountFlags],
    data: &'static str,
    need: Need,
}

const fn entry(
    target: &'static str,
    kind: &'static str,
    flags: &'static [MountFlags],
    data: &'static str,
    need: Need,
) -> Entry {
    Entry { target, kind, flags, data, need }
}

/// In this order: later ones sit on earlier ones.
const TABLE: [Entry; 16] = [
    entry("/dev", "devtmpfs", &[NOSUID], "mode=0755", Need::Must),
    entry("/proc", "proc", &[NOSUID, NOEXEC, NODEV], "", Need::Must),
    entry("/sys", "sysfs", &[], "", Need::Must),
    entry("/dev/shm", "tmpfs", &[NOSUID, NOEXEC, NODEV, RELATIME], "", Need::Must),
    entry("/dev/pts", "devpts", &[NOSUID, NOEXEC], "ptmxmode=000,mode=620,gid=5", Need::Must),
    entry("/dev/hugepages", "hugetlbfs", &[NOSUID, NODEV], "", Need::May),
    entry("/sys/fs/bpf", "bpf", &[], "", Need::May),
    entry("/sys/kernel/security", "securityfs", &[NOSUID, NOEXEC, NODEV, RELATIME], "", Need::May),
    entry("/sys/kernel/tracing", "tracefs", &[NOSUID, NOEXEC, NODEV], "", Need::May),
    entry("/sys/kernel/config", "configfs", &[NOSUID, NOEXEC, NODEV, RELATIME], "", Need::May),
    entry("/sys/kernel/debug", "debugfs", &[NOSUID, NOEXEC, NODEV, RELATIME], "", Need::May),
    entry("/sys/firmware/efi/efivars", "efivarfs", &[NOSUID, NOEXEC, NODEV, RELATIME, RDONLY], "", Need::May),
    entry("/run", "tmpfs", &[NOSUID, NOEXEC, RELATIME], "mode=0755", Need::Must),
    entry("/system", "tmpfs", &[], "mode=0755", Need::Must),
    entry("/tmp", "tmpfs", &[NOSUID, NOEXEC, NODEV], "mode=0755,size=64M", Need::Must),
    // Until a disk holds it.
    entry("/var", "tmpfs", &[NOSUID, NODEV], "mode=0755", Need::Must),
];

/// Mounts made by one service are seen by the others: volumes of pods are mounted by the kubelet.
pub(crate) fn share_mounts(tell: &mut dyn FnMut(&str)) {
    if let Err(error) = mount::set_propagation(Path::new("/"), mount::Propagation::Shared) {
        tell(&format!("{error}: {}", error.source));
    }
}

/// Mounts what is missing of the table. Errors are told and passed over: there is nobody to return them to.
pub(crate) fn mount_filesystems(tell: &mut dyn FnMut(&str)) {
    for entry in &TABLE {
        let target = Path::new(entry.target);
        if mount::is_mounted(target) {
            continue;
        }
        if entry.target.starts_with("/dev/") {
            // May exist, or be on a read-only /dev: the mount will say.
            let _ = std::fs::create_dir(target);
        }
        let flags = entry.flags.iter().fold(MountFlags::empty(), |all, flag| all | *flag);
        if let Err(error) = mount::mount(entry.kind, target, entry.kind, flags, entry.data)
            && entry.need == Need::Must
        {
            tell(&format!("{error}: {}", error.source));
        }
    }
}

const MIB: u64 = 1024 * 1024;

/// The groups every machine has, with what they are guaranteed.
fn groups() -> [(&'static str, Limits); 3] {
    let limits = |min: u64, low: u64, swap: Option<u64>, millicores: u64| Limits {
        memory_min: (min > 0).then_some(min * MIB),
        memory_low: (low > 0).then_some(low * MIB),
        swap_max: swap,
        millicores: Some(millicores),
        ..Limits::default()
    };
    [
        ("system", limits(96, 192, None, 1500)),
        ("podruntime", limits(0, 0, None, 4000)),
        ("init", limits(96, 192, Some(0), 2000)),
    ]
}

/// Mounts the unified hierarchy if nothing is there, makes the groups and moves this process into `init`.
pub(crate) fn set_up_cgroups(tell: &mut dyn FnMut(&str)) -> Option<Cgroups> {
    let root = Path::new(MOUNT_POINT);
    if !mount::is_mounted(root) {
        let flags = NOSUID | NODEV | NOEXEC | RELATIME;
        let options = "nsdelegate,memory_recursiveprot";
        if let Err(error) = mount::mount("cgroup2", root, "cgroup2", flags, options) {
            tell(&format!("{error}: {}", error.source));
        }
    }
    let cgroups = match Cgroups::detect(root) {
        Ok(cgroups) => cgroups,
        Err(error) => {
            tell(&format!("no cgroups: {error}"));
            return None;
        }
    };
    // Out of the root first: a unified group with processes of its own cannot hand controllers down.
    let own = i32::try_from(std::process::id()).unwrap_or(1);
    let moved = cgroups.create("init", &Limits::default()).and_then(|()| cgroups.add("init", own));
    if let Err(error) = moved {
        tell(&format!("move into cgroup init: {error}"));
    }
    for (group, limits) in groups() {
        if let Err(error) = cgroups.create(group, &limits) {
            tell(&format!("cgroup {group}: {error}"));
        }
    }
    Some(cgroups)
}
