//! GRUB: the configuration it reads, and its boot code on a disk that a BIOS starts.

use ichor_types::cmdline::Cmdline;

use crate::{Content, Error};

const SECTOR: usize = 512;
/// Boot code ends where the partition table begins.
const BOOT_CODE: usize = 440;
/// Where the first sector learns at which sector the core begins.
const BOOT_CORE_PLACE: usize = 0x5c;
/// A jump that is taken when the BIOS passes a floppy's number; disks must not take it.
const BOOT_DRIVE_CHECK: usize = 0x66;
const NOPS: [u8; 2] = [0x90, 0x90];
/// Where the first sector of the core learns at which sector the rest of it begins.
const CORE_REST_PLACE: usize = SECTOR - 12;

/// Characters of a command line that GRUB would take for its own.
const QUOTED: &str = "\\{}&$|;<>\"";

/// One entry of the menu.
#[derive(Debug, Clone)]
pub struct MenuEntry {
    /// The title.
    pub title: String,
    /// The directory of kernel and initramfs, from the root of the filesystem.
    pub directory: String,
    /// The command line.
    pub cmdline: Cmdline,
}

/// The text of `grub.cfg`; the first entry is the default.
pub fn config(entries: &[MenuEntry]) -> String {
    let default = entries.first().map(|entry| entry.title.as_str()).unwrap_or_default();
    let mut text = format!(
        "set default=\"{default}\"\n\nset timeout=3\n\ninsmod all_video\n\nterminal_input console\nterminal_output console\n\n"
    );
    for entry in entries {
        let (title, directory) = (&entry.title, entry.directory.trim_end_matches('/'));
        let cmdline = quote(&entry.cmdline.to_string());
        text += &format!(
            "menuentry \"{title}\" {{\n  set gfxmode=auto\n  set gfxpayload=text\n  linux {directory}/vmlinuz {cmdline}\n  \
             initrd {directory}/initramfs.xz\n}}\n"
        );
    }
    text
}

/// A command line as GRUB passes it on unchanged.
pub fn quote(cmdline: &str) -> String {
    let mut out = String::with_capacity(cmdline.len());
    for c in cmdline.chars() {
        if QUOTED.contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// GRUB's boot code: the first sector, and the core that goes into a partition of its own.
#[derive(Debug, Clone)]
pub struct DiskCode {
    /// GRUB's `boot.img`.
    pub boot: Vec<u8>,
    /// Made by `grub-mkimage -O i386-pc`.
    pub core: Vec<u8>,
}

impl DiskCode {
    /// The code of the first sector and the core, for a core that begins at this sector of 512 bytes.
    pub fn place(&self, core_at: u64, room: u64) -> Result<(Content, Content), Error> {
        let mut boot = self.boot.get(..BOOT_CODE).map(<[u8]>::to_vec).ok_or_else(|| {
            Error::bad("GRUB's boot.img", "it is shorter than a boot sector; take the one of grub-pc-bin")
        })?;
        boot[BOOT_CORE_PLACE..BOOT_CORE_PLACE + 8].copy_from_slice(&core_at.to_le_bytes());
        boot[BOOT_DRIVE_CHECK..BOOT_DRIVE_CHECK + 2].copy_from_slice(&NOPS);
        let mut core = self.core.clone();
        let (len, max) = (core.len() as u64, room);
        if len > max {
            return Err(Error::TooLarge { what: "GRUB's core".to_owned(), len, max });
        }
        if core.len() < 2 * SECTOR {
            return Err(Error::bad("GRUB's core", "it is too short; make it with -O i386-pc"));
        }
        core[CORE_REST_PLACE..CORE_REST_PLACE + 8].copy_from_slice(&(core_at + 1).to_le_bytes());
        Ok((Content::bytes(boot), Content::bytes(core)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_the_shape_of_the_original() {
        let entry = |title: &str, extra: &str| MenuEntry {
            title: title.to_owned(),
            directory: "/A".to_owned(),
            cmdline: Cmdline::parse(&format!("a=${{b}} {extra}")),
        };
        let text = config(&[entry("A - Ichor v1", ""), entry("Reset", "wipe")]);
        assert!(text.starts_with("set default=\"A - Ichor v1\"\n\nset timeout=3\n"), "{text}");
        assert!(text.contains("menuentry \"A - Ichor v1\" {\n  set gfxmode=auto\n  set gfxpayload=text\n  linux /A/vmlinuz a=\\$\\{b\\}\n  initrd /A/initramfs.xz\n}\n"), "{text}");
        assert!(
            text.ends_with("linux /A/vmlinuz a=\\$\\{b\\} wipe\n  initrd /A/initramfs.xz\n}\n"),
            "{text}"
        );
    }

    #[test]
    fn boot_code_learns_where_its_core_is() {
        let code = DiskCode { boot: vec![1; 512], core: vec![2; 2000] };
        let (boot, core) = code.place(4096, 1 << 20).unwrap();
        let (boot, core) = (boot.read(512).unwrap(), core.read(2000).unwrap());
        assert_eq!(boot.len(), BOOT_CODE);
        assert_eq!(boot[0x5c..0x64], 4096_u64.to_le_bytes());
        assert_eq!(core[500..508], 4097_u64.to_le_bytes());
        assert_eq!(
            code.place(1, 100).unwrap_err().to_string(),
            "GRUB's core has 2000 bytes, at most 100 fit"
        );
    }
}
