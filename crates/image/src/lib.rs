//! Images of the operating system: kernel images, filesystems, disks and installation media, laid out in memory and
//! written without root, loop devices or mounts. The same inputs give the same bytes.
//!
//! Everything is [`Content`]: a plan of bytes, files and zeros, which is written once at the end.

pub mod build;
pub mod cmdline;
pub mod content;
pub mod cpio;
pub mod depmod;
pub mod disk;
pub mod elf;
mod error;
pub mod fat;
pub mod grub;
pub mod initramfs;
pub mod iso;
pub mod kernel;
pub mod modules;
pub mod oci;
pub mod pe;
pub mod qcow2;
pub mod squashfs;
pub mod uki;

use std::collections::BTreeMap;
use std::fmt;

use ichor_block::Guid;

pub use content::Content;
pub use error::Error;

/// Values of META by key.
pub type Meta = BTreeMap<u8, Vec<u8>>;

/// The kind of processor an image is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arch {
    /// x86-64.
    Amd64,
    /// 64-bit ARM.
    Arm64,
}

impl Arch {
    /// Reads the name as Go and Debian write it.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "amd64" => Some(Self::Amd64),
            "arm64" => Some(Self::Arm64),
            _ => None,
        }
    }

    /// The file that firmware starts from a disk it knows nothing about.
    pub fn removable_loader(self) -> &'static str {
        match self {
            Self::Amd64 => "BOOTX64.efi",
            Self::Arm64 => "BOOTAA64.efi",
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        })
    }
}

/// Bytes as hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A GUID for `purpose` that follows from what an image holds.
fn guid(digest: &[u8; 32], purpose: &str) -> Guid {
    let sum = ichor_pki::sha256(&[&digest[..], purpose.as_bytes()].concat());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&sum[..16]);
    Guid::from_random(bytes)
}

/// Puts parts at their places in an image of `len` bytes, with zeros between them.
fn assemble(what: &str, mut parts: Vec<(u64, Content)>, len: u64) -> Result<Content, Error> {
    parts.sort_by_key(|(at, _)| *at);
    let mut image = Content::default();
    for (at, content) in parts {
        if !image.extend_to(at) {
            return Err(Error::bad(what, format!("two of its parts overlap at byte {at}")));
        }
        image.append(content);
    }
    let used = image.len();
    if image.extend_to(len) {
        Ok(image)
    } else {
        Err(Error::TooLarge { what: what.to_owned(), len: used, max: len })
    }
}

/// The text of `os-release`. Scripts written for the original look for `ID=talos`: the variant says so without claiming
/// the name.
pub fn os_release(version: &str) -> String {
    format!(
        "NAME=\"Ichor\"\nID=ichor\nID_LIKE=talos\nVARIANT_ID=talos\nVERSION_ID=v{version}\nPRETTY_NAME=\"Ichor (v{version})\"\n\
         VENDOR_NAME=\"Ichor\"\n"
    )
}
