//! Kernel modules of an initramfs: which ones, and in which order they are loaded.
//!
//! A stock distribution kernel has squashfs, loop and virtio as modules. They go into the archive in the order in which
//! they must be loaded, numbered, so that `/init` needs no dependency table.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::{Content, Error};

/// What a node needs of a kernel before its root is there, and for its first network.
const MODULES: &[&str] =
    &["virtio_pci", "virtio_blk", "virtio_net", "virtio_rng", "loop", "squashfs", "overlay", "efivarfs"];

/// What pods and services need: the kernel finds none by itself, for the image has no program that loads them.
const POD_MODULES: &[&str] = &[
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

/// A module is not larger than this.
const MODULE_MAX: u64 = 64 << 20;
/// Directories of modules are not deeper than this.
const DEPTH_MAX: usize = 16;

/// Modules by name, with dashes as underscores.
#[derive(Debug, Clone, Default)]
pub struct Modules {
    files: BTreeMap<String, PathBuf>,
}

impl Modules {
    /// All modules below a directory, such as `lib/modules/6.1.0-44-cloud-amd64` of a kernel package.
    pub fn find(dir: &Path) -> Result<Self, Error> {
        let mut modules = Self::default();
        let mut pending = vec![(dir.to_owned(), 0)];
        while let Some((dir, depth)) = pending.pop() {
            let failed = |source| Error::Read { path: dir.clone(), source };
            for entry in fs::read_dir(&dir).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let (path, kind) = (entry.path(), entry.file_type().map_err(failed)?);
                if kind.is_dir() && depth < DEPTH_MAX {
                    pending.push((path, depth + 1));
                } else if kind.is_file()
                    && let Some(name) = module_name(&path)
                {
                    modules.files.insert(name, path);
                }
            }
        }
        Ok(modules)
    }

    /// True without a single module.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The modules that a node wants and the kernel has, each after what it needs, as they go into the initramfs.
    pub fn for_initramfs(&self) -> Result<Vec<(String, Content)>, Error> {
        let wanted = MODULES.iter().chain(POD_MODULES).copied();
        let wanted: Vec<&str> = wanted.filter(|name| self.files.contains_key(*name)).collect();
        // What is read once for its dependencies is kept for the archive.
        let mut read = BTreeMap::new();
        let order = load_order(&wanted, &mut |name| {
            let bytes = self.read(name)?;
            let needs = depends_line(&bytes);
            read.insert(name.to_owned(), bytes);
            Ok(needs)
        })?;
        let file = |name: String| {
            let bytes = read.remove(&name).unwrap_or_default();
            (name, Content::bytes(bytes))
        };
        Ok(order.into_iter().map(file).collect())
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, Error> {
        let path = self.files.get(name).ok_or_else(|| {
            Error::bad(
                format!("kernel module {name}"),
                "another module needs it, and the kernel package lacks it",
            )
        })?;
        let failed = |source| Error::Read { path: path.clone(), source };
        let bytes = Content::file(path)?.read(MODULE_MAX)?;
        let mut plain = Vec::new();
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("xz") => liblzma::read::XzDecoder::new(&bytes[..]).take(MODULE_MAX).read_to_end(&mut plain),
            Some("zst") => {
                zstd::Decoder::new(&bytes[..]).map_err(failed)?.take(MODULE_MAX).read_to_end(&mut plain)
            }
            _ => return Ok(bytes),
        }
        .map_err(failed)?;
        Ok(plain)
    }
}

/// The name of the module in this file, if there is one in it.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let stem = [".ko", ".ko.xz", ".ko.zst"].iter().find_map(|ending| name.strip_suffix(ending))?;
    Some(stem.replace('-', "_"))
}

/// Finds the NUL-terminated `depends=a,b` string among the NUL-separated lines of a module.
fn depends_line(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(value);
    names.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

type Depends<'a> = &'a mut dyn FnMut(&str) -> Result<Vec<String>, Error>;

/// `names` and all they need, each after what it needs.
fn load_order(names: &[&str], depends: Depends<'_>) -> Result<Vec<String>, Error> {
    fn visit(
        name: &str,
        depends: Depends<'_>,
        seen: &mut BTreeSet<String>,
        order: &mut Vec<String>,
    ) -> Result<(), Error> {
        if !seen.insert(name.to_owned()) {
            return Ok(());
        }
        for need in depends(name)? {
            visit(&need, depends, seen, order)?;
        }
        order.push(name.to_owned());
        Ok(())
    }
    let (mut seen, mut order) = (BTreeSet::new(), Vec::new());
    for name in names {
        visit(name, depends, &mut seen, &mut order)?;
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_after_what_it_needs() {
        let mut depends = |name: &str| {
            Ok(match name {
                "virtio_net" => vec!["net_failover".to_owned(), "virtio".to_owned()],
                "net_failover" => vec!["failover".to_owned()],
                _ => vec![],
            })
        };
        let order = load_order(&["virtio_net", "virtio"], &mut depends).unwrap();
        assert_eq!(order, ["failover", "net_failover", "virtio", "virtio_net"]);
    }

    #[test]
    fn modules_that_need_each_other_end() {
        let mut depends = |name: &str| Ok(vec![if name == "a" { "b" } else { "a" }.to_owned()]);
        assert_eq!(load_order(&["a"], &mut depends).unwrap(), ["b", "a"]);
    }

    #[test]
    fn dependencies_are_read_from_the_module() {
        assert_eq!(
            depends_line(b"ELF\0license=GPL\0depends=virtio,net-failover\0name=x\0"),
            ["virtio", "net_failover"]
        );
        assert!(depends_line(b"ELF\0depends=\0").is_empty());
        assert!(depends_line(b"ELF").is_empty());
    }

    #[test]
    fn compressed_modules_are_unpacked() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("kernel/fs");
        fs::create_dir_all(&deep).unwrap();
        let module = b"ELF\0depends=lib-x\0".to_vec();
        let packed = zstd::encode_all(&module[..], 1).unwrap();
        fs::write(deep.join("squashfs.ko.zst"), packed).unwrap();
        let mut packed = Vec::new();
        liblzma::read::XzEncoder::new(&b"ELF\0depends=\0"[..], 1).read_to_end(&mut packed).unwrap();
        fs::write(deep.join("lib-x.ko.xz"), packed).unwrap();
        let modules = Modules::find(dir.path()).unwrap().for_initramfs().unwrap();
        let names: Vec<&str> = modules.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["lib_x", "squashfs"]);
        assert_eq!(modules[1].1.read(100).unwrap(), module);
    }

    #[test]
    fn a_missing_dependency_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("loop.ko"), b"ELF\0depends=gone\0").unwrap();
        let error = Modules::find(dir.path()).unwrap().for_initramfs().unwrap_err();
        assert!(error.to_string().starts_with("kernel module gone: "), "{error}");
    }
}
