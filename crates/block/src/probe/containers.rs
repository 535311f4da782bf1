//! Signatures of what is not mounted itself: swap, encryption, volume managers, META.

use std::io;

use super::{Head, Signature};
use crate::bytes::{be16, be32, le32, le64, take, text};
use crate::guid::dashed;
use crate::meta::tlv;

type Found = io::Result<Option<Signature>>;

pub(super) fn swap(head: &Head<'_>) -> Found {
    const MAGIC_LEN: usize = 10;
    const AT: usize = 1024;
    for page in [4096, 8192, 16_384, 32_768, 65_536] {
        let at = page - MAGIC_LEN;
        if !head.has(at, b"SWAPSPACE2") && !head.has(at, b"SWAP-SPACE") {
            continue;
        }
        let (version, pages) = (le32(&head.bytes, AT), le32(&head.bytes, AT + 4).unwrap_or(0));
        if version != Some(1) || pages == 0 {
            continue;
        }
        let uuid = take::<16>(&head.bytes, AT + 12).filter(|uuid| *uuid != [0; 16]);
        return Ok(Some(Signature {
            name: "swap",
            uuid: uuid.map(dashed),
            label: text(&head.bytes, AT + 28, 16),
            block_size: page as u32,
            filesystem_block_size: page as u32,
            probed_size: page as u64 * u64::from(pages),
            ranges: vec![(at as u64, MAGIC_LEN as u64)],
        }));
    }
    Ok(None)
}

/// A physical volume of LVM. Its identifier is no UUID of 16 bytes, so it shows as the label, as in the original.
pub(super) fn lvm(head: &Head<'_>) -> Found {
    for at in [0, 512, 1024, 1536] {
        if !head.has(at, b"LABELONE") || !head.has(at + 24, b"LVM2 001") {
            continue;
        }
        let id = text(&head.bytes, at + 32, 32).filter(|id| id.len() == 32 && id.is_ascii());
        let groups = [(0, 6), (6, 10), (10, 14), (14, 18), (18, 22), (22, 26), (26, 32)];
        return Ok(Some(Signature {
            name: "lvm2-pv",
            label: id.map(|id| groups.map(|(from, to)| id[from..to].to_owned()).join("-")),
            ranges: vec![(at as u64, 32)],
            ..Signature::default()
        }));
    }
    Ok(None)
}

/// A member of a ZFS pool: enough uberblocks in its four labels, two at each end.
pub(super) fn zfs(head: &Head<'_>) -> Found {
    const LABEL: u64 = 256 << 10;
    const RING_AT: u64 = 128 << 10;
    const RING_LEN: usize = 128 << 10;
    const STEP: usize = 1024;
    const ENOUGH: usize = 4;
    const SIZE_MIN: u64 = 64 << 20;
    let size = head.source.size();
    if size < SIZE_MIN {
        return Ok(None);
    }
    let end = size - size % LABEL;
    let (mut ranges, mut guid_sum) = (Vec::new(), 0);
    for label in [0, LABEL, end - 2 * LABEL, end - LABEL] {
        let ring = head.source.read_up_to(label + RING_AT, RING_LEN)?;
        for (at, block) in ring.chunks(STEP).enumerate() {
            let (magic, sum) = match take::<8>(block, 0) {
                Some([0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0]) => (true, le64(block, 24).unwrap_or(0)),
                Some([0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c]) => (true, le64(block, 24).unwrap_or(0).swap_bytes()),
                _ => (false, 0),
            };
            if magic {
                guid_sum = sum;
                ranges.push((label + RING_AT + (at * STEP) as u64, 8));
            }
        }
        // Every write of an uberblock goes to all labels: none in the first, none anywhere.
        if ranges.is_empty() {
            return Ok(None);
        }
    }
    let label = Some(format!("{guid_sum:016x}"));
    Ok((ranges.len() >= ENOUGH).then(|| Signature { name: "zfs", label, ranges, ..Signature::default() }))
}

pub(super) fn talosmeta(head: &Head<'_>) -> Found {
    let copy = tlv::COPY_LEN as u64;
    for at in [0, copy] {
        let head_word = head.source.read_up_to(at, 4)?;
        let tail_word = head.source.read_up_to(at + copy - 4, 4)?;
        if be32(&head_word, 0) == Some(tlv::MAGIC_HEAD) && be32(&tail_word, 0) == Some(tlv::MAGIC_TAIL) {
            return Ok(Some(Signature {
                name: "talosmeta",
                probed_size: 2 * copy,
                ranges: vec![(0, 4), (copy - 4, 4), (copy, 4), (2 * copy - 4, 4)],
                ..Signature::default()
            }));
        }
    }
    Ok(None)
}

pub(super) fn luks(head: &Head<'_>) -> Found {
    if !head.has(0, b"LUKS\xba\xbe") {
        return Ok(None);
    }
    let version = be16(&head.bytes, 6);
    if !matches!(version, Some(1 | 2)) {
        return Ok(None);
    }
    Ok(Some(Signature {
        name: "luks",
        uuid: text(&head.bytes, 168, 40),
        // The first version has the name of a cipher in this place.
        label: text(&head.bytes, 24, 48).filter(|_| version == Some(2)),
        ranges: luks_ranges(head, version),
        ..Signature::default()
    }))
}

/// The second version has a second header, behind the first.
fn luks_ranges(head: &Head<'_>, version: Option<u16>) -> Vec<(u64, u64)> {
    let mut ranges = vec![(0, 6)];
    let second = take::<8>(&head.bytes, 8).map(u64::from_be_bytes);
    ranges.extend(
        second.filter(|at| version == Some(2) && *at >= 4096 && *at < head.source.size()).map(|at| (at, 6)),
    );
    ranges
}

/// A device of a Ceph object store.
pub(super) fn bluestore(head: &Head<'_>) -> Found {
    const MAGIC: &[u8] = b"bluestore block device";
    if !head.has(0, MAGIC) {
        return Ok(None);
    }
    Ok(Some(Signature {
        name: "bluestore",
        uuid: text(&head.bytes, MAGIC.len() + 1, 36).filter(|uuid| uuid.len() == 36),
        ranges: vec![(0, MAGIC.len() as u64)],
        ..Signature::default()
    }))
}
