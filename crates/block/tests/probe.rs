//! Signatures against images that the real tools made; `data/make.sh` makes them anew.

use ichor_block::gpt::{Geometry, NewPartition, Table};
use ichor_block::meta::tlv;
use ichor_block::probe::{Signature, probe, probe_all, probe_disk};
use ichor_block::{Guid, Source};

fn image(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/data/{name}.zst", env!("CARGO_MANIFEST_DIR"));
    zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap()
}

fn found(name: &str) -> Signature {
    probe(&image(name)).unwrap().unwrap_or_else(|| panic!("nothing found in {name}"))
}

#[track_caller]
fn check(image: &str, name: &str, uuid: Option<&str>, label: Option<&str>, sizes: (u32, u32, u64)) {
    let found = found(image);
    assert_eq!((found.name, found.uuid.as_deref(), found.label.as_deref()), (name, uuid, label));
    assert_eq!((found.block_size, found.filesystem_block_size, found.probed_size), sizes, "{image}");
    assert!(!found.ranges.is_empty());
}

#[test]
fn filesystems_are_told_by_name_label_uuid_and_size() {
    let uuid = |head: &str| format!("{head}-2222-3333-4444-555555555555");
    // 8192 blocks, of which the log has 1368.
    check("xfs", "xfs", Some(&uuid("11111111")), Some("STATE"), (512, 4096, (8192 - 1368) * 4096));
    check("ext4", "ext4", Some(&uuid("21111111")), Some("DATA"), (1024, 1024, 8 << 20));
    check("ext2", "ext4", Some(&uuid("22111111")), None, (1024, 1024, 2 << 20));
    check("fat32", "vfat", Some("1234-ABCD"), Some("EFI"), (512, 512, 34 << 20));
    check("fat16", "vfat", Some("00C0-FFEE"), None, (512, 2048, 16 << 20));
    let squashed = found("squashfs");
    assert_eq!((squashed.name, squashed.block_size), ("squashfs", 128 << 10));
    assert!(squashed.probed_size > 0 && squashed.probed_size <= image("squashfs").size());
    let disc = found("iso9660");
    assert_eq!((disc.name, disc.label.as_deref(), disc.block_size), ("iso9660", Some("TALOS_V1_12_1"), 2048));
    assert_eq!(disc.probed_size, image("iso9660").size());
    assert_eq!(disc.uuid.unwrap().len(), "2026-11-18-01-11-57-00".len());
}

#[test]
fn what_holds_filesystems_is_told_too() {
    let uuid = |head: &str| format!("{head}-2222-3333-4444-555555555555");
    check("swap", "swap", Some(&uuid("31111111")), Some("SWAP"), (4096, 4096, (1 << 20) - 4096));
    check("luks2", "luks", Some(&uuid("41111111")), Some("LOCKED"), (0, 0, 0));
    check("luks1", "luks", Some(&uuid("42111111")), None, (0, 0, 0));
    check("lvm2-pv", "lvm2-pv", None, Some("abcdef-GHIJ-klmn-OPQR-stuv-WXYZ-012345"), (0, 0, 0));
    let mut store = vec![0; 1 << 20];
    store[..60].copy_from_slice(b"bluestore block device\n71111111-2222-3333-4444-555555555555\n");
    let store = probe(&store).unwrap().unwrap();
    assert_eq!((store.name, store.uuid), ("bluestore", Some(uuid("71111111"))));
}

#[test]
fn a_pool_of_zfs_is_told_by_four_uberblocks() {
    // Its tools are not in the archive; this is the layout of a label.
    let mut pool = vec![0; 64 << 20];
    let end = pool.len();
    for (count, label) in [0, 256 << 10, end - (512 << 10), end - (256 << 10)].into_iter().enumerate() {
        assert_eq!(probe(&pool).unwrap(), None, "{count} are too few");
        let at = label + (128 << 10) + 4096;
        pool[at..at + 8].copy_from_slice(&0x00ba_b10c_u64.to_le_bytes());
        pool[at + 24..at + 32].copy_from_slice(&0xdead_beef_u64.to_le_bytes());
    }
    let found = probe(&pool).unwrap().unwrap();
    assert_eq!((found.name, found.label.as_deref()), ("zfs", Some("00000000deadbeef")));
}

#[test]
fn meta_is_told_by_either_copy() {
    let copy = tlv::encode(&tlv::Tags::from([(6, b"A".to_vec())])).unwrap();
    let mut meta = vec![0; tlv::META_LEN];
    assert_eq!(probe(&meta).unwrap(), None, "a new one is empty");
    meta[tlv::COPY_LEN..2 * tlv::COPY_LEN].copy_from_slice(&copy);
    let found = probe(&meta).unwrap().unwrap();
    assert_eq!((found.name, found.probed_size), ("talosmeta", 512 << 10));
}

#[test]
fn a_disk_shows_its_table_and_what_is_in_its_partitions() {
    let disk = image("gpt");
    let contents = probe_disk(&disk, 512).unwrap();
    let table = contents.signature.unwrap();
    assert_eq!((table.name, table.uuid.as_deref()), ("gpt", Some("51111111-2222-3333-4444-555555555555")));
    let names: Vec<(u32, &str, u64, u64)> = contents
        .partitions
        .iter()
        .map(|part| (part.number, part.entry.name.as_str(), part.offset, part.size))
        .collect();
    assert_eq!(names, [(1, "EFI", 1 << 20, 1 << 20), (2, "META", 2 << 20, 1 << 20)]);
    assert_eq!(contents.partitions[0].entry.type_guid, Guid::EFI_SYSTEM);
    assert_eq!(contents.partitions[0].entry.guid.to_string(), "61111111-2222-3333-4444-555555555555");
    assert!(contents.partitions.iter().all(|part| part.signature.is_none()));

    // A filesystem inside of a partition.
    let state = image("xfs");
    let geometry = Geometry { size: 64 << 20, sector_size: 512, io_size: 0 };
    let mut table = Table::new(geometry, Guid::from_random([1; 16])).unwrap();
    let new = NewPartition::new("STATE", Guid::LINUX_DATA, Guid::from_random([2; 16])).size(state.size());
    table.add(&new).unwrap();
    let mut disk = std::io::Cursor::new(vec![0; 64 << 20]);
    table.write(&mut disk).unwrap();
    let mut disk = disk.into_inner();
    disk[1 << 20..(1 << 20) + state.len()].copy_from_slice(&state);
    let contents = probe_disk(&disk, 512).unwrap();
    assert_eq!(contents.partitions[0].signature.as_ref().unwrap().label.as_deref(), Some("STATE"));
}

#[test]
fn a_device_without_its_signatures_is_empty() {
    for name in
        ["xfs", "ext4", "fat32", "fat16", "squashfs", "iso9660", "swap", "luks1", "luks2", "lvm2-pv", "gpt"]
    {
        let mut image = image(name);
        for signature in probe_all(&image, 512).unwrap() {
            for (offset, len) in signature.ranges {
                image[offset as usize..(offset + len) as usize].fill(0);
            }
        }
        assert_eq!(probe_all(&image, 512).unwrap(), [], "{name}");
    }
}

#[test]
fn nothing_is_found_where_nothing_is() {
    for len in [0, 1, 511, 512, 4096, 100_000] {
        assert_eq!(probe(&vec![0; len]).unwrap(), None);
        assert_eq!(probe_disk(&vec![0xff; len], 512).unwrap().signature, None);
    }
}
