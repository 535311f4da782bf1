//! The initramfs: the node program as `/init`, the root image, the few kernel modules needed to reach it, a layer with all
//! others, and firmware.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::cpio::Archive;
use crate::{Content, Error};

/// Programs and modules shrink to a third at this level, in a second or two.
const LEVEL: i32 = 9;
/// Where the kernel and the root look for firmware.
const FIRMWARE: &str = "usr/lib/firmware";
/// Directories of firmware are not deeper than this.
const DEPTH_MAX: usize = 16;

/// What is in an initramfs.
#[derive(Debug, Clone)]
pub struct Initramfs {
    /// The program that is started first.
    pub init: Content,
    /// The squashfs of the root.
    pub rootfs: Content,
    /// Modules by name, in the order in which they are loaded.
    pub modules: Vec<(String, Content)>,
    /// A squashfs with all modules, which lies over the root.
    pub layer: Option<Content>,
    /// Firmware by its path below `/usr/lib/firmware`.
    pub firmware: Vec<(String, Content)>,
}

impl Initramfs {
    fn programs(&self, archive: &mut Archive) -> Result<(), Error> {
        archive.directory("dev", 0o755)?;
        archive.directory("modules", 0o755)?;
        archive.directory("root", 0o755)?;
        archive.file("init", 0o755, self.init.clone())?;
        for (place, (name, module)) in self.modules.iter().enumerate() {
            archive.file(&format!("modules/{place:03}-{name}.ko"), 0o644, module.clone())?;
        }
        let files = self.firmware.iter().map(|(path, file)| (format!("{FIRMWARE}/{path}"), file));
        let files: Vec<(String, &Content)> = files.collect();
        for dir in above(files.iter().map(|(path, _)| path.as_str())) {
            archive.directory(&dir, 0o755)?;
        }
        for (path, file) in files {
            archive.file(&path, 0o644, file.clone())?;
        }
        Ok(())
    }

    /// What is compressed already.
    fn images(&self, archive: &mut Archive) -> Result<(), Error> {
        archive.file("rootfs.sqsh", 0o644, self.rootfs.clone())?;
        match &self.layer {
            Some(layer) => archive.file("modules.sqsh", 0o644, layer.clone()),
            None => Ok(()),
        }
    }

    /// One archive without compression, for a machine whose memory is filled by an emulator.
    pub fn plain(&self) -> Result<Content, Error> {
        let mut archive = Archive::default();
        self.programs(&mut archive)?;
        self.images(&mut archive)?;
        archive.finish()
    }

    /// As it is shipped: programs, modules and firmware as an archive compressed with zstd, and the filesystems, which
    /// are compressed already, in a second archive behind it. The kernel unpacks all that follow each other.
    pub fn packed(&self) -> Result<Content, Error> {
        let mut first = Archive::default();
        self.programs(&mut first)?;
        let first = first.finish()?;
        let failed = |source| Error::Read { path: PathBuf::from("initramfs"), source };
        let mut encoder = zstd::stream::read::Encoder::new(first.reader(), LEVEL).map_err(failed)?;
        let mut packed = Vec::new();
        encoder.read_to_end(&mut packed).map_err(failed)?;
        let mut content = Content::bytes(packed);
        // The kernel looks for the next archive at a multiple of four.
        content.align(4);
        let mut second = Archive::default();
        self.images(&mut second)?;
        content.append(second.finish()?);
        Ok(content)
    }
}

/// Every directory above these paths, parents first.
fn above<'a>(paths: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    paths.flat_map(|path| path.match_indices('/').map(|(at, _)| path[..at].to_owned())).collect()
}

/// All files below a directory of firmware, by their paths in it. Links are followed: the archive has files only.
pub fn firmware(dir: &Path) -> Result<Vec<(String, Content)>, Error> {
    let (mut files, mut pending) = (Vec::new(), vec![(dir.to_owned(), 0)]);
    while let Some((folder, depth)) = pending.pop() {
        let failed = |source| Error::Read { path: folder.clone(), source };
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() && depth < DEPTH_MAX {
                pending.push((path, depth + 1));
            } else if path.is_file() {
                let name = path.strip_prefix(dir).unwrap_or(&path).to_string_lossy().into_owned();
                files.push((name, Content::file(&path)?));
            }
        }
    }
    files.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn initramfs() -> Initramfs {
        Initramfs {
            init: Content::bytes(*b"program"),
            rootfs: Content::bytes(*b"hsqs"),
            modules: vec![("loop".to_owned(), Content::bytes(*b"ELF"))],
            layer: Some(Content::bytes(*b"layer")),
            firmware: vec![("intel/ice/ddp/ice.pkg".to_owned(), Content::bytes(*b"firmware"))],
        }
    }

    #[test]
    fn filesystems_follow_in_an_archive_of_their_own() {
        let bytes = initramfs().packed().unwrap().read(1 << 20).unwrap();
        assert_eq!(bytes[..4], [0x28, 0xb5, 0x2f, 0xfd], "zstd");
        let second = bytes.windows(6).position(|window| window == b"070701").unwrap();
        assert_eq!(second % 4, 0);
        let first = zstd::stream::read::Decoder::new(&bytes[..]).unwrap().single_frame();
        let first = std::io::read_to_string(first).unwrap();
        assert!(first.contains("modules/000-loop.ko") && !first.contains(".sqsh"));
        let second = String::from_utf8_lossy(&bytes[second..]).into_owned();
        assert!(second.contains("rootfs.sqsh") && second.contains("modules.sqsh"));
        assert_eq!(bytes, initramfs().packed().unwrap().read(1 << 20).unwrap());
    }

    #[test]
    fn directories_of_firmware_come_before_what_is_in_them() {
        let text = initramfs().plain().unwrap().read(1 << 20).unwrap();
        let text = String::from_utf8_lossy(&text).into_owned();
        let places: Vec<Option<usize>> = [
            "\0\0usr\0",
            "usr/lib/firmware\0",
            "usr/lib/firmware/intel/ice/ddp\0",
            "usr/lib/firmware/intel/ice/ddp/ice.pkg\0",
        ]
        .map(|name| text.find(name.trim_start_matches('\0')))
        .to_vec();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}");
    }

    #[test]
    fn firmware_is_taken_in_the_order_of_its_paths() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("b/c")).unwrap();
        for name in ["b/c/x", "a", "b/a"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        let names: Vec<String> = firmware(dir.path()).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "b/a", "b/c/x"]);
        assert!(firmware(&dir.path().join("none")).is_err());
    }
}
