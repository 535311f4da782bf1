//! Memory pressure, and the groups that a machine can get memory back from.

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use super::collect_pids;

/// Where the kernel tells the pressure of the whole machine, should the root of the groups not.
const WHOLE_MACHINE: &str = "/proc/pressure/memory";
/// Groups looked at below one parent.
const GROUPS_MAX: usize = 4096;
/// Processes whose memory is given back at once; the kernel does the same with the others, a little later.
const RELEASED_MAX: usize = 1024;

/// How much time was lost waiting for memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    /// Share of the last 10 seconds, in percent.
    pub avg10: f64,
    /// Share of the last minute.
    pub avg60: f64,
    /// Share of the last five minutes.
    pub avg300: f64,
    /// Microseconds in all.
    pub total: f64,
}

/// Pressure at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// At least one task waited.
    pub some: Stall,
    /// All tasks waited.
    pub full: Stall,
}

impl Pressure {
    /// Reads `some avg10=0.00 avg60=0.00 avg300=0.00 total=0` and the same of `full`.
    pub fn parse(text: &str) -> Option<Self> {
        let line = |name: &str| {
            let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
            let field = |name: &str| -> Option<f64> {
                let mut fields = rest.split_whitespace().filter_map(|field| field.split_once('='));
                fields.find(|(key, _)| *key == name)?.1.parse().ok()
            };
            let (avg10, avg60) = (field("avg10")?, field("avg60")?);
            Some(Stall { avg10, avg60, avg300: field("avg300")?, total: field("total")? })
        };
        Some(Self { some: line("some")?, full: line("full")? })
    }

    /// That of a tree of groups, or of the machine.
    ///
    /// # Errors
    /// `Unsupported` or `NotFound` where the kernel does not measure it.
    pub fn read(root: &Path) -> io::Result<Self> {
        let text = match fs::read_to_string(root.join("memory.pressure")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs::read_to_string(WHOLE_MACHINE)?,
            read => read?,
        };
        Self::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// Memory of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupMemory {
    /// Its directory.
    pub path: PathBuf,
    /// The most it may use; none without a limit.
    pub max: Option<u64>,
    /// What it uses.
    pub current: Option<u64>,
    /// The most it ever used.
    pub peak: Option<u64>,
}

/// The groups right below `parent`, by name. None when there is no such group.
pub fn groups_below(parent: &Path) -> Vec<GroupMemory> {
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    let folders = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut groups: Vec<GroupMemory> = folders
        .take(GROUPS_MAX)
        .map(|entry| {
            let path = entry.path();
            let number = |file: &str| fs::read_to_string(path.join(file)).ok()?.trim().parse().ok();
            let (max, current) = (number("memory.max"), number("memory.current"));
            GroupMemory { max, current, peak: number("memory.peak"), path: path.clone() }
        })
        .collect();
    groups.sort_by(|a, b| a.path.cmp(&b.path));
    groups
}

/// Kills all processes of a group and has the kernel take their memory back at once. Gives the command lines of those
/// that were there.
///
/// # Errors
/// The kernel's.
pub fn reap(group: &Path) -> io::Result<Vec<String>> {
    let mut pids = Vec::new();
    collect_pids(group, &mut pids)?;
    let command = |pid: &i32| {
        let bytes = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let text = String::from_utf8_lossy(&bytes).trim_end_matches('\0').replace('\0', " ");
        Some(text)
    };
    let commands = pids.iter().filter_map(command).collect();
    // Opened before the end: a number may be another's afterwards.
    let held: Vec<OwnedFd> = pids.iter().take(RELEASED_MAX).filter_map(|pid| open(*pid).ok()).collect();
    match fs::OpenOptions::new()
        .write(true)
        .open(group.join("cgroup.kill"))
        .and_then(|mut file| file.write_all(b"1"))
    {
        // Absent before 5.14 and on v1.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            pids.iter().for_each(|pid| drop(crate::signal::send(*pid, libc::SIGKILL)));
        }
        done => done?,
    }
    for process in &held {
        // SAFETY: takes two numbers; the descriptor is open. A process that is gone already has no memory to release.
        unsafe { libc::syscall(libc::SYS_process_mrelease, process.as_raw_fd(), 0) };
    }
    Ok(commands)
}

fn open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes two numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match RawFd::try_from(fd) {
        // SAFETY: the kernel just made this descriptor for us.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_text_is_read() {
        let text = "some avg10=1.50 avg60=2.00 avg300=0.10 total=1234\nfull avg10=12.25 avg60=0.00 avg300=0.00 total=99\n";
        let pressure = Pressure::parse(text).unwrap();
        assert_eq!(pressure.some, Stall { avg10: 1.5, avg60: 2.0, avg300: 0.1, total: 1234.0 });
        assert_eq!((pressure.full.avg10, pressure.full.total), (12.25, 99.0));
        for text in ["", "some avg10=1", "some avg10=x avg60=0 avg300=0 total=0\nfull avg10=0", "full"] {
            assert_eq!(Pressure::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_pressure_of_this_machine_is_told_where_it_is_measured() {
        match Pressure::read(Path::new("/sys/fs/cgroup")) {
            Ok(pressure) => assert!((0.0..=100.0).contains(&pressure.some.avg10), "{pressure:?}"),
            Err(error) => {
                let unmeasured =
                    [io::ErrorKind::NotFound, io::ErrorKind::Unsupported, io::ErrorKind::PermissionDenied];
                assert!(unmeasured.contains(&error.kind()), "{error}");
            }
        }
    }

    #[test]
    fn groups_are_listed_with_what_the_kernel_says_of_them() {
        let dir = tempfile::tempdir().unwrap();
        for (group, max, current) in [("b", "max", "7"), ("a", "100", "5")] {
            fs::create_dir(dir.path().join(group)).unwrap();
            fs::write(dir.path().join(group).join("memory.max"), format!("{max}\n")).unwrap();
            fs::write(dir.path().join(group).join("memory.current"), format!("{current}\n")).unwrap();
        }
        fs::write(dir.path().join("memory.max"), "max\n").unwrap();
        let found = groups_below(dir.path());
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].max, found[0].current, found[0].peak), (Some(100), Some(5), None));
        assert_eq!((found[1].max, found[1].current), (None, Some(7)));
        assert_eq!(groups_below(&dir.path().join("nothing")), []);
    }

    #[test]
    fn a_group_is_reaped_and_its_commands_are_told() {
        // Looks like a group of a kernel without `cgroup.kill`.
        let dir = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        fs::write(dir.path().join("cgroup.procs"), format!("{}\n", child.id())).unwrap();
        // The kernel shows arguments a moment after the program was started.
        let shown = || fs::read(format!("/proc/{}/cmdline", child.id())).is_ok_and(|text| !text.is_empty());
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !shown() {
            assert!(std::time::Instant::now() < deadline, "sleep does not start");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        fs::create_dir(dir.path().join("below")).unwrap();
        fs::write(dir.path().join("below/cgroup.procs"), "").unwrap();
        let commands = reap(dir.path()).unwrap();
        assert_eq!(commands, ["sleep 1000"]);
        // Another test of this program may have reaped it, as init would; then it has ended all the same.
        assert!(child.wait().map_or(true, |status| !status.success()));
    }
}
