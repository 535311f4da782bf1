//! The block devices of the machine this runs on.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ichor_block::device::{Device, Lock, Media};
use ichor_block::inotify::{self, Topic};
use ichor_block::sysfs::{self, BlockDevice, DiskProperties};
use ichor_block::{probe, uevent};
use ichor_cosi::Wake;
use tracing::warn;

use crate::ports::{BlockPort, DeviceChanges, ProbeError, Probed};

/// Before a watch that failed is tried again.
const WATCH_RETRY: Duration = Duration::from_secs(5);
/// Links that the device manager is about to rename.
const UNFINISHED: &str = ".#";

/// The machine's own devices, or those of a tree that looks like it.
#[derive(Debug, Clone)]
pub struct SystemBlock {
    root: PathBuf,
}

impl SystemBlock {
    /// The devices below this root, `/` for the real ones.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn node(&self, name: &str) -> PathBuf {
        self.root.join("dev").join(name)
    }
}

impl BlockPort for SystemBlock {
    fn devices(&self) -> io::Result<BTreeMap<String, BlockDevice>> {
        sysfs::devices(&self.root)
    }

    fn disk(&self, name: &str) -> DiskProperties {
        let mut found = sysfs::disk_properties(&self.root, name);
        // The kernel shows the size of the last disc while the drive is empty.
        if found.cdrom && Device::open(&self.node(name)).is_ok_and(|drive| drive.media() == Media::Missing) {
            found.size = 0;
        }
        found
    }

    fn probe(&self, name: &str, is_disk: bool) -> Result<Probed, ProbeError> {
        let device = Device::open(&self.node(name))?;
        if !device.try_lock(Lock::Shared)? {
            return Err(ProbeError::Locked);
        }
        if is_disk {
            device.forget_cached();
        }
        let (size, sector_size, io_size) = (device.size()?, device.sector_size(), device.io_size());
        if size == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the device has no size").into());
        }
        let source = device.source()?;
        let contents = match is_disk {
            true => probe::probe_disk(&source, sector_size)?,
            false => probe::Contents { signature: probe::probe(&source)?, partitions: Vec::new() },
        };
        Ok(Probed { size, sector_size, io_size, contents })
    }

    fn symlinks(&self) -> io::Result<BTreeMap<String, Vec<String>>> {
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for folder in folders(&self.root.join("dev/disk"))? {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let Some((device, path)) = link(&self.root, &entry.path()) else { continue };
                found.entry(device).or_default().push(path);
            }
        }
        for paths in found.values_mut() {
            paths.sort();
        }
        Ok(found)
    }

    fn watch_devices(&self, changes: DeviceChanges) {
        tokio::spawn(follow_kernel(uevent::Watcher::open(), changes.clone()));
        let folder = self.root.join("dev");
        let opened = watch(std::slice::from_ref(&folder), Topic::Written);
        tokio::spawn(follow_writes(opened, folder, changes));
    }

    fn watch_symlinks(&self, wake: Wake) {
        tokio::spawn(follow_links(self.root.join("dev"), wake));
    }
}

/// Directories in a directory; one that is not there has none.
fn folders(path: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(path) {
        Ok(entries) => Ok(entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The device a link points to, and the link as it is seen from the root.
fn link(root: &Path, path: &Path) -> Option<(String, String)> {
    let name = path.file_name()?.to_str()?;
    if name.starts_with(UNFINISHED) {
        return None;
    }
    let target = fs::read_link(path).ok()?;
    let device = target.file_name()?.to_str()?.to_owned();
    let shown = Path::new("/").join(path.strip_prefix(root).ok()?);
    Some((device, shown.to_string_lossy().into_owned()))
}

fn watch(folders: &[PathBuf], topic: Topic) -> io::Result<inotify::Watcher> {
    let watcher = inotify::Watcher::new()?;
    for folder in folders {
        watcher.add(folder, topic)?;
    }
    Ok(watcher)
}

/// Devices that the kernel tells of, for as long as the process lives.
async fn follow_kernel(mut opened: io::Result<uevent::Watcher>, changes: DeviceChanges) {
    loop {
        match &mut opened {
            Ok(watcher) => match watcher.next().await {
                Ok(uevent::Told::Event(event)) if event.subsystem == "block" => {
                    if let Some(name) = event.device_path.rsplit('/').next() {
                        changes.note(name);
                    }
                }
                Ok(uevent::Told::Event(_)) => {}
                Ok(uevent::Told::Overrun) => changes.note_all(),
                Err(error) => opened = Err(error),
            },
            Err(error) => {
                warn!(%error, "new block devices are not seen");
                tokio::time::sleep(WATCH_RETRY).await;
                opened = uevent::Watcher::open();
                changes.note_all();
            }
        }
    }
}

/// Devices that somebody wrote to, for as long as the process lives.
async fn follow_writes(mut opened: io::Result<inotify::Watcher>, folder: PathBuf, changes: DeviceChanges) {
    loop {
        match &mut opened {
            Ok(watcher) => match watcher.changed().await {
                Ok(told) if told.overrun => changes.note_all(),
                Ok(told) => told.names.iter().for_each(|name| changes.note(name)),
                Err(error) => opened = Err(error),
            },
            Err(error) => {
                warn!(%error, "writes to block devices are not seen");
                tokio::time::sleep(WATCH_RETRY).await;
                opened = watch(std::slice::from_ref(&folder), Topic::Written);
                changes.note_all();
            }
        }
    }
}

/// Links that come and go, for as long as the process lives. Their directories come and go too.
async fn follow_links(devices: PathBuf, wake: Wake) {
    let mut watcher = None;
    loop {
        let disk = devices.join("disk");
        let all: Vec<PathBuf> = folders(&disk).unwrap_or_default();
        let wanted: Vec<PathBuf> =
            [devices.clone(), disk].into_iter().filter(|path| path.is_dir()).chain(all).collect();
        let opened = match watcher.take() {
            Some(opened) => Ok(opened),
            None => inotify::Watcher::new(),
        };
        let next = match opened {
            Ok(mut opened) => {
                for folder in &wanted {
                    // One that is gone again is seen by its parent.
                    let _ = opened.add(folder, Topic::Names);
                }
                wake.wake();
                opened.changed().await.map(|_| opened)
            }
            Err(error) => Err(error),
        };
        match next {
            Ok(opened) => watcher = Some(opened),
            Err(error) => {
                warn!(%error, "links to block devices are not seen");
                tokio::time::sleep(WATCH_RETRY).await;
            }
        }
    }
}
