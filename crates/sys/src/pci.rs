//! Devices on the PCI bus, and their names where a list of names is at hand.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

/// Where the kernel lists the devices.
const DEVICES: &str = "sys/bus/pci/devices";

/// Where a list of names may be.
const NAMES: [&str; 2] = ["usr/share/hwdata/pci.ids", "usr/share/misc/pci.ids"];

/// Devices looked at.
const DEVICES_MAX: usize = 4096;

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Its address, as `0000:00:1f.2`.
    pub address: String,
    /// What kind of device.
    pub class: u8,
    /// What of that kind.
    pub subclass: u8,
    /// Who made it.
    pub vendor: u16,
    /// Which of theirs.
    pub product: u16,
    /// The driver bound to it, empty for none.
    pub driver: String,
}

/// Names by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    vendors: BTreeMap<u16, String>,
    products: BTreeMap<(u16, u16), String>,
    classes: BTreeMap<u8, String>,
    subclasses: BTreeMap<(u8, u8), String>,
}

/// The devices of the machine under `root`, by address. A machine without the bus has none.
pub fn devices(root: &Path) -> io::Result<Vec<Device>> {
    let folder = match std::fs::read_dir(root.join(DEVICES)) {
        Ok(folder) => folder,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut devices: Vec<Device> =
        folder.take(DEVICES_MAX).filter_map(|entry| device(&entry.ok()?.path())).collect();
    devices.sort_by(|a, b| a.address.cmp(&b.address));
    Ok(devices)
}

/// A device that went away while it was looked at is none.
fn device(path: &Path) -> Option<Device> {
    let number = |name: &str| {
        let text = std::fs::read_to_string(path.join(name)).ok()?;
        u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
    };
    let class = number("class")?;
    let driver = std::fs::read_link(path.join("driver")).ok();
    let base = |path: &Path| Some(path.file_name()?.to_string_lossy().into_owned());
    Some(Device {
        address: base(path)?,
        class: (class >> 16) as u8,
        subclass: (class >> 8) as u8,
        vendor: number("vendor")? as u16,
        product: number("device")? as u16,
        driver: driver.and_then(|driver| base(&driver)).unwrap_or_default(),
    })
}

impl Names {
    /// Names of these devices, from the list of the system under `root` if it has one.
    pub fn of(root: &Path, devices: &[Device]) -> Self {
        let file = NAMES.iter().find_map(|path| std::fs::File::open(root.join(path)).ok());
        let mut names = Self::built_in(devices);
        if let Some(file) = file {
            // Half a list is better than none.
            let _ = names.fill(BufReader::new(file), devices);
        }
        names
    }

    fn built_in(devices: &[Device]) -> Self {
        let mut names = Self::default();
        for device in devices {
            let class = crate::pci_names::class(device.class);
            if !class.is_empty() {
                names.classes.insert(device.class, class.to_owned());
            }
            let subclass = crate::pci_names::subclass(device.class, device.subclass);
            if !subclass.is_empty() {
                names.subclasses.insert((device.class, device.subclass), subclass.to_owned());
            }
            let vendor = crate::pci_names::vendor(device.vendor);
            if !vendor.is_empty() {
                names.vendors.insert(device.vendor, vendor.to_owned());
            }
        }
        names
    }

    /// Takes what these devices need from a list in the form of `pci.ids`: vendors, their products below them
    /// behind one tab; classes behind `C `, subclasses below them.
    pub fn fill(&mut self, list: impl BufRead, devices: &[Device]) -> io::Result<()> {
        enum Block {
            Vendor(u16),
            Class(u8),
            Skip,
        }
        let mut block = Block::Skip;
        for line in list.lines() {
            let line = line?;
            if line.is_empty() || line.starts_with('#') || line.starts_with("\t\t") {
                continue;
            }
            let (nested, text) = match line.strip_prefix('\t') {
                Some(text) => (true, text),
                None => (false, line.as_str()),
            };
            let (is_class, text) = match text.strip_prefix("C ") {
                Some(text) if !nested => (true, text),
                _ => (false, text),
            };
            let Some((id, name)) = text.split_once("  ") else { continue };
            let Ok(id) = u16::from_str_radix(id, 16) else { continue };
            let name = || name.trim().to_owned();
            if nested {
                match block {
                    Block::Vendor(vendor)
                        if devices.iter().any(|d| (d.vendor, d.product) == (vendor, id)) =>
                    {
                        self.products.insert((vendor, id), name());
                    }
                    Block::Class(class)
                        if devices.iter().any(|d| (d.class, u16::from(d.subclass)) == (class, id)) =>
                    {
                        self.subclasses.insert((class, id as u8), name());
                    }
                    Block::Vendor(_) | Block::Class(_) | Block::Skip => {}
                }
            } else if is_class {
                block = Block::Class(id as u8);
                if devices.iter().any(|device| u16::from(device.class) == id) {
                    self.classes.insert(id as u8, name());
                }
            } else {
                block = Block::Vendor(id);
                if devices.iter().any(|device| device.vendor == id) {
                    self.vendors.insert(id, name());
                }
            }
        }
        Ok(())
    }

    /// The name of the device's class, empty when unknown. The others likewise.
    pub fn class(&self, device: &Device) -> &str {
        self.classes.get(&device.class).map_or("", String::as_str)
    }

    /// The name of what the device is within its class.
    pub fn subclass(&self, device: &Device) -> &str {
        self.subclasses.get(&(device.class, device.subclass)).map_or("", String::as_str)
    }

    /// The name of who made the device.
    pub fn vendor(&self, device: &Device) -> &str {
        self.vendors.get(&device.vendor).map_or("", String::as_str)
    }

    /// The name of the device itself.
    pub fn product(&self, device: &Device) -> &str {
        self.products.get(&(device.vendor, device.product)).map_or("", String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join(DEVICES).join("0000:00:03.0");
        std::fs::create_dir_all(&device).unwrap();
        for (name, text) in [("class", "0x020000\n"), ("vendor", "0x1af4\n"), ("device", "0x1041\n")] {
            std::fs::write(device.join(name), text).unwrap();
        }
        std::os::unix::fs::symlink("../../../bus/pci/drivers/virtio-pci", device.join("driver")).unwrap();
        std::fs::create_dir_all(root.path().join(DEVICES).join("0000:00:04.0")).unwrap();
        root
    }

    #[test]
    fn devices_are_read_and_what_is_half_there_is_not() {
        let root = fixture();
        expect_test::expect![[r#"
            [
                Device {
                    address: "0000:00:03.0",
                    class: 2,
                    subclass: 0,
                    vendor: 6900,
                    product: 4161,
                    driver: "virtio-pci",
                },
            ]
        "#]]
        .assert_debug_eq(&devices(root.path()).unwrap());
        assert_eq!(devices(Path::new("/nowhere")).unwrap(), []);
    }

    #[test]
    fn names_come_from_the_list_and_some_are_known_anyway() {
        let root = fixture();
        let devices = devices(root.path()).unwrap();
        let of = |names: &Names| {
            let device = &devices[0];
            [names.class(device), names.subclass(device), names.vendor(device), names.product(device)]
                .map(str::to_owned)
        };
        assert_eq!(
            of(&Names::of(root.path(), &devices)),
            ["Network controller", "Ethernet controller", "Red Hat, Inc.", ""]
        );
        let list = root.path().join(NAMES[0]);
        std::fs::create_dir_all(list.parent().unwrap()).unwrap();
        std::fs::write(
            &list,
            "# a list\n1af4  A vendor\n\t1041  A product\n\t\t1af4 0001  a subsystem\nodd\n\
             8086  Another\n\t1041  Not this one\nC 02  A class\n\t00  A subclass\n\t\t01  an interface\n",
        )
        .unwrap();
        assert_eq!(of(&Names::of(root.path(), &devices)), ["A class", "A subclass", "A vendor", "A product"]);
    }
}
