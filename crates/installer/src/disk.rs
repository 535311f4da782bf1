//! A system disk of this machine: locked, its filesystems mounted, its META read.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ichor_block::device::{Device, Lock};
use ichor_block::gpt::Table;
use ichor_block::probe::{self, Contents};
use ichor_block::wipe;
use ichor_boot::plan::{Step, execute};
use ichor_boot::sdboot::variable::Variable;
use ichor_sys::boot_port::{BootPaths, BootPort};

use crate::error::InstallError;
use crate::meta::{DiskMeta, DiskOutside, partition_node};
use crate::mounts::Mounts;
use crate::slots::{Installed, Running};

/// Others look at the disk for moments only.
const LOCK_MAX: Duration = Duration::from_secs(60);
/// Somebody may still be letting a partition go.
const BUSY_TRIES: u32 = 50;
const BUSY_PAUSE: Duration = Duration::from_millis(200);
/// META says by this key that a disk image starts in two ways.
const DUAL_BOOT_KEY: u8 = 0x11;
/// Boot code of the first sector.
const BOOT_CODE_LEN: usize = 446;
/// Where mounts are made; in the mount namespace of this process alone.
const FOLDER: &str = "/run/ichor-installer";

/// Opens a disk to change it and keeps everybody else off it.
///
/// # Errors
/// When it is not there, in use (for `unused`), or stays locked.
pub fn open(path: &Path, unused: bool) -> Result<Device, InstallError> {
    let at = |what| move |source| InstallError::Disk { what, path: path.to_owned(), source };
    let device = if unused { Device::open_unused(path) } else { Device::open_writable(path) };
    let device = device.map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => InstallError::InUse { path: path.to_owned() },
        _ => at("open")(error),
    })?;
    device.lock_within(Lock::Exclusive, LOCK_MAX).map_err(at("lock"))?;
    Ok(device)
}

/// What is on a disk.
///
/// # Errors
/// When it cannot be read.
pub fn contents(device: &Device) -> Result<Contents, InstallError> {
    let at = |source| InstallError::Disk { what: "look at", path: device.path().to_owned(), source };
    probe::probe_disk(&device.source().map_err(at)?, device.sector_size()).map_err(at)
}

/// An installed disk of this machine.
#[derive(Debug)]
pub struct SystemDisk {
    device: Device,
    table: Table,
    mounts: Mounts,
    paths: BootPaths,
    meta: DiskMeta,
}

impl SystemDisk {
    /// Locks the disk and mounts what boot loaders read.
    ///
    /// # Errors
    /// When it is no system disk, or something on it cannot be read.
    pub fn open(disk: &Path, is_writable: bool) -> Result<Self, InstallError> {
        Self::open_with(disk, is_writable, DiskMeta::read)
    }

    /// As [`SystemDisk::open`], for changes; META may be damaged if it is among what is reset.
    ///
    /// # Errors
    /// As [`SystemDisk::open`].
    pub fn open_to_reset(disk: &Path, labels: &[String]) -> Result<Self, InstallError> {
        match labels.iter().any(|label| label == "META") {
            true => Self::open_with(disk, true, DiskMeta::read_or_blank),
            false => Self::open(disk, true),
        }
    }

    fn open_with(
        disk: &Path,
        is_writable: bool,
        read: impl FnOnce(&Path) -> Result<DiskMeta, InstallError>,
    ) -> Result<Self, InstallError> {
        let device = open(disk, false)?;
        let table = device
            .table()
            .map_err(|source| InstallError::Table { path: disk.to_owned(), source })?
            .map(|(table, _)| table);
        let missing =
            |reason: &str| InstallError::NotInstalled { path: disk.to_owned(), reason: reason.to_owned() };
        let table = table.ok_or_else(|| missing("it has no partition table"))?;
        let (meta, _) = table.find("META").ok_or_else(|| missing("it has no partition META"))?;
        let meta = read(&partition_node(disk, meta))?;
        let mut mounts = Mounts::private(Path::new(FOLDER))?;
        let variables = mounts.variables(is_writable)?;
        let mut paths = BootPaths { variables, ..BootPaths::default() };
        let (mut wants_efi, mut wants_boot) = (true, true);
        if meta.text(DUAL_BOOT_KEY).as_deref() == Some("dual-boot") {
            wants_efi = by_sd_boot(&paths);
            wants_boot = !wants_efi;
        }
        let found = contents(&device)?;
        let kind = |label: &str| {
            let partition = found.partitions.iter().find(|partition| partition.entry.name == label)?;
            Some((partition.number, partition.signature.as_ref().map_or("vfat", |signature| signature.name)))
        };
        if let Some((number, kind)) = kind("BOOT").filter(|_| wants_boot) {
            paths.boot = Some(mounts.mount(&partition_node(disk, number), "BOOT", kind, is_writable)?);
        }
        if let Some((number, kind)) = kind("EFI").filter(|_| wants_efi) {
            match mounts.mount(&partition_node(disk, number), "EFI", kind, is_writable) {
                Ok(path) => paths.efi = Some(path),
                // With GRUB the machine is started without it.
                Err(_) if paths.boot.is_some() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { device, table, mounts, paths, meta })
    }

    /// Its slots, with the parts of a new system where one is to be written.
    pub fn installed(&mut self) -> Installed<'_> {
        Installed { paths: self.paths.clone(), meta: &mut self.meta }
    }

    /// Where its boot loaders are.
    pub fn paths_mut(&mut self) -> &mut BootPaths {
        &mut self.paths
    }

    /// META.
    pub fn meta_mut(&mut self) -> &mut DiskMeta {
        &mut self.meta
    }

    /// Bytes of a partition.
    pub fn partition_size(&self, label: &str) -> Option<u64> {
        let (number, _) = self.table.find(label)?;
        self.table.offset_and_size(number).map(|(_, size)| size)
    }

    /// How the running system was started.
    pub fn running(&self) -> Running {
        Running::this(self.table.find("EFI").map(|(_, efi)| efi.guid.to_string()))
    }

    /// Whether it still starts in two ways.
    pub fn is_dual_boot(&self) -> bool {
        self.meta.text(DUAL_BOOT_KEY).as_deref() == Some("dual-boot")
    }

    /// Drops the boot loader of a disk image that this machine was not started by.
    ///
    /// # Errors
    /// The disk's.
    pub fn drop_other_loader(&mut self) -> Result<(), InstallError> {
        let path = self.device.path().to_owned();
        let at = |what: &'static str| {
            let path = path.clone();
            move |source| InstallError::Disk { what, path, source }
        };
        let labels: &[&str] = match self.paths.boot.is_some() {
            true => &["EFI"],
            false => {
                let zeros = [0; BOOT_CODE_LEN];
                self.device.file().write_all_at(&zeros, 0).map_err(at("clear the boot code of"))?;
                &["BIOS", "BOOT"]
            }
        };
        for label in labels {
            if let Some((number, _)) = self.table.find(label) {
                let gone = self.table.remove(number);
                gone.map_err(|source| InstallError::Table { path: path.clone(), source })?;
            }
        }
        let written = self.device.write_table(&self.table);
        written.map_err(|source| InstallError::Table { path: path.clone(), source })?;
        self.meta.delete(DUAL_BOOT_KEY).map_err(at("update META of"))
    }

    /// Clears partitions and takes them out of the table, those that a machine starts from last.
    ///
    /// # Errors
    /// The disk's; partitions that were not reached are still there.
    pub fn reset(mut self, labels: &[String], mut told: impl FnMut(&str)) -> Result<(), InstallError> {
        let steps = match self.installed().read() {
            Ok(mut disk) => disk.reset(labels)?,
            // Without a boot loader there is nothing to be taken back.
            Err(_) => labels.iter().map(|label| Step::Wipe { label: label.clone() }).collect(),
        };
        let is_wipe = |step: &Step| matches!(step, Step::Wipe { .. });
        let first = steps.iter().position(is_wipe).unwrap_or(steps.len());
        let outside = DiskOutside { meta: &mut self.meta, disk: None };
        execute(&steps[..first], &mut BootPort::new(self.paths.clone(), outside))?;
        self.mounts.release()?;
        for step in &steps[first..] {
            told(&step.to_string());
            let outside =
                DiskOutside { meta: &mut self.meta, disk: Some((&self.device, self.table.clone())) };
            execute(std::slice::from_ref(step), &mut BootPort::new(BootPaths::default(), outside))?;
            if let Step::Wipe { label } = step
                && let Some((number, _)) = self.table.find(label)
            {
                // It is gone; the next step begins with the table that is there now.
                let _ = self.table.remove(number);
            }
        }
        Ok(())
    }
}

/// Whether systemd-boot started this machine.
fn by_sd_boot(paths: &BootPaths) -> bool {
    paths.variable_text(Variable::EntrySelected).is_some()
}

/// Wipes a whole disk.
///
/// # Errors
/// The disk's.
pub fn wipe_whole(path: &Path, mut told: impl FnMut(&str)) -> Result<(), InstallError> {
    let mut tries = 0;
    let device = loop {
        match open(path, true) {
            Err(InstallError::InUse { .. }) if tries < BUSY_TRIES => {
                tries += 1;
                std::thread::sleep(BUSY_PAUSE);
            }
            Err(InstallError::InUse { .. }) => {
                told(&format!("{} is still in use and is wiped nevertheless", path.display()));
                break open(path, false)?;
            }
            opened => break opened?,
        }
    };
    told(&format!("wiping {}", path.display()));
    let at = |source| InstallError::Disk { what: "wipe", path: path.to_owned(), source };
    wipe::fast(&device).map_err(at)?;
    // A disk that is in use keeps its partitions until the machine restarts.
    let _ = device.reread_table();
    Ok(())
}

/// The node of a disk behind links such as `/dev/disk/by-id/…`.
pub fn resolve(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}
