//! Installation media: ISO 9660 volumes of ours, read without mounting them, so that no kernel module is needed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ichor_block::Source;
use ichor_block::device::Device;

/// How the volumes of our media are called, and of the original's.
const LABEL: &str = "TALOS_";
const SECTOR: u64 = 2048;
/// The primary volume descriptor.
const DESCRIPTOR_AT: u64 = 16 * SECTOR;
const MAGIC: &[u8] = b"\x01CD001";
const LABEL_AT: usize = 40;
const LABEL_LEN: usize = 32;
const ROOT_AT: usize = 156;
/// No directory of ours is larger.
const DIRECTORY_MAX: u32 = 1 << 20;
const IS_DIRECTORY: u8 = 2;

/// Bytes in a file or on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// The file or device.
    pub path: PathBuf,
    /// Where they begin.
    pub start: u64,
    /// How many there are.
    pub len: u64,
}

/// A volume on media.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Its name.
    pub label: String,
    root: Entry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    at: u64,
    len: u32,
    is_directory: bool,
}

impl Volume {
    /// The volume on a source; none when there is none.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn open(source: &impl Source) -> io::Result<Option<Self>> {
        if source.size() < DESCRIPTOR_AT + SECTOR {
            return Ok(None);
        }
        let mut descriptor = vec![0; SECTOR as usize];
        source.read_at(DESCRIPTOR_AT, &mut descriptor)?;
        if !descriptor.starts_with(MAGIC) {
            return Ok(None);
        }
        let label = &descriptor[LABEL_AT..LABEL_AT + LABEL_LEN];
        let label = String::from_utf8_lossy(label).trim_end_matches([' ', '\0']).to_owned();
        let root = record(&descriptor[ROOT_AT..ROOT_AT + 34]).map(|(entry, _)| entry);
        Ok(root.filter(|root| root.is_directory).map(|root| Self { label, root }))
    }

    /// Where the bytes of a file are, by its path; none when there is no such file.
    ///
    /// # Errors
    /// When a directory cannot be read.
    pub fn find(&self, source: &impl Source, path: &str) -> io::Result<Option<(u64, u64)>> {
        let mut entry = self.root;
        for name in path.split('/') {
            if !entry.is_directory || entry.len > DIRECTORY_MAX {
                return Ok(None);
            }
            let mut bytes = vec![0; entry.len as usize];
            source.read_at(entry.at, &mut bytes)?;
            match records(&bytes).find(|(_, other)| other == name) {
                Some((found, _)) => entry = found,
                None => return Ok(None),
            }
        }
        Ok((!entry.is_directory).then_some((entry.at, entry.len.into())))
    }
}

/// The records of a directory with the names they go by.
fn records(bytes: &[u8]) -> impl Iterator<Item = (Entry, String)> {
    bytes.chunks(SECTOR as usize).flat_map(|mut sector| {
        std::iter::from_fn(move || {
            // A zero ends the sector: records do not cross sectors.
            let len = usize::from(*sector.first().filter(|len| **len > 0)?);
            let (one, rest) = sector.split_at_checked(len)?;
            sector = rest;
            Some(record(one))
        })
        .flatten()
    })
}

fn record(bytes: &[u8]) -> Option<(Entry, String)> {
    let four = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let entry = Entry {
        at: u64::from(four(2)?) * SECTOR,
        len: four(10)?,
        is_directory: bytes.get(25)? & IS_DIRECTORY != 0,
    };
    let name_len = usize::from(*bytes.get(32)?);
    let name = bytes.get(33..33 + name_len)?;
    let fields = bytes.get(33 + name_len + usize::from(name_len.is_multiple_of(2))..).unwrap_or_default();
    let real = rock_ridge_name(fields).unwrap_or_else(|| {
        let plain = String::from_utf8_lossy(name).to_ascii_lowercase();
        plain.split(';').next().unwrap_or_default().trim_end_matches('.').to_owned()
    });
    Some((entry, real))
}

/// The name in the fields of Rock Ridge.
fn rock_ridge_name(mut fields: &[u8]) -> Option<String> {
    while let Some(&[a, b, len, _]) = fields.first_chunk::<4>() {
        let (field, rest) = fields.split_at_checked(usize::from(len))?;
        if (a, b) == (b'N', b'M') {
            return Some(String::from_utf8_lossy(field.get(5..)?).into_owned());
        }
        if field.is_empty() {
            return None;
        }
        fields = rest;
    }
    None
}

/// The first medium with this file, and where the directory of it is.
///
/// # Errors
/// When the devices cannot be listed.
pub fn find(root: &Path, path: &str) -> io::Result<Option<PathBuf>> {
    let mut names: Vec<_> =
        fs::read_dir(root.join("sys/block"))?.flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    for name in names {
        let device = root.join("dev").join(name);
        // Drives without a disc and devices that are not there are passed over.
        if matches!(has(&device, path), Ok(true)) {
            return Ok(Some(device));
        }
    }
    Ok(None)
}

fn has(device: &Path, path: &str) -> io::Result<bool> {
    let opened = Device::open(device)?;
    let source = opened.source()?;
    let Some(volume) = Volume::open(&source)? else { return Ok(false) };
    Ok(volume.label.starts_with(LABEL) && volume.find(&source, path)?.is_some())
}

/// A file on a medium.
///
/// # Errors
/// When the medium cannot be read.
pub fn extent(device: &Path, path: &str) -> io::Result<Option<Extent>> {
    let opened = Device::open(device)?;
    let source = opened.source()?;
    let Some(volume) = Volume::open(&source)? else { return Ok(None) };
    let found = volume.find(&source, path)?;
    Ok(found.map(|(start, len)| Extent { path: device.to_owned(), start, len }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ichor_image::Content;
    use ichor_image::iso::Iso;

    use super::*;

    fn medium() -> Vec<u8> {
        let mut files = BTreeMap::new();
        for number in 0..200 {
            files.insert(format!("usr/install/amd64/file number {number}"), Content::bytes([number]));
        }
        files.insert("usr/install/amd64/vmlinuz.efi".to_owned(), Content::bytes(*b"kernel"));
        let (volume_id, efi_parts) = ("TALOS_V1".to_owned(), BTreeMap::new());
        let iso = Iso { volume_id, files, bios: None, efi: None, efi_parts };
        iso.build().unwrap().read(64 << 20).unwrap()
    }

    #[test]
    fn a_file_is_found_by_its_real_name() {
        let bytes = medium();
        let volume = Volume::open(&bytes).unwrap().unwrap();
        assert_eq!(volume.label, "TALOS_V1");
        let read = |path: &str| {
            let (at, len) = volume.find(&bytes, path).unwrap()?;
            Some(bytes[at as usize..(at + len) as usize].to_vec())
        };
        assert_eq!(read("usr/install/amd64/vmlinuz.efi").as_deref(), Some(&b"kernel"[..]));
        assert_eq!(read("usr/install/amd64/file number 137"), Some(vec![137]));
        for missing in ["usr", "usr/install/arm64/vmlinuz.efi", "usr/install/amd64/vmlinuz.efi/x", ""] {
            assert_eq!(read(missing), None, "{missing}");
        }
    }

    #[test]
    fn media_are_found_among_other_devices() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["loop0", "sda", "sr0"] {
            fs::create_dir_all(dir.path().join("sys/block").join(name)).unwrap();
        }
        fs::create_dir(dir.path().join("dev")).unwrap();
        fs::write(dir.path().join("dev/sda"), vec![0; 1 << 20]).unwrap();
        assert_eq!(find(dir.path(), "usr/install/amd64/vmlinuz.efi").unwrap(), None);
        fs::write(dir.path().join("dev/sr0"), medium()).unwrap();
        let found = find(dir.path(), "usr/install/amd64/vmlinuz.efi").unwrap().unwrap();
        assert_eq!(found, dir.path().join("dev/sr0"));
        assert_eq!(extent(&found, "usr/install/amd64/vmlinuz.efi").unwrap().unwrap().len, 6);
        assert_eq!(find(dir.path(), "usr/install/arm64/vmlinuz.efi").unwrap(), None);
    }

    #[test]
    fn damaged_media_are_no_media() {
        let whole = medium();
        for cut in [0, 100, 32_768, 34_000, 40_000] {
            let bytes = whole[..cut].to_vec();
            if let Ok(Some(volume)) = Volume::open(&bytes) {
                let found = volume.find(&bytes, "usr/install/amd64/vmlinuz.efi");
                assert!(!matches!(found, Ok(Some(_))), "{cut}");
            }
        }
    }
}
