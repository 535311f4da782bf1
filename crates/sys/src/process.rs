//! The table of processes, from `/proc`.

use std::io;
use std::path::Path;

/// How much less than others a thread of low priority gets, as `nice` counts.
const LOW: i32 = 10;

/// Has this thread, and no other of the process, give way to others where cores are scarce; its disk accesses, too.
///
/// # Errors
/// When it has a lower priority already and may not raise it.
pub fn lower_priority() -> io::Result<()> {
    // For the kernel a thread is a process here, and nobody stands for the caller.
    Ok(rustix::process::setpriority_process(None, LOW)?)
}

/// One process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Process {
    /// Process id.
    pub pid: i32,
    /// Parent.
    pub ppid: i32,
    /// One letter: R, S, D, Z, T, I, …
    pub state: char,
    /// Number of threads.
    pub threads: i32,
    /// Processor time spent, in seconds.
    pub cpu_time: f64,
    /// Address space in bytes.
    pub virtual_memory: u64,
    /// Resident memory in bytes.
    pub resident_memory: u64,
    /// Short name.
    pub command: String,
    /// Path of the program; empty for kernel threads and where we may not look.
    pub executable: String,
    /// Arguments, joined by blanks.
    pub args: String,
    /// Start time, in clock ticks after boot. With the pid it names a process for good.
    pub start_ticks: u64,
    /// Security label, where there is one.
    pub label: String,
}

/// All processes of this pid namespace, by pid. One that ends while we look is left out.
pub fn list() -> io::Result<Vec<Process>> {
    let mut processes = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Ok(entry) = entry else { continue };
        let name = entry.file_name();
        if let Some(pid) = name.to_str().and_then(|name| name.parse().ok())
            && let Ok(process) = read(pid)
        {
            processes.push(process);
        }
    }
    processes.sort_unstable_by_key(|process| process.pid);
    Ok(processes)
}

/// One process.
///
/// # Errors
/// `NotFound` when it is gone, `InvalidData` when the kernel's line cannot be read.
pub fn read(pid: i32) -> io::Result<Process> {
    let dir = format!("/proc/{pid}");
    let dir = Path::new(&dir);
    // A command name may hold any byte.
    let stat = std::fs::read(dir.join("stat"))?;
    let stat = String::from_utf8_lossy(&stat);
    let page = rustix::param::page_size() as u64;
    let ticks = rustix::param::clock_ticks_per_second();
    let mut process = parse_stat(&stat, page, ticks).ok_or(io::ErrorKind::InvalidData)?;
    if let Ok(path) = std::fs::read_link(dir.join("exe")) {
        process.executable = path.to_string_lossy().into_owned();
    }
    if let Ok(args) = std::fs::read(dir.join("cmdline")) {
        process.args = join_args(&args);
    }
    if let Ok(label) = std::fs::read_to_string(dir.join("attr/current")) {
        label.trim_end_matches(['\0', '\n']).clone_into(&mut process.label);
    }
    Ok(process)
}

fn join_args(raw: &[u8]) -> String {
    let raw = raw.strip_suffix(b"\0").unwrap_or(raw);
    String::from_utf8_lossy(raw).replace('\0', " ")
}

fn parse_stat(line: &str, page: u64, ticks: u64) -> Option<Process> {
    // The name stands in brackets and may hold brackets and blanks: look for the last one.
    let open = line.find('(')?;
    let close = line.rfind(')')?;
    let fields: Vec<&str> = line.get(close + 2..)?.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Process {
        pid: line.get(..open)?.trim().parse().ok()?,
        command: line.get(open + 1..close)?.to_owned(),
        state: fields.first()?.chars().next()?,
        ppid: fields.get(1)?.parse().ok()?,
        cpu_time: (number(11)? + number(12)?) as f64 / ticks.max(1) as f64,
        threads: fields.get(17)?.parse().ok()?,
        start_ticks: number(19)?,
        virtual_memory: number(20)?,
        resident_memory: number(21)?.saturating_mul(page),
        ..Process::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_blanks_is_read() {
        let line = "42 (a) b (c) S 7 42 42 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 3 0 999 8192000 25 18446744073709551615 1";
        let process = parse_stat(line, 4096, 100).unwrap();
        expect_test::expect![[r#"
            Process {
                pid: 42,
                ppid: 7,
                state: 'S',
                threads: 3,
                cpu_time: 2.0,
                virtual_memory: 8192000,
                resident_memory: 102400,
                command: "a) b (c",
                executable: "",
                args: "",
                start_ticks: 999,
                label: "",
            }
        "#]]
        .assert_debug_eq(&process);
    }

    #[test]
    fn half_a_line_is_no_process() {
        assert!(parse_stat("42 (x) S 1", 4096, 100).is_none());
        assert!(parse_stat("", 4096, 100).is_none());
    }

    #[test]
    fn this_test_finds_itself() {
        let own = i32::try_from(std::process::id()).unwrap();
        let all = list().unwrap();
        let me = all.iter().find(|process| process.pid == own).unwrap();
        assert!(me.resident_memory > 0 && me.threads >= 1);
        assert!(!me.executable.is_empty() && me.args.contains("sys"));
    }
}
