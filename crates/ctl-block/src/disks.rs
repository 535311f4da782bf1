//! Whole disks and what they are.

use std::collections::BTreeMap;

use ichor_block::sysfs::DiskProperties;
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_resource::block::{BlockDevice, BlockSymlink, Disk};
use ichor_types::size;

use crate::ports::BlockPort;

/// Writes `Disks`.
#[derive(Debug)]
pub struct DisksController<P> {
    port: P,
    /// What was read of a disk, and at which generation.
    read: BTreeMap<String, (i64, DiskProperties)>,
}

impl<P: BlockPort> DisksController<P> {
    /// A controller of this machine's disks.
    pub fn new(port: P) -> Self {
        Self { port, read: BTreeMap::new() }
    }

    /// Reads the disks whose generation has changed, and forgets those that are gone.
    async fn refresh(&mut self, wanted: BTreeMap<String, i64>) -> Result<(), ControllerError> {
        self.read.retain(|name, _| wanted.contains_key(name));
        let stale: Vec<(String, i64)> = wanted
            .into_iter()
            .filter(|(name, generation)| self.read.get(name).is_none_or(|(read, _)| read != generation))
            .collect();
        if stale.is_empty() {
            return Ok(());
        }
        let port = self.port.clone();
        let fresh = tokio::task::spawn_blocking(move || {
            let read = stale.into_iter().map(|(name, generation)| {
                let properties = port.disk(&name);
                (name, (generation, properties))
            });
            read.collect::<Vec<_>>()
        });
        self.read.extend(fresh.await?);
        Ok(())
    }
}

/// Whether a device is shown as a disk: no partition, nothing without a size, nothing that a volume manager keeps for
/// itself. A drive without a disc has no size and is shown.
fn is_disk(properties: &DiskProperties) -> bool {
    (properties.size > 0 || properties.cdrom) && !properties.is_private
}

/// The disks that a device is made of: of a partition, the disk it is on.
fn secondary_disks(device: &BlockDevice, parents: &BTreeMap<&str, &str>) -> Vec<String> {
    let disks = device.secondaries.iter().map(|name| match parents.get(name.as_str()) {
        Some(parent) if !parent.is_empty() => (*parent).to_owned(),
        _ => name.clone(),
    });
    disks.collect()
}

fn disk(name: &str, found: &DiskProperties, secondary_disks: Vec<String>, symlinks: Vec<String>) -> Disk {
    Disk {
        dev_path: format!("/dev/{name}"),
        size: found.size,
        pretty_size: size::decimal(found.size),
        io_size: found.io_size,
        sector_size: found.sector_size,
        readonly: found.readonly,
        cdrom: found.cdrom,
        model: found.model.clone(),
        serial: found.serial.clone(),
        modalias: found.modalias.clone(),
        wwid: found.wwid.clone(),
        uuid: found.uuid.clone(),
        bus_path: found.bus_path.clone(),
        sub_system: found.sub_system.clone(),
        transport: found.transport.to_owned(),
        rotational: found.rotational,
        secondary_disks,
        symlinks,
    }
}

impl<P: BlockPort> Controller for DisksController<P> {
    const NAME: &'static str = "block.DisksController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<BlockDevice>(), weak::<BlockSymlink>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<Disk>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let devices = ctx.list::<BlockDevice>()?;
        let parents: BTreeMap<&str, &str> =
            devices.iter().map(|device| (device.id().as_str(), device.parent.as_str())).collect();
        let whole: Vec<_> = devices.iter().filter(|device| device.r#type == "disk").collect();
        let wanted = whole.iter().map(|device| (device.id().to_string(), device.generation)).collect();
        self.refresh(wanted).await?;
        let mut disks = Vec::new();
        for device in whole {
            let name = device.id().as_str();
            let Some((_, found)) = self.read.get(name).filter(|(_, found)| is_disk(found)) else { continue };
            let links = ctx.get::<BlockSymlink>(name)?.map(|links| links.paths.clone()).unwrap_or_default();
            disks.push((name.to_owned(), disk(name, found, secondary_disks(device.spec(), &parents), links)));
        }
        Ok(ctx.publish(disks)?)
    }
}
