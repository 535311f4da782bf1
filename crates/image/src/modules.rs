//! Modules of a kernel: the few that are loaded before the root is there, and the layer with all others.
//!
//! A stock distribution kernel has squashfs, loop and its drivers as modules. What the root cannot be reached without goes
//! into the archive in the order in which it must be loaded, numbered, so that `/init` needs no dependency table. Everything
//! else is a squashfs that lies over the root, with the tables that the device manager and `modprobe` find modules by.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::depmod::{self, Module};
use crate::squashfs::{self, Entry, Packing, Tree};
use crate::{Content, Error};

/// What a node needs of a kernel before its root is there, and what nothing asks for by itself: without the filter of bridges
/// packets between pods of a node pass no rule, and the variables of the firmware are mounted before drivers are looked for. The
/// watchdog of virtual machines is armed before anything else is done.
const FIRST: &[&str] = &["loop", "squashfs", "overlay", "br_netfilter", "efivarfs", "i6300esb"];

/// What a root image without a device manager needs besides: nothing there loads a driver or what pods and services use.
const DRIVERS: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "virtio_net",
    "virtio_rng",
    "button",
    "bridge",
    "dummy",
    "nf_tables",
    "nf_conntrack",
    "nf_conntrack_netlink",
    "nfnetlink",
    "nft_chain_nat",
    "nft_ct",
    "nft_fib_inet",
    "nft_fib_ipv4",
    "nft_fib_ipv6",
    "nft_limit",
    "nft_log",
    "nft_masq",
    "nft_nat",
    "nft_numgen",
    "nft_redir",
    "nft_reject_inet",
    "nft_reject_ipv4",
    "nft_reject_ipv6",
    "veth",
    "vxlan",
];

/// Directories of a distribution's kernel that no server has a use for: sound, cameras, radios, games, sensors, graphics beyond
/// a console, filesystems of other systems. They are half of its modules. What others need of them stays.
const LEFT_OUT: &[&str] = &[
    "drivers/accel",
    "drivers/atm",
    "drivers/auxdisplay",
    "drivers/bluetooth",
    "drivers/comedi",
    "drivers/counter",
    "drivers/firewire",
    "drivers/gnss",
    "drivers/gpu/drm/amd",
    "drivers/gpu/drm/gma500",
    "drivers/gpu/drm/i915",
    "drivers/gpu/drm/nouveau",
    "drivers/gpu/drm/radeon",
    "drivers/gpu/drm/xe",
    "drivers/greybus",
    "drivers/iio",
    "drivers/input/joystick",
    "drivers/input/tablet",
    "drivers/input/touchscreen",
    "drivers/isdn",
    "drivers/media",
    "drivers/memstick",
    "drivers/mtd",
    "drivers/net/can",
    "drivers/net/fddi",
    "drivers/net/hamradio",
    "drivers/net/ieee802154",
    "drivers/net/wireless",
    "drivers/net/wwan",
    "drivers/nfc",
    "drivers/parport",
    "drivers/pcmcia",
    "drivers/platform",
    "drivers/soundwire",
    "drivers/staging",
    "drivers/usb/gadget",
    "drivers/usb/image",
    "drivers/video/fbdev",
    "drivers/w1",
    "fs/adfs",
    "fs/affs",
    "fs/afs",
    "fs/bcachefs",
    "fs/befs",
    "fs/bfs",
    "fs/coda",
    "fs/ecryptfs",
    "fs/efs",
    "fs/f2fs",
    "fs/freevxfs",
    "fs/gfs2",
    "fs/hfs",
    "fs/hfsplus",
    "fs/hpfs",
    "fs/jffs2",
    "fs/jfs",
    "fs/minix",
    "fs/nilfs2",
    "fs/ntfs3",
    "fs/ocfs2",
    "fs/omfs",
    "fs/orangefs",
    "fs/qnx4",
    "fs/qnx6",
    "fs/reiserfs",
    "fs/romfs",
    "fs/sysv",
    "fs/ubifs",
    "fs/ufs",
    "fs/vboxsf",
    "fs/zonefs",
    "net/6lowpan",
    "net/appletalk",
    "net/atm",
    "net/ax25",
    "net/bluetooth",
    "net/can",
    "net/ieee802154",
    "net/mac80211",
    "net/mac802154",
    "net/netrom",
    "net/nfc",
    "net/rose",
    "net/wireless",
    "sound",
];

/// A change of how layers are made is a change of this: it is part of what tells one that is there from one to be made.
const LAYER_FORMAT: u32 = 1;

/// A module is not larger than this.
const MODULE_MAX: u64 = 64 << 20;
/// Directories of modules are not deeper than this.
const DEPTH_MAX: usize = 16;
/// A table of a kernel package is not larger than this.
const TABLE_MAX: u64 = 16 << 20;

/// Which modules of a kernel are in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// What servers and virtual machines have a use for.
    Servers,
    /// Everything that the kernel package has.
    All,
}

/// The modules of one release of the kernel.
#[derive(Debug, Clone)]
pub struct Modules {
    release: String,
    folder: PathBuf,
    /// Files by the path that the module has in the layer, below the folder of the release.
    files: BTreeMap<String, PathBuf>,
    /// Those paths by name, with dashes as underscores.
    names: BTreeMap<String, String>,
}

impl Modules {
    /// The modules in `dir`: the folder of a release, one with a single release in it, or an unpacked kernel package.
    pub fn find(dir: &Path) -> Result<Self, Error> {
        let folder = release_folder(dir)?;
        let release = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (mut files, mut names) = (BTreeMap::new(), BTreeMap::new());
        let mut pending = vec![(folder.clone(), 0)];
        while let Some((dir, depth)) = pending.pop() {
            for path in list(&dir)? {
                if path.is_dir() && depth < DEPTH_MAX {
                    pending.push((path, depth + 1));
                } else if let Some((name, plain)) = module_names(&folder, &path) {
                    names.insert(name, plain.clone());
                    files.insert(plain, path);
                }
            }
        }
        if files.is_empty() {
            return Err(Error::bad(folder.display().to_string(), "there are no kernel modules in it"));
        }
        Ok(Self { release, folder, files, names })
    }

    /// What `uname -r` says of the kernel that they belong to.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// The modules that are loaded before the root is there, each after what it needs. `finds_drivers` says whether something
    /// in the root looks for the others.
    pub fn first(&self, finds_drivers: bool) -> Result<Vec<(String, Content)>, Error> {
        let more = if finds_drivers { &[][..] } else { DRIVERS };
        let wanted = FIRST.iter().chain(more).filter(|name| self.names.contains_key(**name));
        let (mut seen, mut order) = (BTreeSet::new(), Vec::new());
        for name in wanted {
            self.visit(name, &mut seen, &mut order)?;
        }
        Ok(order)
    }

    fn visit(
        &self,
        name: &str,
        seen: &mut BTreeSet<String>,
        order: &mut Vec<(String, Content)>,
    ) -> Result<(), Error> {
        if !seen.insert(name.to_owned()) {
            return Ok(());
        }
        let missing = || {
            let reason = "another module needs it, and the kernel package lacks it";
            Error::bad(format!("kernel module {name}"), reason)
        };
        let path = self.names.get(name).ok_or_else(missing)?;
        let bytes = self.read(path)?;
        for need in Module::read(path, &bytes)?.depends {
            self.visit(&need, seen, order)?;
        }
        order.push((name.to_owned(), Content::bytes(bytes)));
        Ok(())
    }

    /// The layer: a squashfs with these modules and the tables to find them by.
    pub fn layer(&self, selection: Selection) -> Result<Vec<u8>, Error> {
        let mut chosen: BTreeMap<String, (Module, Vec<u8>)> = BTreeMap::new();
        let mut pending: Vec<String> =
            self.files.keys().filter(|path| selection.takes(path)).cloned().collect();
        while let Some(path) = pending.pop() {
            if chosen.contains_key(&path) {
                continue;
            }
            let bytes = self.read(&path)?;
            let module = Module::read(&path, &bytes)?;
            // What is missing is told when the tables are made.
            pending.extend(module.depends.iter().filter_map(|need| self.names.get(need)).cloned());
            chosen.insert(path, (module, bytes));
        }
        let modules: Vec<Module> = chosen.values().map(|(module, _)| module.clone()).collect();
        let tables =
            depmod::tables(&modules, &self.table("modules.order")?, &self.table("modules.builtin")?)?;
        let files = chosen.into_iter().map(|(path, (_, bytes))| (path, bytes)).chain(tables);
        let place = |(name, bytes)| (format!("usr/lib/modules/{}/{name}", self.release), Entry::file(bytes));
        let tree: Tree = files.map(place).collect();
        squashfs::build(&tree, Packing::TIGHT)
    }

    /// The layer from a file that was made of the same modules, or made now and kept there.
    pub fn layer_kept(&self, selection: Selection, file: &Path) -> Result<Content, Error> {
        let stamp_file = file.with_extension("stamp");
        let stamp = self.stamp(selection)?;
        let is_same = fs::read_to_string(&stamp_file).is_ok_and(|held| held == stamp);
        if !is_same || !file.exists() {
            squashfs::replace(file, &self.layer(selection)?)?;
            squashfs::replace(&stamp_file, stamp.as_bytes())?;
        }
        Content::file(file)
    }

    /// A digest of what a layer is made of, without a look into the files.
    fn stamp(&self, selection: Selection) -> Result<String, Error> {
        let mut text = format!("{LAYER_FORMAT} {:?} {LEFT_OUT:?} {selection:?}\n", Packing::TIGHT);
        for (path, file) in &self.files {
            let data = fs::metadata(file).map_err(|source| Error::Read { path: file.clone(), source })?;
            text += &format!("{path} {} {}.{}\n", data.len(), data.mtime(), data.mtime_nsec());
        }
        Ok(squashfs::digest(text.as_bytes()))
    }

    /// A module as the kernel takes it, unpacked.
    fn read(&self, path: &str) -> Result<Vec<u8>, Error> {
        let file = &self.files[path];
        let failed = |source| Error::Read { path: file.clone(), source };
        let bytes = Content::file(file)?.read(MODULE_MAX)?;
        let mut plain = Vec::new();
        match file.extension().and_then(|ending| ending.to_str()) {
            Some("xz") => liblzma::read::XzDecoder::new(&bytes[..]).take(MODULE_MAX).read_to_end(&mut plain),
            Some("zst") => {
                zstd::Decoder::new(&bytes[..]).map_err(failed)?.take(MODULE_MAX).read_to_end(&mut plain)
            }
            _ => return Ok(bytes),
        }
        .map_err(failed)?;
        Ok(plain)
    }

    /// A table of the kernel package; empty where it has none.
    fn table(&self, name: &str) -> Result<String, Error> {
        let path = self.folder.join(name);
        match path.exists() {
            true => Ok(String::from_utf8_lossy(&Content::file(&path)?.read(TABLE_MAX)?).into_owned()),
            false => Ok(String::new()),
        }
    }
}

impl Selection {
    /// Whether a module at this path, as in `kernel/fs/fat/vfat.ko`, is taken for itself.
    fn takes(self, path: &str) -> bool {
        let below = |dir: &&str| -> bool {
            let rest = path.strip_prefix("kernel/").and_then(|path| path.strip_prefix(*dir));
            rest.is_some_and(|rest| rest.starts_with('/'))
        };
        match self {
            Self::All => true,
            Self::Servers => !LEFT_OUT.iter().any(below),
        }
    }
}

fn list(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |source| Error::Read { path: dir.to_owned(), source };
    let entries = fs::read_dir(dir).map_err(failed)?;
    entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect()
}

/// The one folder of modules in `dir`, which is named after its release.
fn release_folder(dir: &Path) -> Result<PathBuf, Error> {
    let is_release = |path: &Path| path.join("kernel").is_dir();
    if is_release(dir) {
        return Ok(dir.to_owned());
    }
    let mut found = Vec::new();
    for place in ["", "lib/modules", "usr/lib/modules"] {
        let place = dir.join(place);
        if place.is_dir() {
            found.extend(list(&place)?.into_iter().filter(|path| is_release(path)));
        }
    }
    match found.as_slice() {
        [folder] => Ok(folder.clone()),
        [] => Err(Error::bad(dir.display().to_string(), "there are no kernel modules in it")),
        _ => {
            let reason = format!("it holds the modules of {} kernels; name the folder of one", found.len());
            Err(Error::bad(dir.display().to_string(), reason))
        }
    }
}

/// The name of the module in this file and its path in a layer, if there is one in it.
fn module_names(folder: &Path, path: &Path) -> Option<(String, String)> {
    let file = path.file_name()?.to_str()?;
    let stem = [".ko", ".ko.xz", ".ko.zst"].iter().find_map(|ending| file.strip_suffix(ending))?;
    let dir = path.parent()?.strip_prefix(folder).ok()?.to_str()?;
    let slash = if dir.is_empty() { "" } else { "/" };
    Some((stem.replace('-', "_"), format!("{dir}{slash}{stem}.ko")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::sample;

    /// An unpacked kernel with these modules.
    fn unpacked(modules: &[(&str, &[&str])]) -> tempfile::TempDir {
        let kernel = tempfile::tempdir().unwrap();
        for (path, lines) in modules {
            put(kernel.path(), path, &sample::module(lines));
        }
        kernel
    }

    fn put(kernel: &Path, path: &str, bytes: &[u8]) {
        let path = kernel.join("usr/lib/modules/6.0/kernel").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn first(kernel: &Path, finds_drivers: bool) -> Vec<String> {
        let modules = Modules::find(kernel).unwrap().first(finds_drivers).unwrap();
        modules.into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn a_module_comes_after_what_it_needs_and_drivers_only_where_nothing_finds_them() {
        let kernel = unpacked(&[
            ("drivers/net/virtio_net.ko", &["depends=net-failover,virtio"]),
            ("net/core/net_failover.ko", &["depends=failover"]),
            ("net/core/failover.ko", &["depends="]),
            ("virtio.ko", &["depends="]),
            ("fs/squashfs.ko", &["depends="]),
            ("other.ko", &["depends="]),
        ]);
        assert_eq!(first(kernel.path(), true), ["squashfs"]);
        assert_eq!(
            first(kernel.path(), false),
            ["squashfs", "failover", "net_failover", "virtio", "virtio_net"]
        );
    }

    #[test]
    fn modules_that_need_each_other_end() {
        let kernel = unpacked(&[("loop.ko", &["depends=b"]), ("b.ko", &["depends=loop"])]);
        assert_eq!(first(kernel.path(), true), ["b", "loop"]);
    }

    #[test]
    fn compressed_modules_are_unpacked() {
        let kernel = unpacked(&[]);
        let module = sample::module(&["depends=lib-x"]);
        put(kernel.path(), "fs/squashfs.ko.zst", &zstd::encode_all(&module[..], 1).unwrap());
        let mut packed = Vec::new();
        let lib = sample::module(&["depends="]);
        liblzma::read::XzEncoder::new(&lib[..], 1).read_to_end(&mut packed).unwrap();
        put(kernel.path(), "lib/lib-x.ko.xz", &packed);
        let modules = Modules::find(kernel.path()).unwrap().first(true).unwrap();
        assert_eq!(modules[0].0, "lib_x");
        assert_eq!(modules[1].1.read(1 << 20).unwrap(), module);
    }

    #[test]
    fn a_missing_dependency_is_named() {
        let kernel = unpacked(&[("loop.ko", &["depends=gone"])]);
        let modules = Modules::find(kernel.path()).unwrap();
        for error in [modules.first(true).unwrap_err(), modules.layer(Selection::All).unwrap_err()] {
            assert!(error.to_string().starts_with("kernel module gone: "), "{error}");
        }
    }

    #[test]
    fn one_kernel_is_found_wherever_its_modules_lie() {
        let kernel = unpacked(&[("loop.ko", &["depends="])]);
        for place in ["", "usr/lib/modules", "usr/lib/modules/6.0"] {
            assert_eq!(Modules::find(&kernel.path().join(place)).unwrap().release(), "6.0", "{place}");
        }
        fs::create_dir_all(kernel.path().join("usr/lib/modules/7.0/kernel")).unwrap();
        let error = Modules::find(kernel.path()).unwrap_err().to_string();
        assert!(error.ends_with("it holds the modules of 2 kernels; name the folder of one"), "{error}");
        let error = Modules::find(&kernel.path().join("usr/lib/modules/7.0")).unwrap_err().to_string();
        assert!(error.ends_with("there are no kernel modules in it"), "{error}");
    }

    #[test]
    fn a_layer_has_modules_and_tables_without_what_servers_have_no_use_for() {
        let kernel = unpacked(&[
            ("fs/a.ko", &["depends=cec", "alias=fs-a"]),
            ("drivers/media/cec.ko", &["depends="]),
            ("drivers/media/camera.ko", &["depends="]),
            ("drivers/mediator/x.ko", &["depends="]),
        ]);
        let modules = Modules::find(kernel.path()).unwrap();
        let file = kernel.path().join("modules.squashfs");
        modules.layer_kept(Selection::Servers, &file).unwrap();
        let holds = |place: &str| squashfs::holds(&file, &format!("/usr/lib/modules/6.0/{place}")).unwrap();
        for place in ["kernel/fs/a.ko", "kernel/drivers/media/cec.ko", "kernel/drivers/mediator/x.ko"] {
            assert!(holds(place), "{place}");
        }
        assert!(holds("modules.alias.bin") && holds("modules.builtin") && holds("modules.dep"));
        assert!(!holds("kernel/drivers/media/camera.ko"));
        assert!(Selection::All.takes("kernel/drivers/media/camera.ko"));
    }

    #[test]
    fn a_layer_is_made_once_and_again_when_modules_change() {
        let kernel = unpacked(&[("a.ko", &["depends="])]);
        let file = kernel.path().join("modules.squashfs");
        let make = || {
            let modules = Modules::find(kernel.path()).unwrap();
            modules.layer_kept(Selection::Servers, &file).unwrap().read(1 << 20).unwrap()
        };
        let made = make();
        fs::write(&file, "kept").unwrap();
        assert_eq!(make(), b"kept");
        put(kernel.path(), "b.ko", &sample::module(&["depends="]));
        assert_ne!(make(), b"kept");
        fs::remove_file(kernel.path().join("usr/lib/modules/6.0/kernel/b.ko")).unwrap();
        assert_eq!(make(), made, "the same modules, the same bytes");
    }
}
