//! Actions of the volume manager on a real block device: a loop device, with the kernel's own idea of its partitions.
//! Needs root and a free loop device; without them the tests say so and do nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use ichor_block::device::{Device, Lock};
use ichor_ctl_block::mounts::{MountPlan, MountPort, MountSource, SystemMounts, With};
use ichor_ctl_block::volumes::{
    Action, ActionError, Created, Outcome, ProgramPort, SystemVolumes, VolumePort,
};
use ichor_resource::block::FilesystemType;

/// A file as a disk, for as long as this lives.
struct Disk {
    device: String,
    _file: tempfile::NamedTempFile,
}

impl Disk {
    fn attach(bytes: u64) -> Option<Self> {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(bytes).unwrap();
        let output = Command::new("losetup").args(["-f", "--show"]).arg(file.path()).output().ok()?;
        if !output.status.success() {
            eprintln!("no loop device: {}", String::from_utf8_lossy(&output.stderr));
            return None;
        }
        let device = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        Some(Self { device, _file: file })
    }

    /// Makes the file behind it larger.
    fn resize(&self, bytes: u64) {
        self._file.as_file().set_len(bytes).unwrap();
        assert!(Command::new("losetup").args(["-c", &self.device]).status().unwrap().success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Partitions go first, or the device would stay busy.
        let _ = Command::new("partx").args(["-d", &self.device]).stderr(Stdio::null()).status();
        let _ = Command::new("losetup").args(["-d", &self.device]).status();
    }
}

/// Programs of the host.
struct Host;

impl ProgramPort for Host {
    async fn run(&self, program: &str, args: Vec<String>, _most: Duration) -> Result<(), String> {
        let output =
            Command::new(program).args(&args).output().map_err(|error| format!("{program}: {error}"))?;
        let text = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
        output.status.success().then_some(()).ok_or_else(text)
    }
}

async fn create(
    port: &SystemVolumes<Host>,
    disk: &Disk,
    label: &str,
    minimum: u64,
    maximum: Option<u64>,
) -> Result<Created, ActionError> {
    let action = Action::CreatePartition {
        disk: disk.device.clone(),
        has_table: false,
        label: label.into(),
        type_guid: String::new(),
        minimum,
        maximum,
    };
    match port.perform(action).await? {
        Outcome::Created(created) => Ok(created),
        other => panic!("{other:?}"),
    }
}

fn kernel_size(partition: &str) -> u64 {
    let name = Path::new(partition).file_name().unwrap();
    let path = PathBuf::from("/sys/class/block").join(name).join("size");
    std::fs::read_to_string(path).unwrap().trim().parse::<u64>().unwrap() * 512
}

async fn probed(port: &SystemVolumes<Host>, device: &str) -> String {
    match port.perform(Action::Probe { device: device.into() }).await.unwrap() {
        Outcome::Found(name) => name,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn partitions_are_made_formatted_and_grown_and_the_kernel_knows() {
    let Some(disk) = Disk::attach(64 << 20) else { return };
    let port = SystemVolumes::new(Host);
    let state = create(&port, &disk, "STATE", 8 << 20, Some(8 << 20)).await.unwrap();
    assert_eq!((state.number, state.size, kernel_size(&state.device)), (1, 8 << 20, 8 << 20));
    let data = create(&port, &disk, "EPHEMERAL", 16 << 20, None).await.unwrap();
    assert_eq!(data.number, 2);
    assert_eq!(kernel_size(&data.device), data.size);
    assert!(data.size > 50 << 20);

    assert_eq!(probed(&port, &data.device).await, "");
    let format = Action::Format {
        device: data.device.clone(),
        filesystem: FilesystemType::Ext4,
        label: "DATA".into(),
        size: data.size,
    };
    port.perform(format).await.unwrap();
    assert_eq!(probed(&port, &data.device).await, "ext4");

    // The disk is larger now; the partition follows, and so does the filesystem.
    disk.resize(128 << 20);
    let grow = |most| Action::GrowPartition { disk: disk.device.clone(), number: 2, most, least: 1 << 20 };
    assert_eq!(port.perform(grow(u64::MAX)).await.unwrap(), Outcome::Grown(64 << 20));
    assert_eq!(port.perform(grow(u64::MAX)).await.unwrap(), Outcome::Grown(0));
    assert_eq!(kernel_size(&data.device), data.size + (64 << 20));
    let resize = Action::GrowFilesystem { device: data.device.clone(), filesystem: FilesystemType::Ext4 };
    port.perform(resize).await.unwrap();
    let shown = Command::new("dumpe2fs").args(["-h", &data.device]).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let number = |key: &str| {
        shown.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim().parse::<u64>().unwrap()
    };
    assert_eq!(number("Block count:") * number("Block size:"), data.size + (64 << 20));

    let full = create(&port, &disk, "MORE", 1 << 30, None).await.unwrap_err();
    assert!(full.reason.contains("no room for partition \"MORE\"") && !full.is_retryable, "{full}");
}

#[tokio::test]
async fn a_disk_that_is_not_empty_or_that_somebody_works_on_is_left_alone() {
    let Some(disk) = Disk::attach(32 << 20) else { return };
    let port = SystemVolumes::new(Host);
    assert!(Command::new("mkfs.ext4").args(["-q", "-F", &disk.device]).status().unwrap().success());
    let refused = create(&port, &disk, "STATE", 1 << 20, None).await.unwrap_err();
    assert!(refused.reason.contains("is not empty: it holds ext4"), "{refused}");
    assert_eq!(probed(&port, &disk.device).await, "ext4");

    let other = Device::open(Path::new(&disk.device)).unwrap();
    assert!(other.try_lock(Lock::Exclusive).unwrap());
    let device = Device::open_writable(Path::new(&disk.device)).unwrap();
    assert!(!device.try_lock(Lock::Shared).unwrap());
    let waited = device.lock_within(Lock::Exclusive, Duration::from_millis(60)).unwrap_err();
    assert_eq!(waited.kind(), std::io::ErrorKind::TimedOut);
    drop(other);
    assert!(device.try_lock(Lock::Exclusive).unwrap());
}

fn filesystem_plan(disk: &Disk, target: &Path, with: With) -> MountPlan {
    MountPlan {
        volume: "STATE".into(),
        source: MountSource::Filesystem {
            device: disk.device.clone(),
            filesystem: FilesystemType::Ext4,
            grow: false,
        },
        target: target.into(),
        read_only: false,
        quota: false,
        mode: 0o700,
        owner: (0, 0),
        with,
    }
}

#[tokio::test]
async fn a_volume_is_seen_with_the_files_that_were_in_memory() {
    let Some(disk) = Disk::attach(32 << 20) else { return };
    assert!(Command::new("mkfs.ext4").args(["-q", "-F", &disk.device]).status().unwrap().success());
    let memory = tempfile::tempdir().unwrap();
    let config = memory.path().join("config.yaml");
    std::fs::write(&config, "applied").unwrap();
    let port = SystemMounts::new(Host);
    let plan = filesystem_plan(&disk, memory.path(), With::CarriedFiles);
    port.mount(&plan).await.unwrap();
    assert_eq!(std::fs::read_to_string(&config).unwrap(), "applied");
    assert!(memory.path().join("lost+found").exists(), "this is the volume");
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(memory.path()).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o700);
    // A manager that was started anew finds it mounted, and leaves it alone.
    std::fs::write(&config, "changed").unwrap();
    port.mount(&plan).await.unwrap();
    assert_eq!(std::fs::read_to_string(&config).unwrap(), "changed");
    port.unmount(&plan, false).await.unwrap();
    assert!(!config.exists(), "nothing is left in memory");
    port.unmount(&plan, false).await.unwrap();
    // What this boot wrote wins over what is on the volume.
    std::fs::write(&config, "newer").unwrap();
    port.mount(&plan).await.unwrap();
    assert_eq!(std::fs::read_to_string(&config).unwrap(), "newer");
    port.unmount(&plan, false).await.unwrap();
}

#[tokio::test]
async fn a_filesystem_that_does_not_mount_is_not_touched() {
    let Some(disk) = Disk::attach(32 << 20) else { return };
    assert!(Command::new("mkfs.ext4").args(["-q", "-F", &disk.device]).status().unwrap().success());
    let device = Device::open_writable(Path::new(&disk.device)).unwrap();
    // Features that no kernel has.
    std::os::unix::fs::FileExt::write_all_at(device.file(), &[0xff; 12], 1024 + 92).unwrap();
    device.file().sync_all().unwrap();
    drop(device);
    let sum = |disk: &Disk| std::fs::read(&disk.device).unwrap();
    let before = sum(&disk);
    let target = tempfile::tempdir().unwrap();
    std::fs::write(target.path().join("config.yaml"), "kept in memory").unwrap();
    let port = SystemMounts::new(Host);
    let error = port.mount(&filesystem_plan(&disk, target.path(), With::CarriedFiles)).await.unwrap_err();
    assert!(
        error.reason.starts_with(&format!("mount {} on {}", disk.device, target.path().display())),
        "{error}"
    );
    assert!(target.path().join("config.yaml").exists());
    assert!(before == sum(&disk), "what is on it is as it was");
}
