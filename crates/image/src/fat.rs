//! FAT32 filesystems with files in them, as firmware reads them.
//!
//! Everything is known before the first byte is written, so files lie in one piece each, one after the other, and the
//! filesystem is a plan like all [`Content`]. Times, volume id and the order of entries are fixed.

mod names;

use std::collections::BTreeMap;

use crate::{Content, Error};

use names::{Entry, entries};

const SECTOR: u64 = 512;
/// Sectors before the first table at least: boot sector, its copy, and the count of free clusters.
const RESERVED_MIN: u64 = 32;
const FATS: u64 = 2;
/// With fewer clusters it would be FAT16.
const CLUSTERS_MIN: u64 = 65_525;
const CLUSTERS_MAX: u64 = 0x0fff_fff0;
/// Clusters are not larger than this, a page.
const CLUSTER_MAX: u64 = 4096;
const FIRST_CLUSTER: u32 = 2;
const END_OF_CHAIN: u32 = 0x0fff_ffff;
/// A file's size has 32 bits.
const FILE_MAX: u64 = u32::MAX as u64;
const MEDIA: u8 = 0xf8;

/// Files by path, such as `EFI/Linux/a.efi`.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    directories: BTreeMap<String, Tree>,
    files: BTreeMap<String, Content>,
}

impl Tree {
    /// Puts a file at a path; directories are made as needed.
    pub fn file(&mut self, path: &str, content: Content) -> Result<(), Error> {
        let bad = |reason: &str| Error::bad(format!("FAT path {path:?}"), reason);
        let (parents, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut tree = self;
        for part in parents.split('/').filter(|part| !part.is_empty()) {
            tree = tree.directories.entry(part.to_owned()).or_default();
        }
        if content.len() > FILE_MAX {
            let what = format!("FAT file {path:?}");
            return Err(Error::TooLarge { what, len: content.len(), max: FILE_MAX });
        }
        names::check(name).map_err(bad)?;
        if tree.directories.contains_key(name) || tree.files.insert(name.to_owned(), content).is_some() {
            return Err(bad("it is there already"));
        }
        Ok(())
    }

    /// A digest of all names and bytes.
    pub fn digest(&self) -> Result<[u8; 32], Error> {
        let mut text = Vec::new();
        for (name, directory) in &self.directories {
            text.extend(ichor_pki::sha256(name.as_bytes()));
            text.extend(directory.digest()?);
        }
        // Names of files and directories are told apart by where they are.
        text.push(0);
        for (name, file) in &self.files {
            text.extend(ichor_pki::sha256(name.as_bytes()));
            text.extend(file.sha256()?);
        }
        Ok(ichor_pki::sha256(&text))
    }

    /// The bytes that this and all below take in a filesystem with clusters of this size.
    fn size(&self, cluster: u64) -> u64 {
        let files = self.files.values().map(|file| file.len().next_multiple_of(cluster));
        let directories = self.directories.values().map(|directory| directory.size(cluster));
        // An entry with a name of full length takes 21 slots.
        let own = (self.files.len() + self.directories.len() + 2) as u64 * 21 * 32;
        files.sum::<u64>() + directories.sum::<u64>() + own.next_multiple_of(cluster)
    }
}

/// How a filesystem of some size is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Geometry {
    sectors: u64,
    /// Sectors before the first table: so many that data begins at a page.
    reserved: u64,
    /// Bytes of a cluster.
    cluster: u64,
    /// Sectors of one table.
    fat: u64,
    clusters: u64,
}

impl Geometry {
    /// The largest clusters that still make it FAT32.
    fn new(len: u64) -> Result<Self, Error> {
        let sectors = len / SECTOR;
        let mut cluster = CLUSTER_MAX;
        while cluster >= SECTOR {
            let per = cluster / SECTOR;
            let room = sectors.saturating_sub(RESERVED_MIN);
            // Each cluster takes its sectors and four bytes in each table.
            let most = room * SECTOR / (per * SECTOR + 4 * FATS);
            let fat = ((most + 2) * 4).div_ceil(SECTOR);
            let data = (RESERVED_MIN + FATS * fat).next_multiple_of(CLUSTER_MAX / SECTOR);
            let clusters = sectors.saturating_sub(data) / per;
            if (CLUSTERS_MIN..=CLUSTERS_MAX).contains(&clusters) && u32::try_from(sectors).is_ok() {
                return Ok(Self { sectors, reserved: data - FATS * fat, cluster, fat, clusters });
            }
            cluster /= 2;
        }
        Err(Error::bad(format!("FAT32 filesystem of {len} bytes"), "it can have 33 MiB to 2 TiB"))
    }

    /// The first byte of the first cluster.
    fn data_at(&self) -> u64 {
        (self.reserved + FATS * self.fat) * SECTOR
    }
}

/// The smallest filesystem that holds these files with `spare` bytes left, rounded up to MiB.
pub fn len_for(tree: &Tree, spare: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    let data = tree.size(CLUSTER_MAX) + spare;
    // Eight bytes of tables for each cluster, which may be as small as a sector.
    let tables = (data / SECTOR) * 8 + RESERVED_MIN * SECTOR;
    (data + tables).next_multiple_of(MIB).max(34 * MIB)
}

/// A filesystem, and where its files are.
#[derive(Debug, Clone)]
pub struct Filesystem {
    /// All of it.
    pub content: Content,
    /// The first byte of every file by its path, a multiple of a page; those without content are at 0.
    pub places: BTreeMap<String, u64>,
}

/// A filesystem of `len` bytes that holds `tree`.
pub fn filesystem(len: u64, label: &str, volume_id: u32, tree: &Tree) -> Result<Filesystem, Error> {
    let geometry = Geometry::new(len)?;
    let label = names::label(label)?;
    let fat = vec![u32::from(MEDIA) | 0x0fff_ff00, END_OF_CHAIN];
    let mut plan = Plan { geometry, fat, data: Content::default(), places: BTreeMap::new() };
    plan.directory(tree, Above::Nothing { label }, "")?;

    let used = plan.fat.iter().skip(FIRST_CLUSTER as usize).filter(|entry| **entry != 0).count() as u64;
    let sector = |at: u64, bytes: Vec<u8>| (at * SECTOR, bytes);
    let boot = boot_sector(&geometry, label, volume_id);
    let info = info_sector(geometry.clusters - used, plan.fat.len() as u64);
    let table: Vec<u8> = plan.fat.iter().flat_map(|entry| entry.to_le_bytes()).collect();
    let parts = [
        sector(0, boot.clone()),
        sector(1, info.clone()),
        sector(2, signature_sector()),
        sector(6, boot),
        sector(7, info),
        sector(8, signature_sector()),
        sector(geometry.reserved, table.clone()),
        sector(geometry.reserved + geometry.fat, table),
    ];
    let mut out = Content::default();
    let full = || Error::bad("FAT32 filesystem", "the files do not fit");
    for (at, bytes) in parts {
        if !out.extend_to(at) {
            return Err(full());
        }
        out.append_bytes(bytes);
    }
    let data_at = geometry.data_at();
    let fits = out.extend_to(data_at);
    out.append(plan.data);
    if !fits || !out.extend_to(len) {
        return Err(full());
    }
    let place = |cluster: u32| match cluster {
        0 => 0,
        cluster => data_at + u64::from(cluster - FIRST_CLUSTER) * geometry.cluster,
    };
    let places = plan.places.into_iter().map(|(path, cluster)| (path, place(cluster))).collect();
    Ok(Filesystem { content: out, places })
}

/// Where a directory is.
#[derive(Clone, Copy)]
enum Above {
    /// Nowhere: it is the root, and shows the label.
    Nothing { label: [u8; 11] },
    /// In the directory that begins at this cluster, 0 for the root.
    Directory(u32),
}

/// Clusters that are given out in order.
struct Plan {
    geometry: Geometry,
    fat: Vec<u32>,
    data: Content,
    /// The first cluster of every file.
    places: BTreeMap<String, u32>,
}

impl Plan {
    /// Takes the clusters for `len` bytes; the first of them, or 0 for none.
    fn take(&mut self, len: u64, path: &str) -> Result<u32, Error> {
        let count = len.div_ceil(self.geometry.cluster);
        let left = self.geometry.clusters + u64::from(FIRST_CLUSTER) - self.fat.len() as u64;
        if count > left {
            let what = format!("FAT file {path:?}");
            return Err(Error::TooLarge { what, len, max: left * self.geometry.cluster });
        }
        if count == 0 {
            return Ok(0);
        }
        let too_many = |_| Error::bad(format!("FAT file {path:?}"), "too many clusters");
        let first = u32::try_from(self.fat.len()).map_err(too_many)?;
        let last = u32::try_from(self.fat.len() as u64 + count - 1).map_err(too_many)?;
        self.fat.extend(first + 1..=last);
        self.fat.push(END_OF_CHAIN);
        Ok(first)
    }

    /// Leaves clusters free until the next one begins at a page.
    fn align(&mut self) {
        let cluster = self.geometry.cluster;
        while !((self.fat.len() as u64 - u64::from(FIRST_CLUSTER)) * cluster).is_multiple_of(CLUSTER_MAX) {
            self.fat.push(0);
            self.data.append(Content::zeros(cluster));
        }
    }

    fn append(&mut self, content: Content) {
        self.data.append(content);
        self.data.align(self.geometry.cluster);
    }

    /// Lays out a directory: its own entries first, then its files and directories in their order.
    fn directory(&mut self, tree: &Tree, above: Above, path: &str) -> Result<u32, Error> {
        let mut list: Vec<Entry<'_>> = Vec::new();
        list.extend(tree.directories.keys().map(|name| Entry::directory(name)));
        list.extend(tree.files.iter().map(|(name, file)| Entry::file(name, file.len() as u32)));
        let encode = |list: &[Entry<'_>], own: u32| {
            let mut bytes = match above {
                Above::Nothing { label } => names::volume_label(label),
                Above::Directory(parent) => names::dots(own, parent),
            };
            bytes.extend(
                entries(list).map_err(|reason| Error::bad(format!("FAT directory {path:?}"), reason))?,
            );
            Ok::<_, Error>(bytes)
        };
        // How long the entries are is known before it is known where the files begin.
        let own = self.take(encode(&list, 0)?.len() as u64, path)?;
        let within = match above {
            Above::Nothing { .. } => 0,
            Above::Directory(_) => own,
        };
        let mut below = Self {
            geometry: self.geometry,
            fat: std::mem::take(&mut self.fat),
            data: Content::default(),
            places: std::mem::take(&mut self.places),
        };
        for entry in &mut list {
            let path = format!("{path}/{}", entry.name);
            if let Some(file) = tree.files.get(entry.name) {
                below.align();
                entry.cluster = below.take(file.len(), &path)?;
                below.append(file.clone());
                below.places.insert(path.trim_start_matches('/').to_owned(), entry.cluster);
            } else if let Some(directory) = tree.directories.get(entry.name) {
                entry.cluster = below.directory(directory, Above::Directory(within), &path)?;
            }
        }
        (self.fat, self.places) = (below.fat, below.places);
        self.append(Content::bytes(encode(&list, own)?));
        self.data.append(below.data);
        Ok(own)
    }
}

fn boot_sector(geometry: &Geometry, label: [u8; 11], volume_id: u32) -> Vec<u8> {
    let mut out = vec![0; SECTOR as usize];
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &[0xeb, 0x58, 0x90]);
    put(3, b"MSWIN4.1");
    put(11, &(SECTOR as u16).to_le_bytes());
    put(13, &[(geometry.cluster / SECTOR) as u8]);
    put(14, &(geometry.reserved as u16).to_le_bytes());
    put(16, &[FATS as u8]);
    put(21, &[MEDIA]);
    // A geometry that nothing looks at.
    put(24, &32_u16.to_le_bytes());
    put(26, &64_u16.to_le_bytes());
    put(32, &(geometry.sectors as u32).to_le_bytes());
    put(36, &(geometry.fat as u32).to_le_bytes());
    put(44, &FIRST_CLUSTER.to_le_bytes());
    put(48, &1_u16.to_le_bytes());
    put(50, &6_u16.to_le_bytes());
    put(64, &[0x80, 0, 0x29]);
    put(67, &volume_id.to_le_bytes());
    put(71, &label);
    put(82, b"FAT32   ");
    put(510, &[0x55, 0xaa]);
    out
}

fn info_sector(free: u64, next: u64) -> Vec<u8> {
    let mut out = signature_sector();
    out[..4].copy_from_slice(b"RRaA");
    out[484..488].copy_from_slice(b"rrAa");
    out[488..492].copy_from_slice(&(free as u32).to_le_bytes());
    out[492..496].copy_from_slice(&(next as u32).to_le_bytes());
    out
}

fn signature_sector() -> Vec<u8> {
    let mut out = vec![0; SECTOR as usize];
    out[510..].copy_from_slice(&[0x55, 0xaa]);
    out
}
