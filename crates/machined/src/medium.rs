//! Files on a volume that is found by its label: a CD or a stick with a configuration or with what a platform knows.
//!
//! The volume is mounted read-only for as long as it takes to read its files, at a place of its own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ichor_cosi::State;
use ichor_resource::block::{DiscoveredVolume, DiscoveryRefreshStatus};
use ichor_resource::runtime::DevicesStatus;
use ichor_sys::mount::{self, MountFlags};
use tokio::time::timeout;

/// Longest wait for drivers to have found their devices, then for what is on these to be known.
const DEVICES_MAX: Duration = Duration::from_secs(180);
const DISCOVERY_MAX: Duration = Duration::from_secs(60);
/// Longest wait for a drive to be read.
const READ_MAX: Duration = Duration::from_secs(120);
/// A larger file is no configuration.
const LEN_MAX: u64 = 32 << 20;
/// Where volumes are mounted.
const PLACE: &str = "/system/run";

/// Filesystems that such volumes have.
const FILESYSTEMS: [&str; 2] = ["iso9660", "vfat"];

/// Why a volume cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum MediumError {
    /// Mounting or reading failed.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was done.
        what: &'static str,
        /// The device or the file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file that is no configuration.
    #[error("{name} on {device} has {len} bytes; at most {LEN_MAX} are read")]
    TooLarge {
        /// The file.
        name: String,
        /// The device.
        device: String,
        /// Its length.
        len: u64,
    },
    /// The drive does not answer.
    #[error("{device} was not read within {READ_MAX:?}")]
    Slow {
        /// The device.
        device: String,
    },
}

/// A volume to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Medium {
    device: String,
    filesystem: &'static str,
}

/// The first volume with one of these labels, its filesystem's or its partition's.
fn choose<'a>(volumes: impl Iterator<Item = &'a DiscoveredVolume>, labels: &[&str]) -> Option<Medium> {
    let mut labelled = volumes
        .filter(|volume| labels.contains(&&*volume.label) || labels.contains(&&*volume.partition_label));
    labelled.find_map(|volume| {
        let filesystem = FILESYSTEMS.into_iter().find(|name| *name == volume.name)?;
        Some(Medium { device: volume.dev_path.clone(), filesystem })
    })
}

/// The named files of the volume with one of these labels, those that it has; none without such a volume.
///
/// # Errors
/// When there is a volume that cannot be read.
pub async fn read(
    state: &State,
    labels: &[&str],
    names: &'static [&'static str],
) -> Result<Option<BTreeMap<&'static str, Vec<u8>>>, MediumError> {
    // Whatever is known when the time is up has to do.
    let devices = state.wait_for::<DevicesStatus>("runtime", "devices", |status| status.ready);
    let _ = timeout(DEVICES_MAX, devices).await;
    let looked = state.wait_for::<DiscoveryRefreshStatus>("runtime", "refresh", |status| status.request > 0);
    if crate::families::has_disks() {
        let _ = timeout(DISCOVERY_MAX, looked).await;
    }
    let volumes = state.list::<DiscoveredVolume>("runtime");
    let Some(medium) = choose(volumes.iter().map(|volume| volume.spec()), labels) else { return Ok(None) };
    let device = medium.device.clone();
    let reading = tokio::task::spawn_blocking(move || read_files(&medium, names));
    match timeout(READ_MAX, reading).await {
        Ok(Ok(files)) => files.map(Some),
        Ok(Err(_)) | Err(_) => Err(MediumError::Slow { device }),
    }
}

fn read_files(
    medium: &Medium,
    names: &[&'static str],
) -> Result<BTreeMap<&'static str, Vec<u8>>, MediumError> {
    let mounted = Mounted::new(medium)?;
    let mut files = BTreeMap::new();
    for name in names {
        if let Some(bytes) = read_file(&medium.device, &mounted.0, name)? {
            files.insert(*name, bytes);
        }
    }
    Ok(files)
}

fn read_file(device: &str, dir: &Path, name: &str) -> Result<Option<Vec<u8>>, MediumError> {
    let path = dir.join(name);
    let failed = |source| MediumError::Io { what: "read", path: path.clone(), source };
    let file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found.map_err(failed)?,
    };
    let mut bytes = Vec::new();
    file.take(LEN_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    match bytes.len() as u64 {
        len if len > LEN_MAX => {
            Err(MediumError::TooLarge { name: name.to_owned(), device: device.to_owned(), len })
        }
        _ => Ok(Some(bytes)),
    }
}

/// A mounted volume, until it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(medium: &Medium) -> Result<Self, MediumError> {
        // Two readers at a time do not meet.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = Path::new(PLACE).join(format!("medium-{number}"));
        fs::create_dir_all(&dir).map_err(|source| MediumError::Io {
            what: "make",
            path: dir.clone(),
            source,
        })?;
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        match mount::mount(&medium.device, &dir, medium.filesystem, flags, "") {
            Ok(()) => Ok(Self(dir)),
            Err(error) => {
                let _ = fs::remove_dir(&dir);
                let path = PathBuf::from(&medium.device);
                Err(MediumError::Io { what: "mount", path, source: error.source })
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Nothing of ours has a file open there; a mount that stays is gone with the machine.
        let _ = mount::detach(&self.0);
        let _ = fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(dev: &str, name: &str, label: &str, partition: &str) -> DiscoveredVolume {
        DiscoveredVolume {
            dev_path: dev.to_owned(),
            name: name.to_owned(),
            label: label.to_owned(),
            partition_label: partition.to_owned(),
            ..DiscoveredVolume::default()
        }
    }

    #[test]
    fn a_volume_is_found_by_either_label_and_has_to_be_readable() {
        let volumes = [
            volume("/dev/sda1", "xfs", "cidata", ""),
            volume("/dev/sdb", "gpt", "", ""),
            volume("/dev/sdb1", "vfat", "OTHER", "CIDATA"),
            volume("/dev/sr0", "iso9660", "cidata", ""),
        ];
        let found = |labels: &[&str]| choose(volumes.iter(), labels).map(|medium| medium.device);
        assert_eq!(found(&["cidata", "CIDATA"]).as_deref(), Some("/dev/sdb1"));
        assert_eq!(found(&["cidata"]).as_deref(), Some("/dev/sr0"));
        assert_eq!(found(&["metal-iso"]), None);
    }

    #[test]
    fn files_that_are_missing_or_too_large_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "text").unwrap();
        File::create(dir.path().join("big")).unwrap().set_len(LEN_MAX + 1).unwrap();
        let read = |name| read_file("/dev/sr0", dir.path(), name);
        assert_eq!(read("a").unwrap().as_deref(), Some(&b"text"[..]));
        assert_eq!(read("none").unwrap(), None);
        let error = read("big").unwrap_err().to_string();
        assert_eq!(error, "big on /dev/sr0 has 33554433 bytes; at most 33554432 are read");
    }
}
