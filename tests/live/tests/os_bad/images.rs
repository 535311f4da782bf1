//! Installers of systems that do not work, each in another way, made of the parts of the good one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ichor_image::build::{GrubCode, Parts};
use ichor_image::cpio::Archive;
use ichor_image::grub::DiskCode;
use ichor_image::initramfs::Initramfs;
use ichor_image::iso::Bios;
use ichor_image::kernel::Kernel;
use ichor_image::modules::Modules;
use ichor_image::squashfs::{self, Entry, Packing, Tree};
use ichor_image::{Arch, Content, Meta};
use ichor_live::root;
use serde_json::{Value, json};

/// Boot code is never larger.
const CODE_MAX: u64 = 16 << 20;

/// What is wrong with a system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bad {
    /// Its first program does nothing, for ever.
    HangsBeforeInit,
    /// Its first program ends, and the kernel panics.
    InitPanics,
    /// Its init is ours, and what it starts as machined does nothing.
    MachinedHangs,
    /// A layer over its root has a `runc` that starts no container, and so no kubelet.
    KubeletUnhealthy,
}

impl Bad {
    /// All of them.
    pub(crate) const ALL: [Self; 4] =
        [Self::HangsBeforeInit, Self::InitPanics, Self::MachinedHangs, Self::KubeletUnhealthy];

    fn tag(self) -> &'static str {
        match self {
            Self::HangsBeforeInit => "hangs-before-init",
            Self::InitPanics => "init-panics",
            Self::MachinedHangs => "machined-hangs",
            Self::KubeletUnhealthy => "kubelet-unhealthy",
        }
    }

    /// The name of its installer.
    pub(crate) fn installer(self) -> String {
        format!("ghcr.io/ichor/installer:{}", self.tag())
    }

    /// An argument of its kernel that nobody reads, by which its start is seen on the console.
    pub(crate) fn marker(self) -> String {
        format!("ichor.test={}", self.tag())
    }

    /// The last one has the time that a good system would need.
    fn arguments(self) -> Vec<String> {
        let more: &[&str] = match self {
            Self::KubeletUnhealthy => &["ichor.trial_deadline=240"],
            Self::HangsBeforeInit | Self::InitPanics | Self::MachinedHangs => &["ichor.trial_deadline=60"],
        };
        let own = [self.marker(), "console=ttyS0".to_owned()];
        own.into_iter().chain(more.iter().map(|argument| (*argument).to_owned())).collect()
    }
}

/// A program of a few instructions, as the kernel loads it: one segment at 4 MiB, with the header in it.
fn program(code: &[u8]) -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    // Executable, x86-64, version 1.
    elf.extend([2, 0, 0x3e, 0, 1, 0, 0, 0]);
    // Entry, program headers, no sections, no flags.
    elf.extend([BASE + HEADERS, 64, 0].iter().flat_map(|word| word.to_le_bytes()));
    elf.extend([0; 4]);
    // Sizes of the header and of program headers, one of those, no sections.
    elf.extend([64_u16, 56, 1, 0, 0, 0].iter().flat_map(|half| half.to_le_bytes()));
    // Loaded, to be read and executed.
    elf.extend([1_u32, 5].iter().flat_map(|half| half.to_le_bytes()));
    let len = HEADERS + code.len() as u64;
    elf.extend([0, BASE, BASE, len, len, 0x1000].iter().flat_map(|word| word.to_le_bytes()));
    elf.extend(code);
    elf
}

/// `for (;;) pause();`
fn waits_for_ever() -> Vec<u8> {
    program(&[0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7])
}

/// `exit_group(1);`
fn ends() -> Vec<u8> {
    program(&[0xb8, 231, 0, 0, 0, 0xbf, 1, 0, 0, 0, 0x0f, 0x05])
}

/// A root with our init, and nothing else that works.
fn root_without_machined(ichor: &Content) -> Vec<u8> {
    let ichor = ichor.read(256 << 20).unwrap();
    let places = ["dev", "proc", "sys", "run", "system", "tmp", "var", "etc", "root", "usr/lib"];
    let mut tree: Tree =
        places.iter().map(|place| (format!("{place}/.keep"), Entry::file(Vec::new()))).collect();
    tree.insert("sbin/init".to_owned(), Entry::program(ichor));
    tree.insert("usr/bin/machined".to_owned(), Entry::program(waits_for_ever()));
    squashfs::build(&tree, Packing::USUAL).unwrap()
}

/// What is appended to an initramfs: a layer over its root, and the list that names it.
fn layer_without_runc() -> Content {
    let tree = Tree::from([("usr/bin/runc".to_owned(), Entry::program(ends()))]);
    let layer = squashfs::build(&tree, Packing::USUAL).unwrap();
    let list = "layers:\n  - image: bad.sqsh\n    metadata:\n      name: bad\n      version: v1\n";
    let mut archive = Archive::default();
    archive.file("bad.sqsh", 0o644, Content::bytes(layer)).unwrap();
    archive.file("extensions.yaml", 0o644, Content::bytes(list.as_bytes().to_vec())).unwrap();
    archive.finish().unwrap()
}

fn initramfs(bad: Bad, ichor: &Content, scratch: &Path) -> Content {
    let kernel = root().join("build/vm/kernel");
    let own = |init: Content, rootfs: Vec<u8>| {
        let modules = Modules::find(&kernel).unwrap().first(true).unwrap();
        let rootfs = Content::bytes(rootfs);
        Initramfs { init, rootfs, modules, layer: None, firmware: Vec::new() }.packed().unwrap()
    };
    match bad {
        Bad::HangsBeforeInit => own(Content::bytes(waits_for_ever()), Vec::new()),
        Bad::InitPanics => own(Content::bytes(ends()), Vec::new()),
        Bad::MachinedHangs => own(ichor.clone(), root_without_machined(ichor)),
        Bad::KubeletUnhealthy => {
            let whole = scratch.join("initramfs");
            let done = Command::new(root().join("bin/ichorctl"))
                .args(["image", "build", "initramfs", "--kernel"])
                .arg(&kernel)
                .arg("--output")
                .arg(&whole)
                .output()
                .unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            let mut content = Content::file(&whole).unwrap();
            content.align(4);
            content.append(layer_without_runc());
            content
        }
    }
}

fn grub() -> GrubCode {
    let dir = root().join("build/os/grub");
    let code = |name: &str| Content::file(&dir.join(name)).unwrap().read(CODE_MAX).unwrap();
    GrubCode {
        disk: DiskCode { boot: code("boot.img"), core: code("core.img") },
        media: Bios { core: code("eltorito.img"), hybrid: code("boot_hybrid.img") },
        efi: Content::bytes(code("bootx64.efi")),
    }
}

/// Writes the installer of a bad system as an OCI layout.
fn write(bad: Bad, scratch: &Path, out: &Path) {
    let ichor = Content::file(&root().join("build/ichor")).unwrap();
    let efi = root().join("build/os/efi");
    let parts = Parts {
        arch: Arch::Amd64,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        platform: "metal".to_owned(),
        kernel: Kernel::open(&root().join("build/vm/kernel/vmlinuz"), Arch::Amd64).unwrap(),
        initramfs: initramfs(bad, &ichor, scratch),
        stub: Content::file(&efi.join("linuxx64.efi.stub")).unwrap().read(CODE_MAX).unwrap(),
        sd_boot: Content::file(&efi.join("systemd-bootx64.efi")).unwrap(),
        extra_args: bad.arguments(),
        meta: Meta::new(),
    };
    // The installer itself is the good one: what it writes is not.
    parts.installer(&bad.installer(), ichor, Some(&grub())).unwrap().write_layout(out).unwrap();
}

fn index(layout: &Path) -> Value {
    serde_json::from_slice(&fs::read(layout.join("index.json")).unwrap()).unwrap()
}

/// Puts all blobs of a layout into another one; they are not copied.
fn link_blobs(from: &Path, to: &Path) {
    let to = to.join("blobs/sha256");
    fs::create_dir_all(&to).unwrap();
    for blob in fs::read_dir(from.join("blobs/sha256")).unwrap() {
        let blob = blob.unwrap();
        match fs::hard_link(blob.path(), to.join(blob.file_name())) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => panic!("{error}"),
            _ => {}
        }
    }
}

/// A layout with the images of Kubernetes and the installers of all bad systems.
pub(crate) fn layout(name: &str) -> PathBuf {
    let dir = root().join("build/os/tests").join(name);
    if dir.exists() {
        fs::remove_dir_all(&dir).unwrap();
    }
    let (all, scratch) = (dir.join("images"), dir.join("scratch"));
    fs::create_dir_all(&scratch).unwrap();
    let good = root().join("build/images");
    link_blobs(&good, &all);
    let mut manifests = index(&good)["manifests"].as_array().cloned().unwrap_or_default();
    for bad in Bad::ALL {
        let own = scratch.join(bad.tag());
        write(bad, &scratch, &own);
        link_blobs(&own, &all);
        manifests.extend(index(&own)["manifests"].as_array().cloned().unwrap_or_default());
    }
    let written = json!({ "schemaVersion": 2, "manifests": manifests });
    fs::write(all.join("index.json"), written.to_string()).unwrap();
    fs::copy(good.join("oci-layout"), all.join("oci-layout")).unwrap();
    fs::remove_dir_all(&scratch).unwrap();
    all
}

#[test]
fn the_small_programs_do_what_their_names_say() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, bytes: Vec<u8>| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    };
    assert_eq!(Command::new(put("ends", ends())).status().unwrap().code(), Some(1));
    let mut waits = Command::new(put("waits", waits_for_ever())).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(waits.try_wait().unwrap(), None);
    waits.kill().unwrap();
    waits.wait().unwrap();
}
