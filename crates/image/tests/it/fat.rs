//! FAT32 filesystems, judged by fsck.vfat and mtools.

use std::os::unix::fs::FileExt as _;

use ichor_image::Content;
use ichor_image::fat::{Tree, filesystem, len_for};

use crate::{noise, run, write};

const MIB: u64 = 1 << 20;

fn tree(large: usize) -> Tree {
    let mut tree = Tree::default();
    tree.file("EFI/boot/BOOTX64.efi", Content::bytes(noise(100_001, 1))).unwrap();
    tree.file("EFI/Linux/Talos-v1.12.1.efi", Content::bytes(noise(large, 2))).unwrap();
    tree.file("EFI/Linux/Talos-v1.12.0.efi", Content::bytes(*b"old")).unwrap();
    tree.file("loader/loader.conf", Content::bytes(*b"timeout 10\n")).unwrap();
    tree.file("EMPTY", Content::default()).unwrap();
    for number in 0..40 {
        tree.file(&format!("many/a long name with number {number}"), Content::bytes([number])).unwrap();
    }
    tree
}

#[track_caller]
fn check(len: u64, large: usize) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("esp");
    let made = filesystem(len, "EFI", 0x1234_abcd, &tree(large)).unwrap();
    let image = made.content;
    assert_eq!(image.len(), len);
    write(&file, &image);
    let file = file.to_str().unwrap();

    // Fails when it would change anything.
    let told = run("fsck.vfat", &["-n", "-v", file]);
    assert!(told.contains("files, "), "{told}");
    assert!(
        told.contains("32 bits per FAT") || told.contains("FAT32") || told.contains("32 bit entries"),
        "{told}"
    );

    let listed = run("mdir", &["-/", "-b", "-i", file, "::"]);
    for path in ["EFI/boot/BOOTX64.efi", "EFI/Linux/Talos-v1.12.1.efi", "loader/loader.conf", "EMPTY"] {
        assert!(listed.lines().any(|line| line == format!("::/{path}")), "{path} in {listed}");
    }
    assert_eq!(listed.matches("a long name with number").count(), 40);
    assert!(run("mlabel", &["-s", "-i", file, "::"]).contains("Volume label is EFI"));
    let out = dir.path().join("out");
    run("mcopy", &["-i", file, "::/EFI/Linux/Talos-v1.12.1.efi", out.to_str().unwrap()]);
    assert!(std::fs::read(out).unwrap() == noise(large, 2), "the file came back changed");

    // Files are in one piece, and where they are said to be.
    let place = made.places["EFI/Linux/Talos-v1.12.1.efi"];
    assert_eq!(place % 4096, 0);
    let mut there = vec![0; large];
    std::fs::File::open(file).unwrap().read_exact_at(&mut there, place).unwrap();
    assert!(there == noise(large, 2), "the file is elsewhere");
}

#[test]
fn firmware_partitions_are_clean_and_hold_their_files() {
    check(100 * MIB, 5_000_000);
}

#[test]
fn the_partition_of_a_disk_image_is_clean() {
    check(2101 * MIB, 9_000_000);
}

#[test]
fn a_filesystem_for_media_is_as_large_as_needed() {
    let len = len_for(&tree(60_000_000), 10 * MIB);
    assert!((68 * MIB..72 * MIB).contains(&len), "{} MiB", len / MIB);
    check(len, 60_000_000);
}

#[test]
fn the_same_files_give_the_same_bytes() {
    let make = || filesystem(40 * MIB, "EFI", 7, &tree(1000)).unwrap().content.sha256().unwrap();
    assert_eq!(make(), make());
}

#[test]
fn what_does_not_fit_is_named() {
    let mut tree = Tree::default();
    tree.file("EFI/big", Content::zeros(200 * MIB)).unwrap();
    let error = filesystem(100 * MIB, "EFI", 0, &tree).unwrap_err().to_string();
    assert!(error.starts_with("FAT file \"/EFI/big\" has 209715200 bytes, at most"), "{error}");
    let error = filesystem(MIB, "EFI", 0, &Tree::default()).unwrap_err().to_string();
    assert_eq!(error, "FAT32 filesystem of 1048576 bytes: it can have 33 MiB to 2 TiB");
    let error = tree.file("EFI/big", Content::default()).unwrap_err().to_string();
    assert_eq!(error, "FAT path \"EFI/big\": it is there already");
    assert!(tree.file("x", Content::zeros(1 << 32)).is_err());
}
