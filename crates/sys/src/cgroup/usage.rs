//! What the processes of a group use.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::{Cgroups, Layout, check};

impl Cgroups {
    /// Memory the group uses, in bytes; on v1 without the file pages that can go at any time.
    pub fn memory_used(&self, group: &str) -> io::Result<u64> {
        let used = self.memory_current(group)?;
        match self.layout {
            Layout::Unified => Ok(used),
            Layout::Split => {
                let text = fs::read_to_string(self.file(group, "memory.stat")?)?;
                Ok(used.saturating_sub(field(&text, "total_inactive_file").unwrap_or(0)))
            }
        }
    }

    /// Processor time the group has used.
    pub fn cpu_time(&self, group: &str) -> io::Result<Duration> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        match self.layout {
            Layout::Unified => {
                let text = fs::read_to_string(self.file(group, "cpu.stat")?)?;
                field(&text, "usage_usec").map(Duration::from_micros).ok_or_else(invalid)
            }
            Layout::Split => {
                let text = fs::read_to_string(self.file(group, "cpuacct.usage")?)?;
                text.trim().parse().map(Duration::from_nanos).map_err(|_| invalid())
            }
        }
    }

    /// A file of the group, in whichever tree has it.
    fn file(&self, group: &str, name: &str) -> io::Result<PathBuf> {
        let group = check(group)?;
        let mut files = self.roots.iter().map(|root| root.join(group).join(name));
        files.find(|path| path.exists()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// The value of a line such as `usage_usec 1234`.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_from_both_kinds_of_trees() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for file in
            ["v2/cgroup.procs", "v2/cgroup.controllers", "v1/cpuacct/cgroup.procs", "v1/memory/cgroup.procs"]
        {
            write(file, "");
        }
        write("v2/system/apid/memory.current", "500\n");
        write("v2/system/apid/cpu.stat", "usage_usec 7\nuser_usec 3\n");
        write("v1/memory/system/apid/memory.usage_in_bytes", "500\n");
        write("v1/memory/system/apid/memory.stat", "cache 1\ntotal_inactive_file 200\n");
        write("v1/cpuacct/system/apid/cpuacct.usage", "7000\n");
        for (tree, memory) in [("v2", 500), ("v1", 300)] {
            let groups = Cgroups::detect(&dir.path().join(tree)).unwrap();
            assert_eq!(groups.memory_used("system/apid").unwrap(), memory);
            assert_eq!(groups.cpu_time("system/apid").unwrap(), Duration::from_micros(7));
            assert!(groups.cpu_time("../x").is_err() && groups.cpu_time("system/none").is_err());
        }
    }
}
