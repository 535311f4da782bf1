//! What a cluster must leave as it found it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// A picture of the host: one line per link, mount, loop device, cgroup and tunable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot(BTreeSet<String>);

impl Snapshot {
    /// Takes the picture.
    pub fn take() -> Self {
        let mut lines = BTreeSet::new();
        for link in names("/sys/class/net") {
            lines.insert(format!("link {link}"));
        }
        for line in fs::read_to_string("/proc/self/mountinfo").unwrap_or_default().lines() {
            // The id and the parent's id are left out: they are numbers of the moment.
            lines.insert(format!("mount {}", line.splitn(3, ' ').nth(2).unwrap_or(line)));
        }
        for device in names("/sys/block") {
            if let Ok(file) = fs::read_to_string(format!("/sys/block/{device}/loop/backing_file")) {
                lines.insert(format!("loop {device} {}", file.trim()));
            }
        }
        for controller in names("/sys/fs/cgroup") {
            cgroups(Path::new("/sys/fs/cgroup"), Path::new(&controller), &mut lines);
        }
        for area in ["kernel", "vm", "net/ipv4", "net/core", "fs"] {
            tunables(&Path::new("/proc/sys").join(area), &mut lines);
        }
        lines.insert(format!(
            "hostname {}",
            fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim()
        ));
        Self(lines)
    }

    /// What still differs from this picture, signed, after what was let go of has had time to go: groups of processes
    /// and loop devices outlive their last user for a moment.
    pub fn left(&self) -> Vec<String> {
        let mut difference = Vec::new();
        // Clusters of others on this host come and go; those of this test have its process in their names.
        let own = format!("-{}-", std::process::id());
        let _ = crate::wait("the host as it was", crate::SOON, || {
            difference = self.difference(&Self::take());
            difference.retain(|line| !line.contains("/ichor-") || line.contains(&own));
            difference.is_empty().then_some(())
        });
        difference
    }

    /// What differs between two pictures, signed.
    pub fn difference(&self, after: &Self) -> Vec<String> {
        let gone = self.0.difference(&after.0).map(|line| format!("- {line}"));
        let new = after.0.difference(&self.0).map(|line| format!("+ {line}"));
        gone.chain(new).collect()
    }
}

fn names(dir: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect()
}

fn cgroups(top: &Path, below: &Path, lines: &mut BTreeSet<String>) {
    let path = top.join(below);
    if path.is_symlink() || !path.is_dir() {
        return;
    }
    lines.insert(format!("cgroup {}", below.display()));
    for name in names(&path.to_string_lossy()) {
        cgroups(top, &below.join(name), lines);
    }
}

/// Tunables whose value is ours to keep; counters and random numbers change by themselves.
fn tunables(dir: &Path, lines: &mut BTreeSet<String>) {
    const MOVING: &[&str] =
        &["random", "ns_last_pid", "nr_", "-nr", "-state", "pty", "dentry", "inode", "sched_domain", "quota"];
    for name in names(&dir.to_string_lossy()) {
        let path = dir.join(&name);
        if MOVING.iter().any(|word| name.contains(word)) {
            continue;
        }
        if path.is_dir() {
            tunables(&path, lines);
        } else if let Ok(value) = fs::read_to_string(&path) {
            lines.insert(format!("tunable {} {}", path.display(), value.trim()));
        }
    }
}
