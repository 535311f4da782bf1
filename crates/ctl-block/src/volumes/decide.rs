//! One step of a volume's life. Pure.

use ichor_resource::block::{
    DiscoveredVolume, Disk, EncryptionProviderType, FilesystemType, PartitionSpec, VolumeConfig, VolumePhase,
    VolumeStatus, VolumeType,
};
use ichor_types::size;

use super::place::choose_disk;
use super::selector::{matches_disk, matches_volume};

/// A partition is not grown by less than this.
const GROWTH_MIN: u64 = 1 << 20;

/// What is known of the machine.
#[derive(Debug, Clone, Copy)]
pub struct World<'a> {
    /// Whether all devices are there and have been read since.
    pub devices_ready: bool,
    /// Whether every volume of an earlier wave is ready.
    pub waves_ready: bool,
    /// What is on the devices, by id.
    pub volumes: &'a [(String, DiscoveredVolume)],
    /// The disks, by id.
    pub disks: &'a [(String, Disk)],
    /// The id of the disk that the system is on, once it is known.
    pub system_disk: Option<&'a str>,
}

/// What happens next to a volume.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Nothing, until something else changes.
    Stay(VolumeStatus),
    /// The status changes; ask again.
    Move(VolumeStatus),
    /// Something has to be done first; tell [`conclude`] what came of it.
    Act(VolumeStatus, Action),
}

/// Something that has to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Make a partition on a disk, and a table if it has none.
    CreatePartition {
        /// The disk's node.
        disk: String,
        /// Whether it has a table; if not, it was empty when this was decided.
        has_table: bool,
        /// The partition's name.
        label: String,
        /// What it is for.
        type_guid: String,
        /// At least this many bytes.
        minimum: u64,
        /// At most this many, if there is a limit.
        maximum: Option<u64>,
    },
    /// Grow a partition as far as it goes.
    GrowPartition {
        /// The disk's node.
        disk: String,
        /// The partition's number.
        number: u32,
        /// By at most this many bytes.
        most: u64,
        /// Not by fewer than this.
        least: u64,
    },
    /// Read what is on a device.
    Probe {
        /// Its node.
        device: String,
    },
    /// Make a filesystem.
    Format {
        /// The node of the device.
        device: String,
        /// Which.
        filesystem: FilesystemType,
        /// Its label.
        label: String,
        /// Bytes of the device.
        size: u64,
    },
    /// Grow a filesystem to the size of its device.
    GrowFilesystem {
        /// The node of the device.
        device: String,
        /// Which.
        filesystem: FilesystemType,
    },
}

/// A partition that was made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Created {
    /// Its node.
    pub device: String,
    /// The disk's node.
    pub disk: String,
    /// Its number.
    pub number: u32,
    /// Its GUID.
    pub guid: String,
    /// Its bytes.
    pub size: u64,
}

/// What came of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A partition was made.
    Created(Created),
    /// A partition has grown by this many bytes, maybe none.
    Grown(u64),
    /// What is on the device: the name of a signature, empty for nothing.
    Found(String),
    /// A filesystem was made or grown.
    Done,
}

/// What happens next to a volume that is wanted like this and is in this state.
pub fn decide(config: &VolumeConfig, status: &VolumeStatus, world: &World<'_>) -> Decision {
    let mut status = status.clone();
    if status.phase == VolumePhase::Failed {
        // Every run takes failed volumes up where they failed.
        (status.phase, status.pre_fail_phase) = (status.pre_fail_phase, VolumePhase::Waiting);
        status.error_message.clear();
    }
    match status.phase {
        VolumePhase::Waiting | VolumePhase::Missing => locate(config, status, world),
        VolumePhase::Located => grow(config, status),
        VolumePhase::Provisioned => open(config, status),
        VolumePhase::Prepared => probe(status),
        VolumePhase::Ready | VolumePhase::Closed | VolumePhase::Failed => Decision::Stay(status),
    }
}

fn moved(mut status: VolumeStatus, phase: VolumePhase) -> Decision {
    status.phase = phase;
    Decision::Move(status)
}

/// The volume as failed, to be taken up again in the phase it is in.
pub(crate) fn failed(mut status: VolumeStatus, reason: impl Into<String>) -> VolumeStatus {
    status.pre_fail_phase = status.phase;
    status.phase = VolumePhase::Failed;
    status.error_message = reason.into();
    status
}

fn locate(config: &VolumeConfig, mut status: VolumeStatus, world: &World<'_>) -> Decision {
    status.r#type = config.r#type;
    status.mount_spec = config.mount.clone();
    status.symlink = config.symlink.clone();
    status.parent_id.clone_from(&config.parent_id);
    match config.r#type {
        VolumeType::Tmpfs | VolumeType::Directory | VolumeType::Symlink | VolumeType::Overlay => {
            return moved(status, VolumePhase::Ready);
        }
        VolumeType::Partition | VolumeType::Disk => {}
    }
    match find(config, world) {
        Err(reason) => Decision::Stay(failed(status, reason)),
        Ok(Some(volume)) => {
            fill(&mut status, volume);
            moved(status, VolumePhase::Located)
        }
        Ok(None) => provision(config, status, world),
    }
}

/// The discovered volume that is the wanted one.
fn find<'a>(config: &VolumeConfig, world: &World<'a>) -> Result<Option<&'a DiscoveredVolume>, String> {
    let (by_volume, by_disk) = (&config.locator.r#match.text, &config.locator.disk_match.text);
    if !by_disk.is_empty() {
        let mut selected = Vec::new();
        for (id, disk) in world.disks {
            let is_system = world.system_disk.map(|system| system == id);
            if matches_disk(by_disk, disk, is_system).map_err(|error| error.to_string())? {
                selected.push(disk.dev_path.as_str());
            }
        }
        return match selected[..] {
            [] => Ok(None),
            [disk] => {
                Ok(world.volumes.iter().map(|(_, volume)| volume).find(|volume| volume.dev_path == disk))
            }
            _ => Err(format!(
                "multiple disks matched locator for disk volume; matched disks: {}",
                selected.join(", ")
            )),
        };
    }
    if by_volume.is_empty() {
        return Err("volume locator is not set".to_owned());
    }
    let mut selected = Vec::new();
    for (_, volume) in world.volumes {
        let node = if volume.parent_dev_path.is_empty() { &volume.dev_path } else { &volume.parent_dev_path };
        let disk = world.disks.iter().map(|(_, disk)| disk).find(|disk| disk.dev_path == *node);
        if matches_volume(by_volume, volume, disk).map_err(|error| error.to_string())? {
            selected.push(volume);
        }
    }
    // Whoever selects among volumes of others means one; labels of our own are taken as they come.
    let is_chosen =
        config.provisioning.disk_selector.r#match.text.is_empty() && !config.mount.parent_id.is_empty();
    if is_chosen && selected.len() > 1 {
        let names: Vec<&str> = selected.iter().map(|volume| volume.dev_path.as_str()).collect();
        return Err(format!("multiple volumes matched the selector: {}; narrow it to one", names.join(", ")));
    }
    Ok(selected.first().copied())
}

fn fill(status: &mut VolumeStatus, volume: &DiscoveredVolume) {
    status.location.clone_from(&volume.dev_path);
    status.parent_location.clone_from(&volume.parent_dev_path);
    status.partition_index = i64::try_from(volume.partition_index).unwrap_or(0);
    status.partition_uuid.clone_from(&volume.partition_uuid);
    status.uuid.clone_from(&volume.uuid);
    set_size(status, volume.size);
}

fn set_size(status: &mut VolumeStatus, bytes: u64) {
    status.size = bytes;
    status.pretty_size = size::decimal(bytes);
}

fn provision(config: &VolumeConfig, mut status: VolumeStatus, world: &World<'_>) -> Decision {
    let (wanted, selector) = (&config.provisioning, &config.provisioning.disk_selector.r#match.text);
    let mut stay = |phase| {
        status.phase = phase;
        Decision::Stay(status.clone())
    };
    if !world.devices_ready {
        return stay(VolumePhase::Waiting);
    }
    if selector.is_empty() {
        return stay(VolumePhase::Missing);
    }
    if !world.waves_ready {
        return stay(VolumePhase::Waiting);
    }
    let place = match choose_disk(world, config.r#type, selector, wanted.partition_spec.min_size) {
        Ok(place) => place,
        Err(error) => return Decision::Stay(failed(status, error.to_string())),
    };
    if config.r#type == VolumeType::Disk {
        let whole =
            world.volumes.iter().map(|(_, volume)| volume).find(|volume| volume.dev_path == place.disk);
        whole.into_iter().for_each(|volume| fill(&mut status, volume));
        return moved(status, VolumePhase::Provisioned);
    }
    let spec = &wanted.partition_spec;
    let action = Action::CreatePartition {
        disk: place.disk,
        has_table: place.has_table,
        label: spec.label.clone(),
        type_guid: spec.type_uuid.clone(),
        minimum: spec.min_size,
        maximum: maximum(spec, place.available),
    };
    Decision::Act(status, action)
}

/// The largest size, where there is one: in bytes, or a share of what is available. A share of less than the smallest
/// size is the smallest size.
fn maximum(spec: &PartitionSpec, available: u64) -> Option<u64> {
    let share = || (u128::from(available) * u128::from(spec.relative_max_size) / 100) as u64;
    match (spec.max_size, spec.relative_max_size) {
        (0, 0) => None,
        (0, _) => Some(share().max(spec.min_size)),
        (bytes, _) => Some(bytes),
    }
}

fn grow(config: &VolumeConfig, status: VolumeStatus) -> Decision {
    let spec = &config.provisioning.partition_spec;
    let most = if spec.max_size > 0 { spec.max_size.saturating_sub(status.size) } else { u64::MAX };
    let number = u32::try_from(status.partition_index).unwrap_or(0);
    if config.r#type != VolumeType::Partition || !spec.grow || most == 0 || number == 0 {
        return moved(status, VolumePhase::Provisioned);
    }
    let disk = status.parent_location.clone();
    Decision::Act(status, Action::GrowPartition { disk, number, most, least: GROWTH_MIN })
}

fn open(config: &VolumeConfig, mut status: VolumeStatus) -> Decision {
    match config.encryption.provider {
        EncryptionProviderType::None => {
            status.mount_location.clone_from(&status.location);
            status.encryption_provider = EncryptionProviderType::None;
            moved(status, VolumePhase::Prepared)
        }
        EncryptionProviderType::Luks2 => {
            let reason = "encrypted volumes are not supported yet; take `encryption` out of the volume's configuration";
            Decision::Stay(failed(status, reason))
        }
    }
}

fn probe(status: VolumeStatus) -> Decision {
    let device = status.mount_location.clone();
    Decision::Act(status, Action::Probe { device })
}

/// The volume after an action: its next status, or one more action.
pub fn conclude(config: &VolumeConfig, status: &VolumeStatus, outcome: Outcome) -> Decision {
    let mut status = status.clone();
    match outcome {
        Outcome::Created(created) => {
            status.location = created.device;
            status.parent_location = created.disk;
            status.partition_index = created.number.into();
            status.partition_uuid = created.guid;
            set_size(&mut status, created.size);
            moved(status, VolumePhase::Provisioned)
        }
        Outcome::Grown(bytes) => {
            let size = status.size.saturating_add(bytes);
            set_size(&mut status, size);
            moved(status, VolumePhase::Provisioned)
        }
        Outcome::Found(name) => found(config, status, &name),
        Outcome::Done => {
            status.filesystem = config.provisioning.filesystem_spec.r#type;
            moved(status, VolumePhase::Ready)
        }
    }
}

/// What to do with a device that holds this: only an empty one is formatted.
fn found(config: &VolumeConfig, mut status: VolumeStatus, name: &str) -> Decision {
    let wanted = &config.provisioning.filesystem_spec;
    let device = status.mount_location.clone();
    let format = |status: VolumeStatus| {
        let action = Action::Format {
            device: device.clone(),
            filesystem: wanted.r#type,
            label: wanted.label.clone(),
            size: status.size,
        };
        Decision::Act(status, action)
    };
    let is_mounted = !config.mount.target_path.is_empty();
    match (wanted.r#type, name) {
        (FilesystemType::None, "") if is_mounted => {
            Decision::Stay(failed(status, "the volume is empty; nothing can be mounted"))
        }
        (FilesystemType::None, "luks") if is_mounted => Decision::Stay(failed(
            status,
            "the volume is encrypted, and its configuration has no `encryption`",
        )),
        (FilesystemType::None, name) => {
            status.filesystem = filesystem(name);
            moved(status, VolumePhase::Ready)
        }
        (FilesystemType::Swap, _) | (_, "") => format(status),
        (wanted, name) if wanted == filesystem(name) => {
            if config.provisioning.partition_spec.grow {
                return Decision::Act(status, Action::GrowFilesystem { device, filesystem: wanted });
            }
            status.filesystem = wanted;
            moved(status, VolumePhase::Ready)
        }
        (wanted, name) => {
            let reason = format!(
                "filesystem type mismatch: {name} != {wanted}; the volume is not formatted over data: wipe it to start over"
            );
            Decision::Stay(failed(status, reason))
        }
    }
}

fn filesystem(name: &str) -> FilesystemType {
    match name {
        "xfs" => FilesystemType::Xfs,
        "vfat" => FilesystemType::Vfat,
        "ext4" => FilesystemType::Ext4,
        "iso9660" => FilesystemType::Iso9660,
        "swap" => FilesystemType::Swap,
        _ => FilesystemType::None,
    }
}
