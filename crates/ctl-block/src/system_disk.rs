//! Which disk the system is on.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_resource::block::{DiscoveredVolume, SystemDisk};

/// The one id of the system disk.
pub const SYSTEM_DISK: &str = "system-disk";
/// The label of the partition that makes a disk the system's.
pub const META_LABEL: &str = "META";
/// Who holds the status of META while this machine reads and writes it. It is never let go: META outlives all volumes.
pub const META_HOLDER: &str = "META";
/// The size of that partition; a foreign one of the same name has another.
const META_SIZE: u64 = 1 << 20;
/// What META is found to be, once it holds something.
const META_NAME: &str = "talosmeta";

/// Writes `SystemDisks`: the disk of the first META partition.
#[derive(Debug, Default)]
pub struct SystemDiskController;

/// Whether a volume is META.
pub(crate) fn is_meta(volume: &DiscoveredVolume) -> bool {
    volume.partition_label == META_LABEL
        && volume.size == META_SIZE
        && (volume.name.is_empty() || volume.name == META_NAME)
}

impl Controller for SystemDiskController {
    const NAME: &'static str = "block.SystemDiskController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<DiscoveredVolume>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<SystemDisk>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let volumes = ctx.list::<DiscoveredVolume>()?;
        let meta = volumes.iter().find(|volume| is_meta(volume.spec()) && !volume.parent.is_empty());
        let disk = meta
            .map(|meta| SystemDisk { disk_id: meta.parent.clone(), dev_path: meta.parent_dev_path.clone() });
        Ok(ctx.publish(disk.map(|disk| (SYSTEM_DISK, disk)))?)
    }
}
