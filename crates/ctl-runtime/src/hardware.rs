//! What the machine is made of.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use ichor_config::Document;
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, strong, weak};
use ichor_ctl::{Configuration, active_input};
use ichor_resource::hardware::{
    MemoryModule, PCIDevice, PCIDriverRebindConfig, PCIDriverRebindStatus, Processor, SystemInformation,
};
use ichor_resource::runtime::{DevicesStatus, MetaKey, MetaLoad};
use ichor_resource::v1alpha1::Service;
use ichor_sys::{pci, smbios};
use tracing::warn;

use crate::ports::Files;

/// The META key that replaces the UUID of the firmware.
const UUID_OVERRIDE: &str = "0x0f";

/// Writes `SystemInformations`, `Processors` and `MemoryModules`, once META has been read. The firmware's tables
/// do not change, so they are read once.
#[derive(Debug)]
pub struct SystemInfoController {
    root: PathBuf,
    done: bool,
}

impl SystemInfoController {
    /// A controller that looks under this root.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), done: false }
    }

    async fn tables(&self) -> Result<Option<smbios::Tables>, ControllerError> {
        let root = self.root.clone();
        Ok(tokio::task::spawn_blocking(move || smbios::read(&root)).await??)
    }
}

impl Controller for SystemInfoController {
    const NAME: &'static str = "hardware.SystemInfoController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<MetaKey>(), weak::<MetaLoad>().id("meta-loaded")]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<Processor>(), exclusive::<MemoryModule>(), exclusive::<SystemInformation>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        if ctx.get::<MetaLoad>("meta-loaded")?.is_none() {
            return Ok(());
        }
        let uuid = ctx.get::<MetaKey>(UUID_OVERRIDE)?.map(|key| key.value.clone());
        if !self.done || uuid.is_some() {
            let Some(tables) = self.tables().await? else { return Ok(()) };
            ctx.publish(by_id(tables.processors.iter().map(processor)))?;
            ctx.publish(by_id(tables.memory.iter().map(memory)))?;
            if let Some(system) = &tables.system {
                let spec = system_information(system, uuid.as_deref());
                ctx.modify::<SystemInformation>("systeminformation", |stored| stored.clone_from(&spec))?;
            }
            // With an override the firmware's UUID is asked for again when the override goes.
            self.done = uuid.is_none();
        }
        Ok(())
    }
}

/// Firmware that gives two things one name gets one of them shown.
fn by_id<T>(entries: impl Iterator<Item = (String, T)>) -> BTreeMap<String, T> {
    entries.filter(|(id, _)| !id.is_empty()).collect()
}

fn system_information(system: &smbios::System, uuid: Option<&str>) -> SystemInformation {
    SystemInformation {
        manufacturer: system.manufacturer.clone(),
        product_name: system.product_name.clone(),
        version: system.version.clone(),
        serialnumber: system.serial_number.clone(),
        uuid: uuid.unwrap_or(&system.uuid).to_owned(),
        wake_up_type: system.wake_up_type.to_owned(),
        sku_number: system.sku_number.clone(),
    }
}

fn processor(found: &smbios::Processor) -> (String, Processor) {
    let id = found.socket.replace(' ', "-");
    if !found.populated {
        return (id, Processor::default());
    }
    let spec = Processor {
        socket: found.socket.clone(),
        manufacturer: found.manufacturer.clone(),
        product_name: found.product_name.clone(),
        max_speed_mhz: found.max_speed_mhz.into(),
        boot_speed_mhz: found.boot_speed_mhz.into(),
        status: found.status.into(),
        serial_number: found.serial_number.clone(),
        asset_tag: found.asset_tag.clone(),
        part_number: found.part_number.clone(),
        core_count: found.core_count.into(),
        core_enabled: found.core_enabled.into(),
        thread_count: found.thread_count.into(),
    };
    (id, spec)
}

fn memory(found: &smbios::MemoryModule) -> (String, MemoryModule) {
    let id = found.device_locator.replace(' ', "-");
    let spec = found.size_mib.map(|size_mib| MemoryModule {
        size_mib,
        device_locator: found.device_locator.clone(),
        bank_locator: found.bank_locator.clone(),
        speed: found.speed.into(),
        manufacturer: found.manufacturer.clone(),
        serial_number: found.serial_number.clone(),
        asset_tag: found.asset_tag.clone(),
        product_name: found.part_number.clone(),
    });
    (id, spec.unwrap_or_default())
}

/// Writes `PCIDevices`, once the device manager has settled or where there is none.
#[derive(Debug)]
pub struct PCIDevicesController {
    root: PathBuf,
    device_manager: bool,
    done: bool,
}

impl PCIDevicesController {
    /// A controller that looks under this root.
    pub fn new(root: impl Into<PathBuf>, device_manager: bool) -> Self {
        Self { root: root.into(), device_manager, done: false }
    }
}

impl Controller for PCIDevicesController {
    const NAME: &'static str = "hardware.PCIDevicesController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<Service>().id("udevd")]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<PCIDevice>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let settled = !self.device_manager
            || ctx.get::<Service>("udevd")?.is_some_and(|service| service.running && service.healthy);
        if self.done || !settled {
            return Ok(());
        }
        let root = self.root.clone();
        let found = tokio::task::spawn_blocking(move || -> io::Result<_> {
            let devices = pci::devices(&root)?;
            let names = pci::Names::of(&root, &devices);
            Ok(devices.iter().map(|device| (device.address.clone(), pci_device(device, &names))).collect())
        });
        let devices: Vec<(String, PCIDevice)> = found.await??;
        ctx.publish(devices)?;
        self.done = true;
        Ok(())
    }
}

fn pci_device(device: &pci::Device, names: &pci::Names) -> PCIDevice {
    PCIDevice {
        class: names.class(device).to_owned(),
        subclass: names.subclass(device).to_owned(),
        vendor: names.vendor(device).to_owned(),
        product: names.product(device).to_owned(),
        class_id: format!("0x{:02x}", device.class),
        subclass_id: format!("0x{:02x}", device.subclass),
        vendor_id: format!("0x{:04x}", device.vendor),
        product_id: format!("0x{:04x}", device.product),
        driver: device.driver.clone(),
    }
}

/// Writes `PCIDriverRebindConfigs` from the documents of that name.
#[derive(Debug, Default)]
pub struct PCIDriverRebindConfigController;

impl Controller for PCIDriverRebindConfigController {
    const NAME: &'static str = "hardware.PCIDriverRebindConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<PCIDriverRebindConfig>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let documents = Configuration::active(ctx)?;
        let wanted = documents.iter().flat_map(|all| all.iter()).filter_map(|document| match document {
            Document::PCIDriverRebindConfig(config) => Some((
                config.name.clone(),
                PCIDriverRebindConfig {
                    pci_id: config.name.clone(),
                    target_driver: config.target_driver.clone(),
                },
            )),
            _ => None,
        });
        Ok(ctx.publish(wanted)?)
    }
}

/// Moves PCI devices to other drivers and writes `PCIDriverRebindStatuses`.
#[derive(Debug)]
pub struct PCIDriverRebindController<F> {
    files: F,
}

impl<F: Files> PCIDriverRebindController<F> {
    /// A controller that writes these files.
    pub fn new(files: F) -> Self {
        Self { files }
    }

    /// Binds the device to `driver`; to the one the kernel would choose when that is a newline.
    fn bind(&self, device: &str, driver: &str) -> io::Result<()> {
        if device.is_empty() || device.contains('/') || device.contains("..") {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{device:?} is no PCI address")));
        }
        let folder = format!("/sys/bus/pci/devices/{device}");
        self.files.write(&format!("{folder}/driver_override"), driver.as_bytes())?;
        match self.files.write(&format!("{folder}/driver/unbind"), device.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        self.files.write("/sys/bus/pci/drivers_probe", device.as_bytes())
    }
}

impl<F: Files> Controller for PCIDriverRebindController<F> {
    const NAME: &'static str = "hardware.PCIDriverRebindController";

    fn inputs(&self) -> Vec<Input> {
        vec![strong::<PCIDriverRebindConfig>(), weak::<DevicesStatus>().id("devices")]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<PCIDriverRebindStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        if !ctx.get::<DevicesStatus>("devices")?.is_some_and(|devices| devices.ready) {
            return Ok(());
        }
        let wanted = ctx.list::<PCIDriverRebindConfig>()?;
        let bound = ctx.list::<PCIDriverRebindStatus>()?;
        for status in &bound {
            if !wanted.iter().any(|config| config.id() == status.id()) {
                if let Err(error) = self.bind(&status.pci_id, "\n") {
                    warn!(device = %status.id(), %error, "the device keeps its driver");
                }
                ctx.destroy::<PCIDriverRebindStatus>(status.id())?;
            }
        }
        for config in &wanted {
            let same = |status: &&ichor_cosi::Typed<PCIDriverRebindStatus>| {
                status.id() == config.id() && status.target_driver == config.target_driver
            };
            if bound.iter().find(same).is_none() {
                self.bind(&config.pci_id, &config.target_driver)?;
                ctx.modify::<PCIDriverRebindStatus>(config.id(), |spec| {
                    spec.pci_id.clone_from(&config.pci_id);
                    spec.target_driver.clone_from(&config.target_driver);
                })?;
            }
        }
        Ok(())
    }
}
