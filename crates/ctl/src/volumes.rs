//! Whether a system volume can be used: those who keep something on STATE or EPHEMERAL wait for that.

use ichor_cosi::{Context, ControllerError, Input, weak};
use ichor_resource::Phase;
use ichor_resource::block::{VolumeMountStatus, VolumePhase, VolumeStatus, VolumeType};

/// The volume of the configuration and the identity.
pub const STATE: &str = "STATE";
/// The volume of logs, images and data of workloads.
pub const EPHEMERAL: &str = "EPHEMERAL";

/// How far a system volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// It is not known yet what becomes of it.
    Pending,
    /// A directory, or a disk that is mounted.
    Usable,
    /// It has no partition yet. What is written goes to memory, and to the partition once there is one.
    Absent,
    /// It cannot be used, with the reason.
    Failed(String),
}

/// How far a volume is, by its status and whether it is mounted.
pub fn readiness(status: Option<&VolumeStatus>, is_mounted: bool) -> Readiness {
    let Some(status) = status else { return Readiness::Pending };
    let is_directory = status.r#type == VolumeType::Directory;
    match status.phase {
        VolumePhase::Ready if is_directory || is_mounted => Readiness::Usable,
        VolumePhase::Missing => Readiness::Absent,
        VolumePhase::Failed => Readiness::Failed(status.error_message.clone()),
        VolumePhase::Closed => Readiness::Failed("the volume is closed".to_owned()),
        VolumePhase::Waiting
        | VolumePhase::Located
        | VolumePhase::Provisioned
        | VolumePhase::Prepared
        | VolumePhase::Ready => Readiness::Pending,
    }
}

/// The inputs that [`of`] reads.
pub fn inputs(id: &str) -> [Input; 2] {
    [weak::<VolumeStatus>().id(id), weak::<VolumeMountStatus>().id(id)]
}

/// How far a volume is, seen from a controller that has [`inputs`] among its own.
///
/// # Errors
/// When these are not declared.
pub fn of(ctx: &Context, id: &str) -> Result<Readiness, ControllerError> {
    let status = ctx.get::<VolumeStatus>(id)?;
    let mounted = ctx.get::<VolumeMountStatus>(id)?;
    let is_mounted = mounted.is_some_and(|mounted| mounted.meta().phase() == Phase::Running);
    Ok(readiness(status.as_ref().map(|status| status.spec()), is_mounted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_usable_once_it_is_mounted_and_a_directory_at_once() {
        let volume = |r#type, phase| VolumeStatus { r#type, phase, ..VolumeStatus::default() };
        let (partition, directory) = (VolumeType::Partition, VolumeType::Directory);
        for (status, is_mounted, expected) in [
            (None, false, Readiness::Pending),
            (Some(volume(directory, VolumePhase::Ready)), false, Readiness::Usable),
            (Some(volume(partition, VolumePhase::Ready)), false, Readiness::Pending),
            (Some(volume(partition, VolumePhase::Ready)), true, Readiness::Usable),
            (Some(volume(partition, VolumePhase::Missing)), false, Readiness::Absent),
            (Some(volume(partition, VolumePhase::Prepared)), false, Readiness::Pending),
        ] {
            assert_eq!(readiness(status.as_ref(), is_mounted), expected, "{status:?}");
        }
        let failed = VolumeStatus {
            phase: VolumePhase::Failed,
            error_message: "mount: bad superblock".into(),
            ..VolumeStatus::default()
        };
        assert_eq!(readiness(Some(&failed), false), Readiness::Failed("mount: bad superblock".into()));
    }
}
