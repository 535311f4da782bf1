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

/// Lets go of the program's own code and constants that were only needed to start: the kernel maps them again, from
/// its cache, when they are used. For a daemon that is about to idle.
///
/// # Errors
/// When `/proc` is not there; nothing has changed then.
pub fn release_code() -> io::Result<()> {
    let smaps = std::fs::read_to_string("/proc/self/smaps")?;
    let program = std::fs::read_link("/proc/self/exe")?;
    for (start, len) in untouched_file_ranges(&smaps, &program.to_string_lossy()) {
        // SAFETY: the range is a private mapping of a file without a page of its own, and not writable, so every
        // page can be read again from the file with the same content. Threads that run it fault and go on.
        unsafe {
            libc::madvise(start as *mut libc::c_void, len, libc::MADV_DONTNEED);
        }
    }
    Ok(())
}

/// Start and length of the mappings of `program` that were never written to and cannot be.
fn untouched_file_ranges(smaps: &str, program: &str) -> Vec<(usize, usize)> {
    let mut ranges = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        if let Some(value) = line.strip_prefix("Anonymous:") {
            // Relocated constants are read-only by now but exist nowhere else: those must stay.
            if let Some(range) = current.take()
                && value.trim() == "0 kB"
            {
                ranges.push(range);
            }
        } else if let Some((range, rest)) = line.split_once(' ')
            && let Some((start, end)) = range.split_once('-')
            && let (Ok(start), Ok(end)) = (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16))
        {
            let fixed = rest.starts_with("r-xp") || rest.starts_with("r--p");
            current = (fixed && rest.ends_with(program) && end > start).then(|| (start, end - start));
        }
    }
    ranges
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
    fn only_unwritten_parts_of_the_program_are_released() {
        let smaps = "\
1000-3000 r-xp 00000000 08:01 7 /sbin/init\nRss: 8 kB\nAnonymous: 0 kB\n\
3000-4000 r--p 00002000 08:01 7 /sbin/init\nAnonymous: 4 kB\n\
4000-5000 rw-p 00003000 08:01 7 /sbin/init\nAnonymous: 0 kB\n\
5000-6000 r--p 00000000 08:01 9 /lib/other\nAnonymous: 0 kB\n\
7000-9000 r--p 00000000 00:00 0\nAnonymous: 0 kB\n";
        assert_eq!(untouched_file_ranges(smaps, "/sbin/init"), [(0x1000, 0x2000)]);
    }

    #[test]
    fn released_code_still_runs() {
        release_code().unwrap();
        assert_eq!("still here".len(), 10);
    }

    #[test]
    fn own_footprint_is_known() {
        trim();
        let own = footprint(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(own.pss > 0 && own.pss <= own.rss);
    }
}
