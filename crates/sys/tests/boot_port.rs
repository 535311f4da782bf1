//! Plans of `ichor-boot`, carried out on real filesystems: XFS for GRUB, FAT for systemd-boot, in loop devices and a mount
//! namespace of the test's own. Needs root, `mkfs.xfs` and `mkfs.vfat`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ichor_boot::plan::disk::{BootDisk, GrubFiles, Loader, NewSystem, SdBootFiles};
use ichor_boot::plan::{Asset, Step, execute};
use ichor_boot::record::{Record, SLOTS_KEY};
use ichor_boot::sdboot::variable::Variable;
use ichor_boot::slots::{BootId, BootPath, Next, Start};
use ichor_sys::boot_port::{AssetSource, BootPaths, BootPort, Outside};
use ichor_sys::mount::{self, Propagation};
use ichor_sys::namespace::{self, Namespaces};

#[derive(Default)]
struct Meta(BTreeMap<u8, Vec<u8>>);

impl Outside for &mut Meta {
    fn set_meta(&mut self, key: u8, value: &[u8]) -> io::Result<()> {
        self.0.insert(key, value.to_vec());
        Ok(())
    }

    fn delete_meta(&mut self, key: u8) -> io::Result<()> {
        self.0.remove(&key);
        Ok(())
    }

    fn wipe(&mut self, label: &str) -> io::Result<()> {
        Err(io::Error::other(format!("{label} is not there")))
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output =
        Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("{program}: {said}")) }
}

/// A filesystem in a file, unmounted again at the end.
struct Mounted {
    path: PathBuf,
    /// None where the kernel has no such filesystem or no loop devices: a plain folder stands in for it.
    image: Option<PathBuf>,
}

impl Mounted {
    fn new(folder: &Path, name: &str, kind: &str) -> Self {
        let (image, path) = (folder.join(format!("{name}.img")), folder.join(name));
        fs::File::create(&image).unwrap().set_len(400 << 20).unwrap();
        fs::create_dir(&path).unwrap();
        let (file, target) = (image.to_str().unwrap(), path.to_str().unwrap());
        let made = match kind {
            "xfs" => run("mkfs.xfs", &["-q", file]),
            _ => run("mkfs.vfat", &["-F", "32", "-n", "EFI", file]),
        };
        match made.and_then(|()| run("mount", &["-o", "loop", "-t", kind, file, target])) {
            Ok(()) => Self { path, image: Some(image) },
            Err(error) => {
                println!("a plain folder instead of {kind}: {error}");
                Self { path, image: None }
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.image.is_some() {
            let _ = mount::unmount(&self.path);
        }
    }
}

fn in_own_mounts(test: impl FnOnce(&Path) + Send + 'static) {
    assert_eq!(fs::metadata("/proc/self").unwrap().uid(), 0, "this test has to be run as root");
    let thread = std::thread::spawn(move || {
        namespace::unshare(Namespaces::MOUNT).unwrap();
        mount::set_propagation(Path::new("/"), Propagation::Private).unwrap();
        let folder = tempfile::tempdir().unwrap();
        test(folder.path());
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn system(tag: &str) -> NewSystem {
    NewSystem { name: "Talos".into(), tag: tag.into(), cmdline: "talos.platform=metal".into() }
}

fn assets(folder: &Path, tag: &str) -> BTreeMap<Asset, AssetSource> {
    [Asset::Uki, Asset::Kernel, Asset::Initramfs, Asset::Loader]
        .into_iter()
        .map(|asset| {
            let path = folder.join(format!("{asset:?}-{tag}"));
            fs::write(&path, format!("{asset:?} {tag} ").repeat(100_000)).unwrap();
            (asset, AssetSource::file(&path).unwrap())
        })
        .collect()
}

fn read(paths: &BootPaths, meta: &Meta) -> BootDisk {
    let record = meta.0.get(&SLOTS_KEY).map(|value| String::from_utf8(value.clone()).unwrap());
    let record = record.map(|text| Record::parse(&text).unwrap());
    BootDisk::read(paths.probe().unwrap().expect("a boot loader"), record, None).unwrap()
}

fn carry_out(paths: &BootPaths, meta: &mut Meta, steps: &[Step]) {
    execute(steps, &mut BootPort::new(paths.clone(), meta)).unwrap();
}

/// Installs, upgrades, commits and rolls back; `entry` names the entry of a version.
fn live(folder: &Path, mut paths: BootPaths, loader: Loader, entry: impl Fn(&str, &str) -> String) {
    let mut meta = Meta::default();
    paths.assets = assets(folder, "v1");
    let (disk, steps) = BootDisk::install(loader, &system("v1"), "amd64", None).unwrap();
    carry_out(&paths, &mut meta, &steps);
    assert_eq!(read(&paths, &meta), disk, "what was planned is what is there");

    paths.assets = assets(folder, "v2");
    let mut disk = read(&paths, &meta);
    let steps = disk.upgrade(&system("v2"), Start::OneShot, BootId(1)).unwrap();
    carry_out(&paths, &mut meta, &steps);
    assert_eq!(read(&paths, &meta), disk);
    assert_eq!(disk.default_entry(), Some(entry("A", "v1")));

    let mut disk = read(&paths, &meta);
    let (steps, next) = disk.boot(Some(&entry("B", "v2")), BootPath::Firmware, BootId(2)).unwrap();
    carry_out(&paths, &mut meta, &steps);
    let Next::Judge(judge) = next else { panic!("{next:?}") };
    carry_out(&paths, &mut meta, &disk.commit(&judge).unwrap());
    assert_eq!(read(&paths, &meta), disk);
    assert_eq!(disk.default_entry(), Some(entry("B", "v2")));

    let steps = disk.rollback(BootId(2));
    // The first one was never judged: it has to show that it starts.
    carry_out(&paths, &mut meta, &steps.unwrap());
    assert_eq!(read(&paths, &meta), disk);
    assert_eq!(disk.default_entry(), Some(entry("B", "v2")));
}

#[test]
fn plans_for_grub_work_on_xfs() {
    in_own_mounts(|folder| {
        let boot = Mounted::new(folder, "boot", "xfs");
        let paths = BootPaths { boot: Some(boot.path.clone()), ..BootPaths::default() };
        let loader = Loader::Grub(GrubFiles::default());
        live(folder, paths, loader, |slot, tag| format!("{slot} - Talos {tag}"));
        assert!(boot.path.join("A/vmlinuz").is_file() && boot.path.join("B/initramfs.xz").is_file());
        let Some(image) = &boot.image else { return };
        // After a flush nothing that a boot loader needs is in the log alone. Freezing leaves the superblock there.
        let raw = folder.join("raw.img");
        fs::copy(image, &raw).unwrap();
        let output = Command::new("xfs_logprint").args(["-t", raw.to_str().unwrap()]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("log tail"), "{text}");
        let buffers = text.matches("BUF:  #regs").count();
        assert_eq!(buffers, text.matches("SUPER Block Buffer").count(), "{text}");
        assert!(!text.contains("INO"), "{text}");
    });
}

#[test]
fn plans_for_systemd_boot_work_on_fat() {
    in_own_mounts(|folder| {
        let efi = Mounted::new(folder, "efi", "vfat");
        // Firmware is the one part that is not real here: a plain folder stands in for efivarfs.
        let variables = folder.join("efivars");
        fs::create_dir(&variables).unwrap();
        let paths = BootPaths {
            efi: Some(efi.path.clone()),
            variables: Some(variables.clone()),
            ..BootPaths::default()
        };
        let loader = Loader::SdBoot(SdBootFiles::default());
        live(folder, paths, loader, |_, tag| format!("Talos-{tag}.efi"));
        let value = fs::read(variables.join(Variable::EntryDefault.file())).unwrap();
        assert_eq!(value[..6], [7, 0, 0, 0, b'T', 0]);
        let conf = fs::read_to_string(efi.path.join("loader/loader.conf")).unwrap();
        assert!(conf.starts_with("timeout 10\ndefault Talos-v2.efi\n"), "{conf}");
        if let Some(image) = efi.image.clone() {
            drop(efi);
            run("fsck.vfat", &["-n", image.to_str().unwrap()]).unwrap();
        }
    });
}

#[test]
fn a_disk_that_reads_back_something_else_is_named() {
    in_own_mounts(|folder| {
        let boot = folder.join("boot");
        fs::create_dir(&boot).unwrap();
        let mut meta = Meta::default();
        let paths =
            BootPaths { boot: Some(boot.clone()), assets: assets(folder, "v1"), ..BootPaths::default() };
        fs::create_dir(boot.join("A")).unwrap();
        fs::write(boot.join("A/vmlinuz"), "something else").unwrap();
        let step = Step::Verify {
            volume: ichor_boot::plan::Volume::Boot,
            path: "A/vmlinuz".into(),
            asset: Asset::Kernel,
        };
        let error = execute(&[step], &mut BootPort::new(paths.clone(), &mut meta)).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(
            source
                .ends_with("what was read back differs from what was written; the disk is not to be trusted")
        );
        let step = Step::Flush { volume: ichor_boot::plan::Volume::Efi };
        let error = execute(&[step], &mut BootPort::new(paths, &mut meta)).unwrap_err();
        assert_eq!(
            std::error::Error::source(&error).unwrap().to_string(),
            "the EFI partition is needed for this step and is not there"
        );
    });
}
