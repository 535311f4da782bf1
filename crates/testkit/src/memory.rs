//! What the test process itself takes.

/// Anonymous memory of this process in bytes: what the kernel cannot take back.
///
/// # Panics
/// Where there is no `/proc`.
pub fn anonymous_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("read /proc/self/status");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a line RssAnon");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number of kB") * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_in_use_is_counted() {
        let before = anonymous_memory();
        let held = std::hint::black_box(vec![7_u8; 8 << 20]);
        assert!(anonymous_memory() >= before + (6 << 20));
        drop(held);
    }
}
