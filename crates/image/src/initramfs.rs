//! The initramfs: the node program as `/init`, the root image, and the few kernel modules needed to reach it.

use std::io::Read as _;
use std::path::PathBuf;

use crate::cpio::Archive;
use crate::{Content, Error};

/// Programs and modules shrink to a third at this level, in a second or two.
const LEVEL: i32 = 9;

/// What is in an initramfs.
#[derive(Debug, Clone)]
pub struct Initramfs {
    /// The program that is started first.
    pub init: Content,
    /// The squashfs of the root.
    pub rootfs: Content,
    /// Modules by name, in the order in which they are loaded.
    pub modules: Vec<(String, Content)>,
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
        Ok(())
    }

    /// One archive without compression, for a machine whose memory is filled by an emulator.
    pub fn plain(&self) -> Result<Content, Error> {
        let mut archive = Archive::default();
        self.programs(&mut archive)?;
        archive.file("rootfs.sqsh", 0o644, self.rootfs.clone())?;
        archive.finish()
    }

    /// As it is shipped: programs and modules as an archive compressed with zstd, and the root, which is compressed
    /// already, in a second archive behind it. The kernel unpacks all that follow each other.
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
        second.file("rootfs.sqsh", 0o644, self.rootfs.clone())?;
        content.append(second.finish()?);
        Ok(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_follows_in_an_archive_of_its_own() {
        let initramfs = Initramfs {
            init: Content::bytes(*b"program"),
            rootfs: Content::bytes(*b"hsqs"),
            modules: vec![("loop".to_owned(), Content::bytes(*b"ELF"))],
        };
        let bytes = initramfs.packed().unwrap().read(1 << 20).unwrap();
        assert_eq!(bytes[..4], [0x28, 0xb5, 0x2f, 0xfd], "zstd");
        let second = bytes.windows(6).position(|window| window == b"070701").unwrap();
        assert_eq!(second % 4, 0);
        let first = zstd::stream::read::Decoder::new(&bytes[..]).unwrap().single_frame();
        let first = std::io::read_to_string(first).unwrap();
        assert!(first.contains("modules/000-loop.ko") && !first.contains("rootfs.sqsh"));
        assert_eq!(bytes, initramfs.packed().unwrap().read(1 << 20).unwrap());
    }
}
