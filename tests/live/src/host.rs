//! What a cluster must leave as it found it.
//!
//! Other programs and other clusters use the same host, and what they start and stop meanwhile is not the cluster's
//! doing. So the check looks for what this test's clusters added, by the names that they give to things: the number
//! of the test's process is in the name of each of its clusters, hence in their control groups and paths.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Links that machines and their supervisor make in namespaces of their own; none belongs on the host.
const LINKS: [&str; 3] = ["br0", "cni0", "flannel.1"];

/// A picture of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    links: BTreeSet<String>,
    mounts: BTreeSet<String>,
    /// Loop devices that nobody has mounted, with the file behind them.
    idle_loops: BTreeSet<String>,
    cgroups: BTreeSet<String>,
    tunables: BTreeMap<String, String>,
}

impl Snapshot {
    /// Takes the picture.
    pub fn take() -> Self {
        let mut picture = Self { links: names("/sys/class/net").into_iter().collect(), ..Self::default() };
        for line in fs::read_to_string("/proc/self/mountinfo").unwrap_or_default().lines() {
            // The id and the parent's id are left out: they are numbers of the moment.
            picture.mounts.insert(line.splitn(3, ' ').nth(2).unwrap_or(line).to_owned());
        }
        picture.idle_loops = idle_loops();
        for controller in names("/sys/fs/cgroup") {
            cgroups(Path::new("/sys/fs/cgroup"), Path::new(&controller), &mut picture.cgroups);
        }
        for area in ["kernel", "vm", "net/ipv4", "net/core", "fs"] {
            tunables(&Path::new("/proc/sys").join(area), &mut picture.tunables);
        }
        picture
    }

    /// What the clusters of this test left behind since this picture, after what was let go of has had time to go:
    /// groups of processes and loop devices outlive their last user for a moment.
    pub fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        let _ = crate::wait("the host as it was", crate::SOON, || {
            left = self.leftovers(&Self::take(), std::process::id());
            left.is_empty().then_some(())
        });
        left
    }

    /// What the clusters of the test with this process id added between two pictures.
    fn leftovers(&self, after: &Self, pid: u32) -> Vec<String> {
        let new = |before: &BTreeSet<String>, after: &BTreeSet<String>, mine: &dyn Fn(&str) -> bool| {
            after.difference(before).filter(|line| mine(line)).cloned().collect::<Vec<_>>()
        };
        let own = |line: &str| names_process(line, pid);
        let images = crate::root().join("build");
        let image = |line: &str| own(line) || line.contains(&*images.to_string_lossy());
        let mut found = Vec::new();
        let mut add = |what: &str, lines: Vec<String>| {
            found.extend(lines.into_iter().map(|line| format!("{what} {line}")));
        };
        add("link", new(&self.links, &after.links, &is_machine_link));
        add("mount", new(&self.mounts, &after.mounts, &own));
        add("loop device", new(&self.idle_loops, &after.idle_loops, &image));
        add("cgroup", new(&self.cgroups, &after.cgroups, &own));
        // A tunable that came or went belongs to a link or a module that did.
        let changed = after.tunables.iter().filter_map(|(path, value)| {
            let before = self.tunables.get(path).filter(|before| *before != value)?;
            Some(format!("{path}: {before} became {value}"))
        });
        add("tunable", changed.collect());
        found
    }
}

/// True if a name has the number of a process in it, as the clusters of that process's tests have.
fn names_process(line: &str, pid: u32) -> bool {
    let mark = format!("-{pid}");
    line.match_indices(&mark)
        .any(|(at, _)| !line[at + mark.len()..].starts_with(|c: char| c.is_ascii_digit()))
}

/// True for `br0` and the like, and for the ports of machines: `m<third>.<fourth>` of their address.
fn is_machine_link(name: &str) -> bool {
    let port = |name: &str| {
        let (third, fourth) = name.strip_prefix('m')?.split_once('.')?;
        Some(third.parse::<u8>().is_ok() && fourth.parse::<u8>().is_ok())
    };
    LINKS.contains(&name) || port(name) == Some(true)
}

fn names(dir: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect()
}

/// Loop devices that no process has mounted. One that is in use belongs to a cluster that runs.
fn idle_loops() -> BTreeSet<String> {
    let backed = names("/sys/block").into_iter().filter_map(|device| {
        let file = fs::read_to_string(format!("/sys/block/{device}/loop/backing_file")).ok()?;
        Some((device, file.trim().to_owned()))
    });
    let mut devices: BTreeMap<String, String> = backed.collect();
    let processes = names("/proc").into_iter().filter(|name| name.bytes().all(|b| b.is_ascii_digit()));
    for process in processes {
        if devices.is_empty() {
            break;
        }
        let mounts = fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap_or_default();
        devices.retain(|device, _| !mounts.contains(&format!(" /dev/{device} ")));
    }
    devices.into_iter().map(|(device, file)| format!("{device} {file}")).collect()
}

fn cgroups(top: &Path, below: &Path, found: &mut BTreeSet<String>) {
    let path = top.join(below);
    if path.is_symlink() || !path.is_dir() {
        return;
    }
    found.insert(below.display().to_string());
    for name in names(&path.to_string_lossy()) {
        cgroups(top, &below.join(name), found);
    }
}

/// Tunables whose value is ours to keep; counters and random numbers change by themselves.
fn tunables(dir: &Path, found: &mut BTreeMap<String, String>) {
    const MOVING: &[&str] =
        &["random", "ns_last_pid", "nr_", "-nr", "-state", "pty", "dentry", "inode", "sched_domain", "quota"];
    for name in names(&dir.to_string_lossy()) {
        let path = dir.join(&name);
        if MOVING.iter().any(|word| name.contains(word)) {
            continue;
        }
        if path.is_dir() {
            tunables(&path, found);
        } else if let Ok(value) = fs::read_to_string(&path) {
            found.insert(path.display().to_string(), value.trim().to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(links: &[&str], cgroups: &[&str], tunables: &[(&str, &str)]) -> Snapshot {
        let set = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
        Snapshot {
            links: set(links),
            cgroups: set(cgroups),
            tunables: tunables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn what_other_programs_start_and_stop_is_no_leftover() {
        let before = picture(&["lo", "docker0"], &["memory/other", "memory/ichor-x-77-1"], &[]);
        let after = picture(&["lo", "veth1"], &["memory/new", "memory/ichor-x-770-1"], &[]);
        assert_eq!(before.leftovers(&after, 77), [""; 0]);
    }

    #[test]
    fn what_a_cluster_of_this_test_added_is() {
        let before = picture(&["lo"], &["memory/other"], &[("/proc/sys/kernel/panic", "0")]);
        let after = picture(
            &["lo", "br0", "m0.2"],
            &["memory/other", "memory/ichor-boxes-77-12", "memory/ichor-boxes-77"],
            &[("/proc/sys/kernel/panic", "10"), ("/proc/sys/net/ipv4/conf/veth1/forwarding", "1")],
        );
        assert_eq!(
            before.leftovers(&after, 77),
            [
                "link br0",
                "link m0.2",
                "cgroup memory/ichor-boxes-77",
                "cgroup memory/ichor-boxes-77-12",
                "tunable /proc/sys/kernel/panic: 0 became 10",
            ]
        );
    }
}
