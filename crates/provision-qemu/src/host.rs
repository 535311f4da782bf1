//! What the host has to have: QEMU, a kernel or an image, firmware; and whether KVM works.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ichor_provision::ProvisionError;

use crate::disk;
use crate::options::{Accel, Arch, Boot, Options};

/// Users of `su` have no directories of the administrator in theirs.
const PATH: &str = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Where a kernel and its initramfs lie beside the program, as `scripts/vm prepare` leaves them.
const PLACES: [&str; 3] = ["vm", "../build/vm", "../share/ichor/vm"];
const KERNEL: &str = "kernel/vmlinuz";
const INITRD: &str = "initramfs.cpio";
const FIRMWARE: &str = "firmware/usr/share/OVMF";
/// Firmware as distributions have it: directories, then pairs of code and variables.
const UEFI_DIRS: [&str; 4] =
    ["/usr/share/OVMF", "/usr/share/AAVMF", "/usr/share/edk2/x64", "/usr/share/qemu"];
const UEFI_AMD64: [(&str, &str); 3] = [
    ("OVMF_CODE_4M.fd", "OVMF_VARS_4M.fd"),
    ("OVMF_CODE.fd", "OVMF_VARS.fd"),
    ("edk2-x86_64-code.fd", "edk2-i386-vars.fd"),
];
const UEFI_ARM64: [(&str, &str); 2] =
    [("AAVMF_CODE.fd", "AAVMF_VARS.fd"), ("edk2-aarch64-code.fd", "edk2-arm-vars.fd")];
const HELP: &str = "`scripts/vm prepare` installs and builds them on Debian";
/// How long QEMU may take to say whether KVM works.
const PROBE_MAX: Duration = Duration::from_secs(20);

/// The name of QEMU for an architecture.
fn program_name(arch: Arch) -> &'static str {
    match arch {
        Arch::Amd64 => "qemu-system-x86_64",
        Arch::Arm64 => "qemu-system-aarch64",
    }
}

/// QEMU for an architecture.
fn program(arch: Arch) -> Option<PathBuf> {
    let own = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&own).chain(std::env::split_paths(PATH)).collect::<Vec<_>>();
    dirs.into_iter().map(|dir| dir.join(program_name(arch))).find(|path| path.is_file())
}

/// Settings with everything found: absolute paths of what machines boot, of firmware, and what runs them. One error
/// names all that is missing.
pub(crate) fn resolve(settings: &mut BTreeMap<String, String>) -> Result<Options, ProvisionError> {
    let wanted = Options::parse(settings)?;
    let mut missing = Vec::new();
    let program = wanted.program.clone().or_else(|| program(wanted.arch));
    match &program {
        Some(found) => {
            settings.insert("qemu-path".into(), found.to_string_lossy().into_owned());
        }
        None => missing.push(format!("the program {}", program_name(wanted.arch))),
    }
    for (name, what) in [
        ("uki-path", "unified kernel image"),
        ("iso-path", "ISO image"),
        ("usb-path", "USB image"),
        ("disk-image-path", "disk image"),
        ("vmlinuz-path", "kernel"),
        ("initrd-path", "initramfs"),
    ] {
        find_file(settings, name, what, &wanted, &mut missing);
    }
    image_format(settings)?;
    if wanted.uefi_wanted {
        match wanted.uefi.clone().map(|uefi| (uefi.code, uefi.vars)).or_else(|| firmware(&wanted)) {
            Some((code, vars)) => {
                settings.insert("uefi-code".into(), code.to_string_lossy().into_owned());
                settings.insert("uefi-vars".into(), vars.to_string_lossy().into_owned());
            }
            None => missing.push("UEFI firmware (package ovmf; or say --with-uefi=false)".to_owned()),
        }
    }
    if !missing.is_empty() {
        return Err(ProvisionError::Missing { provider: "QEMU", things: missing, help: HELP });
    }
    if wanted.accel.is_none() {
        let kvm = wanted.arch == Arch::HOST && program.is_some_and(|program| kvm_works(&program));
        settings.insert("accel".into(), if kvm { "kvm" } else { "tcg" }.into());
    }
    Options::parse(settings)
}

/// Makes the path of a setting absolute. A kernel is looked for beside the program where nothing else is to be booted.
fn find_file(
    settings: &mut BTreeMap<String, String>,
    name: &str,
    what: &str,
    wanted: &Options,
    missing: &mut Vec<String>,
) {
    let default = match (name, &wanted.boot) {
        ("vmlinuz-path", None | Some(Boot::Kernel { .. })) => Some(KERNEL),
        ("initrd-path", None | Some(Boot::Kernel { .. })) => Some(INITRD),
        ("vmlinuz-path" | "initrd-path", _) => {
            settings.remove(name);
            return;
        }
        _ => None,
    };
    let given = settings.get(name).filter(|text| !text.is_empty());
    let given = given.map(|text| PathBuf::from(text.replace("${ARCH}", wanted.arch.name())));
    let Some(path) = given.or_else(|| default.map(beside_program)) else { return };
    match fs::canonicalize(&path).ok().filter(|path| path.is_file()) {
        Some(found) => {
            settings.insert(name.to_owned(), found.to_string_lossy().into_owned());
        }
        None => missing.push(format!("the {what} {}", path.display())),
    }
}

/// Disks have the format of the image that the first of them is made of.
fn image_format(settings: &mut BTreeMap<String, String>) -> Result<(), ProvisionError> {
    let Some(image) = settings.get("disk-image-path") else { return Ok(()) };
    // One that is not there is told with all else that is missing.
    let Ok(format) = disk::format_of(Path::new(image)) else { return Ok(()) };
    let name = format.name();
    match settings.get("disk-format") {
        Some(given) if given != name => Err(ProvisionError::BadSetting {
            name: "disk-format",
            value: given.clone(),
            expected: "the format of the disk image; leave it out",
        }),
        _ => {
            settings.insert("disk-format".into(), name.into());
            Ok(())
        }
    }
}

/// A file beside this program, or where it would be in a checkout.
fn beside_program(file: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program.parent().unwrap_or(Path::new("."));
    let mut places = PLACES.iter().map(|place| beside.join(place).join(file));
    places.find(|path| path.exists()).unwrap_or_else(|| Path::new("build/vm").join(file))
}

fn firmware(wanted: &Options) -> Option<(PathBuf, PathBuf)> {
    let names: &[(&str, &str)] = match wanted.arch {
        Arch::Amd64 => &UEFI_AMD64,
        Arch::Arm64 => &UEFI_ARM64,
    };
    let own = beside_program(FIRMWARE);
    let known = [own.as_path()].into_iter().chain(UEFI_DIRS.iter().map(Path::new));
    let dirs = wanted.uefi_paths.iter().map(PathBuf::as_path).chain(known);
    let pairs = dirs.flat_map(|dir| names.iter().map(|(code, vars)| (dir.join(code), dir.join(vars))));
    let mut whole = pairs.filter(|(code, vars)| code.is_file() && vars.is_file());
    whole.next()
}

/// Whether machines run with KVM as they will be started. The device may be there without it: then QEMU fails to set
/// its processors up, so it is tried.
fn kvm_works(program: &Path) -> bool {
    let there = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok();
    let child = there.then(|| {
        Command::new(program)
            .args(["-accel", "kvm", "-machine", "q35", "-cpu", "host", "-m", "64", "-nodefaults"])
            .args(["-no-user-config", "-display", "none", "-S", "-monitor", "stdio"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
    });
    let Some(Ok(mut child)) = child else { return false };
    if let Some(mut stdin) = child.stdin.take() {
        use std::io::Write as _;
        let _ = stdin.write_all(b"quit\n");
    }
    let deadline = Instant::now() + PROBE_MAX;
    while Instant::now() < deadline {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(Duration::from_millis(10)),
            Ok(Some(status)) => return status.success(),
            Err(_) => break,
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    false
}

/// What runs machines as resolved.
pub(crate) fn accel(options: &Options) -> Accel {
    options.accel.unwrap_or(Accel::Tcg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_missing_is_told_at_once() {
        let mut settings = BTreeMap::from([
            ("vmlinuz-path".to_owned(), "/no/vmlinuz-${ARCH}".to_owned()),
            ("initrd-path".to_owned(), "/no/initramfs".to_owned()),
            ("arch".to_owned(), "amd64".to_owned()),
            ("with-uefi".to_owned(), "false".to_owned()),
        ]);
        let told = resolve(&mut settings).unwrap_err().to_string();
        for part in ["the kernel /no/vmlinuz-amd64, the initramfs /no/initramfs", "`scripts/vm prepare`"] {
            assert!(told.contains(part), "{told}");
        }
    }

    #[test]
    fn disks_have_the_format_of_the_image() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("x.img");
        fs::write(&image, b"QFI\xfb....").unwrap();
        let mut settings =
            BTreeMap::from([("disk-image-path".to_owned(), image.to_string_lossy().into_owned())]);
        image_format(&mut settings).unwrap();
        assert_eq!(settings["disk-format"], "qcow2");
        settings.insert("disk-format".to_owned(), "raw".to_owned());
        let told = image_format(&mut settings).unwrap_err().to_string();
        assert_eq!(told, "setting disk-format: \"raw\" is not the format of the disk image; leave it out");
    }

    #[test]
    fn an_image_needs_no_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let iso = dir.path().join("x.iso");
        fs::write(&iso, "iso").unwrap();
        let mut settings = BTreeMap::from([
            ("iso-path".to_owned(), iso.to_string_lossy().into_owned()),
            ("vmlinuz-path".to_owned(), "/no/vmlinuz".to_owned()),
            ("with-uefi".to_owned(), "false".to_owned()),
            ("accel".to_owned(), "tcg".to_owned()),
        ]);
        match resolve(&mut settings) {
            Ok(options) => assert_eq!(options.boot, Some(Boot::Iso(iso.canonicalize().unwrap()))),
            // Where there is no QEMU, that is all that is missing.
            Err(error) => assert!(!error.to_string().contains("vmlinuz"), "{error}"),
        }
    }
}
