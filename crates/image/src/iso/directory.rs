//! Directories of an ISO image: records in the order of their ISO names, with the real names in Rock Ridge fields.

use std::collections::BTreeMap;

use crate::{Content, Error};

use super::{SECTOR, both, both16, narrow};

const NAME_MAX: usize = 100;
/// ISO names at level 2, version included.
const ISO_NAME_MAX: usize = 31;
const DEPTH_MAX: usize = 8;
const DIRECTORY: u8 = 2;
/// 1980-01-01.
const DATE: [u8; 7] = [80, 1, 1, 0, 0, 0, 0];

/// A file or directory in a directory.
#[derive(Debug)]
pub(super) enum Node {
    /// A file and where it begins.
    File {
        /// Its bytes, unless they are there already.
        content: Option<Content>,
        /// The first sector.
        at: u64,
        /// How many bytes there are.
        len: u64,
    },
    /// The directory with this number.
    Directory(usize),
}

#[derive(Debug, Default)]
struct Directory {
    parent: usize,
    /// The name in the path table.
    iso_name: String,
    /// ISO name to the real name and the node.
    nodes: BTreeMap<String, (String, Node)>,
    at: u64,
    sectors: u64,
}

/// All directories, parents before children, the root first.
#[derive(Debug)]
pub(super) struct Directories {
    list: Vec<Directory>,
}

impl Directories {
    /// The directories that these paths need. Files that are `shared` are in the image already: first sector and length.
    pub(super) fn new(
        files: &BTreeMap<String, Content>,
        shared: &BTreeMap<String, (u64, u64)>,
    ) -> Result<Self, Error> {
        let mut tree = Self { list: vec![Directory::default()] };
        let own = files.iter().map(|(path, file)| (path, Some(file.clone()), 0, file.len()));
        let shared = shared.iter().map(|(path, (at, len))| (path, None, *at, *len));
        for (path, content, at, len) in own.chain(shared) {
            let bad = |reason: &str| Error::bad(format!("ISO path {path:?}"), reason);
            let mut parts: Vec<&str> = path.split('/').collect();
            let name = parts.pop().unwrap_or_default();
            if parts.len() >= DEPTH_MAX
                || path.split('/').any(|part| part.is_empty() || part.len() > NAME_MAX)
            {
                return Err(bad("its parts have 1 to 100 bytes, and there are at most 8"));
            }
            let mut directory = 0;
            for part in parts {
                directory = tree.child(directory, part).ok_or_else(|| bad("a file is in its way"))?;
            }
            narrow(len)?;
            let node = Node::File { content, at, len };
            let taken = tree.list[directory].nodes.insert(iso_name(name, true), (name.to_owned(), node));
            if taken.is_some() {
                return Err(bad("another name is the same in capital letters"));
            }
        }
        tree.in_path_table_order();
        Ok(tree)
    }

    fn child(&mut self, parent: usize, name: &str) -> Option<usize> {
        let iso_name = iso_name(name, false);
        match self.list[parent].nodes.get(&iso_name) {
            Some((known, Node::Directory(number))) if known == name => return Some(*number),
            Some(_) => return None,
            None => {}
        }
        let number = self.list.len();
        self.list.push(Directory { parent, iso_name: iso_name.clone(), ..Directory::default() });
        self.list[parent].nodes.insert(iso_name, (name.to_owned(), Node::Directory(number)));
        Some(number)
    }

    /// Sorts by depth, then by the parent's place, then by name.
    fn in_path_table_order(&mut self) {
        let mut order = vec![0];
        let mut done = 0;
        while done < order.len() {
            for (_, node) in self.list[order[done]].nodes.values() {
                if let Node::Directory(number) = node {
                    order.push(*number);
                }
            }
            done += 1;
        }
        let mut place = vec![0; order.len()];
        for (new, old) in order.iter().enumerate() {
            place[*old] = new;
        }
        let mut old: Vec<Option<Directory>> = std::mem::take(&mut self.list).into_iter().map(Some).collect();
        for number in order {
            let Some(mut directory) = old[number].take() else { continue };
            directory.parent = place[directory.parent];
            for (_, node) in directory.nodes.values_mut() {
                if let Node::Directory(number) = node {
                    *number = place[*number];
                }
            }
            self.list.push(directory);
        }
    }

    /// Gives every directory its sectors from `at` on; the first sector behind them.
    pub(super) fn place_directories(&mut self, mut at: u64) -> u64 {
        for number in 0..self.list.len() {
            let sectors = self.encode(number).len() as u64 / SECTOR;
            let directory = &mut self.list[number];
            (directory.at, directory.sectors) = (at, sectors);
            at += sectors;
        }
        at
    }

    /// Gives every file its sectors from `at` on; what goes where.
    pub(super) fn place_files(&mut self, at: &mut u64) -> Vec<(u64, Content)> {
        let mut placed = Vec::new();
        for directory in &mut self.list {
            for (_, node) in directory.nodes.values_mut() {
                if let Node::File { content: Some(content), at: start, .. } = node {
                    *start = *at;
                    *at += content.len().div_ceil(SECTOR);
                    placed.push((*start, content.clone()));
                }
            }
        }
        placed
    }

    /// The directories themselves, and where they go.
    pub(super) fn directories(&self) -> Result<Vec<(u64, Content)>, Error> {
        let all = self.list.iter().enumerate();
        Ok(all.map(|(number, directory)| (directory.at, Content::bytes(self.encode(number)))).collect())
    }

    fn encode(&self, number: usize) -> Vec<u8> {
        let directory = &self.list[number];
        let parent = &self.list[directory.parent];
        let own_fields = if number == 0 { [&SP[..], &px(0o040_755), ER].concat() } else { px(0o040_755) };
        let mut records = vec![
            record(&[0], directory.at, directory.sectors * SECTOR, DIRECTORY, &own_fields),
            record(&[1], parent.at, parent.sectors * SECTOR, DIRECTORY, &px(0o040_755)),
        ];
        for (iso_name, (name, node)) in &directory.nodes {
            let fields = |mode| [px(mode), nm(name)].concat();
            records.push(match node {
                Node::File { at, len, .. } => record(iso_name.as_bytes(), *at, *len, 0, &fields(0o100_644)),
                Node::Directory(number) => {
                    let child = &self.list[*number];
                    let len = child.sectors * SECTOR;
                    record(iso_name.as_bytes(), child.at, len, DIRECTORY, &fields(0o040_755))
                }
            });
        }
        let mut out = Vec::new();
        for record in records {
            // A record does not cross the end of a sector.
            if out.len() as u64 % SECTOR + record.len() as u64 > SECTOR {
                out.resize((out.len() as u64).next_multiple_of(SECTOR) as usize, 0);
            }
            out.extend(record);
        }
        out.resize((out.len() as u64).next_multiple_of(SECTOR) as usize, 0);
        out
    }

    /// The record of the root, as the volume descriptor repeats it.
    pub(super) fn root_record(&self) -> Vec<u8> {
        record(&[0], self.list[0].at, self.list[0].sectors * SECTOR, DIRECTORY, &[])
    }

    /// The path table in one of the two byte orders.
    pub(super) fn path_table(
        &self,
        long: fn(u32) -> [u8; 4],
        short: fn(u16) -> [u8; 2],
    ) -> Result<Vec<u8>, Error> {
        let mut out = Vec::new();
        for (number, directory) in self.list.iter().enumerate() {
            let name = if number == 0 { &[0][..] } else { directory.iso_name.as_bytes() };
            out.extend([name.len() as u8, 0]);
            out.extend(long(narrow(directory.at)?));
            out.extend(short(directory.parent as u16 + 1));
            out.extend(name);
            if name.len() % 2 == 1 {
                out.push(0);
            }
        }
        if out.len() as u64 > SECTOR {
            let (what, len) = ("path table of the ISO image".to_owned(), out.len() as u64);
            return Err(Error::TooLarge { what, len, max: SECTOR });
        }
        Ok(out)
    }
}

/// A name of capital letters, digits and underscores; a file's has an ending and a version.
fn iso_name(name: &str, file: bool) -> String {
    let plain = |text: &str, max: usize| -> String {
        let upper = text.chars().map(|c| c.to_ascii_uppercase());
        upper.map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(max).collect()
    };
    if !file {
        return plain(name, ISO_NAME_MAX);
    }
    let (stem, ending) = name.rsplit_once('.').unwrap_or((name, ""));
    let ending = plain(ending, 3);
    let stem = plain(stem, ISO_NAME_MAX - 3 - ending.len());
    format!("{stem}.{ending};1")
}

/// Rock Ridge is used here, with nothing skipped.
const SP: [u8; 7] = [b'S', b'P', 7, 1, 0xbe, 0xef, 0];
/// By this name.
const ER: &[u8] = b"ER\x12\x01\x0a\x00\x00\x01RRIP_1991A";

/// Mode and owner.
fn px(mode: u32) -> Vec<u8> {
    let mut out = b"PX\x24\x01".to_vec();
    for value in [mode, 1, 0, 0] {
        out.extend(both(value));
    }
    out
}

/// The real name.
fn nm(name: &str) -> Vec<u8> {
    let mut out = vec![b'N', b'M', name.len() as u8 + 5, 1, 0];
    out.extend(name.as_bytes());
    out
}

fn record(name: &[u8], at: u64, len: u64, flags: u8, fields: &[u8]) -> Vec<u8> {
    // Places and sizes were checked when the content was taken in.
    let mut out = vec![0, 0];
    out.extend(both(at as u32));
    out.extend(both(len as u32));
    out.extend(DATE);
    out.extend([flags, 0, 0]);
    out.extend(both16(1));
    out.push(name.len() as u8);
    out.extend(name);
    if name.len().is_multiple_of(2) {
        out.push(0);
    }
    out.extend(fields);
    if out.len() % 2 == 1 {
        out.push(0);
    }
    out[0] = out.len() as u8;
    out
}
