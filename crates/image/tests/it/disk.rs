//! Disk images, judged by sgdisk, fsck.vfat, mtools and the reader of META.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use ichor_block::meta::tlv;
use ichor_image::Meta;
use ichor_image::build::Loader;

use crate::{grub_code, noise, parts, run, write};

/// The values of META on the partition with this number, as our own machines read them.
fn meta_of(file: &Path, first_sector: u64) -> Meta {
    let mut bytes = vec![0; tlv::META_LEN];
    File::open(file).unwrap().read_exact_at(&mut bytes, first_sector * 512).unwrap();
    match tlv::decode_either(&bytes) {
        tlv::Content::Values { tags, both } => {
            assert!(both);
            tags
        }
        other => panic!("{other:?}"),
    }
}

/// Number, first sector, last sector and name of every partition.
fn partitions(file: &str) -> Vec<(u32, u64, u64, String)> {
    let told = run("sgdisk", &["--verify", "--print", file]);
    assert!(told.contains("No problems found"), "{told}");
    let lines = told.lines().skip_while(|line| !line.starts_with("Number")).skip(1);
    lines
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
            Some((number(0)? as u32, number(1)?, number(2)?, (*fields.last()?).to_owned()))
        })
        .collect()
}

#[test]
fn a_disk_for_systemd_boot_has_its_files_and_meta() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.raw");
    write(&path, &parts().disk(Loader::SdBoot, None).unwrap());
    let file = path.to_str().unwrap();
    let data = std::fs::metadata(&path).unwrap();
    assert_eq!(data.len(), 2246 << 20);
    assert!(data.blocks() * 512 < 40 << 20, "{} blocks: it is not sparse", data.blocks());

    let found = partitions(file);
    let names: Vec<&str> = found.iter().map(|(_, _, _, name)| name.as_str()).collect();
    assert_eq!(names, ["EFI", "META"]);
    let sizes: Vec<u64> = found.iter().map(|(_, first, last, _)| (last - first + 1) / 2048).collect();
    assert_eq!(sizes, [2101, 1]);
    assert_eq!(meta_of(&path, found[1].1), parts().meta);

    let esp = format!("{file}@@1M");
    let listed = run("mdir", &["-/", "-b", "-i", &esp, "::"]);
    for name in ["EFI/boot/BOOTX64.efi", "EFI/Linux/Talos-v1.12.1.efi", "loader/loader.conf"] {
        assert!(listed.contains(name), "{name} in {listed}");
    }
    assert_eq!(run("mtype", &["-i", &esp, "::/loader/loader.conf"]), "timeout 10\n");
}

#[test]
fn a_disk_for_both_has_grub_and_says_so_in_meta() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.raw");
    write(&path, &parts().disk(Loader::Dual, Some(&grub_code())).unwrap());
    let file = path.to_str().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 4247 << 20);
    let found = partitions(file);
    let names: Vec<&str> = found.iter().map(|(_, _, _, name)| name.as_str()).collect();
    assert_eq!(names, ["EFI", "BIOS", "BOOT", "META"]);
    let meta = meta_of(&path, found[3].1);
    assert_eq!(meta.get(&0x11).map(Vec::as_slice), Some(&b"dual-boot"[..]));
    let told = run("sgdisk", &["--info=2", file]);
    assert!(told.contains("21686148-6449-6E6F-744E-656564454649"), "{told}");
    assert!(told.contains("Attribute flags: 0000000000000004"), "{told}");

    // GRUB's first sector points at its core.
    let mut sector = [0; 512];
    let image = File::open(&path).unwrap();
    image.read_exact_at(&mut sector, 0).unwrap();
    assert_eq!(sector[0x5c..0x64], found[1].1.to_le_bytes());
    assert_eq!(sector[..0x5c], noise(512, 21)[..0x5c]);
    let boot = format!("{file}@@{}", found[2].1 * 512);
    let menu = run("mtype", &["-i", &boot, "::/grub/grub.cfg"]);
    assert!(menu.contains("linux /A/vmlinuz talos.platform=metal console=ttyS0"), "{menu}");
    assert!(menu.contains("talos.experimental.wipe=system:EPHEMERAL,STATE"), "{menu}");
}

#[test]
fn the_same_parts_give_the_same_disk_and_others_another() {
    let digest =
        |parts: ichor_image::build::Parts| parts.disk(Loader::SdBoot, None).unwrap().sha256().unwrap();
    assert_eq!(digest(parts()), digest(parts()));
    let mut other = parts();
    other.meta.insert(0x0b, b"x".to_vec());
    assert_ne!(digest(parts()), digest(other));
}

#[test]
fn grub_without_its_code_and_meta_that_is_too_large_are_refused() {
    let error = parts().disk(Loader::Dual, None).unwrap_err().to_string();
    assert_eq!(error, "boot loader GRUB: its boot code is missing; name it with --grub");
    let mut large = parts();
    large.meta.insert(0x0a, vec![0; 300_000]);
    let error = large.disk(Loader::SdBoot, None).unwrap_err().to_string();
    assert!(error.starts_with("META has 300008 bytes, at most"), "{error}");
}
