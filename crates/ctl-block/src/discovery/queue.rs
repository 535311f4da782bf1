//! Which devices are looked at next. Pure.

use std::collections::{BTreeMap, BTreeSet};

use ichor_resource::block::BlockDevice;

/// The major number of RAM disks, which nobody looks at.
const RAM_DISKS: i64 = 1;

/// Devices to be looked at.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// The generation at which a device was last queued.
    seen: BTreeMap<String, i64>,
    next: BTreeSet<String>,
    request: i64,
}

impl Queue {
    /// Queues what has changed: devices with a new generation, those that are gone, and all of them when somebody asks.
    /// A partition is looked at with its disk, which alone knows its name and its place.
    pub(super) fn observe<'a>(
        &mut self,
        request: i64,
        devices: impl Iterator<Item = (&'a str, &'a BlockDevice)>,
    ) {
        if request != self.request {
            self.request = request;
            self.seen.clear();
        }
        let devices: BTreeMap<&str, &BlockDevice> =
            devices.filter(|(_, device)| device.major != RAM_DISKS).collect();
        for (name, device) in &devices {
            if self.seen.get(*name) != Some(&device.generation) {
                self.seen.insert((*name).to_owned(), device.generation);
                let parent = devices.get_key_value(device.parent.as_str()).map(|(parent, _)| *parent);
                self.next.insert(parent.unwrap_or(name).to_owned());
            }
        }
        let gone: Vec<String> =
            self.seen.keys().filter(|name| !devices.contains_key(name.as_str())).cloned().collect();
        for name in gone {
            self.seen.remove(&name);
            self.next.insert(name);
        }
    }

    /// Looks at this device again, next time.
    pub(super) fn retry(&mut self, name: String) {
        self.next.insert(name);
    }

    /// Looks at this partition by itself, next time.
    pub(super) fn alone(&mut self, name: &str) {
        self.next.insert(name.to_owned());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.next.is_empty()
    }

    /// The last request that was seen.
    pub(super) fn request(&self) -> i64 {
        self.request
    }

    /// All that are queued.
    pub(super) fn take(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(parent: &str, generation: i64) -> BlockDevice {
        BlockDevice { parent: parent.into(), generation, major: 8, ..BlockDevice::default() }
    }

    fn taken(queue: &mut Queue, request: i64, devices: &[(&str, &BlockDevice)]) -> Vec<String> {
        queue.observe(request, devices.iter().copied());
        queue.take().into_iter().collect()
    }

    #[test]
    fn a_device_is_queued_once_for_each_generation_and_a_partition_with_its_disk() {
        let mut queue = Queue::default();
        let (disk, part, ram) = (device("", 1), device("sda", 1), BlockDevice { major: 1, ..device("", 1) });
        assert_eq!(taken(&mut queue, 0, &[("ram0", &ram), ("sda", &disk), ("sda1", &part)]), ["sda"]);
        assert!(taken(&mut queue, 0, &[("sda", &disk), ("sda1", &part)]).is_empty());
        assert_eq!(taken(&mut queue, 0, &[("sda", &disk), ("sda1", &device("sda", 2))]), ["sda"]);
        // Gone.
        assert_eq!(taken(&mut queue, 0, &[("sda", &disk)]), ["sda1"]);
        assert!(taken(&mut queue, 0, &[("sda", &disk)]).is_empty());
        // Asked for.
        assert_eq!(taken(&mut queue, 1, &[("sda", &disk)]), ["sda"]);
    }
}
