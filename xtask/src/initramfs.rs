//! The initramfs of a virtual machine: the node program as `/init`, the root image, and the few
//! kernel modules needed to reach it.
//!
//! A stock distribution kernel has squashfs, loop and virtio as modules. They go into the archive in
//! the order in which they must be loaded, numbered, so that `/init` needs no dependency table.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::content::{Content, Entry};
use crate::depmod::{self, Module};
use crate::squashfs;

/// What a node needs of a kernel before its root is there, and the one module that nothing asks for: without it packets between
/// pods of a node pass no filter.
const FIRST: &[&str] = &["loop", "squashfs", "overlay", "br_netfilter"];

/// What a root image without a device manager needs besides: nothing there loads a driver or what pods and services use.
const DRIVERS: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "virtio_net",
    "virtio_rng",
    "efivarfs",
    "button",
    "bridge",
    "br_netfilter",
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

/// The root image looks for drivers itself when it has this; otherwise it gets those above.
const DEVICE_MANAGER: &str = "/usr/bin/udevadm";

/// Builds `build/vm/initramfs.cpio` and `build/vm/modules.squashfs` from the built node, the root image and an unpacked kernel.
pub(crate) fn run(root: &Path) -> Result<()> {
    let folder = modules_folder(&root.join("build/vm/kernel"))?;
    let kernel = read_modules(&folder)?;
    let by_name: BTreeMap<&str, &Module> =
        kernel.iter().map(|(module, _)| (module.name.as_str(), module)).collect();
    let image = root.join("build/rootfs.squashfs");
    let finds_drivers = holds(&image, DEVICE_MANAGER)?;
    let more = if finds_drivers { &[][..] } else { DRIVERS };
    let wanted = FIRST.iter().chain(more).copied().filter(|name| by_name.contains_key(name));

    let mut archive = Archive::default();
    for dir in ["dev", "modules", "root"] {
        archive.directory(dir, 0o755);
    }
    archive.file("init", 0o755, &read(&root.join("build/ichor"))?);
    archive.file("rootfs.sqsh", 0o644, &read(&image)?);
    let layer = root.join("build/vm/modules.squashfs");
    write_layer(&layer, &folder, &kernel)?;
    archive.file("modules.sqsh", 0o644, &read(&layer)?);
    let (mut seen, mut order) = (BTreeSet::new(), Vec::new());
    for name in wanted {
        depmod::visit(name, &by_name, &mut seen, &mut order)?;
    }
    for (place, name) in order.iter().enumerate() {
        let file = read(&folder.join(&by_name[name.as_str()].path))?;
        archive.file(&format!("modules/{place:03}-{name}.ko"), 0o644, &file);
    }
    let out = root.join("build/vm/initramfs.cpio");
    fs::write(&out, archive.finish()).with_context(|| format!("write {}", out.display()))?;
    println!("    {}", out.strip_prefix(root).unwrap_or(&out).display());
    Ok(())
}

/// Whether a root image has a file at this place.
fn holds(image: &Path, place: &str) -> Result<bool> {
    let file = fs::File::open(image).with_context(|| format!("read {}", image.display()))?;
    let reader = backhand::FilesystemReader::from_reader(std::io::BufReader::new(file))
        .with_context(|| format!("read {}", image.display()))?;
    Ok(reader.files().any(|node| node.fullpath == Path::new(place)))
}

/// The one folder of modules of an unpacked kernel, named after its release.
fn modules_folder(kernel: &Path) -> Result<PathBuf> {
    let dir = kernel.join("usr/lib/modules");
    let entries =
        fs::read_dir(&dir).with_context(|| format!("list {}; run `scripts/vm prepare`", dir.display()))?;
    let folders: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    match folders.as_slice() {
        [folder] => Ok(folder.clone()),
        _ => bail!("{} holds {} kernels; there has to be one", dir.display(), folders.len()),
    }
}

/// All modules below the folder of a release, with their content, in the order of their paths.
fn read_modules(folder: &Path) -> Result<Vec<(Module, Vec<u8>)>> {
    let mut modules = BTreeMap::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))? {
            let path = entry?.path();
            let name = path.strip_prefix(folder)?.to_string_lossy().into_owned();
            if path.is_dir() {
                pending.push(path);
            } else if name.ends_with(".ko") {
                let bytes = read(&path)?;
                modules.insert(name.clone(), (Module::read(&name, &bytes)?, bytes));
            } else if name.contains(".ko.") {
                bail!("{} is compressed; `scripts/kernel` unpacks modules", path.display());
            }
        }
    }
    Ok(modules.into_values().collect())
}

/// Writes a layer with all modules and the tables to find them by, unless it is there with the same content.
fn write_layer(out: &Path, folder: &Path, kernel: &[(Module, Vec<u8>)]) -> Result<()> {
    let release = folder.file_name().context("the folder of modules has no name")?.to_string_lossy();
    let table = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let modules: Vec<Module> = kernel.iter().map(|(module, _)| module.clone()).collect();
    let tables = depmod::tables(&modules, &table("modules.order"), &table("modules.builtin"))?;
    let files = kernel.iter().map(|(module, bytes)| (module.path.clone(), bytes.clone()));
    let place = |(name, bytes)| (format!("usr/lib/modules/{release}/{name}"), Entry::file(bytes));
    let content: Content = files.chain(tables).map(place).collect();
    let stamp_file = out.with_extension("stamp");
    let stamp = squashfs::content_digest(&content);
    if out.exists() && fs::read_to_string(&stamp_file).is_ok_and(|held| held == stamp) {
        return Ok(());
    }
    let mut image = squashfs::new()?;
    squashfs::push(&mut image, &content, &[])?;
    squashfs::replace(out, &squashfs::bytes(image)?)?;
    fs::write(&stamp_file, stamp).with_context(|| format!("write {}", stamp_file.display()))
}

/// A cpio archive in the `newc` format, with fixed owners and times: the same input gives the same bytes.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

impl Archive {
    fn directory(&mut self, name: &str, mode: u32) {
        self.entry(name, 0o040000 | mode, 2, &[]);
    }

    fn file(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.entry(name, 0o100000 | mode, 1, data);
    }

    fn entry(&mut self, name: &str, mode: u32, links: u32, data: &[u8]) {
        self.inode += 1;
        let fields =
            [self.inode, mode, 0, 0, links, 0, data.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, 1, &[]);
        self.bytes
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpacked(modules: &[(&str, &[&str])]) -> tempfile::TempDir {
        let kernel = tempfile::tempdir().unwrap();
        for (path, lines) in modules {
            let path = kernel.path().join("usr/lib/modules/6.0/kernel").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, crate::elf::tests::module(lines)).unwrap();
        }
        kernel
    }

    #[test]
    fn modules_are_read_and_laid_out_with_their_tables() {
        let kernel = unpacked(&[("a/b.ko", &["depends=c", "alias=pci:*"]), ("c.ko", &["depends="])]);
        let folder = modules_folder(kernel.path()).unwrap();
        let out = kernel.path().join("layer");
        write_layer(&out, &folder, &read_modules(&folder).unwrap()).unwrap();
        for place in ["kernel/a/b.ko", "kernel/c.ko", "modules.dep", "modules.alias.bin", "modules.builtin"] {
            assert!(holds(&out, &format!("/usr/lib/modules/6.0/{place}")).unwrap(), "{place}");
        }
        assert!(!holds(&out, DEVICE_MANAGER).unwrap());
    }

    #[test]
    fn compressed_modules_and_several_kernels_are_refused() {
        let kernel = unpacked(&[("a.ko.xz", &[])]);
        let folder = modules_folder(kernel.path()).unwrap();
        let error = read_modules(&folder).unwrap_err().to_string();
        assert!(error.contains("a.ko.xz is compressed"), "{error}");
        fs::create_dir(kernel.path().join("usr/lib/modules/7.0")).unwrap();
        assert!(modules_folder(kernel.path()).unwrap_err().to_string().contains("holds 2 kernels"));
    }

    #[test]
    fn the_archive_has_the_newc_shape() {
        let mut archive = Archive::default();
        archive.file("a", 0o644, b"hi");
        let bytes = archive.finish();
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[110..112], b"a\0");
        assert_eq!(&bytes[112..114], b"hi");
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.windows(10).any(|w| w == b"TRAILER!!!"));
    }
}
