//! Unified kernel images, judged by objdump and objcopy.

use ichor_image::uki::{Parts, Reset, Uki, stub_version};
use ichor_image::{Content, os_release};
use ichor_types::cmdline::Cmdline;

use crate::{noise, run, write};

/// The stub of the package systemd-boot-efi.
pub(crate) const STUB: &str = "/usr/lib/systemd/boot/efi/linuxx64.efi.stub";

fn uki(stub: Vec<u8>) -> Uki {
    Uki {
        stub,
        os_release: os_release("1.2.3"),
        cmdline: Cmdline::parse("talos.platform=metal console=tty0"),
        uname: Some("6.1.0-44-cloud-amd64".to_owned()),
        kernel: Content::bytes(noise(300_001, 3)),
        initramfs: Content::bytes(noise(1_000_003, 4)),
        reset: Reset::Maintenance,
    }
}

/// A stub of which the version says that it knows profiles.
fn with_version(mut stub: Vec<u8>, version: &[u8; 3]) -> Vec<u8> {
    let key = b"systemd-stub ";
    let at = stub.windows(key.len()).position(|window| window == key).unwrap() + key.len();
    stub[at..at + 3].copy_from_slice(version);
    stub
}

#[test]
fn other_tools_read_the_sections() {
    let stub = std::fs::read(STUB).expect("the package systemd-boot-efi");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("uki.efi");
    let uki = uki(with_version(stub, b"257"));
    assert!(uki.has_profiles());
    write(&file, &uki.build().unwrap());
    let path = file.to_str().unwrap();

    let listed = run("objdump", &["-h", path]);
    let names: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1).filter(|name| name.starts_with('.')))
        .collect();
    let added = names.iter().skip_while(|name| **name != ".osrel").copied().collect::<Vec<_>>();
    assert_eq!(
        added,
        [".osrel", ".cmdline", ".uname", ".linux", ".initrd", ".profile", ".profile", ".cmdline"]
    );
    for (name, expected) in [(".linux", noise(300_001, 3)), (".initrd", noise(1_000_003, 4))] {
        let out = dir.path().join("section");
        let only = format!("--only-section={name}");
        let dump = format!("{name}={}", out.display());
        run("objcopy", &["-O", "binary", &only, "--dump-section", &dump, path, "/dev/null"]);
        let mut found = std::fs::read(&out).unwrap();
        found.truncate(expected.len());
        assert!(found == expected, "{name}");
    }
    let headers = run("objdump", &["-p", path]);
    for line in ["Time/Date\t\tThu Jan  1 00:00:00 1970", "CheckSum\t\t00000000", "MajorLinkerVersion\t0"] {
        assert!(headers.contains(line), "{line} in {headers}");
    }
}

#[test]
fn sections_do_not_overlap_and_the_stub_keeps_its_own() {
    let stub = std::fs::read(STUB).expect("the package systemd-boot-efi");
    let bytes = uki(stub.clone()).build().unwrap().read(1 << 30).unwrap();
    let old = ichor_image::pe::Headers::parse(&stub, stub.len() as u64).unwrap();
    let new = ichor_image::pe::Headers::parse(&bytes, bytes.len() as u64).unwrap();
    for (before, after) in old.sections.iter().zip(&new.sections) {
        assert_eq!((&before.name, before.virtual_address), (&after.name, after.virtual_address));
        let slice = |bytes: &[u8], section: &ichor_image::pe::Section| {
            let range = section.content();
            bytes[range.start as usize..range.end as usize].to_vec()
        };
        assert_eq!(slice(&stub, before), slice(&bytes, after), "{}", before.name);
    }
    for pair in new.sections.windows(2) {
        assert!(pair[0].virtual_address + pair[0].virtual_size <= pair[1].virtual_address, "{pair:?}");
        assert!(pair[0].raw_offset + pair[0].raw_size <= pair[1].raw_offset, "{pair:?}");
    }
    assert_eq!(bytes, uki(stub).build().unwrap().read(1 << 30).unwrap(), "the same twice");
}

#[test]
fn an_old_stub_never_sees_the_command_line_that_wipes() {
    let stub = with_version(std::fs::read(STUB).expect("the package systemd-boot-efi"), b"256");
    assert_eq!(stub_version(&stub), Some(256));
    let uki = uki(stub);
    assert!(!uki.has_profiles());
    let bytes = uki.build().unwrap().read(1 << 30).unwrap();
    assert!(!bytes.windows(5).any(|window| window == b"wipe="));
}

#[test]
fn parts_of_an_image_are_found_again() {
    let stub = std::fs::read(STUB).expect("the package systemd-boot-efi");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("uki.efi");
    write(&file, &uki(with_version(stub.clone(), b"257")).build().unwrap());
    let parts = Parts::open(&file).unwrap();
    assert_eq!(parts.cmdline, "talos.platform=metal console=tty0", "that of the main profile");
    assert_eq!(parts.os_release, os_release("1.2.3"));
    assert!(parts.kernel.read(1 << 30).unwrap() == noise(300_001, 3));
    assert!(parts.initramfs.read(1 << 30).unwrap() == noise(1_000_003, 4));

    std::fs::write(&file, &stub).unwrap();
    let error = Parts::open(&file).unwrap_err();
    assert_eq!(error.to_string(), format!("read {}", file.display()));
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "PE file has no section .linux");
}
