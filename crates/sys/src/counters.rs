//! Counters of the kernel: processors and swap.

/// Clock ticks per second, the same on every Linux we run on.
const TICKS_PER_SECOND: f64 = 100.0;

/// Processors read; the kernel's own limit is 8192.
const PROCESSORS_MAX: usize = 8192;

/// Seconds a processor spent in each state: user, nice, system, idle, iowait, irq, softirq, steal, guest, guest
/// nice.
pub type Seconds = [f64; 10];

/// The text of `/proc/stat`, without the counts of single interrupts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stat {
    /// All processors together.
    pub total: Seconds,
    /// Each of them.
    pub processors: Vec<Seconds>,
    /// Interrupts.
    pub interrupts: u64,
    /// Soft interrupts.
    pub soft_interrupts: u64,
    /// Context switches.
    pub switches: u64,
    /// Processes and threads made.
    pub created: u64,
    /// Those that run.
    pub running: u64,
    /// Those that wait for a device.
    pub blocked: u64,
}

/// Parses the text of `/proc/stat`; what is missing is zero.
pub fn stat(text: &str) -> Stat {
    let mut stat = Stat::default();
    for line in text.lines() {
        let Some((key, rest)) = line.split_once(' ') else { continue };
        let first = || number(rest.split_ascii_whitespace().next());
        match key {
            "cpu" => stat.total = seconds(rest),
            "intr" => stat.interrupts = first(),
            "softirq" => stat.soft_interrupts = first(),
            "ctxt" => stat.switches = first(),
            "processes" => stat.created = first(),
            "procs_running" => stat.running = first(),
            "procs_blocked" => stat.blocked = first(),
            key if key.starts_with("cpu") && stat.processors.len() < PROCESSORS_MAX => {
                stat.processors.push(seconds(rest));
            }
            _ => {}
        }
    }
    stat
}

fn seconds(ticks: &str) -> Seconds {
    let mut words = ticks.split_ascii_whitespace();
    std::array::from_fn(|_| number(words.next()) as f64 / TICKS_PER_SECOND)
}

fn number(word: Option<&str>) -> u64 {
    word.and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// An area that memory is swapped to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swap {
    /// Its file.
    pub path: String,
    /// `partition` or `file`.
    pub kind: String,
    /// Bytes it has.
    pub size: u64,
    /// Bytes in use.
    pub used: u64,
    /// Higher ones are used first.
    pub priority: i32,
}

/// Parses the text of `/proc/swaps`.
pub fn swaps(text: &str) -> Vec<Swap> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (path, kind) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut kib = || words.next()?.parse::<u64>().ok()?.checked_mul(1024);
        let (size, used) = (kib()?, kib()?);
        Some(Swap { path, kind, size, used, priority: words.next()?.parse().ok()? })
    };
    text.lines().skip(1).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted_in_seconds() {
        let stat = stat(
            "cpu  250 0 100 5000 1 2 3 4 5 6\ncpu0 200 0 50\ncpu1 50 0 50\nintr 77 1 2 3\nctxt 9\n\
             btime 1\nprocesses 8\nprocs_running 2\nprocs_blocked 1\nsoftirq 55 1 1\n",
        );
        assert_eq!((stat.total[0], stat.total[3], stat.total[9]), (2.5, 50.0, 0.06));
        assert_eq!(stat.processors.len(), 2);
        assert_eq!((stat.processors[1][0], stat.processors[1][3]), (0.5, 0.0));
        assert_eq!((stat.interrupts, stat.soft_interrupts, stat.switches), (77, 55, 9));
        assert_eq!((stat.created, stat.running, stat.blocked), (8, 2, 1));
    }

    #[test]
    fn swap_is_counted_in_bytes() {
        let text = "Filename\tType\tSize\tUsed\tPriority\n/dev/vda2 partition 1024 4 -2\nodd\n";
        let want = Swap {
            path: "/dev/vda2".into(),
            kind: "partition".into(),
            size: 1 << 20,
            used: 4096,
            priority: -2,
        };
        assert_eq!(swaps(text), [want]);
        assert_eq!(swaps(""), []);
    }
}
