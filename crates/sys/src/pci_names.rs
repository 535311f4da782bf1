//! Names of PCI classes and of the makers one meets most, for systems without the whole list.

/// What kinds of devices there are.
const CLASSES: [&str; 20] = [
    "Unclassified device",
    "Mass storage controller",
    "Network controller",
    "Display controller",
    "Multimedia controller",
    "Memory controller",
    "Bridge",
    "Communication controller",
    "Generic system peripheral",
    "Input device controller",
    "Docking station",
    "Processor",
    "Serial bus controller",
    "Wireless controller",
    "Intelligent controller",
    "Satellite communications controller",
    "Encryption controller",
    "Signal processing controller",
    "Processing accelerators",
    "Non-Essential Instrumentation",
];

const SUBCLASSES: &[(u8, u8, &str)] = &[
    (0x00, 0x00, "Non-VGA unclassified device"),
    (0x00, 0x01, "VGA compatible unclassified device"),
    (0x01, 0x00, "SCSI storage controller"),
    (0x01, 0x01, "IDE interface"),
    (0x01, 0x04, "RAID bus controller"),
    (0x01, 0x05, "ATA controller"),
    (0x01, 0x06, "SATA controller"),
    (0x01, 0x07, "Serial Attached SCSI controller"),
    (0x01, 0x08, "Non-Volatile memory controller"),
    (0x01, 0x80, "Mass storage controller"),
    (0x02, 0x00, "Ethernet controller"),
    (0x02, 0x07, "Infiniband controller"),
    (0x02, 0x08, "Fabric controller"),
    (0x02, 0x80, "Network controller"),
    (0x03, 0x00, "VGA compatible controller"),
    (0x03, 0x02, "3D controller"),
    (0x03, 0x80, "Display controller"),
    (0x04, 0x00, "Multimedia video controller"),
    (0x04, 0x01, "Multimedia audio controller"),
    (0x04, 0x03, "Audio device"),
    (0x05, 0x00, "RAM memory"),
    (0x05, 0x02, "CXL"),
    (0x05, 0x80, "Memory controller"),
    (0x06, 0x00, "Host bridge"),
    (0x06, 0x01, "ISA bridge"),
    (0x06, 0x04, "PCI bridge"),
    (0x06, 0x80, "Bridge"),
    (0x07, 0x00, "Serial controller"),
    (0x07, 0x80, "Communication controller"),
    (0x08, 0x00, "PIC"),
    (0x08, 0x05, "SD Host controller"),
    (0x08, 0x06, "IOMMU"),
    (0x08, 0x80, "System peripheral"),
    (0x0c, 0x03, "USB controller"),
    (0x0c, 0x05, "SMBus"),
    (0x0c, 0x80, "Serial bus controller"),
    (0x0d, 0x11, "Bluetooth"),
    (0x10, 0x00, "Network and computing encryption device"),
    (0x10, 0x80, "Encryption controller"),
    (0x11, 0x80, "Signal processing controller"),
    (0x12, 0x00, "Processing accelerators"),
];

const VENDORS: &[(u16, &str)] = &[
    (0x1000, "Broadcom / LSI"),
    (0x1002, "Advanced Micro Devices, Inc. [AMD/ATI]"),
    (0x1022, "Advanced Micro Devices, Inc. [AMD]"),
    (0x1028, "Dell"),
    (0x102b, "Matrox Electronics Systems Ltd."),
    (0x10de, "NVIDIA Corporation"),
    (0x10ec, "Realtek Semiconductor Co., Ltd."),
    (0x1234, "Technical Corp."),
    (0x1344, "Micron Technology Inc"),
    (0x1414, "Microsoft Corporation"),
    (0x144d, "Samsung Electronics Co Ltd"),
    (0x14e4, "Broadcom Inc. and subsidiaries"),
    (0x15ad, "VMware"),
    (0x15b3, "Mellanox Technologies"),
    (0x15b7, "Sandisk Corp"),
    (0x1a03, "ASPEED Technology, Inc."),
    (0x1ae0, "Google, Inc."),
    (0x1af4, "Red Hat, Inc."),
    (0x1b36, "Red Hat, Inc."),
    (0x1b4b, "Marvell Technology Group Ltd."),
    (0x1d0f, "Amazon.com, Inc."),
    (0x8086, "Intel Corporation"),
    (0x9005, "Adaptec"),
];

/// The name of a class, empty when unknown.
pub(crate) fn class(class: u8) -> &'static str {
    match class {
        0x40 => "Coprocessor",
        0xff => "Unassigned class",
        class => CLASSES.get(usize::from(class)).copied().unwrap_or(""),
    }
}

/// The name of a subclass, empty when unknown.
pub(crate) fn subclass(class: u8, subclass: u8) -> &'static str {
    SUBCLASSES.iter().find(|(a, b, _)| (*a, *b) == (class, subclass)).map_or("", |(_, _, name)| name)
}

/// The name of a maker, empty when unknown.
pub(crate) fn vendor(vendor: u16) -> &'static str {
    VENDORS.iter().find(|(id, _)| *id == vendor).map_or("", |(_, name)| name)
}
