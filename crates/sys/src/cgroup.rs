//! Control groups, on both kinds of hierarchy: one unified tree (v2) or a tree per controller (v1).
//!
//! v2 is what machines run; v1 is there for hosts that still bind the controllers to it.

pub mod pressure;
mod usage;

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::text::PathBuffer;

/// Where hierarchies are mounted.
pub const MOUNT_POINT: &str = "/sys/fs/cgroup";
/// Controllers handed down to groups where the kernel has them.
const CONTROLLERS: [&str; 6] = ["cpu", "cpuset", "io", "memory", "pids", "hugetlb"];
/// The stretch of time a ceiling on processor time is counted over, which is also the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;
/// The kernel refuses less in one period.
const CPU_QUOTA_US_MIN: u64 = 1_000;
/// How often the processes of a group are killed before giving up: some may be forking meanwhile.
const KILL_ROUNDS: usize = 50;

/// Which kind of hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// cgroup v2.
    Unified,
    /// cgroup v1, one tree per controller.
    Split,
}

/// What a group gets. `None` leaves the kernel's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Processor time it may never exceed, in thousandths of one processor.
    pub millicores_max: Option<u64>,
    /// Memory that is never reclaimed from it (v2 only).
    pub memory_min: Option<u64>,
    /// Memory that is reclaimed last.
    pub memory_low: Option<u64>,
    /// Memory it may never exceed.
    pub memory_max: Option<u64>,
    /// Swap it may use (v2 only).
    pub swap_max: Option<u64>,
    /// Share of the processors in a contest, in thousandths of one.
    pub millicores: Option<u64>,
    /// Processes and threads it may have.
    pub pids_max: Option<u64>,
}

/// The mounted hierarchies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroups {
    layout: Layout,
    roots: Vec<PathBuf>,
}

impl Cgroups {
    /// Looks at what is mounted at `at`, usually [`MOUNT_POINT`].
    ///
    /// # Errors
    /// `NotFound` when no hierarchy is there.
    pub fn detect(at: &Path) -> io::Result<Self> {
        if at.join("cgroup.procs").exists() && at.join("cgroup.controllers").exists() {
            return Ok(Self { layout: Layout::Unified, roots: vec![at.to_owned()] });
        }
        let mut roots = Vec::new();
        for entry in fs::read_dir(at)? {
            let entry = entry?;
            let path = entry.path();
            // Links as `cpu -> cpu,cpuacct` name a tree that is in the list already.
            let real = entry.file_type()?.is_dir() && !path.join("cgroup.controllers").exists();
            if real && path.join("cgroup.procs").exists() {
                roots.push(path);
            }
        }
        roots.sort();
        if roots.is_empty() {
            let text = format!("no cgroup hierarchy at {}", at.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        Ok(Self { layout: Layout::Split, roots })
    }

    /// Which kind.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The directories of the roots.
    pub fn roots(&self) -> &[PathBuf] {
        &self.roots
    }

    /// The same for [`crate::supervisor::Server`].
    pub fn c_roots(&self) -> Vec<CString> {
        let text = |root: &PathBuf| CString::new(root.as_os_str().as_encoded_bytes()).ok();
        self.roots.iter().filter_map(text).collect()
    }

    /// Makes `group` (as `system/apid`) with all its parents, and sets its limits as far as the kernel has them.
    pub fn create(&self, group: &str, limits: &Limits) -> io::Result<()> {
        for root in &self.roots {
            let mut path = root.clone();
            for part in check(group)?.split('/') {
                let parent = path.clone();
                path.push(part);
                if !path.is_dir() {
                    if self.layout == Layout::Unified {
                        delegate(&parent);
                    }
                    make(&path)?;
                    inherit_cpuset(&parent, &path);
                }
            }
            for (file, value) in settings(self.layout, limits, crate::host::cores()) {
                let file = path.join(file);
                // A controller this tree or this kernel does not have is no error.
                if file.exists() {
                    fs::write(&file, value)?;
                }
            }
        }
        Ok(())
    }

    /// Puts a process into a group.
    pub fn add(&self, group: &str, pid: i32) -> io::Result<()> {
        let group = check(group)?;
        for root in &self.roots {
            fs::write(root.join(group).join("cgroup.procs"), pid.to_string())?;
        }
        Ok(())
    }

    /// The processes in a group, those in groups below it included.
    pub fn pids(&self, group: &str) -> io::Result<Vec<i32>> {
        let group = check(group)?;
        let mut pids = Vec::new();
        for root in &self.roots {
            collect_pids(&root.join(group), &mut pids)?;
        }
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }

    /// Memory the group uses now, in bytes.
    pub fn memory_current(&self, group: &str) -> io::Result<u64> {
        let file = match self.layout {
            Layout::Unified => "memory.current",
            Layout::Split => "memory.usage_in_bytes",
        };
        let group = check(group)?;
        let found = self.roots.iter().map(|root| root.join(group).join(file));
        let found = found.into_iter().find(|path| path.exists());
        let path = found.ok_or(io::ErrorKind::NotFound)?;
        let text = fs::read_to_string(path)?;
        let number = text.trim().parse();
        number.map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// Kills every process in the group and waits, with a bound, until none is left.
    pub fn kill(&self, group: &str) -> io::Result<()> {
        let name = check(group)?;
        for _ in 0..KILL_ROUNDS {
            if self.layout == Layout::Unified {
                // Absent before 5.14; the signals below do the same, slower.
                let _ = fs::write(self.roots[0].join(name).join("cgroup.kill"), "1");
            }
            let pids = match self.pids(group) {
                Ok(pids) if !pids.is_empty() => pids,
                _ => return Ok(()),
            };
            for pid in pids {
                let _ = crate::signal::send(pid, libc::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Removes a group and those below it; no process may be in them. A missing group is removed already.
    pub fn remove(&self, group: &str) -> io::Result<()> {
        let group = check(group)?;
        for root in &self.roots {
            remove_tree(&root.join(group))?;
        }
        Ok(())
    }
}

fn check(group: &str) -> io::Result<&str> {
    let group = group.trim_matches('/');
    let good = |part: &str| !part.is_empty() && part != "." && part != "..";
    match group.split('/').all(good) {
        true => Ok(group),
        false => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn make(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Lets the groups below `parent` use the controllers. One by one: an unknown name spoils the whole line.
fn delegate(parent: &Path) {
    // A group with processes of its own cannot hand controllers down. Some the kernel takes all the same and makes a
    // threaded domain of it, whose groups no process can enter. The root, which has no type, is free of this.
    let populated = fs::read_to_string(parent.join("cgroup.procs")).is_ok_and(|text| !text.is_empty());
    if populated && parent.join("cgroup.type").exists() {
        return;
    }
    for controller in CONTROLLERS {
        let _ = fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

/// A new v1 cpuset is empty, and no process can enter it until it has processors and memory nodes.
fn inherit_cpuset(parent: &Path, child: &Path) {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let path = child.join(file);
        let empty = fs::read_to_string(&path).is_ok_and(|text| text.trim().is_empty());
        if empty
            && child.join("cgroup.clone_children").exists()
            && let Ok(value) = fs::read_to_string(parent.join(file))
        {
            let _ = fs::write(&path, value.trim());
        }
    }
}

fn settings(layout: Layout, limits: &Limits, cores: usize) -> Vec<(&'static str, String)> {
    let names: [&'static str; 6] = match layout {
        Layout::Unified => {
            ["memory.min", "memory.low", "memory.max", "memory.swap.max", "cpu.weight", "pids.max"]
        }
        Layout::Split => {
            ["", "memory.soft_limit_in_bytes", "memory.limit_in_bytes", "", "cpu.shares", "pids.max"]
        }
    };
    let share = limits.millicores.map(|millicores| match layout {
        Layout::Unified => cpu_weight(millicores, cores),
        Layout::Split => cpu_shares(millicores, cores),
    });
    let values =
        [limits.memory_min, limits.memory_low, limits.memory_max, limits.swap_max, share, limits.pids_max];
    names
        .into_iter()
        .zip(values)
        .filter(|(name, _)| !name.is_empty())
        .filter_map(|(name, value)| Some((name, value?.to_string())))
        .chain(cpu_ceiling(layout, limits))
        .collect()
}

fn cpu_ceiling(layout: Layout, limits: &Limits) -> Option<(&'static str, String)> {
    let quota = limits.millicores_max?.saturating_mul(CPU_PERIOD_US / 1000).max(CPU_QUOTA_US_MIN);
    Some(match layout {
        Layout::Unified => ("cpu.max", format!("{quota} {CPU_PERIOD_US}")),
        Layout::Split => ("cpu.cfs_quota_us", quota.to_string()),
    })
}

fn cpu_shares(millicores: u64, cores: usize) -> u64 {
    (millicores.min(cores as u64 * 1000) * 1024 / 1000).max(2)
}

/// The weight that stands for a number of thousandths of a processor, no more than the machine has.
pub fn cpu_weight(millicores: u64, cores: usize) -> u64 {
    (cpu_shares(millicores, cores) - 2) * 9999 / 262_142 + 1
}

fn collect_pids(path: &Path, pids: &mut Vec<i32>) -> io::Result<()> {
    let text = match fs::read_to_string(path.join("cgroup.procs")) {
        Ok(text) => text,
        // A threaded or vanished group holds no process of its own.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENODEV)) => String::new(),
        Err(error) => return Err(error),
    };
    pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    for entry in fs::read_dir(path)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect_pids(&entry.path(), pids)?;
        }
    }
    Ok(())
}

fn remove_tree(path: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path())?;
        }
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Puts the process with this number, 0 for the caller, into `group` below `root`, making the directories; does not
/// allocate.
pub(crate) fn join(root: &CStr, group: &[u8], pid: &[u8]) -> io::Result<()> {
    let (root, mode) = (root.to_bytes(), rustix::fs::Mode::from_raw_mode(0o755));
    let ends = group.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    for end in ends.map(|(at, _)| at).chain([group.len()]) {
        let path = PathBuffer::new(&[root, b"/", &group[..end]])?;
        match rustix::fs::mkdir(path.as_c_str(), mode) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let procs = PathBuffer::new(&[root, b"/", group, b"/cgroup.procs"])?;
    crate::credentials::write_file(procs.as_c_str(), pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_follow_the_table() {
        let check = |millicores: u64, weight: u64| assert_eq!(cpu_weight(millicores, 8), weight);
        for (millicores, weight) in
            [(2000, 79), (1500, 59), (500, 20), (250, 10), (200, 8), (4000, 157), (1000, 39)]
        {
            check(millicores, weight);
        }
        assert_eq!(cpu_weight(4000, 2), 79, "no more than the machine has");
        assert_eq!(cpu_weight(0, 2), 1);
    }

    #[test]
    fn settings_follow_the_layout() {
        let limits = Limits {
            memory_min: Some(1),
            memory_max: Some(3),
            millicores: Some(1000),
            pids_max: Some(9),
            ..Limits::default()
        };
        let check = |layout: Layout, expect: expect_test::Expect| {
            expect.assert_eq(&format!("{:?}", settings(layout, &limits, 2)));
        };
        check(
            Layout::Unified,
            expect_test::expect![[
                r#"[("memory.min", "1"), ("memory.max", "3"), ("cpu.weight", "39"), ("pids.max", "9")]"#
            ]],
        );
        check(
            Layout::Split,
            expect_test::expect![[
                r#"[("memory.limit_in_bytes", "3"), ("cpu.shares", "1024"), ("pids.max", "9")]"#
            ]],
        );
    }

    #[test]
    fn a_ceiling_on_processors_follows_the_layout() {
        let check = |layout: Layout, millicores: u64, file: &str, value: &str| {
            let limits = Limits { millicores_max: Some(millicores), ..Limits::default() };
            assert_eq!(settings(layout, &limits, 2), [(file, value.to_owned())]);
        };
        check(Layout::Unified, 1500, "cpu.max", "150000 100000");
        check(Layout::Split, 1500, "cpu.cfs_quota_us", "150000");
        check(Layout::Split, 1, "cpu.cfs_quota_us", "1000");
    }

    #[test]
    fn a_group_with_processes_hands_no_controllers_down() {
        let dir = tempfile::tempdir().unwrap();
        let control = dir.path().join("cgroup.subtree_control");
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("cgroup.type", "domain\n");
        write("cgroup.procs", "1\n");
        delegate(dir.path());
        assert!(!control.exists(), "it would become a threaded domain");
        write("cgroup.procs", "");
        delegate(dir.path());
        assert!(control.exists());
        fs::remove_file(&control).unwrap();
        fs::remove_file(dir.path().join("cgroup.type")).unwrap();
        write("cgroup.procs", "1\n");
        delegate(dir.path());
        assert!(control.exists(), "the root may have processes");
    }

    #[test]
    fn a_group_stays_below_its_root() {
        for bad in ["..", "a/../b", "", "a//b", "."] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
        assert_eq!(check("/system/apid/").unwrap(), "system/apid");
    }

    #[test]
    fn a_group_lives_and_dies() {
        let Ok(cgroups) = Cgroups::detect(Path::new(MOUNT_POINT)) else {
            return;
        };
        let group = format!("ichor-test-{}", std::process::id());
        let child = format!("{group}/child");
        // Without the right to write there is nothing to test.
        if cgroups.create(&child, &Limits::default()).is_err() {
            return;
        }
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(sleeper.id()).unwrap();
        let added = cgroups.add(&child, pid);
        let seen = cgroups.pids(&group);
        // Our own zombie counts as a process of the group until it is reaped.
        let reaper = std::thread::spawn(move || sleeper.wait());
        let killed = cgroups.kill(&group);
        let _ = crate::signal::send(pid, libc::SIGKILL);
        reaper.join().unwrap().unwrap();
        let removed = cgroups.remove(&group);
        added.unwrap();
        assert_eq!(seen.unwrap(), [pid]);
        killed.unwrap();
        removed.unwrap();
    }
}
