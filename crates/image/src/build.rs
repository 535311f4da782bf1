//! From ready parts to what is shipped: which file goes where in an image of each kind.

use std::collections::BTreeMap;

use ichor_boot::cmdline::merge;
use ichor_types::cmdline::Cmdline;

use crate::disk::{self, BiosBoot, Disk};
use crate::grub::{DiskCode, MenuEntry};
use crate::iso::{Bios, Iso};
use crate::kernel::Kernel;
use crate::oci::{Image, LayerFile};
use crate::uki::{Reset, Uki};
use crate::{Arch, Content, Error, Meta, cmdline, fat, grub, os_release, uki};

/// META says by this key that a disk image starts in two ways; the machine keeps the one that it was started by.
const META_LOADER: u8 = 0x11;
/// The label by which a machine knows our installer.
pub const INSTALLER_LABEL: &str = "dev.ichor.installer";
/// What the installer needs, below [`artefacts`], in its container image and on media alike.
pub mod part {
    /// The unified kernel image.
    pub const UKI: &str = "vmlinuz.efi";
    /// systemd-boot.
    pub const SD_BOOT: &str = "systemd-boot.efi";
    /// The systemd stub, for a kernel image with another command line.
    pub const STUB: &str = "systemd-stub.efi";
    /// GRUB's first sector.
    pub const GRUB_BOOT: &str = "grub-boot.img";
    /// GRUB's core for a BIOS.
    pub const GRUB_CORE: &str = "grub-core.img";
    /// GRUB for UEFI: machines that the original installed with GRUB keep it.
    pub const GRUB_EFI: &str = "grub.efi";
}

/// Where the parts of the installer are, from the root of an image.
pub fn artefacts(arch: Arch) -> String {
    format!("usr/install/{arch}")
}

/// Spare room on the EFI filesystem of media.
const MEDIA_SPARE: u64 = 1 << 20;

/// How a disk is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loader {
    /// UEFI starts systemd-boot.
    SdBoot,
    /// GRUB, started by a BIOS or by UEFI.
    Grub,
    /// UEFI starts systemd-boot, a BIOS starts GRUB.
    Dual,
}

impl Loader {
    /// Reads the name that flags have.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "sd-boot" => Some(Self::SdBoot),
            "grub" => Some(Self::Grub),
            "dual-boot" => Some(Self::Dual),
            _ => None,
        }
    }
}

/// GRUB's boot code, as `grub-mkimage` and Debian's packages make it.
#[derive(Debug, Clone)]
pub struct GrubCode {
    /// For disks.
    pub disk: DiskCode,
    /// For media.
    pub media: Bios,
    /// For UEFI.
    pub efi: Content,
}

/// Everything that images are made of.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The kind of processor.
    pub arch: Arch,
    /// The version, without a `v`.
    pub version: String,
    /// The platform.
    pub platform: String,
    /// The kernel.
    pub kernel: Kernel,
    /// The initramfs.
    pub initramfs: Content,
    /// The systemd stub.
    pub stub: Vec<u8>,
    /// systemd-boot.
    pub sd_boot: Content,
    /// Arguments that are merged into the command line.
    pub extra_args: Vec<String>,
    /// Values of META.
    pub meta: Meta,
}

/// Where an image is used, which decides on its command line and its second profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// On a disk, or as an installer.
    Disk,
    /// As media.
    Iso,
    /// By itself: META goes onto the command line.
    Alone,
}

impl Parts {
    /// `v` and the version.
    pub fn tag(&self) -> String {
        format!("v{}", self.version)
    }

    /// The command line.
    pub fn cmdline(&self, used: Use) -> Result<Cmdline, Error> {
        let mut line = cmdline::for_platform(&self.platform, self.arch, used == Use::Iso)?;
        if used != Use::Disk {
            cmdline::append_meta(&mut line, &self.meta)?;
        }
        merge(&mut line, &self.extra_args);
        cmdline::check(&line)?;
        Ok(line)
    }

    fn reset(used: Use) -> Reset {
        match used {
            Use::Iso => Reset::Disk,
            Use::Disk | Use::Alone => Reset::Maintenance,
        }
    }

    fn reset_cmdline(&self, used: Use) -> Result<Cmdline, Error> {
        let mut line = self.cmdline(used)?;
        merge(&mut line, &[Self::reset(used).argument()]);
        Ok(line)
    }

    /// The unified kernel image.
    pub fn uki(&self, used: Use) -> Result<Content, Error> {
        let uki = Uki {
            stub: self.stub.clone(),
            os_release: os_release(&self.version),
            cmdline: self.cmdline(used)?,
            uname: self.kernel.release.clone(),
            kernel: self.kernel.image.clone(),
            initramfs: self.initramfs.clone(),
            reset: Self::reset(used),
        };
        uki.build()
    }

    fn uki_path(&self) -> String {
        format!("EFI/Linux/Talos-{}.efi", self.tag())
    }

    /// The files of an EFI partition with systemd-boot.
    fn efi_files(&self, used: Use) -> Result<fat::Tree, Error> {
        let mut tree = fat::Tree::default();
        let conf = match used {
            Use::Iso => "timeout 10\nsecure-boot-enroll off\n",
            Use::Disk | Use::Alone => "timeout 10\n",
        };
        tree.file(&format!("EFI/boot/{}", self.arch.removable_loader()), self.sd_boot.clone())?;
        tree.file(&self.uki_path(), self.uki(used)?)?;
        tree.file("loader/loader.conf", Content::bytes(conf.as_bytes()))?;
        Ok(tree)
    }

    /// A disk image.
    pub fn disk(&self, loader: Loader, code: Option<&GrubCode>) -> Result<Content, Error> {
        let mut meta = self.meta.clone();
        let (size, efi_size) = match loader {
            Loader::SdBoot => (disk::DISK_SIZE, disk::EFI_SIZE),
            Loader::Grub => (disk::DISK_SIZE, disk::EFI_SMALL_SIZE),
            Loader::Dual => {
                meta.insert(META_LOADER, b"dual-boot".to_vec());
                (disk::DISK_DUAL_SIZE, disk::EFI_SIZE)
            }
        };
        let code = || {
            code.ok_or_else(|| {
                Error::bad("boot loader GRUB", "its boot code is missing; name it with --grub")
            })
        };
        let efi = match loader {
            Loader::SdBoot | Loader::Dual => self.efi_files(Use::Disk)?,
            Loader::Grub => {
                let mut tree = fat::Tree::default();
                tree.file(&format!("EFI/boot/{}", self.arch.removable_loader()), code()?.efi.clone())?;
                tree
            }
        };
        let bios = match loader {
            Loader::SdBoot => None,
            Loader::Grub | Loader::Dual => {
                Some(BiosBoot { code: code()?.disk.clone(), files: self.boot_files()? })
            }
        };
        Disk { size, efi_size, efi, bios, meta }.build()
    }

    /// The files of `BOOT`: the first slot and GRUB's menu.
    fn boot_files(&self) -> Result<fat::Tree, Error> {
        let entry = |title: String, cmdline| MenuEntry { title, directory: "/A".to_owned(), cmdline };
        let menu = [
            entry(format!("A - Ichor {}", self.tag()), self.cmdline(Use::Disk)?),
            entry(
                "Reset Ichor installation and return to maintenance mode".to_owned(),
                self.reset_cmdline(Use::Disk)?,
            ),
        ];
        let mut tree = fat::Tree::default();
        tree.file("A/vmlinuz", self.kernel.image.clone())?;
        tree.file("A/initramfs.xz", self.initramfs.clone())?;
        tree.file("grub/grub.cfg", Content::bytes(grub::config(&menu).into_bytes()))?;
        Ok(tree)
    }

    /// Installation media for UEFI and, with GRUB's code, for a BIOS.
    pub fn iso(&self, code: Option<&GrubCode>) -> Result<Content, Error> {
        let tree = self.efi_files(Use::Iso)?;
        let digest = tree.digest()?;
        let volume = u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]]);
        let efi = fat::filesystem(fat::len_for(&tree, MEDIA_SPARE), "EFI", volume, &tree)?;
        let (mut files, mut efi_parts) = (BTreeMap::new(), BTreeMap::new());
        if code.is_some() {
            let entry = |title: &str, cmdline| MenuEntry {
                title: title.to_owned(),
                directory: "/boot".to_owned(),
                cmdline,
            };
            let menu = [
                entry("Ichor ISO", self.cmdline(Use::Iso)?),
                entry("Reset Ichor installation", self.reset_cmdline(Use::Iso)?),
            ];
            // Kernel and initramfs are on the image once: GRUB finds them inside of the unified kernel image.
            let uki = self.uki(Use::Iso)?;
            let start = efi.places.get(&self.uki_path()).copied().unwrap_or_default();
            for (path, section) in [("boot/vmlinuz", ".linux"), ("boot/initramfs.xz", ".initrd")] {
                let range = uki::section(&uki, section)?;
                efi_parts.insert(path.to_owned(), (start + range.start, range.end - range.start));
            }
            files.insert("boot/grub/grub.cfg".to_owned(), Content::bytes(grub::config(&menu).into_bytes()));
            // GRUB's core looks for this file to know the volume it was started from.
            files.insert("boot/grub/ichor.id".to_owned(), Content::bytes(self.tag().into_bytes()));
        }
        // What the installer needs, so that a machine installs itself without a pull. The two large ones are there once.
        let at = |name: &str| format!("{}/{name}", artefacts(self.arch));
        let loader = format!("EFI/boot/{}", self.arch.removable_loader());
        for (name, path, len) in [
            (part::UKI, self.uki_path(), self.uki(Use::Iso)?.len()),
            (part::SD_BOOT, loader, self.sd_boot.len()),
        ] {
            let start = efi.places.get(&path).copied().unwrap_or_default();
            efi_parts.insert(at(name), (start, len));
        }
        files.extend(self.installer_parts(code).into_iter().map(|(name, content)| (at(name), content)));
        let bios = code.map(|code| code.media.clone());
        Iso { volume_id: volume_id(&self.tag()), files, bios, efi: Some(efi.content), efi_parts }.build()
    }

    /// The small parts of the installer: the stub, and GRUB's code where there is one.
    fn installer_parts(&self, code: Option<&GrubCode>) -> Vec<(&'static str, Content)> {
        let mut parts = vec![(part::STUB, Content::bytes(self.stub.clone()))];
        if let Some(code) = code {
            parts.push((part::GRUB_BOOT, Content::bytes(code.disk.boot.clone())));
            parts.push((part::GRUB_CORE, Content::bytes(code.disk.core.clone())));
            parts.push((part::GRUB_EFI, code.efi.clone()));
        }
        parts
    }

    /// The installer as a container image; `program` is the node's own. Without GRUB's code it installs machines with
    /// UEFI only.
    pub fn installer(
        &self,
        reference: &str,
        program: Content,
        code: Option<&GrubCode>,
    ) -> Result<Image, Error> {
        let file = |mode, content| LayerFile { mode, content };
        let mut parts = self.installer_parts(code);
        parts.push((part::SD_BOOT, self.sd_boot.clone()));
        parts.push((part::UKI, self.uki(Use::Disk)?));
        let mut files = BTreeMap::from([("bin/installer".to_owned(), file(0o755, program))]);
        let at = |name: &str| format!("{}/{name}", artefacts(self.arch));
        files.extend(parts.into_iter().map(|(name, content)| (at(name), file(0o644, content))));
        let labels = [(INSTALLER_LABEL, self.tag()), ("org.opencontainers.image.version", self.tag())];
        Ok(Image {
            arch: self.arch,
            reference: reference.to_owned(),
            entrypoint: vec!["/bin/installer".to_owned()],
            labels: labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
            files,
        })
    }
}

/// The name of the volume, by which image caches on media are found: `TALOS_V1_12_1`.
fn volume_id(tag: &str) -> String {
    let plain = tag.chars().filter_map(|c| match c {
        '.' | '-' => Some('_'),
        c if c.is_ascii_alphanumeric() => Some(c.to_ascii_uppercase()),
        _ => None,
    });
    "TALOS_".chars().chain(plain).take(32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_named_as_the_original_names_them() {
        assert_eq!(volume_id("v1.12.1"), "TALOS_V1_12_1");
        assert_eq!(volume_id("v1.13.0-alpha.1+x"), "TALOS_V1_13_0_ALPHA_1X");
    }
}
