//! Which volumes a machine has.

use std::path::PathBuf;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, shared};
use ichor_resource::block::{Expression, MountSpec, VolumeConfig, VolumeType};

use crate::system_disk::META_LABEL;

/// The label of volumes that belong to the system.
const SYSTEM_VOLUME: &str = "talos.dev/system-volume";
/// How META is found: a partition of that name with another size is somebody else's.
const META_LOCATOR: &str =
    "volume.partition_label == \"META\" && volume.name in [\"\", \"talosmeta\"] && volume.size == 1048576u";

/// A volume that is a directory: its id, where it is, its mode.
pub type DirectoryVolume = (&'static str, PathBuf, u32);

/// Writes `VolumeConfigs`: META, which is only looked for, and the directories that stand in for partitions.
#[derive(Debug)]
pub struct VolumeConfigController {
    directories: Vec<DirectoryVolume>,
}

impl VolumeConfigController {
    /// A controller of META and these directories.
    pub fn new(directories: Vec<DirectoryVolume>) -> Self {
        Self { directories }
    }
}

/// META: found, never made.
fn meta() -> VolumeConfig {
    let mut config = VolumeConfig { r#type: VolumeType::Partition, ..VolumeConfig::default() };
    config.locator.r#match = Expression { text: META_LOCATOR.to_owned(), ..Expression::default() };
    config
}

fn directory(path: &str, file_mode: u32) -> VolumeConfig {
    let mount = MountSpec { target_path: path.to_owned(), file_mode, ..MountSpec::default() };
    VolumeConfig { r#type: VolumeType::Directory, mount, ..VolumeConfig::default() }
}

impl Controller for VolumeConfigController {
    const NAME: &'static str = "block.VolumeConfigController";

    fn inputs(&self) -> Vec<Input> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<VolumeConfig>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let directories =
            self.directories.iter().map(|(id, path, mode)| (*id, directory(&path.to_string_lossy(), *mode)));
        let wanted: Vec<(&str, VolumeConfig)> =
            std::iter::once((META_LABEL, meta())).chain(directories).collect();
        for (id, spec) in wanted {
            ctx.modify_with::<VolumeConfig>("runtime", id, |stored, metadata| {
                stored.clone_from(&spec);
                metadata.set_label(SYSTEM_VOLUME, "");
            })?;
        }
        Ok(())
    }
}
