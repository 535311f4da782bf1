//! The initramfs of a virtual machine: the node program as `/init`, the root image, and the few
//! kernel modules needed to reach it.
//!
//! A stock distribution kernel has squashfs, loop and virtio as modules. They go into the archive in
//! the order in which they must be loaded, numbered, so that `/init` needs no dependency table.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};

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

/// Builds `build/vm/initramfs.cpio` from the built node, the root image and an unpacked kernel.
pub(crate) fn run(root: &Path) -> Result<()> {
    let kernel = root.join("build/vm/kernel");
    let modules = kernel_modules(&kernel)?;
    let wanted = MODULES.iter().chain(POD_MODULES).copied();
    let wanted: Vec<&str> = wanted.filter(|name| modules.contains_key(*name)).collect();

    let mut archive = Archive::default();
    archive.directory("dev", 0o755);
    archive.directory("modules", 0o755);
    archive.directory("root", 0o755);
    archive.file("init", 0o755, &read(&root.join("build/ichor"))?);
    archive.file("rootfs.sqsh", 0o644, &read(&root.join("build/rootfs.squashfs"))?);
    for (place, name) in load_order(&wanted, |name| dependencies(&modules, name))?.iter().enumerate() {
        let path = modules
            .get(name.as_str())
            .ok_or_else(|| anyhow!("module {name} is not in {}", kernel.display()))?;
        archive.file(&format!("modules/{place:03}-{name}.ko"), 0o644, &read(path)?);
    }
    let out = root.join("build/vm/initramfs.cpio");
    fs::write(&out, archive.finish()).with_context(|| format!("write {}", out.display()))?;
    println!("    {}", out.strip_prefix(root).unwrap_or(&out).display());
    Ok(())
}

/// Names and files of all modules of an unpacked kernel package.
fn kernel_modules(kernel: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut modules = BTreeMap::new();
    let mut pending = vec![kernel.join("lib/modules")];
    while let Some(dir) = pending.pop() {
        for entry in
            fs::read_dir(&dir).with_context(|| format!("list {}; run `scripts/vm prepare`", dir.display()))?
        {
            let path = entry?.path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|e| e == "ko")
                && let Some(stem) = path.file_stem().and_then(|s| s.to_str())
            {
                modules.insert(stem.replace('-', "_"), path.clone());
            }
        }
    }
    Ok(modules)
}

/// The modules that `name` says it needs, from the `depends=` line in its `.modinfo`.
fn dependencies(modules: &BTreeMap<String, PathBuf>, name: &str) -> Result<Vec<String>> {
    let path = modules.get(name).ok_or_else(|| anyhow!("no kernel module {name}"))?;
    Ok(depends_line(&read(path)?))
}

/// Finds the NUL-terminated `depends=a,b` string among the NUL-separated lines of a module.
fn depends_line(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value = module[at + KEY.len()..].split(|b| *b == 0).next().unwrap_or_default();
    String::from_utf8_lossy(value).split(',').filter(|n| !n.is_empty()).map(|n| n.replace('-', "_")).collect()
}

/// `names` and all they need, each after what it needs.
fn load_order(names: &[&str], depends: impl Fn(&str) -> Result<Vec<String>>) -> Result<Vec<String>> {
    fn visit(
        name: &str,
        depends: &impl Fn(&str) -> Result<Vec<String>>,
        seen: &mut BTreeSet<String>,
        order: &mut Vec<String>,
    ) -> Result<()> {
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
        visit(name, &depends, &mut seen, &mut order)?;
    }
    Ok(order)
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

    #[test]
    fn a_module_comes_after_what_it_needs() {
        let depends = |name: &str| {
            Ok(match name {
                "virtio_net" => vec!["net_failover".to_owned(), "virtio".to_owned()],
                "net_failover" => vec!["failover".to_owned()],
                _ => vec![],
            })
        };
        let order = load_order(&["virtio_net", "virtio"], depends).unwrap();
        assert_eq!(order, ["failover", "net_failover", "virtio", "virtio_net"]);
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
