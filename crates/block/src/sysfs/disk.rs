//! What a disk is: size, bus, maker.

use std::fs;
use std::path::{Path, PathBuf};

use super::attribute;

/// A sector as the kernel counts sizes, whatever the device's own.
const SIZE_UNIT: u64 = 512;
/// The I/O size of a device that states none.
const DEFAULT_IO_SIZE: u64 = 512;

/// What is known of a disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskProperties {
    /// Bytes.
    pub size: u64,
    /// The optimal size of a request, or the smallest where there is none.
    pub io_size: u64,
    /// Bytes of a logical sector.
    pub sector_size: u64,
    /// Whether it cannot be written.
    pub readonly: bool,
    /// Whether it is an optical drive.
    pub cdrom: bool,
    /// Whether it spins.
    pub rotational: bool,
    /// The model.
    pub model: String,
    /// The serial number.
    pub serial: String,
    /// What a driver is chosen by.
    pub modalias: String,
    /// A worldwide identifier.
    pub wwid: String,
    /// A UUID of the device itself, not of what is on it.
    pub uuid: String,
    /// The bus and the place on it.
    pub bus_path: String,
    /// The kernel's class of it.
    pub sub_system: String,
    /// How it is attached.
    pub transport: &'static str,
    /// Whether it is a part of a volume manager's that nobody else uses.
    pub is_private: bool,
}

/// The properties of a disk; a disk that is gone has size 0.
pub fn disk_properties(root: &Path, name: &str) -> DiskProperties {
    let path = root.join("sys/block").join(name);
    let text = |file: &str| attribute(&path.join(file));
    let number = |file: &str| text(file).parse::<u64>().unwrap_or(0);
    let either = |first: &str, second: &str| {
        Some(text(first)).filter(|text| !text.is_empty()).unwrap_or_else(|| text(second))
    };
    DiskProperties {
        size: number("size").saturating_mul(SIZE_UNIT),
        io_size: io_size(number("queue/optimal_io_size"), number("queue/minimum_io_size")),
        sector_size: Some(number("queue/logical_block_size")).filter(|size| *size > 0).unwrap_or(SIZE_UNIT),
        readonly: text("ro") == "1",
        cdrom: name.starts_with("sr") || text("device/type") == "5",
        rotational: text("queue/rotational") == "1",
        model: text("device/model"),
        // Of virtual disks the kernel has it in another place.
        serial: either("device/serial", "serial"),
        modalias: text("device/modalias"),
        wwid: either("wwid", "device/wwid"),
        uuid: text("uuid"),
        bus_path: bus_path(root, &path),
        sub_system: sub_system(root, &path),
        transport: transport(root, &path, name),
        is_private: is_private(&text("dm/uuid")),
    }
}

fn io_size(optimal: u64, minimal: u64) -> u64 {
    [optimal, minimal].into_iter().find(|size| size.is_power_of_two()).unwrap_or(DEFAULT_IO_SIZE)
}

/// Where the device is attached: its path without `block/NAME` at the end.
fn bus_path(root: &Path, path: &Path) -> String {
    let full = PathBuf::from(super::device_path(root, path));
    let below = full.strip_prefix("/sys/devices").ok();
    let parent = below.and_then(|path| path.parent()).and_then(|path| path.parent());
    parent.map(|path| format!("/{}", path.display())).unwrap_or_default()
}

fn sub_system(root: &Path, path: &Path) -> String {
    let link = path.join("subsystem");
    if link.exists() { super::device_path(root, &link) } else { String::new() }
}

/// Volumes that LVM keeps for itself have a third part in their identifier.
fn is_private(uuid: &str) -> bool {
    uuid.strip_prefix("LVM-").is_some_and(|rest| rest.contains('-'))
}

fn transport(root: &Path, path: &Path, name: &str) -> &'static str {
    for (prefix, transport) in [("nvme", "nvme"), ("vd", "virtio"), ("mmcblk", "mmc")] {
        if name.starts_with(prefix) {
            return transport;
        }
    }
    let Ok(link) = fs::read_link(path.join("device")) else { return "" };
    // A SCSI address: host, channel, target, unit.
    let Some(address) = link.file_name().and_then(|name| name.to_str()) else { return "" };
    let Some((host, _)) = address.split_once(':').filter(|(host, _)| host.parse::<u32>().is_ok()) else {
        return "";
    };
    let class = |kind: &str| root.join(format!("sys/class/{kind}_host/host{host}"));
    let device = root.join("sys/bus/scsi/devices").join(address);
    if class("sas").is_dir() {
        return "sas";
    }
    if class("fc").is_dir() {
        return "fc";
    }
    if device.join("ieee1394_id").exists() {
        return "ibp";
    }
    if class("iscsi").is_dir() {
        return "iscsi";
    }
    if fs::read_link(&device).is_ok_and(|link| link.to_string_lossy().contains("usb")) {
        return "usb";
    }
    match attribute(&class("scsi").join("proc_name")).as_str() {
        "ahci" | "sata" => "sata",
        "virtio_scsi" => "virtio",
        driver if driver.contains("ata") => "ata",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::sysfs::{DeviceKind, devices};

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn link(root: &Path, path: &str, target: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    /// A machine with a SATA disk of two partitions, a virtual disk and a mapped device.
    fn machine() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let sda = "sys/devices/pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0/block/sda";
        write(root, &format!("{sda}/uevent"), "MAJOR=8\nMINOR=0\nDEVNAME=sda\nDEVTYPE=disk\n");
        write(root, &format!("{sda}/size"), "2097152\n");
        write(root, &format!("{sda}/ro"), "0\n");
        write(root, &format!("{sda}/queue/rotational"), "1\n");
        write(root, &format!("{sda}/queue/logical_block_size"), "4096\n");
        write(root, &format!("{sda}/queue/optimal_io_size"), "33553920\n");
        write(root, &format!("{sda}/queue/minimum_io_size"), "4096\n");
        for (number, name) in [(1, "EFI"), (2, "META")] {
            let part = format!("{sda}/sda{number}");
            let uevent = format!(
                "MAJOR=8\nMINOR={number}\nDEVNAME=sda{number}\nDEVTYPE=partition\nPARTN={number}\nPARTNAME={name}\n"
            );
            write(root, &format!("{part}/uevent"), &uevent);
            write(root, &format!("{part}/partition"), &format!("{number}\n"));
        }
        write(root, &format!("{sda}/../../model"), "A Disk          \n");
        write(root, &format!("{sda}/../../wwid"), "naa.500\n");
        link(root, &format!("{sda}/device"), "../../../0:0:0:0");
        link(root, &format!("{sda}/subsystem"), "../../../../../../../../../class/block");
        link(
            root,
            "sys/block/sda",
            "../devices/pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0/block/sda",
        );
        fs::create_dir_all(root.join("sys/class/block")).unwrap();
        write(root, "sys/class/scsi_host/host0/proc_name", "ahci\n");
        let vda = "sys/devices/pci0000:00/0000:00:05.0/virtio2/block/vda";
        write(root, &format!("{vda}/uevent"), "MAJOR=254\nMINOR=0\nDEVNAME=vda\nDEVTYPE=disk\n");
        write(root, &format!("{vda}/serial"), "abc123");
        write(root, &format!("{vda}/ro"), "1\n");
        link(root, "sys/block/vda", "../devices/pci0000:00/0000:00:05.0/virtio2/block/vda");
        let dm = "sys/devices/virtual/block/dm-0";
        write(root, &format!("{dm}/uevent"), "MAJOR=253\nMINOR=0\nDEVNAME=dm-0\nDEVTYPE=disk\n");
        write(root, &format!("{dm}/dm/uuid"), "LVM-abc-tpool\n");
        fs::create_dir_all(root.join(format!("{dm}/slaves/sda2"))).unwrap();
        link(root, "sys/block/dm-0", "../devices/virtual/block/dm-0");
        // On its way out: no uevent file any more.
        fs::create_dir_all(root.join("sys/block/sdb")).unwrap();
        dir
    }

    #[test]
    fn disks_partitions_and_mapped_devices_are_found() {
        let root = machine();
        let found = devices(root.path()).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["dm-0", "sda", "sda1", "sda2", "vda"]);
        let part = &found["sda2"];
        assert_eq!((part.kind, part.partition_number, part.minor), (DeviceKind::Partition, 2, 2));
        assert_eq!((part.partition_name.as_str(), part.parent.as_deref()), ("META", Some("sda")));
        assert!(
            part.device_path.starts_with("/sys/devices/pci0000:00/")
                && part.device_path.ends_with("/sda/sda2")
        );
        assert_eq!(found["dm-0"].secondaries, ["sda2"]);
        assert!(devices(&root.path().join("nowhere")).unwrap().is_empty());
    }

    #[test]
    fn a_disk_shows_its_bus_its_maker_and_its_sizes() {
        let root = machine();
        let sda = disk_properties(root.path(), "sda");
        assert_eq!((sda.size, sda.sector_size), (1 << 30, 4096));
        assert_eq!(sda.io_size, 4096, "an optimal size that is no power of two is not used");
        assert_eq!((sda.model.as_str(), sda.wwid.as_str(), sda.transport), ("A Disk", "naa.500", "sata"));
        assert_eq!(sda.bus_path, "/pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0");
        assert_eq!(sda.sub_system, "/sys/class/block");
        assert!(sda.rotational && !sda.readonly && !sda.is_private && !sda.cdrom);
        let vda = disk_properties(root.path(), "vda");
        assert_eq!((vda.transport, vda.serial.as_str()), ("virtio", "abc123"));
        assert_eq!(vda.bus_path, "/pci0000:00/0000:00:05.0/virtio2");
        assert!(vda.readonly && vda.size == 0);
        assert!(disk_properties(root.path(), "dm-0").is_private);
    }
}
