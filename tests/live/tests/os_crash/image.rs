//! Images of whole disks, and the variables of UEFI, from disks of the model.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use ichor_block::Guid;
use ichor_block::gpt::{Geometry, LEGACY_BOOTABLE, NewPartition, Table};
use ichor_boot::plan::Volume;
use ichor_crash::{Kind, State};
use ichor_image::grub::DiskCode;
use ichor_image::{Content, fat};
use ichor_live::root;

use crate::parts::Parts;

const MIB: u64 = 1 << 20;
/// Room on a filesystem besides its files.
const SPARE: u64 = 4 * MIB;
const ENVIRONMENT: &str = "grub/grubenv";
const ONE_SHOT: &str = "LoaderEntryOneShot";

/// Firmware that runs UEFI, and its empty variables.
pub(crate) fn firmware(file: &str) -> PathBuf {
    let system = PathBuf::from("/usr/share/OVMF").join(file);
    if system.exists() { system } else { root().join("build/vm/firmware/usr/share/OVMF").join(file) }
}

/// A disk to start a machine with.
pub(crate) struct Image {
    /// The disk.
    pub(crate) disk: PathBuf,
    /// The variables, with UEFI.
    pub(crate) variables: Option<PathBuf>,
    /// Where GRUB's environment block is on the disk.
    environment: Option<u64>,
}

impl Image {
    /// Makes the image of a disk; one that was made before is gone.
    pub(crate) fn build(kind: Kind, state: &State, parts: &mut Parts) -> Self {
        let (disk, variables) = (parts.dir.join("disk"), parts.dir.join("variables"));
        let mut layout = Layout::default();
        let mut environment = None;
        match kind {
            Kind::SdBoot => {
                let files = filesystem("EFI", state, Volume::Efi, parts);
                layout.add("EFI", Guid::EFI_SYSTEM, 0, files.content);
            }
            Kind::Grub => {
                let read = |file: &str| fs::read(root().join("build/os/grub").join(file)).unwrap();
                let code = DiskCode { boot: read("boot.img"), core: read("core.img") };
                let none = fat::filesystem(34 * MIB, "EFI", 1, &fat::Tree::default()).unwrap();
                layout.add("EFI", Guid::EFI_SYSTEM, 0, none.content);
                let core_at = layout.next();
                let (boot, mut core) = code.place(core_at / 512, MIB).unwrap();
                assert!(core.extend_to(MIB));
                assert_eq!(layout.add("BIOS", Guid::BIOS_BOOT, LEGACY_BOOTABLE, core), core_at);
                layout.parts.push((0, boot));
                let files = filesystem("BOOT", state, Volume::Boot, parts);
                let at = layout.add("BOOT", Guid::LINUX_DATA, 0, files.content);
                environment = files.places.get(ENVIRONMENT).map(|place| at + place);
            }
        }
        layout.add("META", Guid::LINUX_DATA, 0, Content::bytes(state.meta_bytes()));
        layout.content().write_to(&mut File::create(&disk).unwrap()).unwrap();
        let variables = (kind == Kind::SdBoot).then(|| {
            fs::write(&variables, store(state)).unwrap();
            variables
        });
        Self { disk, variables, environment }
    }

    /// Whether something is still to be started once.
    pub(crate) fn is_armed(&self) -> bool {
        if let Some(at) = self.environment {
            let mut block = [0; 1024];
            File::open(&self.disk).unwrap().read_exact_at(&mut block, at).unwrap();
            let text = String::from_utf8_lossy(&block);
            assert!(text.starts_with("# GRUB Environment Block\n"), "{text}");
            return text.lines().any(|line| line.len() > 11 && line.starts_with("next_entry="));
        }
        let store = fs::read(self.variables.as_ref().expect("neither GRUB nor UEFI")).unwrap();
        let name: Vec<u8> = ONE_SHOT.encode_utf16().flat_map(u16::to_le_bytes).collect();
        // One that was deleted stays where it is, with other bits of its state.
        let places = (60..store.len() - name.len()).filter(|at| store[*at..].starts_with(&name));
        places.into_iter().any(|at| store[at - 60..].starts_with(&[0xaa, 0x55, 0x3f]))
    }
}

/// Partitions that are put one after the other.
#[derive(Default)]
struct Layout {
    parts: Vec<(u64, Content)>,
    partitions: Vec<(&'static str, Guid, u64, u64)>,
    end: u64,
}

impl Layout {
    /// Where the next partition begins.
    fn next(&self) -> u64 {
        self.end.max(MIB).next_multiple_of(MIB)
    }

    fn add(&mut self, name: &'static str, kind: Guid, attributes: u64, content: Content) -> u64 {
        let at = self.next();
        self.end = at + content.len();
        self.partitions.push((name, kind, attributes, content.len()));
        self.parts.push((at, content));
        at
    }

    /// The whole disk.
    fn content(mut self) -> Content {
        let size = self.next() + MIB;
        let geometry = Geometry { size, sector_size: 512, io_size: 0 };
        let mut table = Table::new(geometry, Guid::from_random([9; 16])).unwrap();
        for (number, (name, kind, attributes, len)) in (1..).zip(&self.partitions) {
            let new = NewPartition::new(name, *kind, Guid::from_random([number; 16]));
            let number = table.add(&new.size(*len).attributes(*attributes)).unwrap();
            let (at, _) = table.offset_and_size(number).unwrap();
            assert!(self.parts.iter().any(|(other, _)| *other == at), "{name} is at {at}");
        }
        let encoded = table.encode().into_iter().flatten();
        self.parts.extend(encoded.map(|(at, bytes)| (at, Content::bytes(bytes))));
        self.parts.sort_by_key(|(at, _)| *at);
        let mut disk = Content::default();
        for (at, content) in self.parts {
            assert!(disk.extend_to(at), "parts overlap at {at}");
            disk.append(content);
        }
        assert!(disk.extend_to(size));
        disk
    }
}

/// A filesystem as the boot loader of the model sees it.
fn filesystem(label: &str, state: &State, volume: Volume, parts: &mut Parts) -> fat::Filesystem {
    let mut tree = fat::Tree::default();
    for (path, model) in state.files(volume) {
        tree.file(&path, parts.content(&model)).unwrap();
    }
    fat::filesystem(fat::len_for(&tree, SPARE), label, 7, &tree).unwrap()
}

/// The variables of UEFI as its flash keeps them: a header of 60 bytes each, its name, its value.
fn store(state: &State) -> Vec<u8> {
    /// Behind the headers of volume and store.
    const FIRST: usize = 0x64;
    let mut store = fs::read(firmware("OVMF_VARS_4M.fd")).unwrap();
    assert!(store[FIRST..FIRST + 64].iter().all(|byte| *byte == 0xff), "variables that are empty");
    let mut at = FIRST;
    for (file, content) in &state.variables {
        let (name, vendor) = file.split_at(file.len() - 37);
        let vendor = vendor[1..].parse::<Guid>().unwrap();
        let name: Vec<u8> = name.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
        let (attributes, value) = content.split_at(4);
        // In use; no time, no key, never written before.
        let mut variable = vec![0xaa, 0x55, 0x3f, 0];
        variable.extend(attributes);
        variable.extend([0; 8 + 16 + 4]);
        variable.extend((name.len() as u32).to_le_bytes());
        variable.extend((value.len() as u32).to_le_bytes());
        variable.extend(vendor.to_bytes());
        variable.extend(name);
        variable.extend(value);
        variable.resize(variable.len().next_multiple_of(4), 0xff);
        store[at..at + variable.len()].copy_from_slice(&variable);
        at += variable.len();
    }
    store
}
