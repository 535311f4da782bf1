//! Disks, and wiping them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ichor_block::device::{Device, Lock};
use ichor_block::gpt::GptError;
use ichor_block::wipe::{self, Wiped};
use ichor_cosi::State;
use ichor_ctl_block::SYSTEM_DISK;
use ichor_resource::block::{BlockDevice, Disk, SystemDisk, VolumeStatus};
use ichor_wire::storage;
use ichor_wire::storage::block_device_wipe_descriptor::Method;
use ichor_wire::storage::storage_service_server::StorageService;
use tonic::{Request, Response, Status};
use tracing::info;

use super::machine::Api;
use super::reply::chain;
use crate::lanes::DISKS;

/// Devices of one request at most.
const DEVICES_MAX: usize = 256;
/// Somebody else may keep a disk locked this long.
const LOCK_MAX: Duration = Duration::from_secs(60);
/// Where device nodes are.
const NODES: &str = "/dev";

#[tonic::async_trait]
impl StorageService for Api {
    async fn disks(&self, _request: Request<()>) -> Result<Response<storage::DisksResponse>, Status> {
        let state = &self.node.store.state;
        let system = state.find::<SystemDisk>("runtime", SYSTEM_DISK);
        let disks = state.list::<Disk>("runtime");
        let disks = disks.iter().map(|disk| {
            let is_system = system.as_ref().is_some_and(|system| disk.id() == system.disk_id.as_str());
            wire_disk(disk.spec(), is_system)
        });
        let message = storage::Disks { metadata: None, disks: disks.collect() };
        Ok(Response::new(storage::DisksResponse { messages: vec![message] }))
    }

    async fn block_device_wipe(
        &self,
        request: Request<storage::BlockDeviceWipeRequest>,
    ) -> Result<Response<storage::BlockDeviceWipeResponse>, Status> {
        let wanted = request.into_inner().devices;
        if wanted.len() > DEVICES_MAX {
            let text =
                format!("{} devices in one request; at most {DEVICES_MAX} are wiped at once", wanted.len());
            return Err(Status::invalid_argument(text));
        }
        // All of them are looked at before any is touched.
        let plans: Result<Vec<Plan>, Status> =
            wanted.iter().map(|wipe| plan(&self.node.store.state, wipe)).collect();
        for plan in plans? {
            DISKS.run(move || plan.carry_out(Path::new(NODES))).await??;
        }
        let messages = vec![storage::BlockDeviceWipe { metadata: None }];
        Ok(Response::new(storage::BlockDeviceWipeResponse { messages }))
    }
}

fn wire_disk(disk: &Disk, system_disk: bool) -> storage::Disk {
    use storage::disk::DiskType;
    let kind = match (disk.cdrom, disk.transport.as_str(), disk.rotational) {
        (true, _, _) => DiskType::Cd,
        (false, "nvme", _) => DiskType::Nvme,
        (false, "mmc", _) => DiskType::Sd,
        (false, _, true) => DiskType::Hdd,
        (false, _, false) => DiskType::Ssd,
    };
    storage::Disk {
        size: disk.size,
        model: disk.model.clone(),
        device_name: disk.dev_path.clone(),
        name: String::new(),
        serial: disk.serial.clone(),
        modalias: disk.modalias.clone(),
        uuid: disk.uuid.clone(),
        wwid: disk.wwid.clone(),
        r#type: kind.into(),
        bus_path: disk.bus_path.clone(),
        system_disk,
        subsystem: disk.sub_system.clone(),
        readonly: disk.readonly,
    }
}

/// A wipe that may be done.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    device: String,
    method: Method,
    /// The disk of a partition, and the partition's number in its table if it is to go from there.
    parent: Option<(String, Option<u32>)>,
}

/// Decides whether a device may be wiped.
fn plan(state: &State, wipe: &storage::BlockDeviceWipeDescriptor) -> Result<Plan, Status> {
    let name = wipe.device.as_str();
    let Some(device) = state.find::<BlockDevice>("runtime", name) else {
        return Err(Status::not_found(format!("blockdevice {name:?} not found")));
    };
    let parent = match (device.r#type.as_str(), device.parent.as_str()) {
        ("disk", _) => None,
        ("partition", parent) => Some(parent.to_owned()),
        (other, _) => {
            let text = format!("blockdevice {name:?} is of unsupported type {other:?}");
            return Err(Status::invalid_argument(text));
        }
    };
    let whole = parent.as_deref().unwrap_or(name);
    let Some(disk) = state.find::<Disk>("runtime", whole) else {
        return Err(Status::failed_precondition(format!(
            "blockdevice {name:?}: {whole:?} is no disk that can be wiped"
        )));
    };
    let refused = |what: String| Err(Status::failed_precondition(format!("blockdevice {name:?} is {what}")));
    if disk.readonly {
        return refused("read-only".to_owned());
    }
    if disk.cdrom {
        return refused("a CD-ROM".to_owned());
    }
    if !wipe.skip_secondary_check
        && let Some(user) = part_of(state, name, parent.is_some())
    {
        return refused(user);
    }
    if !wipe.skip_volume_check
        && let Some((device, volume)) = volume_on(state, name, parent.as_deref())
    {
        let text = format!("blockdevice {device:?} is in use by volume {volume:?}");
        return Err(Status::failed_precondition(text));
    }
    let method = Method::try_from(wipe.method)
        .map_err(|_| Status::invalid_argument(format!("unsupported wipe method {}", wipe.method)))?;
    let number =
        u32::try_from(device.partition_number).ok().filter(|number| wipe.drop_partition && *number > 0);
    Ok(Plan { device: name.to_owned(), method, parent: parent.map(|parent| (parent, number)) })
}

/// What a device is a part of.
fn part_of(state: &State, name: &str, is_partition: bool) -> Option<String> {
    let is = |other: &String| other == name;
    if is_partition {
        let devices = state.list::<BlockDevice>("runtime");
        let user = devices.iter().find(|device| device.secondaries.iter().any(is))?;
        return Some(format!("in use by blockdevice {:?}", user.id().as_str()));
    }
    let disks = state.list::<Disk>("runtime");
    let user = disks.iter().find(|disk| disk.secondary_disks.iter().any(is))?;
    Some(format!("in use by disk {:?}", user.id().as_str()))
}

/// The volume on a device or on its disk, and on which of the two.
fn volume_on(state: &State, name: &str, parent: Option<&str>) -> Option<(String, String)> {
    let file = |path: &str| Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned());
    state.list::<VolumeStatus>("runtime").iter().find_map(|volume| {
        let places = [file(&volume.location), file(&volume.mount_location)];
        let on = [Some(name), parent].into_iter().flatten().find(|device| {
            // Volumes that are directories may have the name of a device by chance.
            volume.location.starts_with("/dev/") && places.iter().flatten().any(|place| place == device)
        });
        let below = file(&volume.parent_location).is_some_and(|disk| disk == name).then_some(name);
        on.or(below).map(|device| (device.to_owned(), volume.id().to_string()))
    })
}

impl Plan {
    /// Wipes the device. Blocks the thread.
    fn carry_out(&self, nodes: &Path) -> Result<(), Status> {
        let failed = |what: &str, name: &str, error: &dyn std::fmt::Display| {
            Status::internal(format!("failed to {what} block device {name:?}: {error}"))
        };
        let open_parent = |name: &String| {
            Device::open_writable(&node(nodes, name)).map_err(|error| failed("open", name, &error))
        };
        let parent = self.parent.as_ref().map(|(name, _)| open_parent(name)).transpose()?;
        let device = Device::open_unused(&node(nodes, &self.device)).map_err(|error| match error.kind() {
            std::io::ErrorKind::ResourceBusy => {
                Status::failed_precondition(format!("block device {:?} is mounted or in use", self.device))
            }
            _ => failed("open", &self.device, &error),
        })?;
        let locked = parent.as_ref().unwrap_or(&device);
        locked
            .lock_within(Lock::Exclusive, LOCK_MAX)
            .map_err(|error| failed("lock", &self.device, &error))?;
        let wiped = match self.method {
            Method::Fast => wipe::fast_or_signatures(&device),
            Method::Zeroes => wipe::zeroes(&device),
        };
        let wiped = wiped.map_err(|error| failed("wipe", &self.device, &error))?;
        info!(device = self.device, how = describe(&wiped), "block device wiped");
        match (&parent, &self.parent) {
            (None, _) => {
                // Its partitions, if it had any; none of them is in use, or it would not have opened.
                let _ = device.reread_table();
            }
            (Some(disk), Some((name, Some(number)))) => {
                // The kernel does not give a partition up while it is open.
                drop(device);
                drop_partition(disk, *number)
                    .map_err(|error| failed("drop the partition of", name, &chain(&error)))?;
                info!(device = name, number, "partition deleted");
            }
            (Some(_), _) => {}
        }
        Ok(())
    }
}

fn describe(wiped: &Wiped) -> String {
    match wiped {
        Wiped::Signatures(names) => format!("signatures {}", names.join(", ")),
        Wiped::Ends => "first and last MiB".to_owned(),
        Wiped::All(method) => (*method).to_owned(),
    }
}

/// Takes a partition out of the table of its disk.
fn drop_partition(disk: &Device, number: u32) -> Result<(), GptError> {
    let Some((mut table, _)) = disk.table()? else { return Err(GptError::NoPartition { number }) };
    table.remove(number)?;
    disk.write_table(&table)
}

fn node(nodes: &Path, name: &str) -> PathBuf {
    nodes.join(name)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use ichor_block::Guid;
    use ichor_block::gpt::{Geometry, NewPartition, Table};
    use ichor_resource::TypedSpec;

    use super::*;

    fn put<T: TypedSpec>(state: &State, id: &str, spec: T) {
        state.modify::<T>("runtime", id, "", |stored| stored.clone_from(&spec)).unwrap();
    }

    fn device(state: &State, id: &str, kind: &str, parent: &str, secondaries: &[&str]) {
        let number = i64::from(!parent.is_empty());
        let secondaries = secondaries.iter().map(|name| (*name).to_owned()).collect();
        let spec = BlockDevice {
            r#type: kind.into(),
            parent: parent.into(),
            partition_number: number,
            secondaries,
            ..BlockDevice::default()
        };
        put(state, id, spec);
    }

    /// A machine with a disk that nobody uses, one that cannot be written, a drive, one under a volume, one in an array.
    fn machine() -> State {
        let (state, _) = ichor_testkit::state();
        for (name, readonly, cdrom) in [
            ("vda", false, false),
            ("vdb", true, false),
            ("sr0", false, true),
            ("vdc", false, false),
            ("vdd", false, false),
        ] {
            device(&state, name, "disk", "", &[]);
            put(&state, name, Disk { dev_path: format!("/dev/{name}"), readonly, cdrom, ..Disk::default() });
        }
        device(&state, "vda1", "partition", "vda", &[]);
        device(&state, "vdc1", "partition", "vdc", &[]);
        device(&state, "vdd1", "partition", "vdd", &[]);
        device(&state, "md0", "disk", "", &["vdd1"]);
        device(&state, "odd", "tape", "", &[]);
        put(&state, "md0", Disk { secondary_disks: vec!["vdd".into()], ..Disk::default() });
        let volume = VolumeStatus {
            location: "/dev/vdc1".into(),
            parent_location: "/dev/vdc".into(),
            ..VolumeStatus::default()
        };
        put(&state, "STATE", volume);
        put(&state, "/var/vda", VolumeStatus { location: "/var/vda".into(), ..VolumeStatus::default() });
        state
    }

    fn wipe_of(device: &str) -> storage::BlockDeviceWipeDescriptor {
        storage::BlockDeviceWipeDescriptor { device: device.into(), ..Default::default() }
    }

    #[track_caller]
    fn check(device: &str, refusal: &str) {
        let text = match plan(&machine(), &wipe_of(device)) {
            Ok(plan) => format!("{:?} of {:?}", plan.method, plan.parent),
            Err(status) => format!("{:?}: {}", status.code(), status.message()),
        };
        assert_eq!(text, refusal);
    }

    #[test]
    fn only_a_device_that_nobody_uses_is_wiped() {
        check("vda", "Fast of None");
        check("vda1", "Fast of Some((\"vda\", None))");
        check("vdz", "NotFound: blockdevice \"vdz\" not found");
        check("odd", "InvalidArgument: blockdevice \"odd\" is of unsupported type \"tape\"");
        check("vdb", "FailedPrecondition: blockdevice \"vdb\" is read-only");
        check("sr0", "FailedPrecondition: blockdevice \"sr0\" is a CD-ROM");
        check("vdc", "FailedPrecondition: blockdevice \"vdc\" is in use by volume \"STATE\"");
        check("vdc1", "FailedPrecondition: blockdevice \"vdc1\" is in use by volume \"STATE\"");
        check("vdd", "FailedPrecondition: blockdevice \"vdd\" is in use by disk \"md0\"");
        check("vdd1", "FailedPrecondition: blockdevice \"vdd1\" is in use by blockdevice \"md0\"");
        let state = machine();
        assert!(
            plan(&state, &storage::BlockDeviceWipeDescriptor { skip_volume_check: true, ..wipe_of("vdc1") })
                .is_ok()
        );
        assert!(
            plan(
                &state,
                &storage::BlockDeviceWipeDescriptor { skip_secondary_check: true, ..wipe_of("vdd") }
            )
            .is_ok()
        );
    }

    #[test]
    fn a_wiped_partition_is_empty_and_goes_from_the_table_when_asked() {
        let dir = tempfile::tempdir().unwrap();
        let geometry = Geometry { size: 8 << 20, sector_size: 512, io_size: 0 };
        let mut table = Table::new(geometry, Guid::from_random([1; 16])).unwrap();
        let new = NewPartition::new("DATA", Guid::LINUX_DATA, Guid::from_random([2; 16]));
        table.add(&new.size(1 << 20)).unwrap();
        let mut disk = Cursor::new(vec![0; 8 << 20]);
        table.write(&mut disk).unwrap();
        std::fs::write(dir.path().join("vda"), disk.into_inner()).unwrap();
        let mut swap = vec![7; 1 << 20];
        swap[1024..1032].copy_from_slice(&[1, 0, 0, 0, 255, 0, 0, 0]);
        swap[4086..4096].copy_from_slice(b"SWAPSPACE2");
        std::fs::write(dir.path().join("vda1"), &swap).unwrap();

        let drop = storage::BlockDeviceWipeDescriptor { drop_partition: true, ..wipe_of("vda1") };
        plan(&machine(), &drop).unwrap().carry_out(dir.path()).unwrap();
        let left = std::fs::read(dir.path().join("vda1")).unwrap();
        assert!(left[3584..4096].iter().all(|byte| *byte == 0), "the signature is gone");
        assert!(left[4096..].iter().all(|byte| *byte == 7), "the rest was not touched");
        let disk = Device::open(&dir.path().join("vda")).unwrap();
        assert!(disk.table().unwrap().unwrap().0.partitions().is_empty());

        let zeroes = storage::BlockDeviceWipeDescriptor { method: Method::Zeroes.into(), ..wipe_of("vda1") };
        plan(&machine(), &zeroes).unwrap().carry_out(dir.path()).unwrap();
        assert!(std::fs::read(dir.path().join("vda1")).unwrap().iter().all(|byte| *byte == 0));
        let gone = plan(&machine(), &wipe_of("vda")).unwrap().carry_out(Path::new("/nowhere")).unwrap_err();
        assert!(gone.message().contains("failed to open block device \"vda\""), "{gone}");
    }
}
