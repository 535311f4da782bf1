//! The configuration on STATE, which may be a disk.

use std::io;
use std::path::PathBuf;

use ichor_cosi::State;
use ichor_ctl::volumes::{Readiness, STATE};
use ichor_ctl_config::disk::FILE;
use ichor_ctl_config::{ConfigDisk, DiskError, StateDir};
use ichor_resource::block::VolumeStatus;

use crate::tasks::volumes;

/// The directory of STATE, on machines where a partition is mounted on it. What is saved before that partition exists is
/// kept in memory and moves there when it is mounted.
pub(crate) struct StateVolume {
    state: State,
    dir: PathBuf,
    files: StateDir,
}

impl StateVolume {
    /// STATE at `dir`, whose status is in `state`.
    pub(crate) fn new(state: State, dir: PathBuf) -> Self {
        Self { state, files: StateDir::new(&dir), dir }
    }

    /// An error while there is a partition that is not mounted: it may hold a configuration, and what is written beside it
    /// would replace that once it is mounted.
    fn check(&self, action: &'static str) -> Result<(), DiskError> {
        let reason = match volumes::of(&self.state, STATE) {
            Readiness::Usable | Readiness::Absent => return Ok(()),
            Readiness::Pending if self.state.find::<VolumeStatus>("runtime", STATE).is_none() => {
                return Ok(());
            }
            Readiness::Pending => "it is not mounted yet; try again in a moment".to_owned(),
            Readiness::Failed(reason) => reason,
        };
        let source = io::Error::other(format!("volume STATE cannot be used: {reason}"));
        Err(DiskError { action, path: self.dir.join(FILE), source })
    }
}

impl ConfigDisk for StateVolume {
    fn available(&self) -> Result<(), DiskError> {
        self.check("read")
    }

    fn load(&self) -> Result<Option<Vec<u8>>, DiskError> {
        self.available()?;
        self.files.load()
    }

    fn save(&self, yaml: &[u8]) -> Result<(), DiskError> {
        self.check("write")?;
        self.files.save(yaml)
    }
}

#[cfg(test)]
mod tests {
    use ichor_resource::block::{VolumePhase, VolumeType};

    use super::*;

    #[test]
    fn nothing_is_saved_beside_a_state_that_does_not_mount() {
        let (state, _) = ichor_testkit::state();
        let dir = tempfile::tempdir().unwrap();
        let disk = StateVolume::new(state.clone(), dir.path().into());
        disk.save(b"early").unwrap();
        let failed = VolumeStatus {
            phase: VolumePhase::Failed,
            r#type: VolumeType::Partition,
            error_message: "mount /dev/vda2: bad superblock".into(),
            ..VolumeStatus::default()
        };
        state.create("runtime", STATE, failed, "").unwrap();
        let error = disk.save(b"late").unwrap_err();
        assert!(error.source.to_string().contains("mount /dev/vda2: bad superblock"), "{error:?}");
        assert!(disk.load().is_err() && disk.available().is_err());
        // While it is tried again it is not mounted either.
        let ready = |status: &mut VolumeStatus| status.phase = VolumePhase::Ready;
        state.modify::<VolumeStatus>("runtime", STATE, "", ready).unwrap();
        assert!(disk.save(b"late").is_err());
        assert_eq!(std::fs::read(dir.path().join(FILE)).unwrap(), b"early");
    }
}
