//! systemd-boot with unified kernel images: file names, EFI variables, `loader.conf`, the firmware's boot entry.
//!
//! systemd-boot takes the entry of `LoaderEntryOneShot`, deletes that variable before it starts anything, and otherwise
//! takes `LoaderEntryDefault`, then the `default` line of `loader.conf`, then the newest image. The default is kept in
//! both of the middle two: firmware that loses its variables still starts the last good system.

pub mod load_option;
pub mod name;
pub mod variable;

use crate::slots::Slot;

pub use load_option::{HardDrive, LoadOption};
pub use name::{UkiName, UkiNameError};

/// Where images are, in the EFI filesystem.
pub const UKI_FOLDER: &str = "EFI/Linux";
/// The configuration of the boot loader, in the EFI filesystem.
pub const CONF_PATH: &str = "loader/loader.conf";
/// What the firmware's entry is called.
pub const BOOT_ENTRY: &str = "Talos Linux UKI";
/// What `LoaderConfigTimeout` is set to.
pub const TIMEOUT: &str = "5";

/// The boot loader itself, in the EFI filesystem.
pub fn loader_path(architecture: &str) -> Option<&'static str> {
    match architecture {
        "amd64" => Some("EFI/boot/BOOTX64.efi"),
        "arm64" => Some("EFI/boot/BOOTAA64.efi"),
        _ => None,
    }
}

/// The path of an image in the EFI filesystem.
pub fn uki_path(name: &UkiName) -> String {
    format!("{UKI_FOLDER}/{name}")
}

/// `loader.conf` with this default, everything else as it was. It fills one sector, which is written in one piece and
/// without a change of the file's size; the first line stays the first, so that an old, shorter size cuts nothing off.
pub fn with_default(conf: Option<&str>, name: &UkiName) -> String {
    const SECTOR: usize = 512;
    let old = conf.unwrap_or("timeout 10\n");
    let mut text = String::new();
    for line in old.lines().map(str::trim_end) {
        let is_padding = !line.is_empty() && line.bytes().all(|byte| byte == b'#');
        // What is left of a write that a power cut ended.
        let is_garbage =
            line.chars().any(|c| (c.is_control() && c != '\t') || c == char::REPLACEMENT_CHARACTER);
        if key_of(line) != Some("default") && !is_padding && !is_garbage {
            text.push_str(line);
            text.push('\n');
        }
    }
    text.push_str(&format!("default {name}\n"));
    if text.len() < SECTOR {
        text.push_str(&"#".repeat(SECTOR - 1 - text.len()));
        text.push('\n');
    }
    text
}

/// The image that `loader.conf` names; patterns are not understood.
pub fn default_of(conf: &str) -> Option<UkiName> {
    let mut lines = conf.lines().filter(|line| key_of(line) == Some("default"));
    UkiName::parse(lines.next_back()?.trim().split_once([' ', '\t'])?.1.trim())
}

fn key_of(line: &str) -> Option<&str> {
    line.split_whitespace().next()
}

/// What is on an EFI filesystem and in the variables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// Whether the machine was started by UEFI firmware.
    pub is_uefi: bool,
    /// Whether a boot loader is there.
    pub has_loader: bool,
    /// The names of all files in the folder of images.
    pub files: Vec<String>,
    /// `LoaderEntryDefault`.
    pub default: Option<String>,
    /// `LoaderEntrySelected`: what was started.
    pub selected: Option<String>,
    /// `loader.conf`.
    pub conf: Option<String>,
}

/// The images of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SdBoot {
    /// What is started by default.
    pub current: UkiName,
    /// All others, in order.
    pub others: Vec<UkiName>,
}

/// Why a disk with images has no default.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "neither LoaderEntryDefault ({default:?}), LoaderEntrySelected ({selected:?}) nor loader.conf names one of the images \
     on the EFI partition: {images}; choose one in the boot menu, then try again"
)]
pub struct NoCurrent {
    default: Option<String>,
    selected: Option<String>,
    images: String,
}

impl SdBoot {
    /// Looks whether a disk has this boot loader.
    ///
    /// # Errors
    /// When it has, and nothing says which image is the default.
    pub fn probe(found: &Found) -> Result<Option<Self>, NoCurrent> {
        let images: Vec<UkiName> = found.files.iter().filter_map(|file| UkiName::parse(file)).collect();
        if !found.is_uefi || !found.has_loader || images.is_empty() {
            return Ok(None);
        }
        let named = |text: &Option<String>| {
            let text = text.as_deref()?;
            images.iter().find(|image| image.is(text))
        };
        let in_conf = found.conf.as_deref().and_then(default_of);
        let current = named(&found.default)
            // Before what was selected, which may be a slot on trial. The original writes no such line.
            .or_else(|| images.iter().find(|image| Some(*image) == in_conf.as_ref()))
            .or_else(|| named(&found.selected))
            .or_else(|| images.first().filter(|_| images.len() == 1));
        let Some(current) = current.cloned() else {
            let images = images.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            return Err(NoCurrent {
                default: found.default.clone(),
                selected: found.selected.clone(),
                images,
            });
        };
        let mut others: Vec<UkiName> = images.into_iter().filter(|image| *image != current).collect();
        others.sort();
        Ok(Some(Self { current, others }))
    }

    /// What a revert starts: the first image that is not the default.
    pub fn revert(&self) -> Option<&UkiName> {
        self.others.first()
    }

    /// The slots of a disk without a record: the default is A.
    pub fn names(&self) -> [(Slot, Option<UkiName>); 2] {
        [(Slot::A, Some(self.current.clone())), (Slot::B, self.others.first().cloned())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> UkiName {
        UkiName::parse(text).unwrap()
    }

    fn found(files: &[&str]) -> Found {
        let files = files.iter().map(|file| (*file).to_owned()).collect();
        Found { is_uefi: true, has_loader: true, files, ..Found::default() }
    }

    #[test]
    fn the_default_line_is_replaced_and_everything_else_stays() {
        let first = with_default(None, &name("Talos-v1.efi"));
        assert!(first.starts_with("timeout 10\ndefault Talos-v1.efi\n###"));
        assert_eq!(first.len(), 512);
        let second = with_default(Some(&first), &name("Talos-v2~3.efi"));
        assert_eq!(second.len(), 512);
        assert_eq!(default_of(&second), Some(name("Talos-v2~3.efi")));
        assert!(!second.contains("Talos-v1"));
        let kept = with_default(Some("timeout 0\n# mine\neditor no\ndefault x\n"), &name("Talos-v1.efi"));
        assert!(kept.starts_with("timeout 0\n# mine\neditor no\ndefault Talos-v1.efi\n"));
        let mended = with_default(Some("timeout 0\n\0\0\0\n\u{fffd}\u{fffd}"), &name("Talos-v1.efi"));
        assert!(mended.starts_with("timeout 0\ndefault Talos-v1.efi\n#"));
    }

    #[test]
    fn an_old_size_of_the_file_cuts_off_nothing_that_was_there() {
        let old = "timeout 10\n";
        let new = with_default(Some(old), &name("Talos-v1.efi"));
        assert_eq!(&new[..old.len()], old);
    }

    #[test]
    fn the_current_image_is_default_then_selected() {
        let files = ["Talos-v1.12.1.efi", "Talos-v1.12.0.efi", "Talos-v1.12.1~1.efi", "other.efi"];
        let mut disk = found(&files);
        assert!(SdBoot::probe(&disk).is_err());
        disk.selected = Some("talos-v1.12.1~1.efi".into());
        let loader = SdBoot::probe(&disk).unwrap().unwrap();
        assert_eq!(loader.current, name("Talos-v1.12.1~1.efi"));
        disk.default = Some("Talos-v1.12.1.efi".into());
        let loader = SdBoot::probe(&disk).unwrap().unwrap();
        assert_eq!(loader.current, name("Talos-v1.12.1.efi"));
        assert_eq!(loader.revert(), Some(&name("Talos-v1.12.0.efi")));
        disk.default = Some("Talos-v9.efi".into());
        assert_eq!(SdBoot::probe(&disk).unwrap().unwrap().current, name("Talos-v1.12.1~1.efi"));
    }

    #[test]
    fn firmware_without_variables_is_helped_by_the_file() {
        let mut disk = found(&["Talos-v1.efi", "Talos-v2.efi"]);
        disk.conf = Some(with_default(None, &name("Talos-v1.efi")));
        assert_eq!(SdBoot::probe(&disk).unwrap().unwrap().current, name("Talos-v1.efi"));
        assert_eq!(SdBoot::probe(&found(&["Talos-v1.efi"])).unwrap().unwrap().current, name("Talos-v1.efi"));
    }

    #[test]
    fn another_boot_loader_is_not_an_error() {
        let images = ["Talos-v1.efi"];
        assert_eq!(SdBoot::probe(&Found { is_uefi: false, ..found(&images) }), Ok(None));
        assert_eq!(SdBoot::probe(&Found { has_loader: false, ..found(&images) }), Ok(None));
        assert_eq!(SdBoot::probe(&found(&["shim.efi"])), Ok(None));
    }
}
