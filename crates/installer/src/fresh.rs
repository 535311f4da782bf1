//! A first installation: everything is planned as content, written, read back, and only then given a partition table. A
//! power cut before that leaves a disk without one, which is not installed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ichor_block::Guid;
use ichor_block::device::Device;
use ichor_block::gpt::Geometry;
use ichor_block::wipe;
use ichor_boot::grub::{self, EnvBlock};
use ichor_boot::plan::disk::{BootDisk, FirmwareEntry, GrubFiles, Loader, NewSystem, SdBootFiles};
use ichor_boot::plan::{Asset, Content as FileContent, Port, Step, Volume, execute};
use ichor_boot::sdboot::{self, HardDrive, LoadOption, load_option};
use ichor_image::disk::{BIOS_SIZE, BOOT_SIZE, EFI_SIZE, meta_partition};
use ichor_image::{Arch, Content, fat};

use crate::artifacts::Artifacts;
use crate::error::InstallError;
use crate::layout::{self, Firmware, Layout};
use crate::writer;

/// What is left free beside two systems: directories, boot loader, configuration.
const SPARE: u64 = 8 << 20;

/// What is installed, and for what.
#[derive(Debug, Clone)]
pub struct Fresh<'a> {
    /// The parts.
    pub artifacts: &'a Artifacts,
    /// The kind of processor.
    pub arch: Arch,
    /// What starts the machine.
    pub firmware: Firmware,
    /// The command line, for GRUB.
    pub cmdline: String,
    /// Marks the disk for firmware that looks for an active partition.
    pub legacy_bootable: bool,
    /// Values of META.
    pub meta: &'a BTreeMap<u8, Vec<u8>>,
    /// The numbers and values of the firmware's boot entries.
    pub entries: &'a [(u16, Vec<u8>)],
}

/// A disk that is about to be written.
#[derive(Debug)]
pub struct FreshPlan {
    /// The partitions.
    pub layout: Layout,
    /// What goes where, with names for messages.
    pub parts: Vec<(&'static str, u64, Content)>,
    /// The code of the first sector.
    pub boot_code: Option<Content>,
    /// Variables of the firmware, set when everything else is done.
    pub variables: Vec<Step>,
}

/// Turns the steps of an installation into files and values.
#[derive(Default)]
struct Collector {
    assets: BTreeMap<Asset, Content>,
    files: BTreeMap<(Volume, String), Content>,
    meta: BTreeMap<u8, Vec<u8>>,
    variables: Vec<Step>,
}

#[derive(Debug, thiserror::Error)]
#[error("a first installation does not {0}")]
struct Unplanned(String);

impl Port for Collector {
    type Error = Unplanned;

    fn carry_out(&mut self, step: &Step) -> Result<(), Unplanned> {
        let unplanned = || Unplanned(step.to_string());
        match step {
            Step::Write { volume, path, content } => {
                let content = match content {
                    FileContent::Bytes(bytes) => Content::bytes(bytes.as_slice()),
                    FileContent::Asset(asset) => self.assets.get(asset).cloned().ok_or_else(unplanned)?,
                };
                self.files.insert((*volume, path.clone()), content);
            }
            Step::SetVariable { .. } | Step::DeleteVariable { .. } => self.variables.push(step.clone()),
            Step::SetMeta { key, value } => {
                self.meta.insert(*key, value.clone());
            }
            Step::DeleteMeta { key } => {
                self.meta.remove(key);
            }
            Step::Delete { volume, path } => {
                self.files.remove(&(*volume, path.clone()));
            }
            // Everything is flushed and compared at the end.
            Step::Verify { .. } | Step::Flush { .. } => {}
            Step::Overwrite { .. } | Step::Exchange { .. } | Step::Wipe { .. } => return Err(unplanned()),
        }
        Ok(())
    }
}

impl Collector {
    fn tree(&self, wanted: Volume) -> Result<fat::Tree, ichor_image::Error> {
        let mut tree = fat::Tree::default();
        for ((volume, path), content) in &self.files {
            if *volume == wanted {
                tree.file(path, content.clone())?;
            }
        }
        Ok(tree)
    }
}

impl Fresh<'_> {
    /// Lays the disk out and fills it, in memory.
    ///
    /// # Errors
    /// When the disk is too small, the system too large, or a part is missing.
    pub fn plan(
        &self,
        geometry: Geometry,
        guid: impl FnMut() -> std::io::Result<Guid>,
    ) -> Result<FreshPlan, InstallError> {
        self.check_sizes()?;
        let layout = layout::plan(geometry, self.firmware, self.legacy_bootable, guid)?;
        let mut collector = Collector::default();
        let artifacts = self.artifacts;
        collector.assets.extend([
            (Asset::Uki, artifacts.uki.clone()),
            (Asset::Kernel, artifacts.kernel.clone()),
            (Asset::Initramfs, artifacts.initramfs.clone()),
        ]);
        let loader = match self.firmware {
            Firmware::Uefi => {
                let sd_boot = artifacts.sd_boot.clone().ok_or(InstallError::NoLoader("systemd-boot"))?;
                collector.assets.insert(Asset::Loader, sd_boot);
                Loader::SdBoot(SdBootFiles::default())
            }
            Firmware::Bios => Loader::Grub(GrubFiles::default()),
        };
        let system = NewSystem {
            name: artifacts.name.clone(),
            tag: artifacts.tag.clone(),
            cmdline: self.cmdline.clone(),
        };
        let entry = self.firmware_entry(&layout);
        let (_, steps) = BootDisk::install(loader, &system, &self.arch.to_string(), entry.as_ref())?;
        execute(&steps, &mut collector).map_err(|error| InstallError::Disk {
            what: "plan the installation of",
            path: PathBuf::from("the disk"),
            source: std::io::Error::other(crate::error::chain(&error)),
        })?;
        self.fill(layout, collector)
    }

    /// The firmware's entry for the new disk.
    fn firmware_entry(&self, layout: &Layout) -> Option<FirmwareEntry> {
        if self.firmware == Firmware::Bios {
            return None;
        }
        let (number, delete) = load_option::choose(self.entries, sdboot::BOOT_ENTRY)?;
        let efi = layout.table.partitions().get(&layout.efi)?;
        let drive =
            HardDrive { number: layout.efi, start: efi.first, len: efi.sectors(), guid: efi.guid.to_bytes() };
        let file = format!("\\{}", sdboot::loader_path(&self.arch.to_string())?.replace('/', "\\"));
        let option = LoadOption { description: sdboot::BOOT_ENTRY.to_owned(), drive, file };
        Some(FirmwareEntry { number, delete, option })
    }

    /// Two systems have to fit: the one that runs and the one that is written.
    fn check_sizes(&self) -> Result<(), InstallError> {
        let (what, place, len, size) = match self.firmware {
            Firmware::Uefi => ("the kernel image", "the EFI partition", self.artifacts.uki.len(), EFI_SIZE),
            Firmware::Bios => {
                let len = self.artifacts.kernel.len() + self.artifacts.initramfs.len();
                ("kernel and initramfs", "the BOOT partition", len, BOOT_SIZE)
            }
        };
        let room = (size - SPARE) / 2;
        match len <= room {
            true => Ok(()),
            false => Err(InstallError::TooLarge { what, len, place, room }),
        }
    }

    fn fill(&self, layout: Layout, mut collector: Collector) -> Result<FreshPlan, InstallError> {
        let place = |number: u32| layout.table.offset_and_size(number).unwrap_or_default();
        let id = layout.table.disk_guid().to_bytes();
        let volume_id = u32::from_le_bytes([id[0], id[1], id[2], id[3]]);
        let mut parts = Vec::new();
        let mut boot_code = None;
        if let Some(partitions) = layout.grub {
            let code = self.artifacts.grub.as_ref().ok_or(InstallError::NoLoader("GRUB for a BIOS"))?;
            let (at, _) = place(partitions.bios);
            let (first, mut core) = code.place(at / 512, BIOS_SIZE)?;
            // What is behind the core would be taken for more of it.
            if !core.extend_to(BIOS_SIZE) {
                return Err(InstallError::NoLoader("GRUB that fits its partition"));
            }
            boot_code = Some(first);
            parts.push(("BIOS", at, core));
            let env = EnvBlock::default().encode().map_err(ichor_boot::plan::disk::PlanError::from)?;
            collector.files.insert((Volume::Boot, grub::ENV_PATH.to_owned()), Content::bytes(env));
            if let (Some(efi), Some(path)) =
                (&self.artifacts.grub_efi, sdboot::loader_path(&self.arch.to_string()))
            {
                collector.files.insert((Volume::Efi, path.to_owned()), efi.clone());
            }
            let (at, size) = place(partitions.boot);
            let files = collector.tree(Volume::Boot)?;
            parts.push(("BOOT", at, fat::filesystem(size, "BOOT", !volume_id, &files)?.content));
        }
        let (at, size) = place(layout.efi);
        let files = collector.tree(Volume::Efi)?;
        parts.push(("EFI", at, fat::filesystem(size, "EFI", volume_id, &files)?.content));
        // The record of the slots is the installer's own; everything else is the caller's.
        let mut meta = self.meta.clone();
        meta.append(&mut collector.meta);
        parts.push(("META", place(layout.meta).0, whole(meta_partition(&meta)?)?));
        Ok(FreshPlan { layout, parts, boot_code, variables: collector.variables })
    }
}

/// The same bytes with zeros as bytes: META that is left over from before must not show.
fn whole(content: Content) -> Result<Content, ichor_image::Error> {
    const META_MAX: u64 = 1 << 20;
    Ok(Content::bytes(content.read(META_MAX)?))
}

impl FreshPlan {
    /// Writes the disk, which the caller has locked. Whatever was on it is gone.
    ///
    /// # Errors
    /// The disk's; it has no partition table then.
    pub fn write(&self, disk: &Device, mut told: impl FnMut(&str)) -> Result<(), InstallError> {
        let path = disk.path().to_owned();
        let at = |what: &'static str| {
            let path = path.clone();
            move |source| InstallError::Disk { what, path, source }
        };
        told(&format!("wiping {}", path.display()));
        wipe::fast(disk).map_err(at("wipe"))?;
        for (name, start, content) in &self.parts {
            told(&format!("writing partition {name}"));
            writer::write(disk.file(), *start, content).map_err(at("write"))?;
        }
        told("reading everything back");
        for (name, start, content) in &self.parts {
            if !writer::holds(disk.file(), *start, content).map_err(at("read back"))? {
                return Err(InstallError::Differs { path, what: name });
            }
        }
        if let Some(code) = &self.boot_code {
            writer::write(disk.file(), 0, code).map_err(at("write the boot code of"))?;
        }
        let table = |source| InstallError::Table { path: path.clone(), source };
        told("writing the partition table");
        disk.write_table(&self.layout.table).map_err(table)?;
        let found = disk.table().map_err(table)?.map(|(found, _)| found);
        if found.as_ref().map(|found| found.partitions()) != Some(self.layout.table.partitions()) {
            return Err(InstallError::Differs { path, what: "the partition table" });
        }
        Ok(())
    }
}

/// The boot entries of the firmware, from efivarfs.
pub fn boot_entries(variables: Option<&Path>) -> Vec<(u16, Vec<u8>)> {
    let Some(folder) = variables else { return Vec::new() };
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files
        .filter_map(|file| {
            let name = file.file_name().into_string().ok()?;
            let digits = name.strip_prefix("Boot")?.split_once('-')?.0;
            let number = u16::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 4)?;
            let value = std::fs::read(file.path()).ok()?;
            Some((number, sdboot::variable::decode(&value)?.to_vec()))
        })
        .collect()
}
