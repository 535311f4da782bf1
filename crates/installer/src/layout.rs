//! Which partitions a new system disk has. Pure.
//!
//! | Firmware | Partitions |
//! |---|---|
//! | UEFI | `EFI` for systemd-boot and kernel images, `META` |
//! | BIOS | `EFI` (small), `BIOS` for GRUB's core, `BOOT` for two slots, `META` |
//!
//! STATE and EPHEMERAL are made by the system when it has a configuration.

use ichor_block::Guid;
use ichor_block::gpt::{Geometry, GptError, LEGACY_BOOTABLE, NewPartition, Table};
use ichor_image::disk::{BIOS_SIZE, BOOT_SIZE, EFI_SIZE, EFI_SMALL_SIZE, META_SIZE};

/// What starts the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Firmware {
    /// UEFI, which starts systemd-boot.
    Uefi,
    /// A BIOS, which starts GRUB.
    Bios,
}

/// A partition table with the numbers of what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The table.
    pub table: Table,
    /// The EFI system partition.
    pub efi: u32,
    /// GRUB's core, and its files.
    pub grub: Option<GrubPartitions>,
    /// META.
    pub meta: u32,
}

/// The partitions of GRUB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrubPartitions {
    /// Its core.
    pub bios: u32,
    /// Its files and the slots.
    pub boot: u32,
}

/// Why a disk cannot be laid out.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// The partition table.
    #[error("the disk is too small for the system: {0}; use a larger disk")]
    Table(#[from] GptError),
    /// A BIOS counts in sectors of 512 bytes.
    #[error("a BIOS cannot start from a disk with sectors of {0} bytes; use UEFI or another disk")]
    SectorSize(u32),
    /// No randomness.
    #[error("make a GUID")]
    Random(#[source] std::io::Error),
}

/// The layout of a new disk. `legacy_bootable` marks the protective MBR for firmware that looks for that.
///
/// # Errors
/// When the disk is too small, or cannot be started from.
pub fn plan(
    geometry: Geometry,
    firmware: Firmware,
    legacy_bootable: bool,
    mut guid: impl FnMut() -> std::io::Result<Guid>,
) -> Result<Layout, LayoutError> {
    if firmware == Firmware::Bios && geometry.sector_size != 512 {
        return Err(LayoutError::SectorSize(geometry.sector_size));
    }
    let disk = guid().map_err(LayoutError::Random)?;
    let mut table = Table::new(geometry, disk)?.with_bootable(legacy_bootable);
    let mut add = |name: &str, kind: Guid, size: u64, attributes: u64| {
        let new = NewPartition::new(name, kind, guid().map_err(LayoutError::Random)?);
        Ok::<_, LayoutError>(table.add(&new.size(size).attributes(attributes))?)
    };
    let (efi, grub) = match firmware {
        Firmware::Uefi => (add("EFI", Guid::EFI_SYSTEM, EFI_SIZE, 0)?, None),
        Firmware::Bios => {
            let efi = add("EFI", Guid::EFI_SYSTEM, EFI_SMALL_SIZE, 0)?;
            let bios = add("BIOS", Guid::BIOS_BOOT, BIOS_SIZE, LEGACY_BOOTABLE)?;
            (efi, Some(GrubPartitions { bios, boot: add("BOOT", Guid::LINUX_DATA, BOOT_SIZE, 0)? }))
        }
    };
    let meta = add("META", Guid::LINUX_DATA, META_SIZE, 0)?;
    Ok(Layout { table, efi, grub, meta })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn laid_out(size: u64, firmware: Firmware) -> Result<Layout, LayoutError> {
        let mut count = 0;
        let geometry = Geometry { size, sector_size: 512, io_size: 0 };
        plan(geometry, firmware, false, || {
            count += 1;
            Ok(Guid::from_random([count; 16]))
        })
    }

    fn shown(layout: &Layout) -> Vec<String> {
        let partitions = layout.table.partitions().iter();
        partitions
            .map(|(number, found)| format!("{number} {} {}", found.name, found.sectors() / 2048))
            .collect()
    }

    #[test]
    fn uefi_has_two_partitions_and_a_bios_four() {
        assert_eq!(shown(&laid_out(8 << 30, Firmware::Uefi).unwrap()), ["1 EFI 2101", "2 META 1"]);
        assert_eq!(
            shown(&laid_out(8 << 30, Firmware::Bios).unwrap()),
            ["1 EFI 100", "2 BIOS 1", "3 BOOT 2000", "4 META 1"]
        );
    }

    #[test]
    fn a_small_disk_and_sectors_that_no_bios_knows_are_refused() {
        let small = laid_out(2 << 30, Firmware::Uefi).unwrap_err().to_string();
        assert!(small.contains("too small") && small.contains("EFI"), "{small}");
        let geometry = Geometry { size: 8 << 30, sector_size: 4096, io_size: 0 };
        let made = plan(geometry, Firmware::Bios, false, || Ok(Guid::NIL));
        assert!(matches!(made, Err(LayoutError::SectorSize(4096))));
        assert!(plan(geometry, Firmware::Uefi, false, || Ok(Guid::from_random([1; 16]))).is_ok());
    }
}
