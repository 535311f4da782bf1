//! What clusters could leave on the host, as text to compare: links, mounts, sysctls, loop devices, cgroups, processes.
//! Other programs come and go meanwhile: only what has the names and paths of these clusters is looked at.

use std::fs;
use std::path::Path;

const SYSCTLS: [&str; 14] = [
    "fs/inotify/max_user_instances",
    "kernel/hostname",
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/printk",
    "net/bridge/bridge-nf-call-iptables",
    "net/ipv4/conf/all/forwarding",
    "net/ipv4/ip_forward",
    "net/ipv6/conf/all/forwarding",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "vm/swappiness",
];

/// Everything a cluster below `dir` could leave behind.
pub(crate) fn snapshot(dir: &Path, image: &Path) -> String {
    let mut lines = Vec::new();
    let here = dir.to_string_lossy();
    for mount in ichor_sys::mountinfo::mounts().unwrap() {
        if mount.target.contains(&*here) || mount.source.contains(&*here) {
            lines.push(format!("mount {} {} {}", mount.target, mount.kind, mount.source));
        }
    }
    for name in names(Path::new("/sys/class/net")) {
        // The bridge of a cluster and the ports of its machines belong into its own namespace.
        if name == "br0" || name.strip_prefix('m').is_some_and(|rest| rest.contains('.')) {
            lines.push(format!("link {name}"));
        }
    }
    for key in SYSCTLS {
        if let Ok(value) = fs::read_to_string(Path::new("/proc/sys").join(key)) {
            lines.push(format!("sysctl {key} {}", value.trim()));
        }
    }
    for device in names(Path::new("/sys/block")) {
        let backing = Path::new("/sys/block").join(&device).join("loop/backing_file");
        if fs::read_to_string(backing).is_ok_and(|file| Path::new(file.trim()) == image) {
            lines.push(format!("loop {device}"));
        }
    }
    for group in groups(Path::new("/sys/fs/cgroup"), 0) {
        lines.push(format!("cgroup {group}"));
    }
    for pid in processes(dir, image) {
        lines.push(format!("process {pid}"));
    }
    for name in names(&dir.join("clusters")) {
        lines.push(format!("cluster {name}"));
    }
    lines.sort();
    lines.join("\n")
}

/// Processes of clusters below `dir`, the machines' own included.
pub(crate) fn processes(dir: &Path, image: &Path) -> Vec<i32> {
    let dir = dir.to_string_lossy().into_owned();
    let own = i32::try_from(std::process::id()).unwrap();
    let _ = image;
    ichor_sys::process::list()
        .unwrap()
        .into_iter()
        .filter(|process| process.pid != own)
        .filter(|process| process.args.contains(&dir) || process.args == "/sbin/init")
        .filter(|process| {
            // Another test's machine on the same host has another image.
            process.args != "/sbin/init"
                || fs::read_to_string(format!("/proc/{}/cgroup", process.pid))
                    .is_ok_and(|text| MINE.iter().any(|name| text.contains(name)))
        })
        .map(|process| process.pid)
        .collect()
}

/// Groups of the clusters these tests make.
const MINE: [&str; 7] =
    ["ichor-life-", "ichor-tame-", "ichor-orphan-", "ichor-half-", "ichor-one-", "ichor-two-", "ichor-only-"];

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn groups(dir: &Path, depth: usize) -> Vec<String> {
    let mut found = Vec::new();
    for name in names(dir) {
        let path = dir.join(&name);
        if !path.is_dir() || path.is_symlink() {
            continue;
        }
        if MINE.iter().any(|mine| name.starts_with(mine)) {
            found.push(path.display().to_string());
        }
        if depth == 0 {
            found.extend(groups(&path, 1));
        }
    }
    found
}
