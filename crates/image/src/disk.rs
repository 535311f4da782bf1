//! Disk images that machines boot from: a partition table, the partitions of the boot loader, and META.
//!
//! | Loader | Partitions |
//! |---|---|
//! | systemd-boot | `EFI`, `META` |
//! | GRUB, or both | `EFI`, `BIOS`, `BOOT`, `META` |
//!
//! Neither STATE nor EPHEMERAL are there: the machine makes them when it has a configuration. The filesystem of `BOOT` is
//! FAT32, which GRUB reads and writes as well as the one that the installer makes there.

use ichor_block::Guid;
use ichor_block::gpt::{Geometry, GptError, LEGACY_BOOTABLE, NewPartition, Table};
use ichor_block::meta::tlv;

use crate::grub::DiskCode;
use crate::{Content, Error, Meta, assemble, fat, guid};

const MIB: u64 = 1 << 20;
/// The EFI partition when kernel images are on it: one that runs, one before it, one that is being written.
pub const EFI_SIZE: u64 = 2101 * MIB;
/// The EFI partition when only GRUB is on it.
pub const EFI_SMALL_SIZE: u64 = 100 * MIB;
/// GRUB's core.
pub const BIOS_SIZE: u64 = MIB;
/// Kernels and initramfs of two slots.
pub const BOOT_SIZE: u64 = 2000 * MIB;
/// The partition of META is found by exactly this size.
pub const META_SIZE: u64 = MIB;
/// The disk with systemd-boot or GRUB; the rest of a real one is used when the machine starts.
pub const DISK_SIZE: u64 = 2246 * MIB;
/// The disk with both.
pub const DISK_DUAL_SIZE: u64 = DISK_SIZE + BIOS_SIZE + BOOT_SIZE;

/// What a BIOS starts.
#[derive(Debug, Clone)]
pub struct BiosBoot {
    /// GRUB's code.
    pub code: DiskCode,
    /// What is in `BOOT`.
    pub files: fat::Tree,
}

/// A disk image to be made.
#[derive(Debug, Clone)]
pub struct Disk {
    /// Bytes of the disk.
    pub size: u64,
    /// Bytes of the EFI partition.
    pub efi_size: u64,
    /// What is on the EFI partition.
    pub efi: fat::Tree,
    /// What a BIOS starts, if it can.
    pub bios: Option<BiosBoot>,
    /// Values of META.
    pub meta: Meta,
}

impl Disk {
    /// The image. GUIDs and volume ids follow from what is in it: the same inputs give the same bytes.
    pub fn build(&self) -> Result<Content, Error> {
        let meta = meta_partition(&self.meta)?;
        let digest = self.digest(&meta)?;
        let mut plan = Partitions::new(self.size, digest)?;
        let volume_id = u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]]);
        plan.add(
            "EFI",
            Guid::EFI_SYSTEM,
            0,
            fat::filesystem(self.efi_size, "EFI", volume_id, &self.efi)?.content,
        )?;
        if let Some(bios) = &self.bios {
            let at = plan.add("BIOS", Guid::BIOS_BOOT, LEGACY_BOOTABLE, Content::zeros(BIOS_SIZE))?;
            let (boot, mut core) = bios.code.place(at / 512, BIOS_SIZE)?;
            if !core.extend_to(BIOS_SIZE) {
                return Err(Error::bad("GRUB's core", "it does not fit its partition"));
            }
            plan.replace_last(core);
            plan.parts.push((0, boot));
            let files = fat::filesystem(BOOT_SIZE, "BOOT", !volume_id, &bios.files)?;
            plan.add("BOOT", Guid::LINUX_DATA, 0, files.content)?;
        }
        plan.add("META", Guid::LINUX_DATA, 0, meta)?;
        let Partitions { table, mut parts, .. } = plan;
        parts.extend(table.encode().into_iter().flatten().map(|(at, bytes)| (at, Content::bytes(bytes))));
        assemble("disk image", parts, self.size)
    }

    fn digest(&self, meta: &Content) -> Result<[u8; 32], Error> {
        let mut text = self.size.to_le_bytes().to_vec();
        text.extend(self.efi.digest()?);
        if let Some(bios) = &self.bios {
            text.extend(ichor_pki::sha256(&bios.code.core));
            text.extend(bios.files.digest()?);
        }
        text.extend(meta.sha256()?);
        Ok(ichor_pki::sha256(&text))
    }
}

/// A table that is being filled, and what goes where.
struct Partitions {
    table: Table,
    digest: [u8; 32],
    parts: Vec<(u64, Content)>,
}

impl Partitions {
    fn new(size: u64, digest: [u8; 32]) -> Result<Self, Error> {
        let geometry = Geometry { size, sector_size: 512, io_size: 0 };
        let table = Table::new(geometry, guid(&digest, "disk")).map_err(failed)?;
        Ok(Self { table, digest, parts: Vec::new() })
    }

    /// Adds a partition of the content's size; where it begins.
    fn add(&mut self, name: &str, kind: Guid, attributes: u64, content: Content) -> Result<u64, Error> {
        let partition = NewPartition::new(name, kind, guid(&self.digest, name));
        let number = self.table.add(&partition.size(content.len()).attributes(attributes)).map_err(failed)?;
        let (start, _) = self.table.offset_and_size(number).unwrap_or_default();
        self.parts.push((start, content));
        Ok(start)
    }

    fn replace_last(&mut self, content: Content) {
        if let Some((_, last)) = self.parts.last_mut() {
            *last = content;
        }
    }
}

fn failed(error: GptError) -> Error {
    Error::bad("partition table of the disk image", error.to_string())
}

/// META with these values, both copies of them.
pub fn meta_partition(values: &Meta) -> Result<Content, Error> {
    let mut meta = Content::default();
    if !values.is_empty() {
        let copy = tlv::encode(values).ok_or_else(|| {
            let len = values.values().map(|value| value.len() as u64 + 8).sum();
            Error::TooLarge { what: "META".to_owned(), len, max: tlv::COPY_LEN as u64 - 60 }
        })?;
        meta.append_bytes(copy.clone());
        meta.append_bytes(copy);
    }
    if meta.extend_to(META_SIZE) {
        Ok(meta)
    } else {
        Err(Error::bad("META", "it is larger than its partition"))
    }
}
