//! The volumes of a machine whose data lies in directories: what others have partitions for.

use std::path::PathBuf;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive};
use ichor_resource::block::{MountSpec, VolumePhase, VolumeStatus, VolumeType};
use ichor_types::size;

/// A volume's id and the directory it is.
pub(crate) type Place = (&'static str, PathBuf);

/// Writes a `VolumeStatuses` for each directory that is there.
#[derive(Debug)]
pub struct DirectoryVolumeController {
    places: Vec<Place>,
    done: bool,
}

impl DirectoryVolumeController {
    /// A controller of these volumes.
    pub fn new(places: Vec<Place>) -> Self {
        Self { places, done: false }
    }
}

/// The volume at `place`, with the size of the filesystem it is on.
fn status(place: &Place) -> Option<(String, VolumeStatus)> {
    let (id, path) = place;
    let size = ichor_sys::mountinfo::usage(path).ok()?.size;
    let path = path.to_string_lossy().into_owned();
    let status = VolumeStatus {
        phase: VolumePhase::Ready,
        r#type: VolumeType::Directory,
        location: path.clone(),
        mount_location: path.clone(),
        size,
        pretty_size: size::decimal(size),
        mount_spec: MountSpec { target_path: path, ..MountSpec::default() },
        ..VolumeStatus::default()
    };
    Some(((*id).to_owned(), status))
}

impl Controller for DirectoryVolumeController {
    const NAME: &'static str = "block.VolumeManagerController";

    fn inputs(&self) -> Vec<Input> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<VolumeStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        if !self.done {
            let volumes: Vec<_> = self.places.iter().filter_map(status).collect();
            ctx.publish(volumes)?;
            self.done = true;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_a_volume_as_large_as_its_filesystem_and_a_missing_one_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let (id, volume) = status(&("EPHEMERAL", dir.path().into())).unwrap();
        assert_eq!(
            (id.as_str(), volume.phase, volume.r#type),
            ("EPHEMERAL", VolumePhase::Ready, VolumeType::Directory)
        );
        assert!(volume.size > 0 && volume.location == dir.path().to_string_lossy());
        assert!(status(&("STATE", dir.path().join("none"))).is_none());
    }
}
