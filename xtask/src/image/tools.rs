//! Programs of Debian that a node needs as they are: the device manager, file systems, encryption, volumes, packet filter.
//!
//! They come from `build/components/tools`, a tree of unpacked packages (`scripts/components tools`), and bring the
//! libraries that they and those libraries name. The build machine's own files are never taken.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use ichor_image::elf;
use ichor_image::squashfs::{Entry, Tree as Content};

/// Programs by their place in the packages, and the names they have in `usr/bin` of the image.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("usr/bin/kmod", &["kmod", "modprobe"]),
    ("usr/bin/udevadm", &["udevadm", "systemd-udevd"]),
    ("usr/sbin/cryptsetup", &["cryptsetup"]),
    ("usr/sbin/dmsetup", &["dmsetup"]),
    ("usr/sbin/e2fsck", &["e2fsck", "fsck.ext4"]),
    ("usr/sbin/fsck.fat", &["fsck.fat", "fsck.vfat"]),
    ("usr/sbin/lvm", &["lvm"]),
    ("usr/sbin/mke2fs", &["mke2fs", "mkfs.ext4"]),
    ("usr/sbin/mkfs.fat", &["mkfs.fat", "mkfs.vfat"]),
    ("usr/sbin/mkfs.xfs", &["mkfs.xfs"]),
    ("usr/sbin/nft", &["nft"]),
    ("usr/sbin/resize2fs", &["resize2fs"]),
    ("usr/sbin/tune2fs", &["tune2fs"]),
    ("usr/sbin/xfs_growfs", &["xfs_growfs"]),
    ("usr/sbin/xfs_repair", &["xfs_repair"]),
];

/// What rules of the device manager call; they stay where the rules look for them.
const HELPERS: &[&str] = &["ata_id", "cdrom_id", "dmi_memory_id", "scsi_id"];

/// Rules that matter on a node: device nodes, links to disks, drivers, names of links, device mapper. Left out is what seats,
/// sound, cameras, games and systemd's own units want.
const RULES: &[&str] = &[
    "50-firmware.rules",
    "50-udev-default.rules",
    "55-dm.rules",
    "56-lvm.rules",
    "60-block.rules",
    "60-cdrom_id.rules",
    "60-dmi-id.rules",
    "60-infiniband.rules",
    "60-persistent-storage-dm.rules",
    "60-persistent-storage-tape.rules",
    "60-persistent-storage.rules",
    "60-serial.rules",
    "64-btrfs.rules",
    "70-memory.rules",
    "75-net-description.rules",
    "80-drivers.rules",
    "80-net-setup-link.rules",
    "95-dm-notify.rules",
];

/// Hardware database: only what decides names of links. Names of vendors would be most of the image's growth.
const HARDWARE: &[&str] = &["20-net-ifname.hwdb"];

/// Configuration files that programs read, and where they are in the image.
const CONFIGURATION: &[(&str, &str)] = &[("etc/mke2fs.conf", "etc/mke2fs.conf")];

/// Libraries that are opened by name at run time and named by nothing: modules are loaded through libkmod.
const OPENED: &[&str] = &["libkmod.so.2"];

/// Where packages keep libraries.
const LIBRARY_DIRS: &[&str] =
    &["usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/systemd", "lib/x86_64-linux-gnu"];

/// The loader has a fixed place.
const LOADER: &str = "ld-linux-x86-64.so.2";

/// Everything that the image takes out of `tree`, by its place in the image; nothing where there is no tree.
pub(super) fn collect(tree: &Path) -> Result<Content> {
    let mut content = Content::default();
    if !tree.is_dir() {
        return Ok(content);
    }
    let mut roots = Vec::new();
    for (source, names) in PROGRAMS {
        let bytes = read(tree, source)?;
        roots.push((*source, elf::needed(&bytes).with_context(|| format!("read {source}"))?));
        let [first, others @ ..] = names else { continue };
        content.insert(format!("usr/bin/{first}"), Entry::program(bytes));
        for name in others {
            content.insert(format!("usr/bin/{name}"), Entry::Link((*first).to_owned()));
        }
    }
    for name in HELPERS {
        let place = format!("usr/lib/udev/{name}");
        let bytes = read(tree, &place)?;
        roots.push((name, elf::needed(&bytes).with_context(|| format!("read {place}"))?));
        content.insert(place, Entry::program(bytes));
    }
    roots.push(("libraries that are opened by name", OPENED.iter().map(|name| (*name).to_owned()).collect()));
    for (name, bytes) in libraries(tree, roots)? {
        let entry = if name == LOADER { Entry::program(bytes) } else { Entry::file(bytes) };
        content.insert(format!("usr/lib/{name}"), entry);
    }
    let rules = RULES.iter().map(|name| format!("usr/lib/udev/rules.d/{name}"));
    for place in rules.chain(HARDWARE.iter().map(|name| format!("usr/lib/udev/hwdb.d/{name}"))) {
        let bytes = read(tree, &place)?;
        content.insert(place, Entry::file(bytes));
    }
    for (source, place) in CONFIGURATION {
        content.insert((*place).to_owned(), Entry::file(read(tree, source)?));
    }
    time_zones(&tree.join("usr/share/zoneinfo"), "usr/share/zoneinfo", &mut content)?;
    Ok(content)
}

/// Where the tree keeps the authorities that browsers trust.
pub(super) fn authorities(tree: &Path) -> PathBuf {
    tree.join("usr/share/ca-certificates/mozilla")
}

/// The named libraries and all that those name, by their names.
fn libraries(tree: &Path, roots: Vec<(&str, Vec<String>)>) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut pending: Vec<(String, String)> = Vec::new();
    for (user, names) in roots {
        pending.extend(names.into_iter().map(|name| (name, user.to_owned())));
    }
    while let Some((name, user)) = pending.pop() {
        if !seen.insert(name.clone()) {
            continue;
        }
        ensure!(!name.contains('/'), "{user} needs a library by path: {name}");
        let path = LIBRARY_DIRS.iter().map(|dir| tree.join(dir).join(&name)).find(|path| path.exists());
        let path =
            path.with_context(|| format!("no library {name}, which {user} needs, in {}", tree.display()))?;
        let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let needed = elf::needed(&bytes).with_context(|| format!("read {}", path.display()))?;
        pending.extend(needed.into_iter().map(|next| (next, name.clone())));
        found.insert(name, bytes);
    }
    Ok(found)
}

/// All zones below `dir`. Links between them stay links.
fn time_zones(dir: &Path, place: &str, content: &mut Content) -> Result<()> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let place = format!("{place}/{name}");
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            let target = fs::read_link(&path)?.to_string_lossy().into_owned();
            content.insert(place, Entry::Link(target));
        } else if kind.is_dir() {
            time_zones(&path, &place, content)?;
        } else {
            let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
            content.insert(place, Entry::file(bytes));
        }
    }
    Ok(())
}

fn read(tree: &Path, place: &str) -> Result<Vec<u8>> {
    let path = tree.join(place);
    fs::read(&path).with_context(|| format!("read {}; `scripts/components tools` brings it", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(tree: &Path, place: &str, bytes: &[u8]) {
        let path = tree.join(place);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    /// A tree with all that is asked for.
    fn tree() -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        for (source, _) in PROGRAMS {
            write(tree.path(), source, &elf::sample::program(&["libone.so.1", "libc.so.6"]));
        }
        for name in HELPERS {
            write(tree.path(), &format!("usr/lib/udev/{name}"), &elf::sample::program(&["libc.so.6"]));
        }
        for name in RULES {
            write(tree.path(), &format!("usr/lib/udev/rules.d/{name}"), b"# rule");
        }
        for name in HARDWARE {
            write(tree.path(), &format!("usr/lib/udev/hwdb.d/{name}"), b"# hardware");
        }
        for (source, _) in CONFIGURATION {
            write(tree.path(), source, b"");
        }
        for (name, needed) in
            [("libone.so.1", "libtwo.so.2"), ("libkmod.so.2", "libc.so.6"), ("libc.so.6", LOADER)]
        {
            write(tree.path(), &format!("usr/lib/x86_64-linux-gnu/{name}"), &elf::sample::program(&[needed]));
        }
        write(tree.path(), &format!("usr/lib/x86_64-linux-gnu/{LOADER}"), &elf::sample::program(&[]));
        write(
            tree.path(),
            "usr/lib/x86_64-linux-gnu/systemd/libtwo.so.2",
            &elf::sample::program(&["libone.so.1"]),
        );
        write(tree.path(), "usr/share/zoneinfo/Etc/UTC", b"TZif");
        std::os::unix::fs::symlink("Etc/UTC", tree.path().join("usr/share/zoneinfo/UTC")).unwrap();
        tree
    }

    #[test]
    fn libraries_of_libraries_come_along_and_each_once() {
        let tree = tree();
        let content = collect(tree.path()).unwrap();
        let libraries: Vec<&str> = content
            .keys()
            .filter_map(|place| place.strip_prefix("usr/lib/"))
            .filter(|name| !name.contains('/'))
            .collect();
        assert_eq!(libraries, [LOADER, "libc.so.6", "libkmod.so.2", "libone.so.1", "libtwo.so.2"]);
        assert_eq!(content["usr/bin/modprobe"], Entry::Link("kmod".to_owned()));
        assert_eq!(content["usr/share/zoneinfo/UTC"], Entry::Link("Etc/UTC".to_owned()));
    }

    #[test]
    fn a_missing_library_is_named_with_who_needs_it() {
        let tree = tree();
        fs::remove_file(tree.path().join("usr/lib/x86_64-linux-gnu/systemd/libtwo.so.2")).unwrap();
        let error = format!("{:#}", collect(tree.path()).unwrap_err());
        assert!(error.starts_with("no library libtwo.so.2, which libone.so.1 needs"), "{error}");
    }

    #[test]
    fn without_a_tree_there_are_no_tools() {
        assert!(collect(Path::new("/does/not/exist")).unwrap().is_empty());
    }
}
