//! `cluster create qemu`: the same with virtual machines.

use std::collections::BTreeMap;

use super::create;
use crate::failure::Failure;
use crate::parse::Call;
use crate::table::{Command, Complete, Flag};

/// The provider of these machines.
const PROVIDER: &str = "qemu";
/// The most disks beside the first.
const EXTRA_DISKS_MAX: i64 = 15;

/// The command.
pub(super) static QEMU: Command = Command {
    name: PROVIDER,
    aliases: &["dev"],
    about: "Make a cluster of virtual machines and start it",
    long: "Makes a cluster of QEMU machines on this host and starts it: a real kernel, firmware and disks. They run with\n\
           KVM where it works, else emulated, which is slow. Without another source they boot the kernel and the\n\
           initramfs that `scripts/vm prepare` leaves in build/vm.",
    examples: &[
        "cluster create qemu --name lab --controlplanes 1 --workers 0",
        "cluster create qemu --iso-path metal-amd64.iso --disks virtio:10GiB,nvme:6GiB",
    ],
    flags: FLAGS,
    run: Some(run),
    ..Command::EMPTY
};

static FLAGS: &[Flag] = &[
    Flag::list(
        "presets",
        "iso, pxe or disk-image: what is booted; maintenance: let the machines wait for a configuration",
    ),
    Flag::list("disks", "disks as DRIVER:SIZE, those after the first for workers only; or none")
        .default("virtio:10GiB,virtio:6GiB"),
    Flag::int("disk", "6144", "size of the first disk in MiB, instead of --disks"),
    Flag::int("extra-disks", "0", "number of further disks of workers, instead of --disks"),
    Flag::int("extra-disks-size", "5120", "size of each of them in MiB"),
    Flag::list("extra-disks-drivers", "driver of each of them: virtio, ide, ahci, scsi, nvme, megaraid"),
    Flag::int("disk-block-size", "512", "block size of disks, 512 or 4096"),
    Flag::text("disk-format", "raw, or qcow2 for snapshots").default("raw"),
    Flag::switch("disk-preallocate", "accepted for compatibility: files of disks grow as they are written")
        .hidden(),
    Flag::text("arch", "processor architecture, amd64 or arm64 (default that of this host)"),
    Flag::text("accel", "kvm or tcg (default what works)"),
    Flag::text("vmlinuz-path", "kernel to boot").complete(Complete::File),
    Flag::text("initrd-path", "initramfs to boot").complete(Complete::File),
    Flag::text("uki-path", "unified kernel image to boot").complete(Complete::File),
    Flag::text("iso-path", "ISO image to boot").complete(Complete::File),
    Flag::text("usb-path", "image of a USB stick to boot").complete(Complete::File),
    Flag::text("disk-image-path", "image to make the first disk of").complete(Complete::File),
    Flag::text("ipxe-boot-script", "URL of a script to boot with iPXE"),
    Flag::switch("with-bootloader", "boot from the first disk once something is installed there")
        .default("true"),
    Flag::switch("with-uefi", "UEFI firmware; BIOS without").default("true"),
    Flag::list("extra-uefi-search-paths", "more directories with UEFI firmware").complete(Complete::File),
    Flag::switch("with-tpm1_2", "a TPM 1.2").hidden(),
    Flag::switch("with-tpm2", "a TPM 2.0").hidden(),
    Flag::switch("encrypt-state", "encrypt STATE").hidden(),
    Flag::switch("encrypt-ephemeral", "encrypt EPHEMERAL").hidden(),
    Flag::switch("encrypt-user-volumes", "encrypt user volumes").hidden(),
    Flag::switch("with-iommu", "an IOMMU"),
    Flag::switch("bad-rtc", "a clock that is years behind"),
    Flag::text("rtc-base", "where the clock starts, as 2020-01-31T12:00:00"),
    Flag::switch("skip-injecting-extra-cmdline", "no kernel arguments where firmware starts a boot loader"),
    Flag::int("nics", "1", "network interfaces of a machine; the first has its address"),
    Flag::list("nameservers", "name servers of the machines (default the gateway, which knows the machines)"),
    Flag::switch("disable-dhcp-hostname", "give machines no name by DHCP"),
];

/// Flags that the provider takes under their own names.
const PASSED: [&str; 16] = [
    "disk-block-size",
    "disk-format",
    "arch",
    "accel",
    "vmlinuz-path",
    "initrd-path",
    "uki-path",
    "iso-path",
    "usb-path",
    "disk-image-path",
    "ipxe-boot-script",
    "extra-uefi-search-paths",
    "rtc-base",
    "nics",
    "nameservers",
    "disks",
];
const SWITCHES: [&str; 11] = [
    "with-bootloader",
    "with-uefi",
    "with-tpm1_2",
    "with-tpm2",
    "encrypt-state",
    "encrypt-ephemeral",
    "encrypt-user-volumes",
    "with-iommu",
    "bad-rtc",
    "skip-injecting-extra-cmdline",
    "disable-dhcp-hostname",
];
/// What the presets of the original boot, the flag that says which, and what `make images-os` leaves for it.
const SOURCES: [(&str, &str, &str); 3] = [
    ("iso", "iso-path", "metal-amd64.iso"),
    ("pxe", "ipxe-boot-script", ""),
    ("disk-image", "disk-image-path", "metal-amd64.raw"),
];
/// Where images lie, seen from the program.
const IMAGES_PLACES: [&str; 2] = ["../build/os/images", "../share/ichor/images"];

/// The image of this name that was built here.
fn built(name: &str) -> Option<String> {
    let program = std::env::current_exe().ok()?;
    let places = IMAGES_PLACES.iter().map(|place| program.with_file_name(place).join(name));
    let found = places.filter(|path| path.is_file()).find_map(|path| path.canonicalize().ok())?;
    Some(found.to_string_lossy().into_owned())
}

fn run(call: &Call) -> Result<(), Failure> {
    let mut maintenance = false;
    let mut settings = settings(call)?;
    for preset in call.list("presets") {
        match SOURCES.iter().find(|(name, ..)| *name == preset) {
            Some((_, flag, image)) if !call.given(flag) => {
                let Some(found) = built(image).filter(|_| !image.is_empty()) else {
                    let text = format!("preset {preset} needs --{flag}: images are not downloaded yet");
                    return Err(Failure::new(text).hint("`make images-os` builds an ISO and a disk image"));
                };
                settings.insert((*flag).to_owned(), found);
            }
            Some(_) => {}
            None if preset == "maintenance" => maintenance = true,
            None if preset == "iso-secureboot" => {
                return Err(Failure::new("preset iso-secureboot is not offered yet: machines have no TPM"));
            }
            None => {
                return Err(Failure::new(format!("unknown preset \"{preset}\""))
                    .hint("choose one of iso, pxe and disk-image, and maintenance"));
            }
        }
    }
    create::run_on(call, Some(PROVIDER), settings, maintenance)
}

/// What is given, as settings of the provider; what is not, it knows.
fn settings(call: &Call) -> Result<BTreeMap<String, String>, Failure> {
    let given = |names: &'static [&'static str]| names.iter().filter(|name| call.given(name));
    let text = |name: &&str| match *name {
        "disk-block-size" | "nics" => call.int(name).to_string(),
        "extra-uefi-search-paths" | "nameservers" | "disks" => call.list(name).join(","),
        name => call.text(name).to_owned(),
    };
    let mut settings: BTreeMap<String, String> =
        given(&PASSED).map(|name| ((*name).to_owned(), text(name))).collect();
    settings.extend(given(&SWITCHES).map(|name| ((*name).to_owned(), call.on(name).to_string())));
    let old = ["disk", "extra-disks"].into_iter().find(|name| call.given(name));
    match (old, call.given("disks")) {
        (Some(old), true) => {
            return Err(Failure::new(format!(
                "--{old} and --disks exclude each other; leave one of them out"
            )));
        }
        (Some(_), false) => {
            let (extra, size) = (call.int("extra-disks"), call.int("extra-disks-size"));
            if !(0..=EXTRA_DISKS_MAX).contains(&extra) {
                return Err(Failure::new(format!("--extra-disks must lie between 0 and {EXTRA_DISKS_MAX}")));
            }
            let disks = disks(call.int("disk"), extra, size, &call.list("extra-disks-drivers"));
            settings.insert("disks".to_owned(), disks);
        }
        (None, _) => {}
    }
    Ok(settings)
}

/// Disks of the older flags as those of the newer one. A disk without a driver of its own has that of the original.
fn disks(first: i64, extra: i64, size: i64, drivers: &[String]) -> String {
    let driver = |number: i64| {
        let number = usize::try_from(number).unwrap_or_default();
        drivers.get(number).map_or("ide", String::as_str)
    };
    let more = (0..extra).map(|number| format!(",{}:{size}MiB", driver(number)));
    std::iter::once(format!("virtio:{first}MiB")).chain(more).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_flags_of_disks_become_the_newer_one() {
        assert_eq!(disks(6144, 0, 5120, &[]), "virtio:6144MiB");
        let drivers = ["nvme".to_owned()];
        assert_eq!(disks(6144, 2, 5120, &drivers), "virtio:6144MiB,nvme:5120MiB,ide:5120MiB");
    }

    #[test]
    fn every_flag_that_is_passed_on_is_one() {
        for name in PASSED.iter().chain(&SWITCHES) {
            assert!(FLAGS.iter().any(|flag| flag.name == *name), "{name}");
        }
    }
}
