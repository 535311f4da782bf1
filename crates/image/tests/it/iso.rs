//! ISO images, judged by xorriso, isoinfo and sgdisk.

use std::collections::BTreeMap;

use ichor_image::Content;
use ichor_image::iso::Iso;

use crate::{grub_code, noise, parts, run, write};

#[test]
fn media_start_in_every_way() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ichor.iso");
    let content = parts().iso(Some(&grub_code())).unwrap();
    write(&path, &content);
    let file = path.to_str().unwrap();

    let told =
        run("xorriso", &["-indev", file, "-report_el_torito", "plain", "-report_system_area", "plain"]);
    assert!(told.contains("Volume id    : 'TALOS_V1_12_1'"), "{told}");
    for line in
        ["El Torito boot img :   1  BIOS  y   none", "El Torito boot img :   2  UEFI  y   none", "grub2-mbr"]
    {
        assert!(told.contains(line), "{line} in {told}");
    }
    let told = run("sgdisk", &["--verify", "--print", file]);
    assert!(told.contains("No problems found") && told.contains("EFI"), "{told}");

    // Once in the kernel image and once by itself, but only once on the medium.
    assert!(content.len() < 40 << 20, "{} bytes", content.len());
    for (name, expected) in
        [("boot/vmlinuz", noise(3_000_000, 11)), ("boot/initramfs.xz", noise(20_000_000, 12))]
    {
        let out = dir.path().join("out");
        let _ = std::fs::remove_file(&out);
        run(
            "xorriso",
            &["-osirrox", "on", "-indev", file, "-extract", &format!("/{name}"), out.to_str().unwrap()],
        );
        assert!(std::fs::read(&out).unwrap() == expected, "{name}");
    }
    let esp = format!("{file}@@1M");
    assert!(run("mdir", &["-/", "-b", "-i", &esp, "::"]).contains("EFI/Linux/Talos-v1.12.1.efi"));
    assert_eq!(content.sha256().unwrap(), parts().iso(Some(&grub_code())).unwrap().sha256().unwrap());
}

#[test]
fn names_are_those_that_were_given() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("seed.iso");
    let mut files = BTreeMap::new();
    for name in ["user-data", "meta-data", "network-config", "deep/er/Than One.txt", "empty"] {
        files.insert(
            name.to_owned(),
            Content::bytes(if name == "empty" { vec![] } else { name.as_bytes().to_vec() }),
        );
    }
    for number in 0..100 {
        files.insert(format!("many/file number {number}"), Content::bytes([number]));
    }
    let iso = Iso { volume_id: "cidata".to_owned(), files, ..Iso::default() };
    write(&path, &iso.build().unwrap());
    let file = path.to_str().unwrap();
    let listed = run("isoinfo", &["-R", "-f", "-i", file]);
    for name in [
        "/user-data",
        "/meta-data",
        "/network-config",
        "/deep/er/Than One.txt",
        "/empty",
        "/many/file number 99",
    ] {
        assert!(listed.lines().any(|line| line == name), "{name} in {listed}");
    }
    assert_eq!(run("isoinfo", &["-R", "-i", file, "-x", "/deep/er/Than One.txt"]), "deep/er/Than One.txt");
    assert!(run("isoinfo", &["-d", "-i", file]).contains("Volume id: cidata"));
    let told = run("xorriso", &["-indev", file, "-find", "/", "-type", "f", "-exec", "lsdl", "--"]);
    assert_eq!(told.matches("-rw-r--r--").count(), 105, "{told}");
}

#[test]
fn bad_names_are_refused() {
    let build = |volume_id: &str, path: &str| {
        let files = BTreeMap::from([(path.to_owned(), Content::default())]);
        Iso { volume_id: volume_id.to_owned(), files, ..Iso::default() }.build().unwrap_err().to_string()
    };
    assert_eq!(build("a b", "x"), "volume id \"a b\": it has 1 to 32 letters, digits and underscores");
    assert!(build("X", "a//b").starts_with("ISO path \"a//b\": "));
    assert!(build("X", &"y".repeat(101)).contains("1 to 100 bytes"));
}
