//! The parts of a system that is to be installed: where they come from, and whether they are for this machine.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use ichor_boot::cmdline::for_disk;
use ichor_image::build::{artefacts, part};
use ichor_image::grub::DiskCode;
use ichor_image::uki::{self, Reset, Uki};
use ichor_image::{Arch, Content};
use ichor_types::Cmdline;

use crate::media::{self, Extent};

/// Texts of a kernel image are shorter.
const TEXT_MAX: u64 = 64 << 10;
/// Boot code is never larger.
const CODE_MAX: u64 = 16 << 20;
/// Headers of a PE file that are looked at.
const HEAD: u64 = 4096;

/// Why the parts cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// Neither an installer image nor media.
    #[error(
        "no kernel image: neither {} nor a disc or stick with a volume TALOS_* has {name}; attach the installation media \
         or name an installer image", dir.display()
    )]
    NotFound {
        /// Where it was looked for.
        dir: PathBuf,
        /// What.
        name: String,
    },
    /// A part that cannot be done without.
    #[error("{place}: {name} is missing; this installer is incomplete")]
    Missing {
        /// Where the parts are.
        place: String,
        /// Which part.
        name: &'static str,
    },
    /// For another kind of processor.
    #[error("{name} of {place} is for {found}, this machine is {wanted}; use an installer for {wanted}")]
    Architecture {
        /// Which part.
        name: &'static str,
        /// Where the parts are.
        place: String,
        /// What it is for.
        found: String,
        /// What is needed.
        wanted: Arch,
    },
    /// No version.
    #[error("the kernel image of {place} does not say which version it is: os-release has no VERSION_ID")]
    Version {
        /// Where the parts are.
        place: String,
    },
    /// It cannot be read.
    #[error("read {name} of {place}")]
    Read {
        /// Which part.
        name: &'static str,
        /// Where the parts are.
        place: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A part is not what it should be.
    #[error(transparent)]
    Image(#[from] ichor_image::Error),
}

/// Where the parts of an installer are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A directory: that of an installer image.
    Directory(PathBuf),
    /// A volume on this device.
    Media(PathBuf),
}

impl Place {
    /// Looks for the parts: in `dir` if it is given, else where an installer image has them, else on media.
    ///
    /// # Errors
    /// When they are nowhere.
    pub fn find(root: &Path, dir: Option<&Path>, arch: Arch) -> Result<Self, ArtifactError> {
        if let Some(dir) = dir {
            return Ok(Self::Directory(dir.to_owned()));
        }
        let dir = root.join(artefacts(arch));
        if dir.join(part::UKI).is_file() {
            return Ok(Self::Directory(dir));
        }
        let name = format!("{}/{}", artefacts(arch), part::UKI);
        match media::find(root, &name).unwrap_or(None) {
            Some(device) => Ok(Self::Media(device)),
            None => Err(ArtifactError::NotFound { dir, name }),
        }
    }

    fn extent(&self, name: &'static str, arch: Arch) -> Result<Option<Extent>, ArtifactError> {
        let read = |source| ArtifactError::Read { name, place: self.to_string(), source };
        match self {
            Self::Directory(dir) => {
                let path = dir.join(name);
                match std::fs::metadata(&path) {
                    Ok(found) => Ok(Some(Extent { path, start: 0, len: found.len() })),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(read(error)),
                }
            }
            Self::Media(device) => {
                media::extent(device, &format!("{}/{name}", artefacts(arch))).map_err(read)
            }
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Directory(path) | Self::Media(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A system that can be installed.
#[derive(Debug, Clone)]
pub struct Artifacts {
    /// The unified kernel image for a disk.
    pub uki: Content,
    /// The kernel.
    pub kernel: Content,
    /// The initramfs.
    pub initramfs: Content,
    /// The command line of an installed system.
    pub cmdline: Cmdline,
    /// What it is called.
    pub name: String,
    /// Its version, with a `v`.
    pub tag: String,
    /// systemd-boot.
    pub sd_boot: Option<Content>,
    /// GRUB for a BIOS.
    pub grub: Option<DiskCode>,
    /// GRUB for UEFI.
    pub grub_efi: Option<Content>,
}

impl Artifacts {
    /// Opens the parts. The large ones stay where they are until they are read.
    ///
    /// # Errors
    /// When one is missing, broken or for another machine.
    pub fn open(place: &Place, arch: Arch) -> Result<Self, ArtifactError> {
        let shown = place.to_string();
        let content = |name: &'static str| {
            let extent = place.extent(name, arch)?;
            Ok::<_, ArtifactError>(
                extent.map(|found| Content::file_part(&found.path, found.start, found.len)),
            )
        };
        let missing = |name| ArtifactError::Missing { place: shown.clone(), name };
        let image = place.extent(part::UKI, arch)?.ok_or_else(|| missing(part::UKI))?;
        let whole = Content::file_part(&image.path, image.start, image.len);
        check(part::UKI, &whole, &shown, arch)?;
        let section = |name: &str| {
            let range = uki::section(&whole, name)?;
            Ok::<_, ArtifactError>(Content::file_part(
                &image.path,
                image.start + range.start,
                range.end - range.start,
            ))
        };
        let text = |name: &str| {
            let bytes = section(name)?.read(TEXT_MAX)?;
            Ok::<_, ArtifactError>(String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned())
        };
        let (kernel, initramfs) = (section(".linux")?, section(".initrd")?);
        let (own, os_release) = (Cmdline::parse(&text(".cmdline")?), text(".osrel")?);
        let cmdline = for_disk(&own);
        let uki = match (place, cmdline == own) {
            // What an installer image brings is taken as it is: it may be signed.
            (Place::Directory(_), _) | (Place::Media(_), true) => whole,
            (Place::Media(_), false) => {
                let stub = content(part::STUB)?.ok_or_else(|| missing(part::STUB))?.read(CODE_MAX)?;
                let (os_release, cmdline) = (os_release.clone(), cmdline.clone());
                let (kernel, initramfs) = (kernel.clone(), initramfs.clone());
                let uname = text(".uname").ok();
                Uki { stub, os_release, cmdline, uname, kernel, initramfs, reset: Reset::Maintenance }
                    .build()?
            }
        };
        let sd_boot = content(part::SD_BOOT)?;
        if let Some(loader) = &sd_boot {
            check(part::SD_BOOT, loader, &shown, arch)?;
        }
        let grub = match (content(part::GRUB_BOOT)?, content(part::GRUB_CORE)?) {
            (Some(boot), Some(core)) => {
                Some(DiskCode { boot: boot.read(CODE_MAX)?, core: core.read(CODE_MAX)? })
            }
            _ => None,
        };
        let version = field(&os_release, "VERSION_ID").ok_or(ArtifactError::Version { place: shown })?;
        let name = field(&os_release, "NAME").unwrap_or_else(|| "Ichor".to_owned());
        let grub_efi = content(part::GRUB_EFI)?;
        Ok(Self { uki, kernel, initramfs, cmdline, name, tag: version, sd_boot, grub, grub_efi })
    }
}

/// Whether a PE file is for this kind of processor.
fn check(name: &'static str, file: &Content, place: &str, wanted: Arch) -> Result<(), ArtifactError> {
    let mut head = Vec::new();
    let read = file.reader().take(HEAD).read_to_end(&mut head);
    read.map_err(|source| ArtifactError::Read { name, place: place.to_owned(), source })?;
    let found = match machine(&head) {
        Some(0x8664) => "amd64".to_owned(),
        Some(0xaa64) => "arm64".to_owned(),
        Some(other) => format!("processor type {other:#x}"),
        None => "no machine at all: it is no EFI program".to_owned(),
    };
    match found == wanted.to_string() {
        true => Ok(()),
        false => Err(ArtifactError::Architecture { name, place: place.to_owned(), found, wanted }),
    }
}

/// The kind of processor in the header of a PE file.
fn machine(head: &[u8]) -> Option<u16> {
    let at = usize::try_from(u32::from_le_bytes(head.get(0x3c..0x40)?.try_into().ok()?)).ok()?;
    let header = head.get(at..at.checked_add(6)?)?;
    (head.starts_with(b"MZ") && header.starts_with(b"PE\0\0"))
        .then(|| u16::from_le_bytes([header[4], header[5]]))
}

/// A value of `os-release`.
fn field(text: &str, key: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
    let value = value.trim().trim_matches('"');
    (!value.is_empty()).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn os_release_is_read() {
        let text = ichor_image::os_release("1.2.3");
        assert_eq!(field(&text, "VERSION_ID").as_deref(), Some("v1.2.3"));
        assert_eq!(field(&text, "NAME").as_deref(), Some("Ichor"));
        assert_eq!(field(&text, "NOTHING"), None);
    }

    #[test]
    fn the_kind_of_processor_is_in_the_header() {
        let mut head = vec![0; 0x100];
        head[..2].copy_from_slice(b"MZ");
        head[0x3c] = 0x80;
        head[0x80..0x86].copy_from_slice(b"PE\0\0\x64\x86");
        assert_eq!(machine(&head), Some(0x8664));
        assert_eq!(machine(&head[..0x84]), None);
        assert_eq!(machine(b"MZ"), None);
        head[0x3c..0x40].copy_from_slice(&[0xff; 4]);
        assert_eq!(machine(&head), None);
    }

    #[test]
    fn without_parts_the_way_out_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let error = Place::find(dir.path(), None, Arch::Amd64).unwrap_err().to_string();
        assert!(error.contains("usr/install/amd64/vmlinuz.efi") && error.contains("attach"), "{error}");
    }
}
