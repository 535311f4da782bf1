//! What has to be done to mount a volume. Pure.

use std::path::{Path, PathBuf};

use ichor_ctl::volumes::{EPHEMERAL, STATE};
use ichor_resource::block::{
    FilesystemType, MountRequest, MountSpec, VolumeConfig, VolumeStatus, VolumeType,
};

/// A mount that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountPlan {
    /// The volume.
    pub volume: String,
    /// What is mounted.
    pub source: MountSource,
    /// Where; empty for what has no place, as swap.
    pub target: PathBuf,
    /// Whether it cannot be written to.
    pub read_only: bool,
    /// Whether the filesystem counts what projects use.
    pub quota: bool,
    /// The mode of its root; 0 leaves it as it is.
    pub mode: u32,
    /// Owner and group of its root.
    pub owner: (u32, u32),
    /// What else belongs to it.
    pub with: With,
}

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountSource {
    /// The filesystem on a device.
    Filesystem {
        /// The device's node.
        device: String,
        /// Which.
        filesystem: FilesystemType,
        /// Whether it is made as large as its device.
        grow: bool,
    },
    /// Nothing: the target is a directory, maybe a mount point by itself.
    Directory {
        /// Whether it is mounted on itself.
        is_bound: bool,
    },
    /// A device to swap to.
    Swap {
        /// Its node.
        device: String,
    },
}

/// What belongs to the mounts of some volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum With {
    /// Nothing.
    Nothing,
    /// Files that were kept in memory go to the volume first: nobody sees it without them.
    CarriedFiles,
    /// The directories of the image that can be written to keep what is written there.
    Overlays,
}

/// What has to be done to mount this volume; `parent` is where the volume is mounted that it is in.
///
/// # Errors
/// A text for people when this cannot be mounted.
pub fn plan(
    request: &MountRequest,
    volume: &VolumeStatus,
    config: Option<&VolumeConfig>,
    parent: Option<&Path>,
) -> Result<MountPlan, String> {
    let MountSpec { target_path, project_quota_support, file_mode, uid, gid, bind_target, .. } =
        &volume.mount_spec;
    let source = match (volume.r#type, volume.filesystem) {
        (VolumeType::Partition | VolumeType::Disk, FilesystemType::None) => {
            return Err(format!("{} holds no filesystem that can be mounted", volume.mount_location));
        }
        (VolumeType::Partition | VolumeType::Disk, FilesystemType::Swap) => {
            MountSource::Swap { device: volume.mount_location.clone() }
        }
        (VolumeType::Partition | VolumeType::Disk, filesystem) => MountSource::Filesystem {
            device: volume.mount_location.clone(),
            filesystem,
            grow: config.is_some_and(|config| config.provisioning.partition_spec.grow),
        },
        (VolumeType::Directory, _) => MountSource::Directory { is_bound: bind_target.is_some() },
        (other @ (VolumeType::Tmpfs | VolumeType::Symlink | VolumeType::Overlay), _) => {
            return Err(format!("volumes of type {other} are not mounted on request"));
        }
    };
    let is_swap = matches!(source, MountSource::Swap { .. });
    if target_path.is_empty() && !is_swap {
        return Err("the volume has no place where it is mounted".to_owned());
    }
    let target = match parent {
        _ if is_swap => PathBuf::new(),
        Some(parent) => parent.join(target_path.trim_start_matches('/')),
        None => PathBuf::from(target_path),
    };
    let is_partition = volume.r#type == VolumeType::Partition;
    Ok(MountPlan {
        volume: request.volume_id.clone(),
        source,
        target,
        read_only: request.read_only || volume.filesystem == FilesystemType::Iso9660,
        quota: *project_quota_support,
        mode: *file_mode,
        owner: (u32::try_from(*uid).unwrap_or(0), u32::try_from(*gid).unwrap_or(0)),
        with: match request.volume_id.as_str() {
            STATE if is_partition => With::CarriedFiles,
            EPHEMERAL if is_partition => With::Overlays,
            _ => With::Nothing,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(r#type: VolumeType, filesystem: FilesystemType, target: &str) -> VolumeStatus {
        VolumeStatus {
            r#type,
            filesystem,
            mount_location: "/dev/sda2".into(),
            mount_spec: MountSpec { target_path: target.into(), file_mode: 0o755, ..MountSpec::default() },
            ..VolumeStatus::default()
        }
    }

    fn request(volume: &str) -> MountRequest {
        MountRequest { volume_id: volume.into(), ..MountRequest::default() }
    }

    #[test]
    fn a_volume_is_mounted_in_its_parent() {
        let volume = status(VolumeType::Partition, FilesystemType::Xfs, "data");
        let plan = plan(&request("u-data"), &volume, None, Some(Path::new("/var/mnt"))).unwrap();
        assert_eq!((plan.target, plan.with), (PathBuf::from("/var/mnt/data"), With::Nothing));
        let device = "/dev/sda2".to_owned();
        assert_eq!(
            plan.source,
            MountSource::Filesystem { device, filesystem: FilesystemType::Xfs, grow: false }
        );
    }

    #[test]
    fn system_volumes_bring_what_belongs_to_them_and_grow_where_they_may() {
        let volume = status(VolumeType::Partition, FilesystemType::Xfs, "/var");
        let mut config = VolumeConfig::default();
        config.provisioning.partition_spec.grow = true;
        let ephemeral = plan(&request("EPHEMERAL"), &volume, Some(&config), None).unwrap();
        assert_eq!(ephemeral.with, With::Overlays);
        assert!(matches!(ephemeral.source, MountSource::Filesystem { grow: true, .. }));
        assert_eq!(plan(&request("STATE"), &volume, None, None).unwrap().with, With::CarriedFiles);
        let memory = status(VolumeType::Directory, FilesystemType::None, "/var");
        assert_eq!(plan(&request("EPHEMERAL"), &memory, None, None).unwrap().with, With::Nothing);
    }

    #[test]
    fn what_cannot_be_mounted_is_told() {
        let refused = |volume: &VolumeStatus| plan(&request("x"), volume, None, None).unwrap_err();
        let empty = status(VolumeType::Partition, FilesystemType::None, "/mnt");
        assert_eq!(refused(&empty), "/dev/sda2 holds no filesystem that can be mounted");
        let nowhere = status(VolumeType::Partition, FilesystemType::Xfs, "");
        assert_eq!(refused(&nowhere), "the volume has no place where it is mounted");
        let swap = status(VolumeType::Partition, FilesystemType::Swap, "");
        assert_eq!(
            plan(&request("s-a"), &swap, None, None).unwrap().source,
            MountSource::Swap { device: "/dev/sda2".into() }
        );
    }
}
