//! A disk that can lose its power: every write is recorded, with the barriers between them, and any subset of what was
//! written since the last barrier may be what is found.
//!
//! Coarse, and harder than a real disk where it is coarse. FAT: sectors of data, the chain of clusters, the short entry
//! with the size and the long name are separate writes. XFS as GRUB sees it, without its log: sectors of data, the inode
//! and each name are separate writes until the log is emptied. Space that was freed is written over by the next file.
//! META: the sectors that its writer changes. The volume of the configuration: [`crate::state_volume`].

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use ichor_block::meta::tlv::{self, META_LEN, Tags};
use ichor_block::meta::{Image, Medium, write_to};
use ichor_boot::plan::{Asset, Content, Port, Step, Volume};
use ichor_boot::sdboot::variable::Variable;

pub use crate::write::{Barrier, Domain, Event, Inode, Part, SECTOR, Sectors, Write};

thread_local! {
    /// METAs that were read before: digests take most of the time of these tests, and thousands of disks have the same.
    static PARSED: RefCell<HashMap<Sectors, Tags>> = RefCell::default();
}

/// What is on the disk and in the firmware.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    data: BTreeMap<Inode, BTreeMap<usize, Arc<[u8]>>>,
    extents: BTreeMap<Inode, usize>,
    pub(crate) sizes: BTreeMap<Inode, usize>,
    names: BTreeMap<(Volume, String), (Inode, Option<usize>)>,
    long_names: BTreeSet<String>,
    /// The names on the volume of the configuration.
    pub(crate) entries: BTreeMap<String, Inode>,
    /// Variables of the firmware, as efivarfs shows them.
    pub variables: BTreeMap<String, Vec<u8>>,
    /// The sectors of META that were ever written; all others are zeros.
    pub meta: Sectors,
    pub(crate) next: Inode,
    freed: Vec<(Volume, Inode, usize)>,
}

impl State {
    /// Does a write.
    pub fn apply(&mut self, write: &Write) {
        if let Write::Data { inode, .. } | Write::Extent { inode, .. } = write {
            self.next = self.next.max(*inode);
        }
        match write.clone() {
            Write::Data { inode, sector, bytes } => {
                self.data.entry(inode).or_default().insert(sector, bytes);
            }
            Write::Extent { inode, sectors } => {
                self.extents.insert(inode, sectors);
            }
            Write::Name { volume, path, entry: Some(entry), .. } => {
                self.names.insert((volume, path), entry);
            }
            Write::Name { volume, path, entry: None, .. } => {
                self.names.remove(&(volume, path));
            }
            Write::Size { inode, len } => {
                self.sizes.insert(inode, len);
            }
            Write::LongName { path, is_there: true } => {
                self.long_names.insert(path);
            }
            Write::LongName { path, is_there: false } => {
                self.long_names.remove(&path);
            }
            Write::Variable { file, value: Some(value) } => {
                self.variables.insert(file, value);
            }
            Write::Variable { file, value: None } => {
                self.variables.remove(&file);
            }
            Write::Meta { sector, bytes } => {
                self.meta.insert(sector, bytes);
            }
            Write::Entry { name, inode: Some(inode) } => {
                self.entries.insert(name, inode);
            }
            Write::Entry { name, inode: None } => {
                self.entries.remove(&name);
            }
            Write::Rename { from, to, inode } => {
                self.entries.retain(|name, other| *name != from || *other != inode);
                self.entries.insert(to, inode);
            }
        }
    }

    /// All files of a volume as a boot loader sees them.
    pub fn files(&self, volume: Volume) -> Vec<(String, Vec<u8>)> {
        let mut files = Vec::new();
        for (number, ((on, path), (inode, size))) in self.names.iter().enumerate() {
            if *on != volume {
                continue;
            }
            let seen = match volume == Volume::Efi && !self.long_names.contains(path) {
                true => {
                    format!("{}/TALOS-~{number}.EFI", path.rsplit_once('/').map_or("", |(folder, _)| folder))
                }
                false => path.clone(),
            };
            files.push((seen, self.content(*inode, *size)));
        }
        files
    }

    /// A file as a boot loader sees it.
    pub fn file(&self, volume: Volume, path: &str) -> Option<Vec<u8>> {
        let found = self.files(volume).into_iter().find(|(other, _)| other.eq_ignore_ascii_case(path));
        found.map(|(_, content)| content)
    }

    fn content(&self, inode: Inode, size: Option<usize>) -> Vec<u8> {
        let len = size.or_else(|| self.sizes.get(&inode).copied()).unwrap_or(0);
        let sectors = self.extents.get(&inode).copied().unwrap_or(0);
        self.sectors(inode, len, sectors, 0xaa)
    }

    /// So many bytes of a file, of which so many sectors can be found; one that was never written is full of `old`.
    pub(crate) fn sectors(&self, inode: Inode, len: usize, sectors: usize, old: u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        for sector in 0..len.div_ceil(SECTOR).min(sectors) {
            match self.data.get(&inode).and_then(|data| data.get(&sector)) {
                Some(data) => bytes.extend_from_slice(data),
                None => bytes.extend_from_slice(&[old; SECTOR]),
            }
            // The end of a file need not fill its sector.
            bytes.resize((sector + 1) * SECTOR, 0);
        }
        bytes.truncate(len);
        bytes
    }

    /// A boot loader that writes the sectors of a file past its filesystem.
    pub fn write_in_place(&mut self, volume: Volume, path: &str, bytes: &[u8]) {
        if let Some((inode, _)) = self.names.get(&(volume, path.to_owned())).copied() {
            for (sector, bytes) in bytes.chunks(SECTOR).enumerate() {
                self.apply(&Write::Data { inode, sector, bytes: bytes.into() });
            }
        }
    }

    /// All bytes of META.
    pub fn meta_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; META_LEN];
        for (sector, content) in &self.meta {
            bytes[sector * SECTOR..][..SECTOR].copy_from_slice(content);
        }
        bytes
    }

    /// What a machine that starts reads of META.
    ///
    /// # Panics
    /// When both copies are damaged: a machine would go on without.
    pub fn tags(&self) -> Tags {
        let read = || match Image::parse(&self.meta_bytes()).content {
            tlv::Content::Blank => Tags::new(),
            tlv::Content::Values { tags, .. } => tags,
            tlv::Content::Damaged => panic!("both copies of META are damaged"),
        };
        PARSED.with_borrow_mut(|parsed| match parsed.get(&self.meta) {
            Some(tags) => tags.clone(),
            None => parsed.entry(self.meta.clone()).or_insert_with(read).clone(),
        })
    }
}

/// Carries steps out on a state and records what was written.
pub struct Recorder {
    /// What is there now.
    pub state: State,
    /// What happened.
    pub events: Vec<Event>,
    /// What META held after each change of it.
    pub metas: Vec<Tags>,
    /// Which system is being written.
    pub system: u32,
}

/// The bytes of a part of a system: each sector names the system and its place.
pub fn asset(asset: Asset, system: u32) -> Vec<u8> {
    let (kind, sectors) = match asset {
        Asset::Uki => ("uki", 5),
        Asset::Kernel => ("kernel", 3),
        Asset::Initramfs => ("initramfs", 4),
        Asset::Loader => ("loader", 2),
    };
    let sector = |at: usize| {
        let mut bytes = format!("{kind} {system} {at} {sectors}\n").into_bytes();
        bytes.resize(SECTOR, b'.');
        bytes
    };
    (0..sectors).flat_map(sector).collect()
}

impl Recorder {
    /// Begins with this disk, to write this system.
    pub fn new(state: State, system: u32) -> Self {
        Self { state, events: Vec::new(), metas: Vec::new(), system }
    }

    pub(crate) fn write(&mut self, domain: Domain, write: Write) {
        self.state.apply(&write);
        self.events.push(Event::Write(domain, write));
    }

    pub(crate) fn barrier(&mut self, barrier: Barrier) {
        self.events.push(Event::Barrier(barrier));
    }

    fn put_file(&mut self, volume: Volume, path: &str, bytes: &[u8]) {
        let key = (volume, path.to_owned());
        let (inode, is_new) = match self.state.names.get(&key) {
            Some((inode, _)) => (*inode, false),
            None => {
                self.state.next += 1;
                (self.state.next, true)
            }
        };
        // The space of what was deleted before is used again.
        for (on, freed, sectors) in std::mem::take(&mut self.state.freed) {
            for sector in 0..sectors {
                self.write(
                    Domain::Volume(on),
                    Write::Data { inode: freed, sector, bytes: [0xee; SECTOR].into() },
                );
            }
        }
        for (sector, bytes) in bytes.chunks(SECTOR).enumerate() {
            self.write(Domain::Volume(volume), Write::Data { inode, sector, bytes: bytes.into() });
        }
        self.write(Domain::Volume(volume), Write::Extent { inode, sectors: bytes.len().div_ceil(SECTOR) });
        self.put_name(volume, path, inode, bytes.len(), is_new);
    }

    fn put_name(&mut self, volume: Volume, path: &str, inode: Inode, len: usize, is_new: bool) {
        let path = path.to_owned();
        match volume {
            Volume::Efi => {
                if is_new {
                    self.write(
                        Domain::Volume(volume),
                        Write::LongName { path: path.clone(), is_there: true },
                    );
                }
                self.write(
                    Domain::Volume(volume),
                    Write::Name { volume, path, entry: Some((inode, Some(len))), part: Part::Whole },
                );
            }
            Volume::Boot => {
                self.write(Domain::Volume(volume), Write::Size { inode, len });
                if is_new {
                    self.write(
                        Domain::Volume(volume),
                        Write::Name { volume, path, entry: Some((inode, None)), part: Part::Whole },
                    );
                }
            }
        }
    }

    fn overwrite(&mut self, volume: Volume, path: &str, bytes: &[u8]) {
        let Some((inode, _)) = self.state.names.get(&(volume, path.to_owned())).copied() else {
            panic!("{path} is overwritten and is not there");
        };
        let old = self.state.file(volume, path).unwrap_or_default();
        let mut changed = 0;
        for (sector, new) in bytes.chunks(SECTOR).enumerate() {
            if old.get(sector * SECTOR..sector * SECTOR + new.len()) != Some(new) {
                self.write(Domain::Volume(volume), Write::Data { inode, sector, bytes: new.into() });
                changed += 1;
            }
        }
        assert!(changed <= 1, "{path}: {changed} sectors change in what is promised to be one write");
        if old.len() != bytes.len() {
            self.put_name(volume, path, inode, bytes.len(), false);
        }
    }

    fn delete(&mut self, volume: Volume, path: &str) {
        let Some((inode, _)) = self.state.names.get(&(volume, path.to_owned())).copied() else { return };
        let sectors = self.state.extents.get(&inode).copied().unwrap_or(0);
        self.write(
            Domain::Volume(volume),
            Write::Name { volume, path: path.to_owned(), entry: None, part: Part::Whole },
        );
        if volume == Volume::Efi {
            self.write(Domain::Volume(volume), Write::LongName { path: path.to_owned(), is_there: false });
            // The file is held open until its name is gone from the disk.
            self.barrier(Barrier::Of(Domain::Volume(volume)));
        } else {
            self.write(Domain::Volume(volume), Write::Size { inode, len: 0 });
        }
        self.write(Domain::Volume(volume), Write::Extent { inode, sectors: 0 });
        self.state.freed.push((volume, inode, sectors));
    }

    fn exchange(&mut self, volume: Volume, path: &str, with: &str) {
        assert_eq!(volume, Volume::Boot, "FAT cannot exchange names");
        let entry = |name: &str| self.state.names.get(&(volume, name.to_owned())).copied();
        let (Some(one), Some(other)) = (entry(path), entry(with)) else {
            panic!("exchange of what is not there")
        };
        self.write(
            Domain::Volume(volume),
            Write::Name { volume, path: path.to_owned(), entry: Some(other), part: Part::First },
        );
        self.write(
            Domain::Volume(volume),
            Write::Name { volume, path: with.to_owned(), entry: Some(one), part: Part::Second },
        );
    }

    /// Changes META as the program does: nothing is written when nothing changes.
    pub fn set_meta(&mut self, change: impl FnOnce(&mut Tags)) {
        let old = self.state.tags();
        let mut tags = old.clone();
        change(&mut tags);
        if tags != old {
            write_to(&mut MetaPartition(self), &tags, &Tags::new()).unwrap().expect("values that fit");
            self.metas.push(tags);
        }
    }

    fn set_variable(&mut self, variable: Variable, value: Option<Vec<u8>>) {
        self.write(Domain::Firmware, Write::Variable { file: variable.file(), value });
        self.barrier(Barrier::Of(Domain::Firmware));
    }
}

impl Port for Recorder {
    type Error = Infallible;

    fn carry_out(&mut self, step: &Step) -> Result<(), Infallible> {
        match step {
            Step::Write { volume, path, content: Content::Bytes(bytes) } => {
                self.put_file(*volume, path, bytes)
            }
            Step::Write { volume, path, content: Content::Asset(part) } => {
                self.put_file(*volume, path, &asset(*part, self.system));
            }
            Step::Overwrite { volume, path, bytes } => self.overwrite(*volume, path, bytes),
            Step::Verify { volume, path, asset: part } => {
                assert_eq!(self.state.file(*volume, path), Some(asset(*part, self.system)), "{path}");
            }
            Step::Exchange { volume, path, with } => self.exchange(*volume, path, with),
            Step::Delete { volume, path } => self.delete(*volume, path),
            Step::Flush { volume } => self.barrier(Barrier::Of(Domain::Volume(*volume))),
            Step::SetVariable { variable, bytes } => self.set_variable(*variable, Some(bytes.clone())),
            Step::DeleteVariable { variable } => self.set_variable(*variable, None),
            Step::SetMeta { key, value } => self.set_meta(|values| {
                values.insert(*key, value.clone());
            }),
            Step::DeleteMeta { key } => self.set_meta(|values| {
                values.remove(key);
            }),
            Step::Wipe { label } => panic!("{label} is wiped: nothing is to start after that"),
        }
        Ok(())
    }
}

/// META as its writer sees it. A sector that is written with what it holds already is no change that a power cut could
/// show.
struct MetaPartition<'a>(&'a mut Recorder);

impl Medium for MetaPartition<'_> {
    fn read_at(&mut self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        let at = usize::try_from(at).map_err(io::Error::other)?;
        assert!(at.is_multiple_of(SECTOR) && buffer.len().is_multiple_of(SECTOR), "whole sectors");
        buffer.fill(0);
        let first = at / SECTOR;
        for (sector, content) in self.0.state.meta.range(first..first + buffer.len() / SECTOR) {
            buffer[(sector - first) * SECTOR..][..SECTOR].copy_from_slice(content);
        }
        Ok(())
    }

    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        let mut old = vec![0; bytes.len()];
        self.read_at(&mut old, at)?;
        let first = usize::try_from(at).map_err(io::Error::other)? / SECTOR;
        for (number, (new, old)) in bytes.chunks(SECTOR).zip(old.chunks(SECTOR)).enumerate() {
            if new != old {
                let write = Write::Meta { sector: first + number, bytes: new.into() };
                self.0.write(Domain::Meta, write);
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.barrier(Barrier::Of(Domain::Meta));
        Ok(())
    }
}
