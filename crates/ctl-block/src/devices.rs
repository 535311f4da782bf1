//! Block devices as the kernel shows them.

use std::collections::BTreeMap;

use ichor_block::sysfs;
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Wake, exclusive};
use ichor_resource::block::BlockDevice;

use crate::ports::{BlockPort, DeviceChanges, Noted};

/// Writes `BlockDevices`. Whatever happens to a device raises its generation, which makes others look at it again.
#[derive(Debug)]
pub struct DevicesController<P> {
    port: P,
    changes: Option<DeviceChanges>,
    /// The first pass, and one after a failure, look at everything.
    is_complete: bool,
}

impl<P: BlockPort> DevicesController<P> {
    /// A controller of this machine's devices.
    pub fn new(port: P) -> Self {
        Self { port, changes: None, is_complete: false }
    }
}

/// The devices as they are to be published.
pub(crate) fn plan(
    found: &BTreeMap<String, sysfs::BlockDevice>,
    known: &BTreeMap<String, BlockDevice>,
    noted: &Noted,
) -> Vec<(String, BlockDevice)> {
    let specs = found.iter().map(|(name, device)| {
        let mut spec = spec(device);
        let old = known.get(name);
        spec.generation = old.map_or(0, |old| old.generation);
        if noted.all || noted.names.contains(name) || old != Some(&spec) {
            spec.generation += 1;
        }
        (name.clone(), spec)
    });
    specs.collect()
}

fn spec(device: &sysfs::BlockDevice) -> BlockDevice {
    BlockDevice {
        r#type: device.kind.as_str().to_owned(),
        major: device.major.into(),
        minor: device.minor.into(),
        partition_name: device.partition_name.clone(),
        partition_number: device.partition_number.into(),
        device_path: device.device_path.clone(),
        generation: 0,
        parent: device.parent.clone().unwrap_or_default(),
        secondaries: device.secondaries.clone(),
    }
}

impl<P: BlockPort> Controller for DevicesController<P> {
    const NAME: &'static str = "block.DevicesController";

    fn inputs(&self) -> Vec<Input> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<BlockDevice>()]
    }

    fn start(&mut self, wake: Wake) {
        let changes = DeviceChanges::new(wake);
        // Before the first listing, so that nothing falls between the two.
        self.port.watch_devices(changes.clone());
        self.changes = Some(changes);
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let mut noted = self.changes.as_ref().map(DeviceChanges::take).unwrap_or_default();
        noted.all |= !std::mem::replace(&mut self.is_complete, false);
        let port = self.port.clone();
        let found = tokio::task::spawn_blocking(move || port.devices()).await??;
        let known = ctx.list::<BlockDevice>()?;
        let known = known.iter().map(|device| (device.id().to_string(), device.spec().clone())).collect();
        ctx.publish(plan(&found, &known, &noted))?;
        self.is_complete = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_rises_with_every_change_and_only_then() {
        let device =
            |minor| sysfs::BlockDevice { name: "sda".into(), minor, ..sysfs::BlockDevice::default() };
        let found = BTreeMap::from([("sda".to_owned(), device(0)), ("sdb".to_owned(), device(1))]);
        let generations = |known: &BTreeMap<String, BlockDevice>, noted: &Noted| -> Vec<i64> {
            plan(&found, known, noted).iter().map(|(_, spec)| spec.generation).collect()
        };
        let quiet = Noted::default();
        assert_eq!(generations(&BTreeMap::new(), &quiet), [1, 1]);
        let known: BTreeMap<String, BlockDevice> =
            plan(&found, &BTreeMap::new(), &quiet).into_iter().collect();
        assert_eq!(generations(&known, &quiet), [1, 1]);
        let written = Noted { names: ["sdb".to_owned()].into(), all: false };
        assert_eq!(generations(&known, &written), [1, 2]);
        assert_eq!(generations(&known, &Noted { all: true, ..Noted::default() }), [2, 2]);
    }
}
