//! The pipeline from devices to disks, on fakes and on a tree of a thousand simulated devices.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Cursor};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ichor_block::Guid;
use ichor_block::gpt::{Geometry, NewPartition, Table};
use ichor_block::probe::probe_disk;
use ichor_block::sysfs::{BlockDevice as Found, DeviceKind, DiskProperties};
use ichor_cosi::{State, Wake};
use ichor_ctl_block::{
    BlockPort, DeviceChanges, DevicesController, DiscoveryController, DisksController, ProbeError, Probed,
    SymlinksController, SystemBlock, SystemDiskController,
};
use ichor_resource::TypedSpec;
use ichor_resource::block::{
    BlockDevice, BlockSymlink, DiscoveredVolume, DiscoveryRefreshRequest, DiscoveryRefreshStatus, Disk,
    SystemDisk,
};
use ichor_resource::v1alpha1::Service;
use ichor_testkit::Harness;

/// Disks in memory.
#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    devices: BTreeMap<String, Found>,
    disks: BTreeMap<String, DiskProperties>,
    images: BTreeMap<String, Vec<u8>>,
    locked: BTreeSet<String>,
    probed: Vec<String>,
    links: BTreeMap<String, Vec<String>>,
    changes: Option<DeviceChanges>,
}

impl Fake {
    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        work(&mut self.0.lock().unwrap())
    }

    fn disk(&self, name: &str, image: Vec<u8>) {
        self.with(|inner| {
            let found = Found {
                name: name.into(),
                major: 8,
                device_path: format!("/sys/devices/{name}"),
                ..Found::default()
            };
            inner.devices.insert(name.into(), found);
            inner.disks.insert(
                name.into(),
                DiskProperties { size: image.len() as u64, ..DiskProperties::default() },
            );
            inner.images.insert(name.into(), image);
        });
    }

    fn partition(&self, name: &str, parent: &str) {
        let found = Found {
            name: name.into(),
            kind: DeviceKind::Partition,
            major: 8,
            parent: Some(parent.into()),
            ..Found::default()
        };
        self.with(|inner| inner.devices.insert(name.into(), found));
    }

    fn probes(&self) -> Vec<String> {
        self.with(|inner| {
            inner.probed.sort();
            std::mem::take(&mut inner.probed)
        })
    }
}

impl BlockPort for Fake {
    fn devices(&self) -> io::Result<BTreeMap<String, Found>> {
        Ok(self.with(|inner| inner.devices.clone()))
    }

    fn disk(&self, name: &str) -> DiskProperties {
        self.with(|inner| inner.disks.get(name).cloned().unwrap_or_default())
    }

    fn probe(&self, name: &str, is_disk: bool) -> Result<Probed, ProbeError> {
        self.with(|inner| {
            inner.probed.push(name.to_owned());
            if inner.locked.contains(name) {
                return Err(ProbeError::Locked);
            }
            let image = inner.images.get(name).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            assert!(is_disk);
            let contents = probe_disk(image, 512)?;
            Ok(Probed { size: image.len() as u64, sector_size: 512, io_size: 512, contents })
        })
    }

    fn symlinks(&self) -> io::Result<BTreeMap<String, Vec<String>>> {
        Ok(self.with(|inner| inner.links.clone()))
    }

    fn watch_devices(&self, changes: DeviceChanges) {
        self.with(|inner| inner.changes = Some(changes));
    }

    fn watch_symlinks(&self, _wake: Wake) {}
}

/// An installed disk: META, and STATE with a filesystem in it.
fn installed() -> Vec<u8> {
    let geometry = Geometry { size: 32 << 20, sector_size: 512, io_size: 0 };
    let mut table = Table::new(geometry, Guid::from_random([1; 16])).unwrap();
    for (name, size) in [("META", 1 << 20), ("STATE", 16 << 20)] {
        table.add(&NewPartition::new(name, Guid::LINUX_DATA, Guid::from_random([2; 16])).size(size)).unwrap();
    }
    let mut image = Cursor::new(vec![0; 32 << 20]);
    table.write(&mut image).unwrap();
    let mut image = image.into_inner();
    put_swap(&mut image[2 << 20..]);
    image
}

fn put_swap(image: &mut [u8]) {
    image[1024..1032].copy_from_slice(&[1, 0, 0, 0, 255, 0, 0, 0]);
    image[4086..4096].copy_from_slice(b"SWAPSPACE2");
}

fn put<T: TypedSpec>(state: &State, id: &str, spec: T) {
    let namespace = T::definition().default_namespace;
    state.modify::<T>(namespace, id, "", |stored| stored.clone_from(&spec)).unwrap();
}

fn ids<T: TypedSpec>(state: &State) -> Vec<String> {
    state.list::<T>("runtime").iter().map(|found| found.id().to_string()).collect()
}

/// A machine's controllers, run by hand.
struct Machine {
    state: State,
    port: Fake,
    devices: Harness<DevicesController<Fake>>,
    discovery: Harness<DiscoveryController<Fake>>,
    disks: Harness<DisksController<Fake>>,
    system: Harness<SystemDiskController>,
}

impl Machine {
    fn new() -> Self {
        let (state, _) = ichor_testkit::state();
        let port = Fake::default();
        Self {
            devices: Harness::new(&state, DevicesController::new(port.clone())).unwrap(),
            discovery: Harness::new(&state, DiscoveryController::new(port.clone())).unwrap(),
            disks: Harness::new(&state, DisksController::new(port.clone())).unwrap(),
            system: Harness::new(&state, SystemDiskController).unwrap(),
            state,
            port,
        }
    }

    async fn pass(&mut self) {
        self.devices.reconcile().await.unwrap();
        self.discover().await;
        self.disks.reconcile().await.unwrap();
        self.system.reconcile().await.unwrap();
    }

    /// Until nothing is left to look at; the clock is paused, so waiting costs nothing.
    async fn discover(&mut self) {
        for _ in 0..10 {
            self.discovery.reconcile().await.unwrap();
            match self.discovery.requeue() {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return,
            }
        }
    }

    fn volume(&self, id: &str) -> DiscoveredVolume {
        self.state.get::<DiscoveredVolume>("runtime", id).unwrap().spec().clone()
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_its_partitions_and_their_contents_are_shown() {
    let mut machine = Machine::new();
    machine.port.disk("sda", installed());
    machine.port.partition("sda1", "sda");
    machine.port.partition("sda2", "sda");
    machine.port.disk("sdb", vec![0; 4 << 20]);
    machine.pass().await;
    assert_eq!(machine.port.probes(), ["sda", "sdb"], "a partition is read with its disk");
    assert_eq!(ids::<BlockDevice>(&machine.state), ["sda", "sda1", "sda2", "sdb"]);
    assert_eq!(ids::<DiscoveredVolume>(&machine.state), ["sda", "sda1", "sda2", "sdb"]);
    assert_eq!(ids::<Disk>(&machine.state), ["sda", "sdb"]);
    let state = machine.volume("sda2");
    assert_eq!((state.partition_label.as_str(), state.partition_index), ("STATE", 2));
    assert_eq!((state.name.as_str(), state.offset, state.size), ("swap", 2 << 20, 16 << 20));
    assert_eq!((state.parent_dev_path.as_str(), state.pretty_size.as_str()), ("/dev/sda", "17 MB"));
    assert_eq!(state.partition_type, "0fc63daf-8483-4772-8e79-3d69d8477de4");
    assert_eq!((machine.volume("sda").name, machine.volume("sdb").name), ("gpt".into(), String::new()));
    let system = machine.state.get::<SystemDisk>("runtime", "system-disk").unwrap();
    assert_eq!((system.disk_id.as_str(), system.dev_path.as_str()), ("sda", "/dev/sda"));
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_was_written_is_read_again_and_one_that_is_gone_goes() {
    let mut machine = Machine::new();
    machine.port.disk("sda", installed());
    machine.port.disk("sdb", vec![0; 4 << 20]);
    machine.pass().await;
    machine.port.probes();
    machine.pass().await;
    assert!(machine.port.probes().is_empty(), "nothing happened");

    let mut image = vec![0; 4 << 20];
    put_swap(&mut image);
    machine.port.with(|inner| {
        inner.images.insert("sdb".into(), image);
        inner.changes.as_ref().unwrap().note("sdb");
    });
    machine.pass().await;
    assert_eq!(machine.port.probes(), ["sdb"]);
    assert_eq!(machine.volume("sdb").name, "swap");

    machine.port.with(|inner| drop(inner.devices.remove("sda")));
    machine.pass().await;
    assert_eq!(ids::<DiscoveredVolume>(&machine.state), ["sdb"]);
    assert_eq!(ids::<Disk>(&machine.state), ["sdb"]);
    assert!(ids::<SystemDisk>(&machine.state).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_locked_disk_is_read_when_it_is_free_and_then_the_request_is_served() {
    let mut machine = Machine::new();
    machine.port.disk("sda", installed());
    machine.port.with(|inner| inner.locked.insert("sda".into()));
    machine.devices.reconcile().await.unwrap();
    machine.discovery.reconcile().await.unwrap();
    assert_eq!(machine.discovery.requeue(), Some(Duration::from_millis(100)), "changes are gathered");
    tokio::time::sleep(Duration::from_millis(100)).await;
    machine.discovery.reconcile().await.unwrap();
    assert!(ids::<DiscoveredVolume>(&machine.state).is_empty());
    assert_eq!(machine.discovery.requeue(), Some(Duration::from_millis(100)));
    machine.port.with(|inner| inner.locked.clear());
    machine.discover().await;
    assert_eq!(ids::<DiscoveredVolume>(&machine.state), ["sda", "sda1", "sda2"]);

    let status = |machine: &Machine| {
        machine.state.get::<DiscoveryRefreshStatus>("runtime", "refresh").unwrap().request
    };
    assert_eq!(status(&machine), 0);
    machine.port.probes();
    put(&machine.state, "refresh", DiscoveryRefreshRequest { request: 3 });
    machine.discover().await;
    assert_eq!((machine.port.probes(), status(&machine)), (vec!["sda".to_owned()], 3));
}

#[tokio::test]
async fn links_show_once_the_device_manager_is_well() {
    let (state, _) = ichor_testkit::state();
    let port = Fake::default();
    port.with(|inner| inner.links.insert("sda".into(), vec!["/dev/disk/by-id/a".into()]));
    let mut links = Harness::new(&state, SymlinksController::new(port.clone(), true)).unwrap();
    links.reconcile().await.unwrap();
    assert!(ids::<BlockSymlink>(&state).is_empty());
    put(&state, "udevd", Service { running: true, healthy: true, ..Service::default() });
    links.reconcile().await.unwrap();
    assert_eq!(state.get::<BlockSymlink>("runtime", "sda").unwrap().paths, ["/dev/disk/by-id/a"]);

    port.disk("sda", vec![0; 1 << 20]);
    Harness::new(&state, DevicesController::new(port.clone())).unwrap().reconcile().await.unwrap();
    Harness::new(&state, DisksController::new(port)).unwrap().reconcile().await.unwrap();
    assert_eq!(state.get::<Disk>("runtime", "sda").unwrap().symlinks, ["/dev/disk/by-id/a"]);
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A disk below a root: what the kernel shows of it, and a sparse file as its node.
fn simulate(root: &Path, index: u32, contents: &[(u64, &[u8])]) {
    let name = format!("sd{index:04}");
    let sys = format!("sys/devices/pci0000:00/{index}/block/{name}");
    let file = |path: &str, text: &str| write(&root.join(&sys).join(path), text);
    file("uevent", &format!("MAJOR=8\nMINOR={index}\nDEVNAME={name}\nDEVTYPE=disk\n"));
    file("size", "262144\n");
    file("ro", "0\n");
    file("queue/logical_block_size", "512\n");
    file("queue/rotational", "0\n");
    symlink(format!("../devices/pci0000:00/{index}/block/{name}"), root.join("sys/block").join(&name))
        .unwrap();
    let node = File::create(root.join("dev").join(&name)).unwrap();
    node.set_len(128 << 20).unwrap();
    for (at, part) in contents {
        node.write_all_at(part, *at).unwrap();
    }
}

fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// Half of them with two partitions: two thousand volumes in all.
#[tokio::test]
async fn a_thousand_devices_are_discovered_in_a_second_of_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    fs::create_dir_all(root.join("sys/block")).unwrap();
    fs::create_dir_all(root.join("dev")).unwrap();
    let geometry = Geometry { size: 128 << 20, sector_size: 512, io_size: 0 };
    let mut table = Table::new(geometry, Guid::from_random([1; 16])).unwrap();
    for (name, size) in [("META", 1 << 20), ("STATE", 16 << 20)] {
        table.add(&NewPartition::new(name, Guid::LINUX_DATA, Guid::from_random([2; 16])).size(size)).unwrap();
    }
    let mut image = Cursor::new(vec![0; 128 << 20]);
    table.write(&mut image).unwrap();
    let image = image.into_inner();
    // The parts of the image that are not zero.
    let parts = image.chunks(4096).enumerate().filter(|(_, part)| part.iter().any(|byte| *byte != 0));
    let partitioned: Vec<(u64, &[u8])> = parts.map(|(at, part)| (at as u64 * 4096, part)).collect();
    for index in 0..1000 {
        simulate(root, index, if index % 2 == 0 { &partitioned } else { &[] });
    }

    // The clock is that of the process: what other tests do meanwhile counts, too. The least of three is nearest to the truth.
    let mut spent = Duration::MAX;
    for _ in 0..3 {
        spent = spent.min(discover_thousand(root).await);
        if spent < Duration::from_secs(1) {
            break;
        }
    }
    eprintln!("1000 devices, 2000 volumes: {} ms of CPU", spent.as_millis());
    assert!(spent < Duration::from_secs(1), "{spent:?}");
}

/// CPU time of a discovery of the thousand devices.
async fn discover_thousand(root: &Path) -> Duration {
    let (state, _) = ichor_testkit::state();
    let port = SystemBlock::new(root);
    let mut devices = Harness::new(&state, DevicesController::new(port.clone())).unwrap();
    let mut discovery = Harness::new(&state, DiscoveryController::new(port.clone())).unwrap();
    let mut disks = Harness::new(&state, DisksController::new(port)).unwrap();
    let before = cpu_time();
    devices.reconcile().await.unwrap();
    discovery.reconcile().await.unwrap();
    tokio::time::sleep(discovery.requeue().unwrap()).await;
    discovery.reconcile().await.unwrap();
    disks.reconcile().await.unwrap();
    let spent = cpu_time() - before;
    assert_eq!(ids::<BlockDevice>(&state).len(), 1000);
    assert_eq!(ids::<DiscoveredVolume>(&state).len(), 2000);
    assert_eq!(ids::<Disk>(&state).len(), 1000);
    let disk = state.get::<Disk>("runtime", "sd0007").unwrap();
    assert_eq!((disk.pretty_size.as_str(), disk.bus_path.as_str()), ("134 MB", "/pci0000:00/7"));
    spent
}
