//! `machine.install`.

use crate::{
    model::{List, section},
    values::SizeMatcher,
};

section! {
    /// How the system is installed on a disk.
    pub struct InstallConfig {
        /// The disk.
        @example("disk: /dev/sda")
        "disk" => disk: String,
        /// Selects the disk by its properties; wins over `disk`.
        @example("diskSelector:\n    size: '>= 100GB'\n    model: WDC*")
        "diskSelector" => disk_selector: Option<DiskSelector>,
        /// Additional kernel arguments.
        @deprecated("build them into the boot image")
        "extraKernelArgs" => extra_kernel_args: List<String>,
        /// The installer image.
        @example("image: ghcr.io/siderolabs/installer:v1.12.1")
        "image" => image: String,
        /// System extensions.
        @deprecated("build them into the boot image")
        "extensions" => extensions: List<InstallExtension>,
        /// Has no effect.
        @deprecated("leave it out")
        "bootloader" => bootloader: Option<bool>,
        /// Wipe the disk first.
        @always
        @default("false")
        "wipe" => wipe: Option<bool>,
        /// Mark the partition as bootable for old firmware.
        @default("false")
        "legacyBIOSSupport" => legacy_bios_support: Option<bool>,
        /// Take the kernel command line from the unified kernel image when booting with GRUB.
        @default("false")
        "grubUseUKICmdline" => grub_use_uki_cmdline: Option<bool>,
    }
}

section! {
    /// A system extension.
    pub struct InstallExtension {
        /// Its image.
        @always
        "image" => image: String,
    }
}

section! {
    /// Selects a disk by its properties; texts may contain wildcards.
    pub struct DiskSelector {
        /// Condition on its size.
        @example("size: '>= 100GB'")
        "size" => size: Option<SizeMatcher>,
        /// Not supported.
        "name" => name: String,
        /// Model.
        "model" => model: String,
        /// Serial number.
        "serial" => serial: String,
        /// Module alias.
        "modalias" => modalias: String,
        /// UUID.
        "uuid" => uuid: String,
        /// World wide identifier.
        "wwid" => wwid: String,
        /// Kind of disk: `ssd`, `hdd`, `nvme`, `sd`.
        "type" => disk_type: String,
        /// Path on its bus.
        "busPath" => bus_path: String,
    }
}

impl DiskSelector {
    /// The expression over `disk` that this selector stands for.
    pub fn expression(&self) -> Result<String, String> {
        let mut parts = Vec::new();
        if let Some(size) = &self.size {
            parts.push(format!("disk.size {} {}u", size.operator.as_str(), size.bytes));
        }
        if !self.name.is_empty() {
            return Err("selector on name is not supported".to_owned());
        }
        let globs = [
            ("uuid", &self.uuid),
            ("wwid", &self.wwid),
            ("model", &self.model),
            ("serial", &self.serial),
            ("modalias", &self.modalias),
        ];
        let glob = |field: &str, pattern: &str| format!("glob({pattern:?}, disk.{field})");
        let set = globs.into_iter().filter(|(_, pattern)| !pattern.is_empty());
        parts.extend(set.map(|(field, pattern)| glob(field, pattern)));
        // Without a transport it could be a mapped device.
        parts.push("disk.transport != \"\"".to_owned());
        parts.extend(match self.disk_type.as_str() {
            "" => None,
            "nvme" => Some("disk.transport == \"nvme\"".to_owned()),
            "sd" => Some("disk.transport == \"mmc\"".to_owned()),
            "hdd" => Some("disk.rotational".to_owned()),
            "ssd" => Some("!disk.rotational".to_owned()),
            other => return Err(format!("unsupported disk type {other:?}")),
        });
        if !self.bus_path.is_empty() {
            parts.push(glob("bus_path", &self.bus_path));
        }
        parts.push("!disk.readonly".to_owned());
        parts.push("!disk.cdrom".to_owned());
        Ok(parts.join(" && "))
    }
}
