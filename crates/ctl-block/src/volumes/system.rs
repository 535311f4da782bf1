//! Actions on the disks of the machine this runs on.

use std::future::Future;
use std::io;
use std::path::Path;
use std::time::Duration;

use ichor_block::device::{Device, Lock};
use ichor_block::gpt::{GptError, NewPartition, Table, partition_name};
use ichor_block::{Guid, probe, swap, wipe};
use ichor_resource::block::FilesystemType;
use tracing::info;

use super::decide::{Action, Created, Outcome};
use super::manager::{ActionError, VolumePort};

/// Somebody else may keep a disk locked this long.
const LOCK_MAX: Duration = Duration::from_secs(10);
/// The node of a new partition takes a moment to appear.
const NODE_MAX: Duration = Duration::from_secs(10);
const NODE_PAUSE: Duration = Duration::from_millis(20);
/// A tool that makes a filesystem on a slow disk.
const TOOL_MAX: Duration = Duration::from_secs(600);
/// mkfs.xfs makes filesystems up to this size only when told to.
const XFS_SMALL: u64 = 300 << 20;
/// What every kernel of the last years can mount.
const XFS_OPTIONS: &str = "/usr/share/xfsprogs/mkfs/lts_6.12.conf";

/// Runs programs.
pub trait ProgramPort: Send + Sync + 'static {
    /// Runs a program to its end, at most this long; an error has its last words.
    fn run(
        &self,
        program: &str,
        args: Vec<String>,
        most: Duration,
    ) -> impl Future<Output = Result<(), String>> + Send;
}

/// The machine's own disks.
#[derive(Debug)]
pub struct SystemVolumes<R> {
    programs: R,
}

impl<R: ProgramPort> SystemVolumes<R> {
    /// Disks that are formatted with these programs.
    pub fn new(programs: R) -> Self {
        Self { programs }
    }

    async fn format(
        &self,
        device: &str,
        filesystem: FilesystemType,
        label: &str,
        size: u64,
    ) -> Result<(), ActionError> {
        if filesystem == FilesystemType::Swap {
            let (device, label) = (device.to_owned(), label.to_owned());
            let work = tokio::task::spawn_blocking(move || format_swap(&device, &label));
            return work
                .await
                .map_err(|error| ActionError { reason: error.to_string(), is_retryable: true })?;
        }
        let options = Path::new(XFS_OPTIONS).exists().then_some(XFS_OPTIONS);
        let Some((program, args)) = format_command(device, filesystem, label, size, options) else {
            return Err(ActionError {
                reason: format!("no tool makes {filesystem} on {device}"),
                is_retryable: false,
            });
        };
        self.programs.run(program, args, TOOL_MAX).await.map_err(|reason| ActionError {
            reason: format!("format {device} as {filesystem}: {reason}"),
            is_retryable: true,
        })?;
        info!(device, %filesystem, "formatted");
        Ok(())
    }

    async fn grow(&self, device: &str, filesystem: FilesystemType) -> Result<(), ActionError> {
        let failed = |reason: String| ActionError {
            reason: format!("grow {filesystem} on {device}: {reason}"),
            is_retryable: true,
        };
        match filesystem {
            FilesystemType::Ext4 => {
                let check = vec!["-f".to_owned(), "-p".to_owned(), device.to_owned()];
                self.programs.run("e2fsck", check, TOOL_MAX).await.map_err(failed)?;
                self.programs.run("resize2fs", vec![device.to_owned()], TOOL_MAX).await.map_err(failed)
            }
            // Grown when it is mounted: its tool works on mounted filesystems only.
            FilesystemType::Xfs => Ok(()),
            FilesystemType::None | FilesystemType::Vfat | FilesystemType::Iso9660 | FilesystemType::Swap => {
                Ok(())
            }
        }
    }
}

impl<R: ProgramPort> VolumePort for SystemVolumes<R> {
    async fn perform(&self, action: Action) -> Result<Outcome, ActionError> {
        match action {
            Action::Format { device, filesystem, label, size } => {
                self.format(&device, filesystem, &label, size).await?;
                Ok(Outcome::Done)
            }
            Action::GrowFilesystem { device, filesystem } => {
                self.grow(&device, filesystem).await?;
                Ok(Outcome::Done)
            }
            Action::CreatePartition { .. } | Action::GrowPartition { .. } | Action::Probe { .. } => {
                let work = tokio::task::spawn_blocking(move || on_disk(&action));
                work.await.map_err(|error| ActionError { reason: error.to_string(), is_retryable: true })?
            }
        }
    }
}

/// The command that makes a filesystem.
fn format_command(
    device: &str,
    filesystem: FilesystemType,
    label: &str,
    size: u64,
    xfs_options: Option<&str>,
) -> Option<(&'static str, Vec<String>)> {
    let mut args: Vec<&str> = Vec::new();
    let xfs_options = xfs_options.map(|file| format!("options={file}"));
    let program = match filesystem {
        FilesystemType::Xfs => {
            args.extend(["-n", "ftype=1"]);
            if let Some(options) = &xfs_options {
                args.extend(["-c", options]);
            }
            args.push("-f");
            if size <= XFS_SMALL {
                args.push("--unsupported");
            }
            "mkfs.xfs"
        }
        FilesystemType::Ext4 => {
            args.push("-F");
            "mkfs.ext4"
        }
        FilesystemType::Vfat => {
            args.extend(["-F", "32"]);
            "mkfs.vfat"
        }
        FilesystemType::None | FilesystemType::Iso9660 | FilesystemType::Swap => return None,
    };
    let flag = if filesystem == FilesystemType::Vfat { "-n" } else { "-L" };
    if !label.is_empty() {
        args.extend([flag, label]);
    }
    args.push(device);
    Some((program, args.into_iter().map(str::to_owned).collect()))
}

/// A device that is swapped to already was formatted by a manager before this one, and must not be touched.
fn format_swap(device: &str, label: &str) -> Result<(), ActionError> {
    match Device::open_unused(Path::new(device)) {
        Ok(opened) => {
            swap::format(&opened, label).map_err(|error| retryable("format as swap", device, &error))
        }
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(()),
        Err(error) => Err(retryable("open", device, &error)),
    }
}

/// Actions without programs. Blocks the thread.
fn on_disk(action: &Action) -> Result<Outcome, ActionError> {
    match action {
        Action::CreatePartition { disk, has_table, label, type_guid, minimum, maximum } => {
            create(disk, *has_table, label, type_guid, *minimum, *maximum).map(Outcome::Created)
        }
        Action::GrowPartition { disk, number, most, least } => {
            grow(disk, *number, *most, *least).map(Outcome::Grown)
        }
        Action::Probe { device } => {
            let found = Device::open(Path::new(device)).and_then(|device| probe::probe(&device.source()?));
            let found = found.map_err(|error| retryable("probe", device, &error))?;
            Ok(Outcome::Found(found.map(|signature| signature.name.to_owned()).unwrap_or_default()))
        }
        Action::Format { .. } | Action::GrowFilesystem { .. } => Ok(Outcome::Done),
    }
}

fn retryable(what: &str, device: &str, error: &dyn std::fmt::Display) -> ActionError {
    ActionError { reason: format!("{what} {device}: {error}"), is_retryable: true }
}

fn final_error(what: &str, device: &str, error: &GptError) -> ActionError {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    ActionError { reason: format!("{what} {device}: {error}{cause}"), is_retryable: false }
}

/// The disk, locked for a change of its table.
fn locked(disk: &str) -> Result<Device, ActionError> {
    let device = Device::open_writable(Path::new(disk)).map_err(|error| retryable("open", disk, &error))?;
    device.lock_within(Lock::Exclusive, LOCK_MAX).map_err(|error| retryable("lock", disk, &error))?;
    Ok(device)
}

fn create(
    disk: &str,
    has_table: bool,
    label: &str,
    type_guid: &str,
    minimum: u64,
    maximum: Option<u64>,
) -> Result<Created, ActionError> {
    let failed = |error: &GptError| final_error("create a partition on", disk, error);
    let device = locked(disk)?;
    let mut table = match (device.table().map_err(|error| failed(&error))?, has_table) {
        (Some((table, _)), _) => table,
        (None, true) => {
            return Err(retryable("create a partition on", disk, &"its partition table is gone"));
        }
        (None, false) => new_table(&device, disk)?,
    };
    let bad_type =
        |error| ActionError { reason: format!("partition {label:?}: {error}"), is_retryable: false };
    let type_guid: Guid =
        if type_guid.is_empty() { Guid::LINUX_DATA } else { type_guid.parse().map_err(bad_type)? };
    let guid = Guid::random().map_err(|error| retryable("create a partition on", disk, &error))?;
    let new = NewPartition::new(label, type_guid, guid).between(minimum, maximum);
    let number = table.add_to_largest(&new).map_err(|error| failed(&error))?;
    device.write_table(&table).map_err(|error| failed(&error))?;
    let name = partition_name(disk, number);
    let partition = appeared(Path::new(&name)).map_err(|error| retryable("open", &name, &error))?;
    // What was on these sectors before must not be taken for a filesystem of this volume.
    wipe::fast(&partition).map_err(|error| retryable("wipe", &name, &error))?;
    let (_, size) = table.offset_and_size(number).unwrap_or_default();
    info!(disk, partition = number, label, size, "partition created");
    Ok(Created { device: name, disk: disk.to_owned(), number, guid: guid.to_string(), size })
}

/// A table for an empty disk; one that is not empty any more is left alone.
fn new_table(device: &Device, disk: &str) -> Result<Table, ActionError> {
    let failed = |error: io::Error| retryable("create a partition table on", disk, &error);
    let found = probe::probe_all(&device.source().map_err(failed)?, device.sector_size()).map_err(failed)?;
    if let Some(found) = found.first() {
        let reason = format!("{disk} is not empty: it holds {}; wipe it to use it", found.name);
        return Err(ActionError { reason, is_retryable: false });
    }
    let guid = Guid::random().map_err(failed)?;
    let geometry = device.geometry().map_err(failed)?;
    Table::new(geometry, guid).map_err(|error| final_error("create a partition table on", disk, &error))
}

/// The partition, once its node is there.
fn appeared(node: &Path) -> io::Result<Device> {
    let until = std::time::Instant::now() + NODE_MAX;
    loop {
        match Device::open_writable(node) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && std::time::Instant::now() < until => {
                std::thread::sleep(NODE_PAUSE);
            }
            opened => return opened,
        }
    }
}

fn grow(disk: &str, number: u32, most: u64, least: u64) -> Result<u64, ActionError> {
    let failed = |error: &GptError| final_error("grow a partition of", disk, error);
    let device = locked(disk)?;
    let Some((mut table, _)) = device.table().map_err(|error| failed(&error))? else {
        return Err(retryable("grow a partition of", disk, &"its partition table is gone"));
    };
    if table.growth(number).min(most) <= least {
        return Ok(0);
    }
    let grown = table.grow(number, most).map_err(|error| failed(&error))?;
    device.write_table(&table).map_err(|error| failed(&error))?;
    info!(disk, partition = number, bytes = grown, "partition grown");
    Ok(grown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(filesystem: FilesystemType, label: &str, size: u64) -> String {
        match format_command("/dev/sda2", filesystem, label, size, Some(XFS_OPTIONS)) {
            Some((program, args)) => format!("{program} {}", args.join(" ")),
            None => "none".to_owned(),
        }
    }

    #[test]
    fn filesystems_are_made_by_their_tools() {
        assert_eq!(
            command(FilesystemType::Xfs, "STATE", 100 << 20),
            "mkfs.xfs -n ftype=1 -c options=/usr/share/xfsprogs/mkfs/lts_6.12.conf -f --unsupported -L STATE /dev/sda2"
        );
        assert!(!command(FilesystemType::Xfs, "EPHEMERAL", 2 << 30).contains("--unsupported"));
        assert_eq!(command(FilesystemType::Ext4, "", 0), "mkfs.ext4 -F /dev/sda2");
        assert_eq!(command(FilesystemType::Vfat, "EFI", 0), "mkfs.vfat -F 32 -n EFI /dev/sda2");
        let plain = format_command("/dev/sda2", FilesystemType::Xfs, "", 1 << 30, None).unwrap();
        assert_eq!(
            plain.1,
            ["-n", "ftype=1", "-f", "/dev/sda2"],
            "an image may not have the file of options"
        );
        assert_eq!(command(FilesystemType::None, "", 0), "none");
    }
}
