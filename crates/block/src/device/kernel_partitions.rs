//! The kernel's idea of the partitions of a disk, and what has to change in it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use crate::sysfs::attribute;

/// Where a partition is, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelPartition {
    /// Its first byte.
    pub start: u64,
    /// Its length.
    pub size: u64,
}

/// One change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelChange {
    /// The partition goes.
    Delete(u32),
    /// The partition is longer or shorter.
    Resize(u32, KernelPartition),
    /// The partition is new.
    Add(u32, KernelPartition),
}

impl fmt::Display for KernelChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delete(number) => write!(f, "delete partition {number}"),
            Self::Resize(number, _) => write!(f, "resize partition {number}"),
            Self::Add(number, _) => write!(f, "add partition {number}"),
        }
    }
}

/// What makes the known partitions the wanted ones: deletions first, since they make room for the rest.
pub fn plan(
    known: &BTreeMap<u32, KernelPartition>,
    wanted: &BTreeMap<u32, KernelPartition>,
) -> Vec<KernelChange> {
    let moved = |number: &u32, partition: &KernelPartition| {
        wanted.get(number).is_none_or(|wanted| wanted.start != partition.start)
    };
    let gone = known.iter().filter(|(number, partition)| moved(number, partition));
    let mut changes: Vec<KernelChange> = gone.map(|(number, _)| KernelChange::Delete(*number)).collect();
    for (number, partition) in wanted {
        match known.get(number).filter(|known| known.start == partition.start) {
            Some(known) if known.size != partition.size => {
                changes.push(KernelChange::Resize(*number, *partition))
            }
            Some(_) => {}
            None => changes.push(KernelChange::Add(*number, *partition)),
        }
    }
    changes
}

/// The kernel's partitions of the disk with this device number.
pub(super) fn known(root: &Path, device: u64) -> io::Result<BTreeMap<u32, KernelPartition>> {
    const UNIT: u64 = 512;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(root.join(format!("sys/dev/block/{major}:{minor}")))? {
        let path = entry?.path();
        let number = |file: &str| attribute(&path.join(file)).parse::<u64>().ok();
        if let (Some(index), Some(start), Some(size)) = (number("partition"), number("start"), number("size"))
            && let Ok(index) = u32::try_from(index)
        {
            found.insert(index, KernelPartition { start: start * UNIT, size: size * UNIT });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(partitions: &[(u32, u64, u64)]) -> BTreeMap<u32, KernelPartition> {
        partitions
            .iter()
            .map(|(number, start, size)| (*number, KernelPartition { start: *start, size: *size }))
            .collect()
    }

    #[test]
    fn what_is_the_same_is_left_alone_and_what_goes_goes_first() {
        let known = map(&[(1, 0, 10), (2, 10, 10), (3, 20, 10), (4, 30, 10)]);
        let wanted = map(&[(1, 0, 10), (2, 10, 20), (4, 40, 10), (5, 50, 10)]);
        let text: Vec<String> = plan(&known, &wanted).iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            [
                "delete partition 3",
                "delete partition 4",
                "resize partition 2",
                "add partition 4",
                "add partition 5"
            ]
        );
        assert!(plan(&known, &known).is_empty());
    }
}
