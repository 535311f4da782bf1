//! Signatures of filesystems.

use std::io;

use super::{Head, Signature};
use crate::bytes::{be16, be32, be64, le16, le32, le64, take, text};
use crate::guid::dashed;

type Found = io::Result<Option<Signature>>;

/// `None` when a checked field is not what it must be.
fn checked(parsed: Option<Signature>) -> Found {
    Ok(parsed)
}

fn uuid(bytes: &[u8], at: usize) -> Option<String> {
    take::<16>(bytes, at).filter(|uuid| *uuid != [0; 16]).map(dashed)
}

pub(super) fn xfs(head: &Head<'_>) -> Found {
    if !head.has(0, b"XFSB") {
        return Ok(None);
    }
    let bytes = &head.bytes;
    checked((|| {
        let block_size =
            be32(bytes, 4).filter(|size| size.is_power_of_two() && (512..=65_536).contains(size))?;
        let sector_size = be16(bytes, 102).filter(|size| size.is_power_of_two() && *size >= 512)?;
        let blocks = be64(bytes, 8).filter(|blocks| *blocks > 0)?;
        // A log inside of the filesystem is not for files.
        let log = if be64(bytes, 48)? != 0 { u64::from(be32(bytes, 96)?) } else { 0 };
        Some(Signature {
            name: "xfs",
            uuid: uuid(bytes, 32),
            label: text(bytes, 108, 12),
            block_size: sector_size.into(),
            filesystem_block_size: block_size,
            probed_size: blocks.saturating_sub(log).saturating_mul(block_size.into()),
            ranges: vec![(0, 4)],
        })
    })())
}

/// ext2, ext3 and ext4: all are mounted as the last.
pub(super) fn ext(head: &Head<'_>) -> Found {
    const AT: usize = 1024;
    const JOURNAL_DEVICE: u32 = 0x8;
    const LARGE: u32 = 0x80;
    if !head.has(AT + 0x38, &[0x53, 0xef]) {
        return Ok(None);
    }
    let Some(block) = head.bytes.get(AT..2 * AT) else { return Ok(None) };
    checked((|| {
        let shift = le32(block, 24).filter(|shift| *shift <= 6)?;
        let features = le32(block, 0x60)?;
        if features & JOURNAL_DEVICE != 0 || !is_checksum_good(block)? {
            return None;
        }
        let high = if features & LARGE != 0 { le32(block, 0x150)? } else { 0 };
        let blocks = u64::from(high) << 32 | u64::from(le32(block, 4)?);
        let block_size = 1024_u32 << shift;
        Some(Signature {
            name: "ext4",
            uuid: uuid(block, 104),
            label: text(block, 120, 16),
            block_size,
            filesystem_block_size: block_size,
            probed_size: blocks.saturating_mul(block_size.into()),
            ranges: vec![(AT as u64 + 0x38, 2)],
        })
    })())
}

/// The checksum of a superblock that has one.
fn is_checksum_good(block: &[u8]) -> Option<bool> {
    const HAS_CHECKSUM: u32 = 0x400;
    if le32(block, 0x64)? & HAS_CHECKSUM == 0 {
        return Some(true);
    }
    let sum = block.get(..1020)?.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(
            sum ^ u32::from(*byte),
            |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0x82f6_3b78 } else { sum >> 1 },
        )
    });
    Some(sum == le32(block, 1020)?)
}

pub(super) fn vfat(head: &Head<'_>) -> Found {
    let wide = head.has(0x52, b"FAT32   ") || head.has(0x52, b"MSWIN");
    let narrow: [&[u8]; 4] = [b"MSDOS", b"FAT16   ", b"FAT12   ", b"FAT     "];
    if !wide && !narrow.iter().any(|magic| head.has(0x36, magic)) {
        return Ok(None);
    }
    let bytes = &head.bytes;
    checked((|| {
        let sector = le16(bytes, 11).filter(|size| size.is_power_of_two() && (512..=4096).contains(size))?;
        let cluster = *bytes.get(13).filter(|sectors| sectors.is_power_of_two())?;
        let media = *bytes.get(21)?;
        let (reserved, copies) = (le16(bytes, 14)?, *bytes.get(16)?);
        if reserved == 0 || copies == 0 || !(media >= 0xf8 || media == 0xf0) {
            return None;
        }
        let sectors = match le16(bytes, 19)? {
            0 => le32(bytes, 32)?,
            few => few.into(),
        };
        let (serial_at, label_at, magic_at) = if wide { (67, 71, 0x52) } else { (39, 43, 0x36) };
        let serial = le32(bytes, serial_at)?;
        let label = text(bytes, label_at, 11).map(|label| label.trim_end().to_owned());
        Some(Signature {
            name: "vfat",
            uuid: (serial != 0).then(|| format!("{:04X}-{:04X}", serial >> 16, serial & 0xffff)),
            label: label.filter(|label| !label.is_empty() && label != "NO NAME"),
            block_size: sector.into(),
            filesystem_block_size: u32::from(sector) * u32::from(cluster),
            probed_size: u64::from(sectors) * u64::from(sector),
            ranges: vec![(magic_at, 8), (510, 2)],
        })
    })())
}

pub(super) fn squashfs(head: &Head<'_>) -> Found {
    if !head.has(0, b"hsqs") {
        return Ok(None);
    }
    let bytes = &head.bytes;
    checked((|| {
        let major = le16(bytes, 28)?;
        let block_size = le32(bytes, 12).filter(|size| size.is_power_of_two())?;
        Some(Signature {
            name: "squashfs",
            block_size,
            filesystem_block_size: block_size,
            probed_size: le64(bytes, 40)?,
            ranges: vec![(0, 4)],
            ..Signature::default()
        })
        .filter(|_| major >= 4)
    })())
}

/// An optical disc, or an image of one.
pub(super) fn iso9660(head: &Head<'_>) -> Found {
    const AT: usize = 32 << 10;
    const SECTOR: usize = 2048;
    const DESCRIPTORS_MAX: usize = 16;
    const PRIMARY: u8 = 1;
    const SUPPLEMENTARY: u8 = 2;
    const END: u8 = 255;
    if !head.has(AT + 1, b"CD001") {
        return Ok(None);
    }
    let descriptors = head.bytes[AT..].chunks_exact(SECTOR).take(DESCRIPTORS_MAX);
    let (mut primary, mut wide) = (None, None);
    for descriptor in
        descriptors.take_while(|descriptor| descriptor[0] != END && descriptor[1..6] == *b"CD001")
    {
        match descriptor[0] {
            PRIMARY if primary.is_none() => primary = Some(descriptor),
            // Those with an escape sequence for UCS-2 have names in it.
            SUPPLEMENTARY if wide.is_none() && descriptor[88..90] == *b"%/" => wide = Some(descriptor),
            _ => {}
        }
    }
    let Some(primary) = primary else { return Ok(None) };
    let wide = wide.map(|descriptor| {
        let units: Vec<u16> =
            descriptor[40..72].chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
        String::from_utf16_lossy(&units)
    });
    let narrow = String::from_utf8_lossy(&primary[40..72]).into_owned();
    // The wide form is cut off at half the length.
    let label = wide.filter(|wide| !narrow.starts_with(wide.trim_end_matches(['\0', ' ']))).unwrap_or(narrow);
    let label = label.trim_end_matches(['\0', ' ']).to_owned();
    checked((|| {
        let block_size = u32::from(le16(primary, 128)?);
        Some(Signature {
            name: "iso9660",
            uuid: created(primary),
            label: (!label.is_empty()).then_some(label),
            block_size,
            filesystem_block_size: block_size,
            probed_size: u64::from(le32(primary, 80)?) * u64::from(block_size),
            ranges: vec![(AT as u64 + 1, 5)],
        })
    })())
}

/// When a disc was made, which is what tells two of them apart.
fn created(primary: &[u8]) -> Option<String> {
    let digits = primary.get(813..829).filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    if digits.iter().all(|digit| *digit == b'0') {
        return None;
    }
    let digits = std::str::from_utf8(digits).ok()?;
    let parts = [(0, 4), (4, 6), (6, 8), (8, 10), (10, 12), (12, 14), (14, 16)];
    Some(parts.map(|(from, to)| &digits[from..to]).join("-"))
}
