//! ISO 9660 images with Rock Ridge names, which start on BIOS and UEFI, from optical drives and from USB sticks.
//!
//! ```text
//! 0        boot code of the BIOS and a partition table for those who see a disk
//! 32 KiB   volume descriptors, path tables, boot catalog, directories
//! 1 MiB    the EFI system partition, where there is one
//! …        the boot image of the BIOS, files, the copy of the partition table
//! ```

mod directory;

use std::collections::BTreeMap;

use ichor_block::Guid;
use ichor_block::gpt::{Geometry, NewPartition, Table};

use crate::{Content, Error, guid};

use directory::Directories;

const SECTOR: u64 = 2048;
/// Where descriptors begin.
const DESCRIPTORS: u64 = 16;
/// Where a partition may begin at the earliest.
const PARTITION: u64 = 1 << 20;
/// Sectors behind the last file. Boot loaders read ahead, and a drive that is asked for what lies behind its end fails the whole
/// read: GRUB then takes what is in its buffer for the file.
const PADDING: u64 = 150;
/// Room for the copy of the partition table.
const TABLE_COPY: u64 = 20 * 1024;
/// The largest EFI image of which the catalog can tell the size; more is "to the end".
const CATALOG_SECTORS_MAX: u64 = 0xffff;

/// GRUB's boot images learn here where they are, in sectors of 512 bytes.
const GRUB_MBR_PLACE: usize = 0x1b0;
const GRUB_CORE_PLACE: usize = 512 * 5 - 12;
/// The boot code before the partition table.
const BOOT_CODE: usize = 440;

/// 1980-01-01 in the form of descriptors.
const DATE: &[u8; 17] = b"1980010100000000\0";

/// How a BIOS starts the image: GRUB's core for El Torito, and the first sector for disks.
#[derive(Debug, Clone)]
pub struct Bios {
    /// Made by `grub-mkimage -O i386-pc-eltorito`.
    pub core: Vec<u8>,
    /// GRUB's `boot_hybrid.img`.
    pub hybrid: Vec<u8>,
}

/// What an image holds.
#[derive(Debug, Clone, Default)]
pub struct Iso {
    /// The volume's name: capital letters, digits and underscores.
    pub volume_id: String,
    /// Files by path.
    pub files: BTreeMap<String, Content>,
    /// How a BIOS starts it.
    pub bios: Option<Bios>,
    /// The filesystem that UEFI starts it from.
    pub efi: Option<Content>,
    /// Files that are parts of that filesystem: where they begin in it, a multiple of a sector, and how long they are.
    pub efi_parts: BTreeMap<String, (u64, u64)>,
}

impl Iso {
    /// The image.
    pub fn build(&self) -> Result<Content, Error> {
        let volume_id = self.checked_volume_id()?;
        let mut tree = Directories::new(&self.files, &self.shared()?)?;
        let bootable = self.bios.is_some() || self.efi.is_some();
        let path_tables = DESCRIPTORS + if bootable { 3 } else { 2 };
        let catalog = path_tables + 2;
        let mut at = tree.place_directories(catalog + 1);

        let mut parts: Vec<(u64, Content)> = Vec::new();
        let mut efi_at = 0;
        if let Some(efi) = &self.efi {
            efi_at = PARTITION / SECTOR;
            if at > efi_at {
                return Err(Error::bad(
                    "ISO image",
                    "too many files to have their directories in the first MiB",
                ));
            }
            at = efi_at + efi.len().div_ceil(SECTOR);
            parts.push((efi_at, efi.clone()));
        }
        let mut core_at = 0;
        if let Some(bios) = &self.bios {
            core_at = at;
            at += (bios.core.len() as u64).div_ceil(SECTOR);
            parts.push((core_at, Content::bytes(boot_image(bios, core_at)?)));
        }
        parts.extend(tree.place_files(&mut at));
        let table_copy = if self.efi.is_some() { TABLE_COPY / SECTOR } else { 0 };
        let total = at + PADDING + table_copy;

        let sectors = narrow(total)?;
        parts.push((DESCRIPTORS, primary(&volume_id, sectors, &tree, path_tables)?));
        if bootable {
            parts.push((DESCRIPTORS + 1, boot_record(catalog)?));
            parts.push((catalog, Content::bytes(self.catalog(core_at, efi_at)?)));
        }
        parts.push((path_tables - 1, terminator()));
        parts.push((path_tables, Content::bytes(tree.path_table(u32::to_le_bytes, u16::to_le_bytes)?)));
        parts.push((path_tables + 1, Content::bytes(tree.path_table(u32::to_be_bytes, u16::to_be_bytes)?)));
        parts.extend(tree.directories()?);
        let bytes = parts.into_iter().map(|(sector, content)| (sector * SECTOR, content)).collect();
        self.assemble(bytes, core_at, total * SECTOR)
    }

    /// Puts everything in its place, the partition table included.
    fn assemble(&self, mut parts: Vec<(u64, Content)>, core_at: u64, len: u64) -> Result<Content, Error> {
        if let Some(bios) = &self.bios {
            let mut code = bios.hybrid.get(..BOOT_CODE).map(<[u8]>::to_vec).ok_or_else(|| {
                Error::bad("boot_hybrid.img", "it is shorter than a boot sector; take the one of grub-pc-bin")
            })?;
            let place = (core_at * 4 + 4).to_le_bytes();
            code[GRUB_MBR_PLACE..GRUB_MBR_PLACE + 8].copy_from_slice(&place);
            parts.push((0, Content::bytes(code)));
        }
        if let Some(efi) = &self.efi {
            let digest = efi.sha256()?;
            let failed = |error: ichor_block::gpt::GptError| {
                Error::bad("partition table of the ISO image", error.to_string())
            };
            let geometry = Geometry { size: len, sector_size: 512, io_size: 0 };
            let mut table = Table::new(geometry, guid(&digest, "iso")).map_err(failed)?.with_bootable(true);
            let partition = NewPartition::new("EFI", Guid::EFI_SYSTEM, guid(&digest, "EFI")).size(efi.len());
            let number = table.add(&partition).map_err(failed)?;
            if table.offset_and_size(number).map(|(start, _)| start) != Some(PARTITION) {
                return Err(Error::bad(
                    "partition table of the ISO image",
                    "the EFI partition is not at 1 MiB",
                ));
            }
            parts.extend(table.encode().into_iter().flatten().map(|(at, bytes)| (at, Content::bytes(bytes))));
        }
        crate::assemble("ISO image", parts, len)
    }

    /// The files that are parts of the EFI filesystem, by sector.
    fn shared(&self) -> Result<BTreeMap<String, (u64, u64)>, Error> {
        let end = self.efi.as_ref().map_or(0, Content::len);
        let place = |(path, (start, len)): (&String, &(u64, u64))| {
            if !start.is_multiple_of(SECTOR) || start + len > end {
                return Err(Error::bad(
                    format!("ISO path {path:?}"),
                    "it is not at a sector of the EFI filesystem",
                ));
            }
            Ok((path.clone(), ((PARTITION + start) / SECTOR, *len)))
        };
        self.efi_parts.iter().map(place).collect()
    }

    fn checked_volume_id(&self) -> Result<[u8; 32], Error> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if self.volume_id.is_empty() || self.volume_id.len() > 32 || !self.volume_id.bytes().all(plain) {
            let reason = "it has 1 to 32 letters, digits and underscores";
            return Err(Error::bad(format!("volume id {:?}", self.volume_id), reason));
        }
        Ok(padded(&self.volume_id))
    }

    /// The boot catalog: what firmware of each kind starts.
    fn catalog(&self, core_at: u64, efi_at: u64) -> Result<Vec<u8>, Error> {
        let bios = |out: &mut Vec<u8>| -> Result<(), Error> {
            out.extend(boot_entry(4, narrow(core_at)?));
            Ok(())
        };
        let efi = |out: &mut Vec<u8>| -> Result<(), Error> {
            let sectors = self.efi.as_ref().map_or(0, |efi| efi.len().div_ceil(512));
            let count = if sectors > CATALOG_SECTORS_MAX { 0 } else { sectors as u16 };
            out.extend(boot_entry(count, narrow(efi_at)?));
            Ok(())
        };
        let mut out = Vec::new();
        if self.bios.is_some() {
            out.extend(validation(0));
            bios(&mut out)?;
            if self.efi.is_some() {
                let mut header = vec![0; 32];
                header[..3].copy_from_slice(&[0x91, 0xef, 1]);
                out.extend(header);
                efi(&mut out)?;
            }
        } else {
            out.extend(validation(0xef));
            efi(&mut out)?;
        }
        out.resize(SECTOR as usize, 0);
        Ok(out)
    }
}

/// The first entry of a catalog: for which firmware, and a checksum.
fn validation(platform: u8) -> Vec<u8> {
    let mut entry = vec![0; 32];
    entry[..2].copy_from_slice(&[1, platform]);
    entry[30..].copy_from_slice(&[0x55, 0xaa]);
    let words = entry.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    let sum = words.fold(0_u16, u16::wrapping_add);
    entry[28..30].copy_from_slice(&sum.wrapping_neg().to_le_bytes());
    entry
}

/// An entry without emulation of a disk.
fn boot_entry(sectors: u16, at: u32) -> Vec<u8> {
    let mut entry = vec![0; 32];
    entry[0] = 0x88;
    entry[6..8].copy_from_slice(&sectors.to_le_bytes());
    entry[8..12].copy_from_slice(&at.to_le_bytes());
    entry
}

/// GRUB's core with its own place in it, and the table that El Torito images look for.
fn boot_image(bios: &Bios, at: u64) -> Result<Vec<u8>, Error> {
    let mut core = bios.core.clone();
    if core.len() < GRUB_CORE_PLACE + 12 {
        return Err(Error::bad(
            "GRUB's core for El Torito",
            "it is too short; make it with -O i386-pc-eltorito",
        ));
    }
    core[GRUB_CORE_PLACE..GRUB_CORE_PLACE + 8].copy_from_slice(&(at * 4 + 5).to_le_bytes());
    let words = core[64..].chunks(4).map(|word| {
        let mut full = [0; 4];
        full[..word.len()].copy_from_slice(word);
        u32::from_le_bytes(full)
    });
    let sum = words.fold(0_u32, u32::wrapping_add);
    let values = [DESCRIPTORS as u32, narrow(at)?, narrow(core.len() as u64)?, sum];
    for (place, value) in values.into_iter().enumerate() {
        core[8 + place * 4..12 + place * 4].copy_from_slice(&value.to_le_bytes());
    }
    Ok(core)
}

fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut out = [b' '; N];
    let len = text.len().min(N);
    out[..len].copy_from_slice(&text.as_bytes()[..len]);
    out
}

/// A number in both byte orders.
fn both(value: u32) -> [u8; 8] {
    let mut out = [0; 8];
    out[..4].copy_from_slice(&value.to_le_bytes());
    out[4..].copy_from_slice(&value.to_be_bytes());
    out
}

fn both16(value: u16) -> [u8; 4] {
    let (little, big) = (value.to_le_bytes(), value.to_be_bytes());
    [little[0], little[1], big[0], big[1]]
}

fn narrow(value: u64) -> Result<u32, Error> {
    let what = || "ISO image".to_owned();
    u32::try_from(value).map_err(|_| Error::TooLarge { what: what(), len: value, max: u64::from(u32::MAX) })
}

/// The primary volume descriptor.
fn primary(
    volume_id: &[u8; 32],
    sectors: u32,
    tree: &Directories,
    path_tables: u64,
) -> Result<Content, Error> {
    let mut out = vec![0; SECTOR as usize];
    let path_table_len = tree.path_table(u32::to_le_bytes, u16::to_le_bytes)?.len() as u32;
    let tables = narrow(path_tables)?;
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x01CD001\x01");
    put(8, &padded::<32>(""));
    put(40, volume_id);
    put(80, &both(sectors));
    put(120, &both16(1));
    put(124, &both16(1));
    put(128, &both16(SECTOR as u16));
    put(132, &both(path_table_len));
    put(140, &tables.to_le_bytes());
    put(148, &(tables + 1).to_be_bytes());
    put(156, &tree.root_record());
    put(190, &padded::<128>(""));
    put(318, &padded::<128>("ICHOR"));
    put(446, &padded::<128>(""));
    put(574, &padded::<128>("ICHOR"));
    put(702, &padded::<111>(""));
    for at in [813, 830] {
        put(at, DATE);
    }
    // Neither an end nor a beginning of its time.
    for at in [847, 864] {
        put(at, b"0000000000000000\0");
    }
    put(881, &[1]);
    Ok(Content::bytes(out))
}

fn boot_record(catalog: u64) -> Result<Content, Error> {
    let mut out = vec![0; SECTOR as usize];
    out[..7].copy_from_slice(b"\x00CD001\x01");
    out[7..30].copy_from_slice(b"EL TORITO SPECIFICATION");
    out[71..75].copy_from_slice(&narrow(catalog)?.to_le_bytes());
    Ok(Content::bytes(out))
}

fn terminator() -> Content {
    let mut out = vec![0; SECTOR as usize];
    out[..7].copy_from_slice(b"\xffCD001\x01");
    Content::bytes(out)
}
