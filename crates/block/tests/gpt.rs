//! Partition tables, judged by the tools that everybody uses where they are installed.

use std::io::Cursor;
use std::path::Path;
use std::process::Command;

use ichor_block::gpt::{Geometry, GptError, Health, LEGACY_BOOTABLE, NewPartition, Table};
use ichor_block::{Guid, Source};

const SIZE: u64 = 64 << 20;

fn guid(seed: u8) -> Guid {
    Guid::from_random([seed; 16])
}

fn partition(name: &str, seed: u8) -> NewPartition {
    NewPartition::new(name, Guid::LINUX_DATA, guid(seed))
}

/// The layout of a disk that boots both ways.
fn table(sector_size: u32) -> Table {
    let mut table = Table::new(Geometry { size: SIZE, sector_size, io_size: 0 }, guid(1)).unwrap();
    table.add(&NewPartition::new("EFI", Guid::EFI_SYSTEM, guid(2)).size(10 << 20)).unwrap();
    let bios = NewPartition::new("BIOS", Guid::BIOS_BOOT, guid(3)).size(1 << 20).attributes(LEGACY_BOOTABLE);
    table.add(&bios).unwrap();
    table.add(&partition("META", 4).size(1 << 20)).unwrap();
    table.add(&partition("EPHEMERAL", 5)).unwrap();
    table
}

fn written(table: &Table, size: u64) -> Vec<u8> {
    let mut image = Cursor::new(vec![0; size as usize]);
    table.write(&mut image).unwrap();
    image.into_inner()
}

fn read(image: &[u8], sector_size: u32) -> (Table, Health) {
    Table::read(image, sector_size).unwrap().unwrap()
}

/// Runs a judge; `None` when it is not installed.
fn judge(tool: &str, args: &[&str], image: &Path) -> Option<String> {
    let output = match Command::new(tool).args(args).arg(image).output() {
        Ok(output) => output,
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{tool}: {error}");
            eprintln!("{tool} is not installed; its judgement is left out");
            return None;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{tool}: {text} {}", String::from_utf8_lossy(&output.stderr));
    Some(text)
}

#[test]
fn other_tools_find_nothing_wrong_with_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    std::fs::write(&path, written(&table(512).with_bootable(true), SIZE)).unwrap();
    if let Some(text) = judge("sgdisk", &["--verify"], &path) {
        assert!(text.contains("No problems found"), "{text}");
        let text = judge("sgdisk", &["--info=2"], &path).unwrap();
        assert!(
            text.contains("BIOS boot partition") && text.contains("Attribute flags: 0000000000000004"),
            "{text}"
        );
    }
    if let Some(text) = judge("sfdisk", &["--dump"], &path) {
        for line in [
            "label: gpt",
            "first-lba: 2048",
            "start=        2048, size=       20480, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B",
            "start=       22528, size=        2048, type=21686148-6449-6E6F-744E-656564454649",
            "name=\"META\"",
            "name=\"EPHEMERAL\"",
        ] {
            assert!(text.contains(line), "{line:?} in {text}");
        }
        judge("sfdisk", &["--verify"], &path);
    }
}

#[test]
fn a_table_comes_back_as_it_was_written_whatever_the_sectors() {
    for sector_size in [512, 4096] {
        let table = table(sector_size);
        let image = written(&table, SIZE);
        assert_eq!(read(&image, sector_size), (table, Health::Whole));
        assert!(Table::read(&image, 2048).unwrap().is_none(), "other sectors, no table");
    }
}

#[test]
fn the_same_calls_give_the_same_bytes_and_leave_boot_code_alone() {
    let table = table(512);
    let clean = written(&table, SIZE);
    assert_eq!(clean, written(&table, SIZE));
    let mut image = Cursor::new(vec![0xcc; SIZE as usize]);
    table.write(&mut image).unwrap();
    assert!(image.get_ref()[..440].iter().all(|byte| *byte == 0xcc));
    assert_eq!(image.get_ref()[440..512], clean[440..512]);
}

#[test]
fn either_copy_is_enough_and_two_damaged_ones_are_an_error() {
    let table = table(512);
    let whole = written(&table, SIZE);
    let last = whole.len();
    // In the header and in the entries of each.
    for at in [512, 512 + 16, 512 + 60, 1024, 1024 + 130] {
        let mut image = whole.clone();
        image[at] ^= 1;
        assert_eq!(read(&image, 512), (table.clone(), Health::PrimaryDamaged), "byte {at}");
        for at in [last - 512, last - 512 + 20, last - 512 - 32 * 512] {
            let mut both = image.clone();
            both[at] ^= 1;
            match Table::read(&both, 512) {
                // Neither has its signature left: that is how a wiped disk looks.
                Ok(None) => assert!(image[512] != b'E' && both[last - 512] != b'E'),
                read => assert!(matches!(read, Err(GptError::Damaged { .. })), "{read:?}"),
            }
            let mut backup = whole.clone();
            backup[at] ^= 1;
            assert_eq!(read(&backup, 512), (table.clone(), Health::BackupDamaged), "byte {at}");
        }
    }
    assert!(Table::read(&vec![0; SIZE as usize], 512).unwrap().is_none());
}

/// Every write may stop anywhere. What is read afterwards is the old table or the new one.
#[test]
fn a_write_that_is_cut_short_leaves_the_old_table_or_the_new_one() {
    const SMALL: u64 = 6 << 20;
    let mut old = Table::new(Geometry { size: SMALL, sector_size: 512, io_size: 0 }, guid(1)).unwrap();
    old.add(&partition("META", 4).size(1 << 20)).unwrap();
    old.add(&partition("EPHEMERAL", 5)).unwrap();
    let mut new = old.clone();
    new.remove(2).unwrap();
    new.add(&partition("STATE", 6).size(2 << 20)).unwrap();
    let before = written(&old, SMALL);
    let writes: Vec<Vec<(u64, Vec<u8>)>> = new.encode().into();
    let sectors: Vec<(usize, u64, &[u8])> = writes
        .iter()
        .enumerate()
        .flat_map(|(group, writes)| writes.iter().map(move |(at, bytes)| (group, *at, bytes.as_slice())))
        .flat_map(|(group, at, bytes)| {
            bytes.chunks(512).enumerate().map(move |(index, chunk)| (group, at + 512 * index as u64, chunk))
        })
        .collect();
    let put = |image: &mut Vec<u8>, at: u64, bytes: &[u8]| {
        image[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    };
    let (mut olds, mut news) = (0, 0);
    for cut in 0..=sectors.len() {
        // In order, and with the sectors of the unfinished group in reverse: a device may write them as it likes.
        let group = sectors.get(cut).map_or(usize::MAX, |(group, _, _)| *group);
        for reversed in [false, true] {
            let mut image = before.clone();
            let done: Vec<_> = sectors.iter().filter(|(of, _, _)| *of < group).collect();
            let mut open: Vec<_> = sectors.iter().filter(|(of, _, _)| *of == group).collect();
            if reversed {
                open.reverse();
            }
            for (_, at, bytes) in done.iter().chain(open.iter().take(cut - done.len())) {
                put(&mut image, *at, bytes);
            }
            let (table, _) = read(&image, 512);
            match table.partitions() == new.partitions() {
                true => news += 1,
                false => {
                    assert_eq!(table.partitions(), old.partitions());
                    olds += 1;
                }
            }
        }
    }
    assert!(olds > 60 && news > 2, "{olds} {news}");
}

#[test]
fn a_partition_goes_into_the_smallest_range_and_keeps_the_order() {
    let mut table = Table::new(Geometry { size: SIZE, sector_size: 512, io_size: 0 }, guid(1)).unwrap();
    for (number, size) in [(1_u8, 4_u64), (2, 8), (3, 2), (4, 1)] {
        assert_eq!(
            table.add(&partition(&format!("p{number}"), number).size(size << 20)).unwrap(),
            u32::from(number)
        );
    }
    let second = table.offset_and_size(2).unwrap();
    table.remove(2).unwrap();
    // The gap of 8 MiB is smaller than the rest of the disk.
    assert_eq!(table.add(&partition("a", 9).size(6 << 20)).unwrap(), 2);
    assert_eq!(table.offset_and_size(2).unwrap(), (second.0, 6 << 20));
    // No number is free between 2 and 3; nobody is renumbered.
    assert_eq!(table.add(&partition("b", 10).size(1 << 20)).unwrap(), 5);
    assert_eq!(table.offset_and_size(5).unwrap().0, second.0 + (6 << 20));
    assert_eq!(table.find("p3").unwrap().0, 3);
    let text = table.add(&partition("huge", 11).size(SIZE)).unwrap_err().to_string();
    assert!(text.contains("no room for partition \"huge\"") && text.contains("largest free range"), "{text}");
    assert!(table.add(&partition(&"x".repeat(37), 12)).unwrap_err().to_string().contains("longer than 36"));
    let most = table.add(&partition("most", 13).between(1 << 20, Some(5 << 20))).unwrap();
    assert_eq!(table.offset_and_size(most).unwrap().1, 1 << 20, "the smallest range that has the minimum");
}

#[test]
fn large_requests_of_a_device_align_its_partitions() {
    let geometry = Geometry { size: SIZE, sector_size: 512, io_size: 4 << 20 };
    let mut table = Table::new(geometry, guid(1)).unwrap();
    table.add(&partition("a", 2).size(1 << 20)).unwrap();
    table.add(&partition("b", 3).size(1 << 20)).unwrap();
    assert_eq!(table.offset_and_size(1), Some((4 << 20, 1 << 20)));
    assert_eq!(table.offset_and_size(2), Some((8 << 20, 1 << 20)));
}

#[test]
fn the_last_partition_grows_with_its_disk() {
    let mut image = written(&table(512), SIZE);
    image.resize(2 * SIZE as usize, 0);
    let (mut table, health) = read(&image, 512);
    assert_eq!(health, Health::BackupMisplaced);
    assert_eq!(table.growth(1), 0);
    let before = table.offset_and_size(4).unwrap().1;
    assert_eq!(table.growth(4), SIZE);
    assert_eq!(table.grow(4, 10 << 20).unwrap(), 10 << 20);
    assert_eq!(table.grow(4, u64::MAX).unwrap(), SIZE - (10 << 20));
    assert_eq!(table.offset_and_size(4).unwrap().1, before + SIZE);
    assert!(matches!(table.grow(7, 1), Err(GptError::NoPartition { number: 7 })));
    let mut grown = Cursor::new(image);
    table.write(&mut grown).unwrap();
    assert_eq!(read(grown.get_ref(), 512), (table, Health::Whole));
    assert_eq!(grown.get_ref().size(), 2 * SIZE);
}

#[test]
fn a_table_has_an_end_to_its_entries() {
    let mut table = Table::new(Geometry { size: 256 << 20, sector_size: 512, io_size: 0 }, guid(1)).unwrap();
    for number in 1..=128 {
        assert_eq!(table.add(&partition("p", 2).size(1 << 20)).unwrap(), number);
    }
    let error = table.add(&partition("p", 2).size(1 << 20)).unwrap_err();
    assert!(matches!(error, GptError::NoEntry { entries: 128, .. }), "{error}");
}
