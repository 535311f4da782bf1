//! Processes as the host sees them.

use std::fs;

/// One process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Id in the host's namespace.
    pub pid: i32,
    /// Id of the parent.
    pub parent: i32,
    /// State letter of `/proc/<pid>/stat`.
    pub state: char,
    /// Start time in clock ticks: tells a process from its successor with the same id.
    pub started: u64,
    /// The last part of the first argument, such as `machined`.
    pub name: String,
}

impl Process {
    /// When it was started, as time since the host's boot; exact to a hundredth of a second.
    pub fn since_boot(&self) -> std::time::Duration {
        std::time::Duration::from_millis(self.started * 10)
    }
}

/// Time since the host's boot.
pub fn uptime() -> Option<std::time::Duration> {
    let text = fs::read_to_string("/proc/uptime").ok()?;
    Some(std::time::Duration::from_secs_f64(text.split(' ').next()?.parse().ok()?))
}

/// All processes of the host.
pub fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| read(entry.ok()?.file_name().to_str()?.parse().ok()?)).collect()
}

/// The process `pid`, if it is there.
pub fn read(pid: i32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let cmdline = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let first = cmdline.split(|b| *b == 0).next().unwrap_or_default();
    let first = String::from_utf8_lossy(first);
    let name = first.rsplit('/').next().unwrap_or_default().to_owned();
    Some(Process {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        state: fields.first()?.chars().next()?,
        started: fields.get(19)?.parse().ok()?,
        name,
    })
}

/// All descendants of `ancestor`.
pub fn below(ancestor: i32) -> Vec<Process> {
    let all = all();
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![ancestor];
    while let Some(parent) = parents.pop() {
        for process in all.iter().filter(|p| p.parent == parent) {
            parents.push(process.pid);
            found.push(process.clone());
        }
    }
    found
}

/// Processes with `word` among their arguments.
pub fn with_argument(word: &str) -> Vec<Process> {
    let has = |process: &Process| {
        let cmdline = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
        cmdline.split(|b| *b == 0).any(|argument| String::from_utf8_lossy(argument).contains(word))
    };
    all().into_iter().filter(has).collect()
}

/// Proportional memory of a process in KiB.
pub fn pss(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find(|line| line.starts_with("Pss:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Anonymous memory of a process in KiB: what the kernel cannot take back without swap.
pub fn anonymous(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find(|line| line.starts_with("Anonymous:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Resident memory of a process in KiB.
pub fn rss(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// The most resident memory a process ever had, in KiB.
pub fn peak(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// How often the threads of a process slept and were woken so far. Being pushed aside by others does not count: that
/// tells of the others.
pub fn switches(pid: i32) -> Option<u64> {
    let mut total = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let text = fs::read_to_string(thread.ok()?.path().join("status")).ok()?;
        let counts = text.lines().filter(|line| line.starts_with("voluntary_ctxt_switches"));
        total += counts.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum::<u64>();
    }
    Some(total)
}

/// CPU time of a process so far, user and system, in clock ticks.
pub fn cpu_ticks(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

/// Time on a CPU so far, all threads, in nanoseconds.
pub fn run_nanos(pid: i32) -> Option<u64> {
    let mut total = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let text = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        total += text.split(' ').next()?.parse::<u64>().ok()?;
    }
    Some(total)
}

/// Sends SIGKILL.
pub fn kill(pid: i32) -> bool {
    rustix::process::Pid::from_raw(pid)
        .is_some_and(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok())
}

/// Asks a process that the caller started to end.
pub fn terminate(pid: u32) -> bool {
    i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
        .is_some_and(|pid| rustix::process::kill_process(pid, rustix::process::Signal::TERM).is_ok())
}

/// Holds a process of our own machines, or lets it go on.
pub fn hold(pid: i32, held: bool) -> bool {
    let signal = if held { rustix::process::Signal::STOP } else { rustix::process::Signal::CONT };
    rustix::process::Pid::from_raw(pid).is_some_and(|pid| rustix::process::kill_process(pid, signal).is_ok())
}
