//! Disks in files: sparse raw images, empty qcow2 images, copies; and whether something is installed on one.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use ichor_provision_local::SetupError;

use crate::options::{Boot, Disk, Format};

/// Of a qcow2 image; what QEMU takes itself.
const CLUSTER: u64 = 64 << 10;
const CLUSTER_BITS: u32 = 16;
/// A table of the second level has so many entries of eight bytes.
const L2_COVERS: u64 = CLUSTER / 8 * CLUSTER;
const QCOW2_MAGIC: &[u8; 4] = b"QFI\xfb";
const QCOW2_HEADER: u32 = 104;

const SECTOR: u64 = 512;
const GPT_SIGNATURE: &[u8; 8] = b"EFI PART";
/// The types of the partitions that firmware starts from, as on disk: EFI system, BIOS boot.
const BOOT_TYPES: [[u8; 16]; 2] = [
    [0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b],
    [0x48, 0x61, 0x68, 0x21, 0x49, 0x64, 0x6f, 0x6e, 0x74, 0x4e, 0x65, 0x65, 0x64, 0x45, 0x46, 0x49],
];
/// As many entries as a table of the usual size has.
const ENTRIES_MAX: u32 = 128;

/// Makes a disk that is not there yet; the first one of what machines boot, when that is a disk.
pub(crate) fn make(
    path: &Path,
    disk: Disk,
    format: Format,
    first_of: Option<&Boot>,
) -> Result<(), SetupError> {
    if path.exists() {
        return Ok(());
    }
    // Whole or not at all: a copy that was interrupted is not a disk.
    let part = path.with_extension("part");
    let made = match (first_of, format) {
        (Some(Boot::DiskImage(image)), _) => copy(image, &part).and_then(|file| match format {
            // An image of its own format has its size inside.
            Format::Raw => file.set_len(disk.bytes.max(file.metadata()?.len())),
            Format::Qcow2 => Ok(()),
        }),
        (_, Format::Raw) => File::create(&part).and_then(|file| file.set_len(disk.bytes)),
        (_, Format::Qcow2) => File::create(&part).and_then(|file| write_qcow2(&file, disk.bytes)),
    };
    made.and_then(|()| fs::rename(&part, path)).map_err(SetupError::file("make the disk", path))
}

/// Copies an image and leaves its holes out: gigabytes of nothing are most of it.
fn copy(image: &Path, target: &Path) -> io::Result<File> {
    let (mut from, mut to) = (File::open(image)?, File::create(target)?);
    let len = from.metadata()?.len();
    to.set_len(len)?;
    let mut at = 0;
    while at < len {
        let start = match rustix::fs::seek(&from, rustix::fs::SeekFrom::Data(at)) {
            // Nothing follows but a hole.
            Err(rustix::io::Errno::NXIO) => break,
            found => found?,
        };
        at = rustix::fs::seek(&from, rustix::fs::SeekFrom::Hole(start))?;
        from.seek(SeekFrom::Start(start))?;
        to.seek(SeekFrom::Start(start))?;
        if io::copy(&mut (&from).take(at - start), &mut to)? != at - start {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(to)
}

/// The format of an image, by how it begins.
pub(crate) fn format_of(image: &Path) -> io::Result<Format> {
    let mut magic = [0; 4];
    File::open(image)?.read_exact(&mut magic)?;
    Ok(if magic == *QCOW2_MAGIC { Format::Qcow2 } else { Format::Raw })
}

/// An empty qcow2 image, version 3: header, table of reference counts, one block of them, table of the first level.
fn write_qcow2(file: &File, bytes: u64) -> io::Result<()> {
    let l1_entries = bytes.div_ceil(L2_COVERS);
    let l1_clusters = (l1_entries * 8).div_ceil(CLUSTER);
    let mut header = Vec::with_capacity(QCOW2_HEADER as usize);
    header.extend_from_slice(QCOW2_MAGIC);
    header.extend_from_slice(&3_u32.to_be_bytes());
    // No backing file.
    header.extend_from_slice(&[0; 12]);
    header.extend_from_slice(&CLUSTER_BITS.to_be_bytes());
    header.extend_from_slice(&bytes.to_be_bytes());
    // Not encrypted.
    header.extend_from_slice(&0_u32.to_be_bytes());
    header.extend_from_slice(&u32::try_from(l1_entries).map_err(io::Error::other)?.to_be_bytes());
    header.extend_from_slice(&(3 * CLUSTER).to_be_bytes());
    header.extend_from_slice(&CLUSTER.to_be_bytes());
    header.extend_from_slice(&1_u32.to_be_bytes());
    // No snapshots, no features.
    header.extend_from_slice(&[0; 4 + 8 + 24]);
    // Reference counts of 16 bits.
    header.extend_from_slice(&4_u32.to_be_bytes());
    header.extend_from_slice(&QCOW2_HEADER.to_be_bytes());
    file.write_all_at(&header, 0)?;
    file.write_all_at(&(2 * CLUSTER).to_be_bytes(), CLUSTER)?;
    for used in 0..3 + l1_clusters {
        file.write_all_at(&1_u16.to_be_bytes(), 2 * CLUSTER + 2 * used)?;
    }
    file.set_len((3 + l1_clusters) * CLUSTER)
}

/// Whether firmware would find something to start on a raw disk: a partition table with a partition for that. What
/// cannot be read is not installed.
pub(crate) fn is_installed(path: &Path, block_size: u32) -> bool {
    File::open(path).and_then(|mut disk| has_boot_partition(&mut disk, block_size.into())).unwrap_or(false)
}

fn has_boot_partition(disk: &mut (impl Read + Seek), block: u64) -> io::Result<bool> {
    let mut header = [0; SECTOR as usize];
    disk.seek(SeekFrom::Start(block))?;
    disk.read_exact(&mut header)?;
    let u32_at = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (count, size) = (u32_at(80), u32_at(84));
    let table = u64::from(u32_at(72)) | u64::from(u32_at(76)) << 32;
    if !header.starts_with(GPT_SIGNATURE) || size < 128 {
        return Ok(false);
    }
    let mut kind = [0; 16];
    for number in 0..count.min(ENTRIES_MAX) {
        let at = u64::from(number) * u64::from(size);
        let Some(at) = table.checked_mul(block).and_then(|start| start.checked_add(at)) else { break };
        disk.seek(SeekFrom::Start(at))?;
        disk.read_exact(&mut kind)?;
        if BOOT_TYPES.contains(&kind) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::options::Driver;

    fn disk(bytes: u64) -> Disk {
        Disk { driver: Driver::Virtio, bytes }
    }

    /// A disk with one partition of a type.
    fn partitioned(kind: [u8; 16]) -> Vec<u8> {
        let mut bytes = vec![0; 64 << 10];
        bytes[512..520].copy_from_slice(GPT_SIGNATURE);
        bytes[512 + 72..512 + 80].copy_from_slice(&2_u64.to_le_bytes());
        bytes[512 + 80..512 + 84].copy_from_slice(&128_u32.to_le_bytes());
        bytes[512 + 84..512 + 88].copy_from_slice(&128_u32.to_le_bytes());
        bytes[1024 + 128..1024 + 144].copy_from_slice(&kind);
        bytes
    }

    fn installed(bytes: &[u8]) -> bool {
        has_boot_partition(&mut Cursor::new(bytes), 512).unwrap_or(false)
    }

    #[test]
    fn a_disk_is_installed_when_firmware_has_something_to_start() {
        assert!(installed(&partitioned(BOOT_TYPES[0])));
        assert!(installed(&partitioned(BOOT_TYPES[1])));
        assert!(!installed(&partitioned([7; 16])), "data only");
        assert!(!installed(&vec![0; 64 << 10]), "empty");
    }

    #[test]
    fn damaged_tables_are_no_installation_and_no_panic() {
        let good = partitioned(BOOT_TYPES[0]);
        for cut in (0..2048).step_by(7) {
            installed(&good[..cut]);
        }
        for at in 512..600 {
            let mut bad = good.clone();
            bad[at] = 0xff;
            installed(&bad);
        }
    }

    #[test]
    fn an_image_is_copied_without_its_holes_and_known_by_its_beginning() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = tempfile::tempdir().unwrap();
        let (image, target) = (dir.path().join("image"), dir.path().join("disk-0.raw"));
        let file = File::create(&image).unwrap();
        file.write_all_at(b"first", 0).unwrap();
        file.write_all_at(b"second", 40 << 20).unwrap();
        file.set_len(64 << 20).unwrap();
        let boot = Boot::DiskImage(image.clone());
        make(&target, disk(80 << 20), Format::Raw, Some(&boot)).unwrap();
        let made = fs::metadata(&target).unwrap();
        assert_eq!(made.len(), 80 << 20);
        assert!(made.blocks() * 512 < 8 << 20, "{} blocks", made.blocks());
        let bytes = fs::read(&target).unwrap();
        assert_eq!(bytes[..64 << 20], fs::read(&image).unwrap());
        assert_eq!(format_of(&image).unwrap(), Format::Raw);
        file.write_all_at(QCOW2_MAGIC, 0).unwrap();
        assert_eq!(format_of(&image).unwrap(), Format::Qcow2);
    }

    #[test]
    fn disks_are_sparse_and_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk-0.raw");
        make(&path, disk(1 << 30), Format::Raw, None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 30);
        fs::write(&path, "mine").unwrap();
        make(&path, disk(1 << 30), Format::Raw, None).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"mine", "what is on a disk stays");
    }

    #[test]
    fn the_first_disk_is_a_copy_of_an_image_and_as_large_as_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let (image, path) = (dir.path().join("image"), dir.path().join("disk-0.raw"));
        fs::write(&image, "system").unwrap();
        let boot = Boot::DiskImage(image);
        make(&path, disk(1 << 20), Format::Raw, Some(&boot)).unwrap();
        let made = fs::read(&path).unwrap();
        assert_eq!((made.len(), &made[..6]), (1 << 20, &b"system"[..]));
    }

    #[test]
    fn an_empty_qcow2_image_counts_the_clusters_it_uses() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk-0.qcow2");
        make(&path, disk(10 << 30), Format::Qcow2, None).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, 4 * CLUSTER);
        assert_eq!(&bytes[24..32], &(10_u64 << 30).to_be_bytes());
        assert_eq!(&bytes[36..40], &20_u32.to_be_bytes(), "10 GiB are 20 tables of 512 MiB");
        let counts = &bytes[2 * CLUSTER as usize..][..10];
        assert_eq!(counts, [0, 1, 0, 1, 0, 1, 0, 1, 0, 0]);
    }
}
