//! Disks as they may be found: tables, signatures and META of any bytes; never a panic.

use std::io::Cursor;

use ichor_block::Guid;
use ichor_block::gpt::{Geometry, NewPartition, Table};
use ichor_block::meta::adv;
use ichor_block::meta::tlv::{self, COPY_LEN, Content, Tags};
use ichor_block::probe::{probe_all, probe_disk};
use ichor_block::uevent::Uevent;
use ichor_fuzz::{Target, shape};

const SIZE: u64 = 4 << 20;

fn disk() -> Vec<u8> {
    let geometry = Geometry { size: SIZE, sector_size: 512, io_size: 0 };
    let mut table = Table::new(geometry, Guid::from_random([1; 16])).unwrap();
    let new = NewPartition::new("META", Guid::LINUX_DATA, Guid::from_random([2; 16]));
    table.add(&new.size(1 << 20)).unwrap();
    let mut disk = Cursor::new(vec![0; SIZE as usize]);
    table.write(&mut disk).unwrap();
    disk.into_inner()
}

/// The CRC of headers and entries, so that changes get past it.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(
            sum ^ u32::from(*byte),
            |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 },
        )
    })
}

#[test]
fn partition_tables_behind_good_checksums() {
    let whole = disk();
    // A header and its first entries, as the input.
    let seed = [&whole[512..512 + 92], &whole[1024..1024 + 256]].concat();
    Target::binary("gpt").seeds([seed]).rounds(3_000).len_max(512).run(|input| {
        let mut disk = whole.clone();
        let header = input.get(..92).unwrap_or(input);
        disk[512..512 + header.len()].copy_from_slice(header);
        if let Some(entries) = input.get(92..) {
            disk[1024..1024 + entries.len()].copy_from_slice(entries);
        }
        let sum = crc32(&disk[1024..1024 + 16384]).to_le_bytes();
        disk[512 + 88..512 + 92].copy_from_slice(&sum);
        disk[512 + 16..512 + 20].fill(0);
        let sum = crc32(&disk[512..512 + 92]).to_le_bytes();
        disk[512 + 16..512 + 20].copy_from_slice(&sum);
        match Table::read(&disk, 512) {
            Ok(None) => "none".to_owned(),
            Ok(Some((table, health))) => {
                // What was read can be changed, written and read again.
                let mut copy = table.clone();
                let _ = copy.add(&NewPartition::new("x", Guid::LINUX_DATA, Guid::NIL));
                let _ = copy.grow(1, u64::MAX);
                let free = table.free_ranges();
                assert!(
                    free.iter().all(|range| range.first <= range.last && range.last < SIZE / 512),
                    "{free:?}"
                );
                format!("{health:?} {} {}", table.partitions().len(), free.len())
            }
            Err(error) => shape(&error.to_string()),
        }
    });
}

#[test]
fn signatures_in_any_bytes() {
    let seeds = ["xfs", "ext2", "fat16", "swap", "luks2", "lvm2-pv", "squashfs", "iso9660"].map(|name| {
        let path = format!("{}/tests/data/{name}.zst", env!("CARGO_MANIFEST_DIR"));
        let image = zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap();
        // The part of it that counts, in front of which nothing is looked at.
        let (from, len) = if name == "iso9660" { (32 << 10, 8 << 10) } else { (0, 8 << 10) };
        let part = image[from..image.len().min(from + len)].to_vec();
        [vec![u8::from(from > 0)], part].concat()
    });
    Target::binary("signatures").seeds(seeds).rounds(3_000).len_max(9 << 10).run(|input| {
        let mut disk = vec![0; 512 << 10];
        let (place, bytes) = input.split_first().unwrap_or((&0, &[]));
        let at = if *place == 1 { 32 << 10 } else { 0 };
        disk[at..at + bytes.len()].copy_from_slice(bytes);
        let found = probe_all(&disk, 512).unwrap();
        let first = probe_disk(&disk, 512).unwrap().signature;
        assert_eq!(first.is_some(), !found.is_empty());
        found.iter().map(|signature| signature.name).collect::<Vec<_>>().join(" ")
    });
}

#[test]
fn kernel_messages() {
    let seed =
        b"add@/devices/virtual/block/loop0\0ACTION=add\0DEVPATH=/devices/x\0SUBSYSTEM=block\0DEVNAME=loop0\0";
    Target::binary("uevents")
        .seeds([&seed[..]])
        .rounds(5_000)
        .len_max(512)
        .run(|input| Uevent::parse(input).map(|event| event.device_name.is_some()));
}

#[test]
fn legacy_blocks() {
    let seed = adv::encode(&Tags::from([(6, b"A".to_vec()), (10, vec![b'x'; 100])]));
    Target::binary("meta-legacy").seeds([seed]).rounds(5_000).len_max(adv::LEN).run(|input| {
        let tags = adv::decode(input);
        assert_eq!(adv::decode(&adv::encode(&tags)), tags, "what was read can be written back");
        tags.len().min(8)
    });
}
fn seed(tags: &Tags) -> Vec<u8> {
    // Only the records: the rest of a copy is filled in below.
    let copy = tlv::encode(tags).unwrap();
    let used: usize = tags.values().map(|value| value.len() + 8).sum();
    copy[4..4 + used].to_vec()
}

fn seeds() -> Vec<Vec<u8>> {
    let tags = Tags::from([(0x06, b"A".to_vec()), (0x0a, b"addresses: []".to_vec()), (0x10, Vec::new())]);
    vec![seed(&tags), seed(&Tags::from([(1, vec![b'x'; 300])])), Vec::new()]
}

/// Records behind a good checksum: what a machine with another idea of them may have written.
#[test]
fn meta_records() {
    Target::binary("meta-records").seeds(seeds()).rounds(400).len_max(2048).run(|input| {
        let mut copy = tlv::encode(&Tags::new()).unwrap();
        copy[4..4 + input.len()].copy_from_slice(input);
        let sum = COPY_LEN - 36;
        copy[sum..sum + 32].fill(0);
        let digest = ichor_pki::sha256(&copy);
        copy[sum..sum + 32].copy_from_slice(&digest);
        let tags = tlv::decode(&copy);
        if let Some(tags) = tags.as_ref().filter(|tags| tlv::fits(tags)) {
            // What was read is what would be written.
            assert_eq!(tlv::decode(&tlv::encode(tags).unwrap()).as_ref(), Some(tags));
        }
        tags.map(|tags| tags.len().min(8))
    });
}

/// Anything at the place of META: values only from a whole copy, and nothing but zeros is taken for a new META.
#[test]
fn meta_copies() {
    let copy = tlv::encode(&Tags::from([(0x0a, b"hello".to_vec())])).unwrap();
    let both = [copy.clone(), copy.clone()].concat();
    // A change as an input: where, and what stands there afterwards.
    Target::binary("meta-copies")
        .seeds([vec![0, 0, 0, 1], vec![4, 0, 0, 2, 4, 0, 4, 2]])
        .rounds(150)
        .len_max(64)
        .run(|input| {
            let mut meta = both.clone();
            for change in input.chunks_exact(4) {
                let at = usize::from(change[0]) | usize::from(change[1]) << 8 | usize::from(change[2]) << 16;
                let len = meta.len();
                meta[at % len] = change[3];
            }
            let intact = |at: usize| meta[at * COPY_LEN..(at + 1) * COPY_LEN] == copy;
            match tlv::decode_either(&meta) {
                Content::Values { tags, both } => {
                    assert_eq!(tags, Tags::from([(0x0a, b"hello".to_vec())]));
                    assert_eq!(both, intact(0) && intact(1));
                    both.to_string()
                }
                Content::Damaged => {
                    assert!(!intact(0) && !intact(1));
                    "damaged".to_owned()
                }
                Content::Blank => panic!("values were taken for nothing"),
            }
        });
}
