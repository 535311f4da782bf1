//! A disk that can lose its power: every write is recorded, with the barriers between them, and any subset of what was
//! written since the last barrier may be what is found.
//!
//! Coarse, and harder than a real disk where it is coarse. FAT: sectors of data, the chain of clusters, the short entry
//! with the size and the long name are separate writes. XFS as GRUB sees it, without its log: sectors of data, the inode
//! and each name are separate writes until the log is emptied. Space that was freed is written over by the next file.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use ichor_boot::plan::{Asset, Content, Port, Step, Volume};
use ichor_boot::sdboot::variable::Variable;

pub(crate) const SECTOR: usize = 512;

pub(crate) type Inode = u32;

/// One write that a disk does in one piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Write {
    Data {
        inode: Inode,
        sector: usize,
        bytes: Vec<u8>,
    },
    /// How many sectors of it can be found: the chain of FAT, the extents of XFS.
    Extent {
        inode: Inode,
        sectors: usize,
    },
    /// FAT's short entry, XFS's name: a size comes with it (FAT) or not (XFS).
    Name {
        volume: Volume,
        path: String,
        entry: Option<(Inode, Option<usize>)>,
    },
    /// The size in the inode, XFS.
    Size {
        inode: Inode,
        len: usize,
    },
    /// Whether FAT's long name is there: without it the short one is what is seen.
    LongName {
        path: String,
        is_there: bool,
    },
    Variable {
        file: String,
        value: Option<Vec<u8>>,
    },
    /// A copy of META; one that is torn is none.
    Meta {
        copy: usize,
        values: Option<BTreeMap<u8, Vec<u8>>>,
    },
}

#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// A write, and the filesystem that orders it; none for what is durable one by one.
    Write(Option<Volume>, Write),
    Barrier(Option<Volume>),
}

/// What is on the disk and in the firmware.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct State {
    data: BTreeMap<Inode, BTreeMap<usize, Vec<u8>>>,
    extents: BTreeMap<Inode, usize>,
    sizes: BTreeMap<Inode, usize>,
    names: BTreeMap<(Volume, String), (Inode, Option<usize>)>,
    long_names: BTreeSet<String>,
    pub(crate) variables: BTreeMap<String, Vec<u8>>,
    pub(crate) meta: [Option<BTreeMap<u8, Vec<u8>>>; 2],
    next: Inode,
    freed: Vec<(Volume, Inode, usize)>,
}

impl State {
    pub(crate) fn apply(&mut self, write: &Write) {
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
            Write::Name { volume, path, entry: Some(entry) } => {
                self.names.insert((volume, path), entry);
            }
            Write::Name { volume, path, entry: None } => {
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
            Write::Meta { copy, values } => self.meta[copy] = values,
        }
    }

    /// All files of a volume as a boot loader sees them.
    pub(crate) fn files(&self, volume: Volume) -> Vec<(String, Vec<u8>)> {
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

    pub(crate) fn file(&self, volume: Volume, path: &str) -> Option<Vec<u8>> {
        let found = self.files(volume).into_iter().find(|(other, _)| other.eq_ignore_ascii_case(path));
        found.map(|(_, content)| content)
    }

    fn content(&self, inode: Inode, size: Option<usize>) -> Vec<u8> {
        let len = size.or_else(|| self.sizes.get(&inode).copied()).unwrap_or(0);
        let sectors = self.extents.get(&inode).copied().unwrap_or(0);
        let mut bytes = Vec::new();
        for sector in 0..len.div_ceil(SECTOR).min(sectors) {
            match self.data.get(&inode).and_then(|data| data.get(&sector)) {
                Some(data) => bytes.extend_from_slice(data),
                None => bytes.extend_from_slice(&[0xaa; SECTOR]),
            }
        }
        bytes.truncate(len);
        bytes
    }

    /// A boot loader that writes the sectors of a file past its filesystem.
    pub(crate) fn write_in_place(&mut self, volume: Volume, path: &str, bytes: &[u8]) {
        if let Some((inode, _)) = self.names.get(&(volume, path.to_owned())).copied() {
            for (sector, bytes) in bytes.chunks(SECTOR).enumerate() {
                self.apply(&Write::Data { inode, sector, bytes: bytes.to_vec() });
            }
        }
    }

    /// What the kernel of a machine that starts reads.
    pub(crate) fn meta(&self) -> Option<&BTreeMap<u8, Vec<u8>>> {
        self.meta[0].as_ref().or(self.meta[1].as_ref())
    }
}

/// Carries steps out on a state and records what was written.
pub(crate) struct Recorder {
    pub(crate) state: State,
    pub(crate) events: Vec<Event>,
    /// Which system is being written.
    pub(crate) system: u32,
}

/// The bytes of a part of a system: each sector names the system and its place.
pub(crate) fn asset(asset: Asset, system: u32) -> Vec<u8> {
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
    pub(crate) fn new(state: State, system: u32) -> Self {
        Self { state, events: Vec::new(), system }
    }

    fn write(&mut self, volume: impl Into<Option<Volume>>, write: Write) {
        self.state.apply(&write);
        self.events.push(Event::Write(volume.into(), write));
    }

    fn barrier(&mut self, volume: Option<Volume>) {
        self.events.push(Event::Barrier(volume));
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
                self.write(on, Write::Data { inode: freed, sector, bytes: vec![0xee; SECTOR] });
            }
        }
        for (sector, bytes) in bytes.chunks(SECTOR).enumerate() {
            self.write(volume, Write::Data { inode, sector, bytes: bytes.to_vec() });
        }
        self.write(volume, Write::Extent { inode, sectors: bytes.len().div_ceil(SECTOR) });
        self.put_name(volume, path, inode, bytes.len(), is_new);
    }

    fn put_name(&mut self, volume: Volume, path: &str, inode: Inode, len: usize, is_new: bool) {
        let path = path.to_owned();
        match volume {
            Volume::Efi => {
                if is_new {
                    self.write(volume, Write::LongName { path: path.clone(), is_there: true });
                }
                self.write(volume, Write::Name { volume, path, entry: Some((inode, Some(len))) });
            }
            Volume::Boot => {
                self.write(volume, Write::Size { inode, len });
                if is_new {
                    self.write(volume, Write::Name { volume, path, entry: Some((inode, None)) });
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
                self.write(volume, Write::Data { inode, sector, bytes: new.to_vec() });
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
        self.write(volume, Write::Name { volume, path: path.to_owned(), entry: None });
        if volume == Volume::Efi {
            self.write(volume, Write::LongName { path: path.to_owned(), is_there: false });
            // The file is held open until its name is gone from the disk.
            self.barrier(Some(volume));
        } else {
            self.write(volume, Write::Size { inode, len: 0 });
        }
        self.write(volume, Write::Extent { inode, sectors: 0 });
        self.state.freed.push((volume, inode, sectors));
    }

    fn exchange(&mut self, volume: Volume, path: &str, with: &str) {
        assert_eq!(volume, Volume::Boot, "FAT cannot exchange names");
        let entry = |name: &str| self.state.names.get(&(volume, name.to_owned())).copied();
        let (Some(one), Some(other)) = (entry(path), entry(with)) else {
            panic!("exchange of what is not there")
        };
        self.write(volume, Write::Name { volume, path: path.to_owned(), entry: Some(other) });
        self.write(volume, Write::Name { volume, path: with.to_owned(), entry: Some(one) });
    }

    fn set_meta(&mut self, change: impl FnOnce(&mut BTreeMap<u8, Vec<u8>>)) {
        let mut values = self.state.meta().cloned().unwrap_or_default();
        change(&mut values);
        for copy in 0..2 {
            self.write(None, Write::Meta { copy, values: None });
            self.write(None, Write::Meta { copy, values: Some(values.clone()) });
            self.barrier(None);
        }
    }

    fn set_variable(&mut self, variable: Variable, value: Option<Vec<u8>>) {
        self.write(None, Write::Variable { file: variable.file(), value });
        self.barrier(None);
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
            Step::Flush { volume } => self.barrier(Some(*volume)),
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
