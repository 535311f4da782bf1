//! `image build`: disk images, media, kernel images and the installer, from ready parts and without root.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ichor_image::build::{GrubCode, Loader, Parts, Use};
use ichor_image::grub::DiskCode;
use ichor_image::initramfs::{self, Initramfs};
use ichor_image::iso::Bios;
use ichor_image::kernel::{self, Kernel};
use ichor_image::modules::{Modules, Selection};
use ichor_image::qcow2::{self, Compression};
use ichor_image::{Arch, Content, Error, Meta, squashfs};

use crate::failure::{Context as _, Failure};
use crate::parse::Call;
use crate::table::{Args, Command, Complete, Flag};
use crate::{say, text};

/// What images say they are.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Boot code is never larger.
const CODE_MAX: u64 = 16 << 20;
/// Where parts lie, seen from the program.
const PARTS_PLACES: [&str; 2] = ["../build", "../share/ichor"];

/// A root image that has this looks for drivers itself.
const DEVICE_MANAGER: &str = "/usr/bin/udevadm";

const KINDS: &[&str] = &["metal", "iso", "uki", "kernel", "initramfs", "cmdline", "installer"];

/// The command.
pub(super) static BUILD: Command = Command {
    name: "build",
    about: "Build an image of the operating system",
    long: "Builds an image from ready parts, without root. The same parts give the same bytes.\n\n    \
           metal      disk image; qcow2 when the output ends in .qcow2\n    \
           iso        media that starts on UEFI and BIOS, from optical drives and USB sticks\n    \
           uki        kernel, initramfs and command line as one file that UEFI starts\n    \
           kernel     the kernel, for network boot; also initramfs and cmdline\n    \
           installer  container image as an OCI layout: a directory, or an archive when the output ends in .tar\n\n\
           Parts that are not named are taken from the build directory: `make images-os` puts them there.",
    examples: &[
        "image build metal --output disk.raw",
        "image build metal --output disk.qcow2 --extra-kernel-arg console=ttyS0",
        "image build iso --kernel linux-image-6.12.deb --output ichor.iso",
    ],
    args: Args::between("<kind>", 1, 1).complete(&[Complete::Words(KINDS)]),
    flags: &[
        Flag::text("output", "file to write").short('o').complete(Complete::File),
        Flag::text("arch", "kind of processor")
            .default("amd64")
            .complete(Complete::Words(&["amd64", "arm64"])),
        Flag::text("platform", "platform of the command line")
            .default("metal")
            .complete(Complete::Words(&["metal", "nocloud"])),
        Flag::text("boot-loader", "sd-boot, grub or dual-boot; of disk images (default dual-boot on amd64)")
            .complete(Complete::Words(&["sd-boot", "grub", "dual-boot"])),
        Flag::repeated("extra-kernel-arg", "argument for the kernel; -key removes one"),
        Flag::repeated("meta", "value of META as key=value"),
        Flag::text("parts", "directory of parts that are not named").complete(Complete::File),
        Flag::text(
            "kernel",
            "kernel image with its modules beside it, its directory, or a Debian package of it",
        )
        .complete(Complete::File),
        Flag::text("modules", "directory of the kernel's modules").complete(Complete::File),
        Flag::switch("all-modules", "take modules for desktops along: sound, cameras, radios, graphics"),
        Flag::text("firmware", "directory of firmware for drivers").complete(Complete::File),
        Flag::text("rootfs", "squashfs of the root").complete(Complete::File),
        Flag::text("init", "program that starts first").complete(Complete::File),
        Flag::text("stub", "systemd stub").complete(Complete::File),
        Flag::text("sd-boot", "systemd-boot").complete(Complete::File),
        Flag::text("grub", "directory of GRUB's boot code").complete(Complete::File),
        Flag::text("image-name", "name of the installer image"),
        Flag::switch("compress", "compress clusters of a qcow2 image"),
        Flag::switch(
            "uncompressed",
            "leave programs in an initramfs as they are: an emulator reads that sooner",
        ),
    ],
    run: Some(run),
    ..Command::EMPTY
};

/// What is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Metal,
    Iso,
    Uki,
    Kernel,
    Initramfs,
    Cmdline,
    Installer,
}

impl Kind {
    fn parse(name: &str) -> Result<Self, Failure> {
        Ok(match name {
            "metal" => Self::Metal,
            "iso" => Self::Iso,
            "uki" => Self::Uki,
            "kernel" => Self::Kernel,
            "initramfs" => Self::Initramfs,
            "cmdline" => Self::Cmdline,
            "installer" => Self::Installer,
            other => {
                let failure = Failure::new(format!("there is no image of kind \"{other}\""));
                return Err(failure.hint(format!("kinds: {}", KINDS.join(", "))));
            }
        })
    }
}

fn run(call: &Call) -> Result<(), Failure> {
    let started = Instant::now();
    let kind = Kind::parse(call.arg(0))?;
    let Some(output) = call.some_text("output").map(PathBuf::from) else {
        return Err(Failure::new("required flag(s) \"output\" not set"));
    };
    let inputs = Inputs::new(call)?;
    inputs.check(kind)?;
    // A kernel package is unpacked here, and removed when the image is written.
    let scratch = Scratch::new(&output)?;
    match kind {
        Kind::Metal => {
            let loader = inputs.loader()?;
            let grub = if loader == Loader::SdBoot { None } else { Some(inputs.grub()?) };
            let disk = inputs.parts(&scratch)?.disk(loader, grub.as_ref()).plain()?;
            let compression = if call.on("compress") { Compression::Zstd } else { Compression::None };
            match output.extension().is_some_and(|ending| ending == "qcow2") {
                true => write(&output, |file| qcow2::write(&disk, compression, file))?,
                false if call.on("compress") => {
                    return Err(
                        Failure::new("only qcow2 images are compressed").hint("let the output end in .qcow2")
                    );
                }
                false => write(&output, |file| disk.write_to(file))?,
            }
        }
        Kind::Iso => {
            // There is no BIOS elsewhere.
            let grub = if inputs.arch == Arch::Amd64 { Some(inputs.grub()?) } else { None };
            let iso = inputs.parts(&scratch)?.iso(grub.as_ref()).plain()?;
            write(&output, |file| iso.write_to(file))?;
        }
        Kind::Uki => {
            let uki = inputs.parts(&scratch)?.uki(Use::Alone).plain()?;
            write(&output, |file| uki.write_to(file))?;
        }
        Kind::Kernel => {
            let kernel = inputs.kernel(&scratch)?.kernel;
            write(&output, |file| kernel.image.write_to(file))?;
        }
        Kind::Initramfs => {
            let initramfs = inputs.initramfs(&inputs.kernel(&scratch)?)?;
            write(&output, |file| initramfs.write_to(file))?;
        }
        Kind::Cmdline => {
            let line = inputs.parts(&scratch)?.cmdline(Use::Alone).plain()?;
            write(&output, |file| io::Write::write_all(file, line.to_string().as_bytes()))?;
        }
        Kind::Installer => {
            let name = format!("ichor/installer:v{VERSION}");
            let name = call.some_text("image-name").map_or(name, str::to_owned);
            let program = inputs.file("init", "ichor")?;
            let grub = if inputs.arch == Arch::Amd64 { Some(inputs.grub()?) } else { None };
            let image = inputs.parts(&scratch)?.installer(&name, program, grub.as_ref()).plain()?;
            layout(&image, &output, &scratch)?;
        }
    }
    let len = fs::metadata(&output).map(|data| data.len()).unwrap_or_default();
    let size = if output.is_dir() { String::new() } else { format!(" ({})", text::bytes(len)) };
    say(&format!("{}{size} in {:.1} s", output.display(), started.elapsed().as_secs_f64()));
    Ok(())
}

/// A kernel, the directory that its modules are in, and where a layer of them is kept.
struct KernelPart {
    kernel: Kernel,
    modules: PathBuf,
    layer: Option<PathBuf>,
}

/// Where the parts are.
struct Inputs<'a> {
    call: &'a Call,
    arch: Arch,
    dir: PathBuf,
    meta: Meta,
}

impl<'a> Inputs<'a> {
    fn new(call: &'a Call) -> Result<Self, Failure> {
        let arch = call.text("arch");
        let arch = Arch::parse(arch).ok_or_else(|| {
            Failure::new(format!("unknown architecture \"{arch}\"")).hint("use amd64 or arm64")
        })?;
        let dir = call.some_text("parts").map(PathBuf::from).unwrap_or_else(|| {
            let program = std::env::current_exe().unwrap_or_default();
            let beside = program.parent().unwrap_or(Path::new(".")).to_owned();
            let found =
                PARTS_PLACES.iter().map(|place| beside.join(place)).find(|dir| dir.join("os").is_dir());
            found.unwrap_or_else(|| PathBuf::from("build"))
        });
        let mut meta = Meta::new();
        for entry in call.list("meta") {
            let (key, value) = meta_value(&entry)?;
            meta.insert(key, value);
        }
        Ok(Self { call, arch, dir, meta })
    }

    /// Refuses what the image has no place for.
    fn check(&self, kind: Kind) -> Result<(), Failure> {
        let bare = matches!(kind, Kind::Kernel | Kind::Initramfs);
        let refused = match kind {
            _ if bare && self.call.given("extra-kernel-arg") => "extra-kernel-arg",
            _ if bare && self.call.given("meta") => "meta",
            Kind::Installer if self.call.given("meta") => "meta",
            kind if kind != Kind::Metal && self.call.given("boot-loader") => "boot-loader",
            kind if kind != Kind::Initramfs && self.call.on("uncompressed") => "uncompressed",
            _ => return Ok(()),
        };
        let hint = "leave it out, or build a disk image, an ISO or a unified kernel image";
        Err(Failure::new(format!("--{refused} has no place in an image of this kind")).hint(hint))
    }

    /// How a disk image is started.
    fn loader(&self) -> Result<Loader, Failure> {
        let Some(name) = self.call.some_text("boot-loader") else {
            return Ok(if self.arch == Arch::Amd64 { Loader::Dual } else { Loader::SdBoot });
        };
        let unknown =
            || Failure::new(format!("unknown boot loader \"{name}\"")).hint("use sd-boot, grub or dual-boot");
        Loader::parse(name).ok_or_else(unknown)
    }

    /// The path that a flag names, or that of the part.
    fn path(&self, flag: &str, part: &str) -> PathBuf {
        self.call.some_text(flag).map_or_else(|| self.dir.join(part), PathBuf::from)
    }

    fn file(&self, flag: &str, part: &str) -> Result<Content, Failure> {
        let found = Content::file(&self.path(flag, part)).plain();
        found.map_err(|failure| {
            failure.hint(format!("`make images-os` makes all parts; name another one with --{flag}"))
        })
    }

    /// The kernel and where its modules are.
    fn kernel(&self, scratch: &Scratch) -> Result<KernelPart, Failure> {
        let mut path = self.path("kernel", "os/kernel");
        if path.is_dir() || !self.call.given("kernel") {
            path = path.join("vmlinuz");
        }
        if !path.exists() {
            let hint = "`make images-os` makes all parts; name another one with --kernel";
            return Err(Failure::new(format!("there is no kernel {}", path.display())).hint(hint));
        }
        let given = self.call.some_text("modules").map(PathBuf::from);
        if kernel::is_package(&path) {
            let tree = scratch.make("kernel")?;
            let image = kernel::unpack(&path, &tree).plain()?;
            let kernel = Kernel::open(&image, self.arch).plain()?;
            return Ok(KernelPart { kernel, modules: given.unwrap_or(tree), layer: None });
        }
        let kernel = Kernel::open(&path, self.arch).plain()?;
        let beside = path.parent().unwrap_or(Path::new(".")).to_owned();
        let name = if self.call.on("all-modules") { "modules-all.squashfs" } else { "modules.squashfs" };
        let layer = given.is_none().then(|| beside.join(name));
        Ok(KernelPart { kernel, modules: given.unwrap_or(beside), layer })
    }

    fn initramfs(&self, part: &KernelPart) -> Result<Content, Failure> {
        let found = Modules::find(&part.modules).plain().map_err(|failure| {
            failure
                .hint("name the directory of the kernel's modules with --modules, or a package with --kernel")
        })?;
        if part.kernel.release.as_deref().is_some_and(|release| release != found.release()) {
            let text = format!("the modules in {} are of {}", part.modules.display(), found.release());
            let release = part.kernel.release.as_deref().unwrap_or_default();
            return Err(Failure::new(format!("{text}, the kernel is {release}"))
                .hint("name the directory that belongs to the kernel with --modules"));
        }
        let rootfs = self.path("rootfs", "rootfs.squashfs");
        let firmware = self.call.some_text("firmware").map(|dir| initramfs::firmware(Path::new(dir)));
        let initramfs = Initramfs {
            init: self.file("init", "ichor")?,
            rootfs: self.file("rootfs", "rootfs.squashfs")?,
            modules: found.first(squashfs::holds(&rootfs, DEVICE_MANAGER).plain()?).plain()?,
            layer: Some(self.layer(&found, part.layer.as_deref())?),
            firmware: firmware.transpose().plain()?.unwrap_or_default(),
        };
        match self.call.on("uncompressed") {
            true => initramfs.plain().plain(),
            false => initramfs.packed().plain(),
        }
    }

    /// The layer of modules. Compressing takes half a minute, so it is kept beside the kernel.
    fn layer(&self, modules: &Modules, kept: Option<&Path>) -> Result<Content, Failure> {
        let selection = if self.call.on("all-modules") { Selection::All } else { Selection::Servers };
        let make = || modules.layer(selection).map(Content::bytes);
        match kept.map(|file| modules.layer_kept(selection, file)) {
            // A directory of somebody else's.
            Some(Err(Error::Write { .. })) | None => make(),
            Some(made) => made,
        }
        .plain()
    }

    fn parts(&self, scratch: &Scratch) -> Result<Parts, Failure> {
        let (stub, loader) = match self.arch {
            Arch::Amd64 => ("os/efi/linuxx64.efi.stub", "os/efi/systemd-bootx64.efi"),
            Arch::Arm64 => ("os/efi/linuxaa64.efi.stub", "os/efi/systemd-bootaa64.efi"),
        };
        let part = self.kernel(scratch)?;
        Ok(Parts {
            arch: self.arch,
            version: VERSION.to_owned(),
            platform: self.call.text("platform").to_owned(),
            initramfs: self.initramfs(&part)?,
            kernel: part.kernel,
            stub: self.file("stub", stub)?.read(CODE_MAX).plain()?,
            sd_boot: self.file("sd-boot", loader)?,
            extra_args: self.call.list("extra-kernel-arg"),
            meta: self.meta.clone(),
        })
    }

    fn grub(&self) -> Result<GrubCode, Failure> {
        if self.arch != Arch::Amd64 {
            return Err(Failure::new("GRUB starts amd64 machines only").hint("use --boot-loader sd-boot"));
        }
        let dir = self.path("grub", "os/grub");
        let code = |name: &str| {
            let found = Content::file(&dir.join(name)).and_then(|file| file.read(CODE_MAX)).plain();
            found.map_err(|failure| {
                failure.hint("`make images-os` makes GRUB's boot code; name another directory with --grub")
            })
        };
        Ok(GrubCode {
            disk: DiskCode { boot: code("boot.img")?, core: code("core.img")? },
            media: Bios { core: code("eltorito.img")?, hybrid: code("boot_hybrid.img")? },
            efi: Content::bytes(code("bootx64.efi")?),
        })
    }
}

/// A value of META: the key as Go writes numbers.
fn meta_value(entry: &str) -> Result<(u8, Vec<u8>), Failure> {
    let bad = || {
        Failure::new(format!("\"{entry}\" is no value of META"))
            .hint("write it as 0x0a=value, with a key from 1 to 255")
    };
    let (key, value) = entry.split_once('=').ok_or_else(bad)?;
    let digits =
        |prefix: &str, radix| key.strip_prefix(prefix).map(|digits| u8::from_str_radix(digits, radix));
    let parsed = digits("0x", 16).or(digits("0o", 8)).or(digits("0b", 2)).unwrap_or_else(|| key.parse());
    match parsed {
        Ok(key) if key > 0 => Ok((key, value.as_bytes().to_vec())),
        _ => Err(bad()),
    }
}

/// A directory beside the output that is gone in the end.
struct Scratch {
    dir: PathBuf,
}

impl Scratch {
    fn new(output: &Path) -> Result<Self, Failure> {
        let name =
            output.file_name().ok_or_else(|| Failure::new(format!("{} names no file", output.display())))?;
        let dir = output.with_file_name(format!(".{}.{}.parts", name.to_string_lossy(), std::process::id()));
        Ok(Self { dir })
    }

    fn make(&self, name: &str) -> Result<PathBuf, Failure> {
        let dir = self.dir.join(name);
        fs::create_dir_all(&dir).context(format!("create {}", dir.display()))?;
        Ok(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Writes a file beside the output, and puts it there when it is whole.
fn write(output: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> Result<(), Failure> {
    let draft =
        ichor_sys::file::Draft::create(output, 0o644).context(format!("create {}", output.display()))?;
    let mut file = draft.file().try_clone().context(format!("write {}", output.display()))?;
    fill(&mut file).context(format!("write {}", output.display()))?;
    draft.commit().context(format!("write {}", output.display()))
}

/// Writes a container image: a directory, or an archive of it.
fn layout(image: &ichor_image::oci::Image, output: &Path, scratch: &Scratch) -> Result<(), Failure> {
    let dir = scratch.make("layout")?;
    image.write_layout(&dir).plain()?;
    if output.extension().is_some_and(|ending| ending == "tar") {
        return write(output, |file| ichor_image::oci::archive_layout(&dir, file));
    }
    if output.exists() {
        return Err(Failure::new(format!(
            "{} exists already; remove it or name another directory",
            output.display()
        ))
        .whole());
    }
    fs::rename(&dir, output).context(format!("write {}", output.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_meta_are_read_as_go_writes_them() {
        for entry in ["10=x", "0xa=x", "0o12=x", "0b1010=x"] {
            assert_eq!(meta_value(entry).unwrap(), (10, b"x".to_vec()), "{entry}");
        }
        assert_eq!(meta_value("0xa=a=b").unwrap().1, b"a=b");
        for entry in ["x", "0=x", "256=x", "=x", "-1=x"] {
            assert!(meta_value(entry).unwrap_err().to_string().contains("is no value of META"), "{entry}");
        }
    }

    #[test]
    fn all_kinds_are_known() {
        for kind in KINDS {
            assert!(Kind::parse(kind).is_ok(), "{kind}");
        }
        let failure = Kind::parse("floppy").unwrap_err().to_string();
        assert!(
            failure.starts_with("there is no image of kind \"floppy\"\n  kinds: metal, iso"),
            "{failure}"
        );
    }

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let output = dir.path().join("image");
        fs::write(&output, "old").unwrap();
        write(&output, |_| Err(io::Error::other("disk full"))).unwrap_err();
        assert_eq!(fs::read_to_string(&output).unwrap(), "old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no draft is left");
    }
}
