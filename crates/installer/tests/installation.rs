//! Installations on image files, judged by the programs that others read disks with: sgdisk, fsck, mtools.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use ichor_block::Guid;
use ichor_block::device::Device;
use ichor_block::gpt::Table;
use ichor_boot::plan::disk::{BootDisk, NewSystem};
use ichor_boot::plan::{Asset, Step};
use ichor_boot::record::{Record, SLOTS_KEY};
use ichor_boot::sdboot::variable::{Variable, encode_text};
use ichor_boot::slots::{BootId, BootPath, Failure, Other, Slot, Standing, Start};
use ichor_image::build::{GrubCode, Parts};
use ichor_image::grub::DiskCode;
use ichor_image::iso::Bios;
use ichor_image::kernel::Kernel;
use ichor_image::{Arch, Content, Meta};
use ichor_installer::artifacts::{Artifacts, Place};
use ichor_installer::fresh::{Fresh, FreshPlan};
use ichor_installer::layout::Firmware;
use ichor_installer::meta::DiskMeta;
use ichor_installer::slots::{Installed, Outcome, Running};
use ichor_sys::boot_port::{AssetSource, BootPaths};
use ichor_types::Cmdline;

const STUB: &str = "/usr/lib/systemd/boot/efi/linuxx64.efi.stub";
const SD_BOOT: &str = "/usr/lib/systemd/boot/efi/systemd-bootx64.efi";

#[track_caller]
fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .env("LC_ALL", "C")
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}; scripts/unit installs it"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {}\n{text}{errors}", output.status);
    text + &errors
}

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

fn parts(version: &str, seed: u64) -> Parts {
    Parts {
        arch: Arch::Amd64,
        version: version.to_owned(),
        platform: "metal".to_owned(),
        kernel: Kernel { image: Content::bytes(noise(300_000, seed)), release: Some("6.12.0".to_owned()) },
        initramfs: Content::bytes(noise(2_000_000, seed + 1)),
        stub: fs::read(STUB).expect("the package systemd-boot-efi"),
        sd_boot: Content::file(Path::new(SD_BOOT)).unwrap(),
        extra_args: vec!["console=ttyS0".to_owned()],
        meta: Meta::new(),
    }
}

fn code() -> GrubCode {
    GrubCode {
        disk: DiskCode { boot: noise(512, 21), core: noise(170_000, 22) },
        media: Bios { core: noise(170_000, 23), hybrid: noise(512, 24) },
        efi: Content::bytes(noise(700_000, 25)),
    }
}

/// Installation media, and the parts found on them.
fn from_media(dir: &Path, version: &str, seed: u64) -> Artifacts {
    let path = dir.join(format!("{version}.iso"));
    let iso = parts(version, seed).iso(Some(&code())).unwrap();
    iso.write_to(&mut File::create(&path).unwrap()).unwrap();
    Artifacts::open(&Place::Media(path), Arch::Amd64).unwrap()
}

fn planned(
    artifacts: &Artifacts,
    firmware: Firmware,
    disk: &Device,
    meta: &BTreeMap<u8, Vec<u8>>,
) -> FreshPlan {
    let fresh = Fresh {
        artifacts,
        arch: Arch::Amd64,
        firmware,
        cmdline: artifacts.cmdline.to_string(),
        legacy_bootable: false,
        meta,
        entries: &[],
    };
    fresh.plan(disk.geometry().unwrap(), Guid::random).unwrap()
}

/// An image file with something else all over it.
fn used_disk(dir: &Path) -> (PathBuf, Device) {
    let path = dir.join("disk");
    let file = File::create(&path).unwrap();
    file.set_len(5 << 30).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xff; 16 << 20], 0).unwrap();
    let disk = Device::open_unused(&path).unwrap();
    (path, disk)
}

fn offset(path: &Path, label: &str) -> u64 {
    let disk = Device::open(path).unwrap();
    let (table, _) = disk.table().unwrap().unwrap();
    let (number, _) = table.find(label).unwrap();
    table.offset_and_size(number).unwrap().0
}

#[test]
fn a_machine_with_uefi_is_installed_from_media() {
    let dir = tempfile::tempdir().unwrap();
    let artifacts = from_media(dir.path(), "1.12.1", 100);
    assert_eq!((artifacts.name.as_str(), artifacts.tag.as_str()), ("Ichor", "v1.12.1"));
    let line = artifacts.cmdline.to_string();
    assert!(!line.contains("halt_if_installed") && line.contains("console=ttyS0 "), "{line}");
    let (path, disk) = used_disk(dir.path());
    let meta = BTreeMap::from([(0x0a, b"network".to_vec())]);
    let plan = planned(&artifacts, Firmware::Uefi, &disk, &meta);
    let mut told = Vec::new();
    plan.write(&disk, |line| told.push(line.to_owned())).unwrap();
    drop(disk);

    let file = path.to_str().unwrap();
    let printed = run("sgdisk", &["--verify", "--print", file]);
    assert!(printed.contains("No problems found"), "{printed}");
    for label in ["EFI", "META"] {
        assert!(printed.contains(label), "{label} in {printed}");
    }
    let efi = format!("{file}@@{}", offset(&path, "EFI"));
    let listed = run("mdir", &["-/", "-b", "-i", &efi, "::"]);
    for name in ["EFI/boot/BOOTX64.efi", "EFI/Linux/Talos-v1.12.1.efi", "loader/loader.conf"] {
        assert!(listed.contains(name), "{name} in {listed}");
    }
    assert!(run("mtype", &["-i", &efi, "::loader/loader.conf"]).contains("default Talos-v1.12.1.efi"));
    let out = dir.path().join("uki");
    run("mcopy", &["-i", &efi, "::EFI/Linux/Talos-v1.12.1.efi", out.to_str().unwrap()]);
    let found = ichor_image::uki::Parts::open(&out).unwrap();
    assert_eq!(found.cmdline, line, "the kernel image has the command line of a disk");
    assert!(found.kernel.read(1 << 20).unwrap() == noise(300_000, 100));
    assert!(found.initramfs.read(4 << 20).unwrap() == noise(2_000_000, 101));
    run(
        "dd",
        &[
            &format!("if={file}"),
            &format!("of={}", dir.path().join("efi").display()),
            "bs=1M",
            &format!("skip={}", offset(&path, "EFI") >> 20),
            "count=2101",
            "conv=sparse",
            "status=none",
        ],
    );
    run("fsck.vfat", &["-n", dir.path().join("efi").to_str().unwrap()]);

    let names: Vec<String> = plan
        .variables
        .iter()
        .map(|step| match step {
            Step::SetVariable { variable, .. } => variable.file(),
            other => panic!("{other}"),
        })
        .collect();
    assert_eq!(names[0], Variable::EntryDefault.file());
    assert!(names.contains(&Variable::Boot(0).file()), "{names:?}");
    assert!(told.iter().any(|line| line.contains("partition table")), "{told:?}");
}

#[test]
fn a_machine_with_a_bios_is_installed_from_media() {
    let dir = tempfile::tempdir().unwrap();
    let artifacts = from_media(dir.path(), "1.12.1", 100);
    let (path, disk) = used_disk(dir.path());
    let plan = planned(&artifacts, Firmware::Bios, &disk, &BTreeMap::new());
    assert!(plan.variables.is_empty());
    plan.write(&disk, |_| {}).unwrap();
    drop(disk);
    let file = path.to_str().unwrap();
    let printed = run("sgdisk", &["--verify", "--print", file]);
    assert!(printed.contains("No problems found") && printed.contains("BOOT"), "{printed}");
    let boot = format!("{file}@@{}", offset(&path, "BOOT"));
    let menu = run("mtype", &["-i", &boot, "::grub/grub.cfg"]);
    assert!(
        menu.contains("set default=\"A - Ichor v1.12.1\"") && menu.contains("linux /A/vmlinuz"),
        "{menu}"
    );
    assert!(
        menu.contains("next_entry") && menu.contains("panic=10") && !menu.contains("halt_if_installed"),
        "{menu}"
    );
    let listed = run("mdir", &["-/", "-b", "-i", &boot, "::"]);
    for name in ["A/vmlinuz", "A/initramfs.xz", "grub/grubenv"] {
        assert!(listed.contains(name), "{name} in {listed}");
    }
    // The first sector leads to the core, and the core to the rest of it.
    let bytes = |at: u64, len: usize| {
        let mut buffer = vec![0; len];
        std::os::unix::fs::FileExt::read_exact_at(&File::open(&path).unwrap(), &mut buffer, at).unwrap();
        buffer
    };
    let core = offset(&path, "BIOS");
    assert_eq!(bytes(0x5c, 8), (core / 512).to_le_bytes());
    assert_eq!(bytes(core + 500, 8), (core / 512 + 1).to_le_bytes());
    // META holds the record and nothing that was there before.
    let meta = dir.path().join("meta");
    fs::write(&meta, bytes(offset(&path, "META"), 1 << 20)).unwrap();
    let record = DiskMeta::read(&meta).unwrap().record().unwrap();
    assert_eq!((record.slots.default(), record.slots.standing()), (Slot::A, Standing::Unproven));
    assert_eq!(record.name(Slot::A), Some("A - Ichor v1.12.1"));
}

#[test]
fn until_the_end_the_disk_has_no_partition_table() {
    let dir = tempfile::tempdir().unwrap();
    let artifacts = from_media(dir.path(), "1.12.1", 100);
    let (path, disk) = used_disk(dir.path());
    let plan = planned(&artifacts, Firmware::Uefi, &disk, &BTreeMap::new());
    let mut seen = Vec::new();
    plan.write(&disk, |line| {
        let other = Device::open(&path).unwrap();
        let has_table = Table::read(&other.source().unwrap(), 512).unwrap().is_some();
        seen.push((line.to_owned(), has_table));
    })
    .unwrap();
    assert!(seen.len() > 4 && seen.iter().all(|(_, has_table)| !has_table), "{seen:?}");
    assert!(disk.table().unwrap().is_some());
}

#[test]
fn a_system_that_is_too_large_or_for_another_machine_is_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let artifacts = from_media(dir.path(), "1.12.1", 100);
    let (path, disk) = used_disk(dir.path());
    let large = Artifacts { uki: Content::zeros(1 << 30 | 1 << 26), ..artifacts };
    let fresh = Fresh {
        artifacts: &large,
        arch: Arch::Amd64,
        firmware: Firmware::Uefi,
        cmdline: String::new(),
        legacy_bootable: false,
        meta: &BTreeMap::new(),
        entries: &[],
    };
    let error = fresh.plan(disk.geometry().unwrap(), Guid::random).unwrap_err().to_string();
    assert!(error.contains("the EFI partition has room for"), "{error}");
    let place = Place::Media(dir.path().join("1.12.1.iso"));
    let error = Artifacts::open(&place, Arch::Arm64).unwrap_err().to_string();
    assert!(error.contains("vmlinuz.efi is missing"), "{error}");
    let parts = dir.path().join("parts");
    fs::create_dir(&parts).unwrap();
    fs::copy(STUB, parts.join("vmlinuz.efi")).unwrap();
    let error = Artifacts::open(&Place::Directory(parts), Arch::Arm64).unwrap_err().to_string();
    assert!(error.contains("is for amd64, this machine is arm64"), "{error}");
    assert_eq!(fs::read(&path).unwrap()[..1024], [0xff; 1024], "untouched");
}

/// A disk as the original's installer leaves it: files of its boot loader, META, and no record of ours.
struct Original {
    dir: tempfile::TempDir,
    paths: BootPaths,
    meta: DiskMeta,
}

impl Original {
    fn new(firmware: Firmware) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(&path).unwrap();
            path
        };
        let mut paths = BootPaths::default();
        match firmware {
            Firmware::Uefi => {
                let (efi, variables) = (folder("EFI"), folder("efivars"));
                folder("EFI/EFI/boot");
                folder("EFI/EFI/Linux");
                folder("EFI/loader");
                fs::write(efi.join("EFI/boot/BOOTX64.efi"), "sd-boot").unwrap();
                fs::write(efi.join("EFI/Linux/Talos-v1.12.0.efi"), "the original").unwrap();
                fs::write(efi.join("loader/loader.conf"), "timeout 10\n").unwrap();
                fs::write(variables.join(Variable::EntryDefault.file()), encode_text("Talos-v1.12.0.efi"))
                    .unwrap();
                fs::write(variables.join(Variable::EntrySelected.file()), encode_text("talos-v1.12.0.efi"))
                    .unwrap();
                (paths.efi, paths.variables) = (Some(efi), Some(variables));
            }
            Firmware::Bios => {
                let boot = folder("BOOT");
                folder("BOOT/A");
                folder("BOOT/grub");
                fs::write(boot.join("A/vmlinuz"), "the original").unwrap();
                fs::write(boot.join("A/initramfs.xz"), "the original").unwrap();
                let menu = "set default=\"A - Talos v1.12.0\"\n\nset timeout=3\n\ninsmod all_video\n\n\
                            terminal_input console\nterminal_output console\n\nmenuentry \"A - Talos v1.12.0\" {\n  \
                            set gfxmode=auto\n  set gfxpayload=text\n  linux /A/vmlinuz talos.platform=metal pti=on\n  \
                            initrd /A/initramfs.xz\n}\nmenuentry \"Reset Talos installation and return to maintenance \
                            mode\" {\n  set gfxmode=auto\n  set gfxpayload=text\n  linux /A/vmlinuz \
                            talos.platform=metal pti=on talos.experimental.wipe=system:EPHEMERAL,STATE\n  initrd \
                            /A/initramfs.xz\n}\n";
                fs::write(boot.join("grub/grub.cfg"), menu).unwrap();
                paths.boot = Some(boot);
            }
        }
        let meta = dir.path().join("meta");
        fs::write(&meta, vec![0; 1 << 20]).unwrap();
        let mut meta = DiskMeta::read(&meta).unwrap();
        meta.set(0x0a, b"network of the original").unwrap();
        Self { dir, paths, meta }
    }

    fn installed(&mut self) -> Installed<'_> {
        Installed { paths: self.paths.clone(), meta: &mut self.meta }
    }

    fn on_disk(&self) -> DiskMeta {
        DiskMeta::read(&self.dir.path().join("meta")).unwrap()
    }

    /// What the boot loader does with a one-shot entry: it is taken back, and the machine starts from it. Otherwise the
    /// default is started.
    fn restart(&mut self, id: u128) -> Running {
        let mut cmdline = Cmdline::default();
        if let Some(variables) = &self.paths.variables {
            let one_shot = variables.join(Variable::EntryOneShot.file());
            let from =
                if one_shot.exists() { &one_shot } else { &variables.join(Variable::EntryDefault.file()) };
            fs::copy(from, variables.join(Variable::EntrySelected.file())).unwrap();
            let _ = fs::remove_file(&one_shot);
        } else {
            let boot = self.paths.boot.clone().unwrap();
            let env = boot.join("grub/grubenv");
            let text = fs::read_to_string(&env).unwrap_or_default();
            let next =
                text.lines().find_map(|line| line.strip_prefix("next_entry=")).unwrap_or_default().to_owned();
            let disk = Installed { paths: self.paths.clone(), meta: &mut self.meta }.read().unwrap();
            let title = if next.is_empty() { disk.default_entry().unwrap() } else { next.clone() };
            cmdline.append("BOOT_IMAGE", if title.starts_with('A') { "/A/vmlinuz" } else { "/B/vmlinuz" });
            if !next.is_empty() {
                fs::write(&env, text.replace(&format!("next_entry={next}\n"), &"#".repeat(next.len() + 12)))
                    .unwrap();
            }
        }
        Running { cmdline, path: BootPath::Firmware, id: BootId(id), efi_guid: None }
    }

    fn slots(&mut self) -> (Slot, Standing, Other) {
        let slots = self.installed().read().unwrap().record.slots;
        (slots.default(), slots.standing(), slots.other())
    }
}

fn system(tag: &str) -> NewSystem {
    NewSystem { name: "Ichor".to_owned(), tag: tag.to_owned(), cmdline: "talos.platform=metal".to_owned() }
}

fn with_assets(original: &mut Original) {
    let file = original.dir.path().join("asset");
    fs::write(&file, noise(100_000, 9)).unwrap();
    let source = AssetSource::file(&file).unwrap();
    original.paths.assets =
        BTreeMap::from([Asset::Uki, Asset::Kernel, Asset::Initramfs].map(|asset| (asset, source.clone())));
}

#[test]
fn a_disk_that_the_original_installed_is_upgraded_to_ours_and_keeps_what_is_on_it() {
    for firmware in [Firmware::Bios, Firmware::Uefi] {
        let mut disk = Original::new(firmware);
        with_assets(&mut disk);
        // The original runs our installer: its kexec starts the default.
        let running = disk.restart(1);
        let name = disk.installed().upgrade(&system("v0.1.0"), Start::Default, &running).unwrap();
        assert!(name.contains("v0.1.0"), "{name}");
        let previous = disk.on_disk().previous();
        assert!(matches!(previous.as_deref(), Some("A" | "Talos-v1.12.0.efi")), "{previous:?}");
        let running = disk.restart(2);
        assert_eq!(disk.installed().boot(&running).unwrap(), Outcome::Judge, "{firmware:?}");
        // While it is judged the original is the default again.
        assert!(disk.installed().read().unwrap().default_entry().unwrap().contains("v1.12.0"));
        assert!(disk.installed().commit(&running).unwrap());
        assert_eq!(disk.slots().1, Standing::Good);
        assert_eq!(disk.slots().2, Other::Good, "the way back");
        assert!(disk.installed().read().unwrap().default_entry().unwrap().contains("v0.1.0"));
        let meta = disk.on_disk();
        assert_eq!(meta.previous(), None);
        assert_eq!(meta.text(0x0a).as_deref(), Some("network of the original"));
        let text = meta.text(SLOTS_KEY).unwrap();
        assert!(Record::parse(&text).is_ok(), "{text}");
        // And back again.
        assert!(disk.installed().rollback(&running).unwrap().contains("v1.12.0"));
        let running = disk.restart(3);
        assert_eq!(disk.installed().boot(&running).unwrap(), Outcome::Run);
    }
}

#[test]
fn a_trial_that_is_not_healthy_returns_to_the_last_good_system() {
    for firmware in [Firmware::Bios, Firmware::Uefi] {
        let mut disk = Original::new(firmware);
        with_assets(&mut disk);
        let running = disk.restart(1);
        assert_eq!(disk.installed().boot(&running).unwrap(), Outcome::Run, "what is there counts as good");
        disk.installed().upgrade(&system("v0.1.0"), Start::OneShot, &running).unwrap();
        assert!(
            disk.installed().read().unwrap().default_entry().unwrap().contains("v1.12.0"),
            "until it is kept"
        );
        let trial = disk.restart(2);
        assert_eq!(disk.installed().boot(&trial).unwrap(), Outcome::Judge);
        assert_eq!(disk.installed().boot(&trial).unwrap(), Outcome::Judge, "machined alone was restarted");
        assert_eq!(disk.installed().fail(&trial).unwrap(), Outcome::Restart);
        let back = disk.restart(3);
        assert_eq!(disk.installed().boot(&back).unwrap(), Outcome::Run);
        assert!(!disk.installed().commit(&back).unwrap(), "nothing is on trial");
        let (_, standing, other) = disk.slots();
        assert_eq!(standing, Standing::Good);
        assert!(matches!(other, Other::Failed { failure: Failure::Unhealthy, .. }), "{other:?}");
        let error = disk.installed().rollback(&back).unwrap_err().to_string();
        assert!(error.contains("failed its trial"), "{error}");

        // One that is never heard of again: the boot loader has taken the entry back.
        disk.installed().upgrade(&system("v0.2.0"), Start::OneShot, &back).unwrap();
        disk.restart(4);
        let back = disk.restart(5);
        assert_eq!(disk.installed().boot(&back).unwrap(), Outcome::Run);
        assert!(
            matches!(disk.slots().2, Other::Failed { failure: Failure::NeverCameUp, .. }),
            "{:?}",
            disk.slots()
        );
    }
}

#[test]
fn a_boot_loader_of_other_media_says_nothing_about_the_slots() {
    let mut disk = Original::new(Firmware::Uefi);
    let mut running = disk.restart(1);
    let variables = disk.paths.variables.clone().unwrap();
    running.efi_guid = Some("aaaa".to_owned());
    fs::write(variables.join(Variable::DevicePartUuid.file()), encode_text("BBBB")).unwrap();
    with_assets(&mut disk);
    disk.installed().upgrade(&system("v0.1.0"), Start::OneShot, &running).unwrap();
    let mut running = disk.restart(2);
    running.efi_guid = Some("aaaa".to_owned());
    assert_eq!(disk.installed().boot(&running).unwrap(), Outcome::Run, "started from a stick");
    let found: BootDisk = disk.installed().read().unwrap();
    assert!(matches!(found.record.slots.other(), Other::Trial(_)), "the trial is still to come");
}
