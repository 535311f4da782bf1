//! What the kernel shows of block devices below `/sys`. The root is a parameter, so that tests have a tree of their own.

mod disk;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use disk::{DiskProperties, disk_properties};

/// Devices of one machine at most; more is a mistake.
const DEVICES_MAX: usize = 65_536;

/// A whole disk or a part of one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// A whole disk, or what looks like one: loop devices, mapped devices.
    #[default]
    Disk,
    /// A partition.
    Partition,
}

impl DeviceKind {
    /// The kernel's name of it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Partition => "partition",
        }
    }
}

/// A block device as the kernel shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockDevice {
    /// The name below `/dev`.
    pub name: String,
    /// Disk or partition.
    pub kind: DeviceKind,
    /// The major number.
    pub major: u32,
    /// The minor number.
    pub minor: u32,
    /// The name of a partition in the partition table.
    pub partition_name: String,
    /// The number of a partition.
    pub partition_number: u32,
    /// Where it is below `/sys/devices`.
    pub device_path: String,
    /// The disk of a partition.
    pub parent: Option<String>,
    /// Devices it is made of.
    pub secondaries: Vec<String>,
}

/// All block devices, by name. One that goes away meanwhile is left out.
///
/// # Errors
/// When `sys/block` below the root cannot be listed; a system without one has no devices.
pub fn devices(root: &Path) -> io::Result<BTreeMap<String, BlockDevice>> {
    let mut found = BTreeMap::new();
    let entries = match fs::read_dir(root.join("sys/block")) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let path = entry?.path();
        let Some(disk) = device(root, &path, None) else { continue };
        for part in fs::read_dir(&path).into_iter().flatten().flatten() {
            // Everything else in the directory of a disk has no number.
            if part.path().join("partition").exists()
                && let Some(part) = device(root, &part.path(), Some(&disk))
            {
                found.insert(part.name.clone(), part);
            }
        }
        found.insert(disk.name.clone(), disk);
        if found.len() > DEVICES_MAX {
            return Err(io::Error::other(format!("more than {DEVICES_MAX} block devices")));
        }
    }
    Ok(found)
}

/// One device by its directory; `None` when it is gone or incomplete.
fn device(root: &Path, path: &Path, parent: Option<&BlockDevice>) -> Option<BlockDevice> {
    let uevent = fs::read_to_string(path.join("uevent")).ok()?;
    let values: BTreeMap<&str, &str> = uevent.lines().filter_map(|line| line.split_once('=')).collect();
    let number = |key: &str| values.get(key).and_then(|text| text.parse::<u32>().ok());
    let name = path.file_name()?.to_str()?.to_owned();
    let device_path = match parent {
        Some(disk) => format!("{}/{name}", disk.device_path),
        None => device_path(root, path),
    };
    Some(BlockDevice {
        kind: if parent.is_some() { DeviceKind::Partition } else { DeviceKind::Disk },
        major: number("MAJOR")?,
        minor: number("MINOR")?,
        partition_name: values.get("PARTNAME").copied().unwrap_or_default().to_owned(),
        partition_number: number("PARTN").unwrap_or(0),
        device_path,
        parent: parent.map(|disk| disk.name.clone()),
        secondaries: if parent.is_some() { Vec::new() } else { names(&path.join("slaves")) },
        name,
    })
}

/// Where a device really is, as seen from the root.
fn device_path(root: &Path, path: &Path) -> String {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let root = fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
    let below = real.strip_prefix(&root).unwrap_or(&real);
    PathBuf::from("/").join(below).to_string_lossy().into_owned()
}

/// Names in a directory, sorted.
fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The text of an attribute without the space around it; empty when there is none.
pub(crate) fn attribute(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()).unwrap_or_default()
}
