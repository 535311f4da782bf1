//! Memory: what the machine has, and giving back what this process does not need.

use std::io;

/// `/proc/meminfo`, in kilobytes as the kernel counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemInfo(Vec<(String, u64)>);

impl MemInfo {
    /// Reads it now.
    pub fn read() -> io::Result<Self> {
        Ok(Self::parse(&std::fs::read_to_string("/proc/meminfo")?))
    }

    /// Parses the text; lines without a number are left out.
    pub fn parse(text: &str) -> Self {
        let line = |line: &str| {
            let (key, value) = line.split_once(':')?;
            let number = value.split_ascii_whitespace().next()?.parse().ok()?;
            Some((key.to_owned(), number))
        };
        Self(text.lines().filter_map(line).collect())
    }

    /// The number behind a key as `MemTotal`; 0 when the kernel does not have it.
    pub fn get(&self, key: &str) -> u64 {
        let found = self.0.iter().find(|(name, _)| name == key);
        found.map_or(0, |(_, value)| *value)
    }
}

/// Gives freed heap memory back to the kernel. Cheap enough for an idle timer, not for a hot path.
pub fn trim() {
    // SAFETY: malloc_trim takes the allocator's own locks and has no other precondition.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Proportional and resident memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Shared pages divided among those who share them.
    pub pss: u64,
    /// All resident pages.
    pub rss: u64,
    /// Pages nobody else has.
    pub private: u64,
}

/// Reads `/proc/<pid>/smaps_rollup`.
pub fn footprint(pid: i32) -> io::Result<Footprint> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let info = MemInfo::parse(&rollup);
    Ok(Footprint {
        pss: info.get("Pss") * 1024,
        rss: info.get("Rss") * 1024,
        private: (info.get("Private_Clean") + info.get("Private_Dirty")) * 1024,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_and_unknown_ones_are_zero() {
        let info = MemInfo::parse("MemTotal:  2048 kB\nHugePages_Total:   3\nodd line\n");
        assert_eq!(info.get("MemTotal"), 2048);
        assert_eq!(info.get("HugePages_Total"), 3);
        assert_eq!(info.get("Nothing"), 0);
    }

    #[test]
    fn own_footprint_is_known() {
        trim();
        let own = footprint(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(own.pss > 0 && own.pss <= own.rss);
    }
}
