//! Hardware inventory.

use ichor_resource_derive::ResourceSpec;

/// A memory module as SMBIOS describes it.
///
/// Id: device locator, spaces turned into `-`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "MemoryModules.hardware.talos.dev", namespace = "hardware")]
#[resource(proto = "talos.resource.definitions.hardware.MemoryModuleSpec")]
#[resource(aliases("memorymodules", "ram"))]
#[resource(columns(
    ("Manufacturer", "{.manufacturer}"),
    ("Model", "{.productName}"),
    ("SizeMiB", "{.sizeMiB}"),
))]
pub struct MemoryModule {
    #[spec(1, "sizeMiB", omit)]
    pub size_mib: u32,
    #[spec(2, "deviceLocator", omit)]
    pub device_locator: String,
    #[spec(3, "bankLocator", omit)]
    pub bank_locator: String,
    #[spec(4, "speed", omit)]
    pub speed: u32,
    #[spec(5, "manufacturer", omit)]
    pub manufacturer: String,
    #[spec(6, "serialNumber", omit)]
    pub serial_number: String,
    #[spec(7, "assetTag", omit)]
    pub asset_tag: String,
    #[spec(8, "productName", omit)]
    pub product_name: String,
}

/// A PCI device.
///
/// Id: bus address, e.g. `0000:00:1f.2`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "PCIDevices.hardware.talos.dev", namespace = "hardware")]
#[resource(proto = "talos.resource.definitions.hardware.PCIDeviceSpec")]
#[resource(aliases("devices", "device"))]
#[resource(columns(
    ("Class", "{.class}"),
    ("Subclass", "{.subclass}"),
    ("Vendor", "{.vendor}"),
    ("Product", "{.product}"),
))]
pub struct PCIDevice {
    #[spec(1, "class", omit)]
    pub class: String,
    #[spec(2, "subclass", omit)]
    pub subclass: String,
    #[spec(3, "vendor", omit)]
    pub vendor: String,
    #[spec(4, "product", omit)]
    pub product: String,
    #[spec(5, "class_id")]
    pub class_id: String,
    #[spec(6, "subclass_id")]
    pub subclass_id: String,
    #[spec(7, "vendor_id")]
    pub vendor_id: String,
    #[spec(8, "product_id")]
    pub product_id: String,
    #[spec(9, "driver", omit)]
    pub driver: String,
}

/// Ask to move a PCI device to another driver.
///
/// Id: PCI id.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "PCIDriverRebindConfigs.runtime.talos.dev", namespace = "hardware")]
#[resource(proto = "talos.resource.definitions.hardware.PCIDriverRebindConfigSpec")]
#[resource(columns(("Name", "{.name}"), ("PCI ID", "{.pciID}"), ("TargetDriver", "{.targetDriver}")))]
pub struct PCIDriverRebindConfig {
    #[spec(1, "pciID")]
    pub pci_id: String,
    #[spec(2, "targetDriver")]
    pub target_driver: String,
}

/// The rebinding was done.
///
/// Id: PCI id.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "PCIDriverRebindStatuses.runtime.talos.dev", namespace = "hardware")]
#[resource(proto = "talos.resource.definitions.hardware.PCIDriverRebindStatusSpec")]
#[resource(aliases("pcidriverrebinds"))]
#[resource(columns(("Name", "{.name}"), ("PCI ID", "{.pciID}"), ("TargetDriver", "{.targetDriver}")))]
pub struct PCIDriverRebindStatus {
    #[spec(1, "pciID")]
    pub pci_id: String,
    #[spec(2, "targetDriver")]
    pub target_driver: String,
}

/// Lock object for a TPM PCR: finalizers on it hold back extending the PCR.
///
/// Id: PCR number, `11`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "PCRStatuses.hardware.talos.dev", namespace = "hardware")]
pub struct PCRStatus {}

/// A CPU socket as SMBIOS describes it.
///
/// Id: socket designation, spaces turned into `-`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "Processors.hardware.talos.dev", namespace = "hardware")]
#[resource(proto = "talos.resource.definitions.hardware.ProcessorSpec")]
#[resource(aliases("cpus", "cpu"))]
#[resource(columns(
    ("Manufacturer", "{.manufacturer}"),
    ("Model", "{.productName}"),
    ("Cores", "{.coreCount}"),
    ("Threads", "{.threadCount}"),
))]
pub struct Processor {
    #[spec(1, "socket", omit)]
    pub socket: String,
    #[spec(2, "manufacturer", omit)]
    pub manufacturer: String,
    #[spec(3, "productName", omit)]
    pub product_name: String,
    #[spec(4, "maxSpeedMhz", omit)]
    pub max_speed_mhz: u32,
    #[spec(5, "bootSpeedMhz", omit)]
    pub boot_speed_mhz: u32,
    #[spec(6, "status", omit)]
    pub status: u32,
    #[spec(7, "serialNumber", omit)]
    pub serial_number: String,
    #[spec(8, "assetTag", omit)]
    pub asset_tag: String,
    #[spec(9, "partNumber", omit)]
    pub part_number: String,
    #[spec(10, "coreCount", omit)]
    pub core_count: u32,
    #[spec(11, "coreEnabled", omit)]
    pub core_enabled: u32,
    #[spec(12, "threadCount", omit)]
    pub thread_count: u32,
}

/// SMBIOS system identity.
///
/// Id: `systeminformation`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "SystemInformations.hardware.talos.dev", namespace = "hardware")]
#[resource(proto = "talos.resource.definitions.hardware.SystemInformationSpec")]
#[resource(aliases("systeminformation"))]
#[resource(columns(
    ("Manufacturer", "{.manufacturer}"),
    ("ProductName", "{.productName}"),
    ("Version", "{.version}"),
    ("SerialNumber", "{.serialnumber}"),
    ("UUID", "{.uuid}"),
    ("WakeUpType", "{.wakeUpType}"),
    ("SKUNumber", "{.skuNumber}"),
))]
pub struct SystemInformation {
    #[spec(1, "manufacturer", omit)]
    pub manufacturer: String,
    #[spec(2, "productName", omit)]
    pub product_name: String,
    #[spec(3, "version", omit)]
    pub version: String,
    #[spec(4, "serialnumber", omit)]
    pub serialnumber: String,
    #[spec(5, "uuid", omit)]
    pub uuid: String,
    #[spec(6, "wakeUpType", omit)]
    pub wake_up_type: String,
    #[spec(7, "skuNumber", omit)]
    pub sku_number: String,
}
