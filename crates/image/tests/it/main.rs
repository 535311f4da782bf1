//! Images judged by the programs that others read them with: objdump, fsck, mtools, sgdisk, xorriso, qemu-img.

mod disk;
mod fat;
mod installer;
mod iso;
mod kernel;
mod pe;
mod qcow2;

use std::fs::File;
use std::path::Path;
use std::process::Command;

use ichor_image::build::{GrubCode, Parts};
use ichor_image::grub::DiskCode;
use ichor_image::iso::Bios;
use ichor_image::kernel::Kernel;
use ichor_image::{Arch, Content, Meta};

/// Writes content to a file.
fn write(path: &Path, content: &Content) {
    content.write_to(&mut File::create(path).unwrap()).unwrap();
}

/// Runs a program that has to be there and to succeed; gives back what it printed.
#[track_caller]
fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .env("MTOOLS_SKIP_CHECK", "0")
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}; scripts/unit installs it"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {}\n{text}{errors}", output.status);
    text + &errors
}

/// Bytes that are the same in every run and compress badly.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Parts of which only the sizes are real, and the stub.
fn parts() -> Parts {
    Parts {
        arch: Arch::Amd64,
        version: "1.12.1".to_owned(),
        platform: "metal".to_owned(),
        kernel: Kernel { image: Content::bytes(noise(3_000_000, 11)), release: Some("6.1.0-44".to_owned()) },
        initramfs: Content::bytes(noise(20_000_000, 12)),
        stub: std::fs::read(pe::STUB).expect("the package systemd-boot-efi"),
        sd_boot: Content::bytes(noise(140_000, 13)),
        extra_args: vec!["console=ttyS0".to_owned()],
        meta: Meta::from([(0x0a, b"addresses: []".to_vec())]),
    }
}

/// GRUB's code in name only; that it starts is seen on machines.
fn grub_code() -> GrubCode {
    GrubCode {
        disk: DiskCode { boot: noise(512, 21), core: noise(170_000, 22) },
        media: Bios { core: noise(170_000, 23), hybrid: noise(512, 24) },
        efi: Content::bytes(noise(700_000, 25)),
    }
}
