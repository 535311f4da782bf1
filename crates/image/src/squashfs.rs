//! Squashfs images written without a mount: the same content gives the same bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufReader, Cursor};
use std::path::Path;

use backhand::compression::{CompressionOptions, Compressor, Zstd};
use backhand::{FilesystemCompressor, FilesystemWriter, NodeHeader};

use crate::Error;

/// How a filesystem is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packing {
    /// The level of zstd.
    level: u32,
    /// Bytes that are compressed together.
    block: u32,
}

impl Packing {
    /// For what is read at every start: a tenth smaller than with the default of 3, for a few seconds more.
    pub const USUAL: Self = Self { level: 12, block: 128 << 10 };
    /// For what is made seldom and read in part, once.
    pub const TIGHT: Self = Self { level: 19, block: 1 << 20 };
}

/// A file or a link of a filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A file with its permissions.
    File {
        /// Permissions.
        mode: u16,
        /// Content.
        bytes: Vec<u8>,
    },
    /// A symbolic link and where it leads.
    Link(String),
}

impl Entry {
    /// A file that can be executed.
    pub fn program(bytes: Vec<u8>) -> Self {
        Self::File { mode: 0o755, bytes }
    }

    /// A file that can be read.
    pub fn file(bytes: Vec<u8>) -> Self {
        Self::File { mode: 0o644, bytes }
    }
}

/// Files and links by their place, without a slash at the front.
pub type Tree = BTreeMap<String, Entry>;

/// Every directory above these places, parents first.
fn directories<'a>(places: impl Iterator<Item = &'a String>) -> BTreeSet<String> {
    let above = |place: &'a String| place.match_indices('/').map(|(at, _)| place[..at].to_owned());
    places.flat_map(above).collect()
}

fn failed(what: impl Into<String>) -> impl FnOnce(backhand::BackhandError) -> Error {
    let what = what.into();
    move |error| Error::bad(what, error.to_string())
}

/// An empty filesystem whose bytes depend on its content alone.
pub fn new<'a>(packing: Packing) -> Result<FilesystemWriter<'a, 'a, 'a>, Error> {
    let mut image = FilesystemWriter::default();
    let options = CompressionOptions::Zstd(Zstd { compression_level: packing.level });
    image.set_compressor(
        FilesystemCompressor::new(Compressor::Zstd, Some(options)).map_err(failed("squashfs"))?,
    );
    image.set_block_size(packing.block);
    image.set_time(0);
    image.set_root_mode(0o755);
    image.set_only_root_id();
    Ok(image)
}

/// The owner, time and permissions of an entry.
pub fn header(mode: u16) -> NodeHeader {
    NodeHeader::new(mode, 0, 0, 0)
}

/// Adds files and links with the directories above them, except those that are there.
pub fn push<'a>(
    image: &mut FilesystemWriter<'a, 'a, 'a>,
    tree: &'a Tree,
    there: &[&str],
) -> Result<(), Error> {
    for path in directories(tree.keys()) {
        if !there.contains(&path.as_str()) {
            image.push_dir(&path, header(0o755)).map_err(failed(format!("directory {path}")))?;
        }
    }
    for (place, entry) in tree {
        match entry {
            Entry::File { mode, bytes } => {
                image.push_file(Cursor::new(bytes.as_slice()), place, header(*mode))
            }
            Entry::Link(target) => image.push_symlink(target, place, header(0o777)),
        }
        .map_err(failed(format!("file {place}")))?;
    }
    Ok(())
}

/// The bytes of a filesystem.
pub fn bytes(mut image: FilesystemWriter<'_, '_, '_>) -> Result<Vec<u8>, Error> {
    let mut out = Cursor::new(Vec::new());
    image.write(&mut out).map_err(failed("squashfs"))?;
    Ok(out.into_inner())
}

/// Files and links as a filesystem of their own.
pub fn build(tree: &Tree, packing: Packing) -> Result<Vec<u8>, Error> {
    let mut image = new(packing)?;
    push(&mut image, tree, &[])?;
    bytes(image)
}

/// Puts a new file in the place of an old one. A running machine keeps the old image, so it is never written into.
pub fn replace(out: &Path, bytes: &[u8]) -> Result<(), Error> {
    let write = |path: &Path, source| Error::Write { path: path.to_owned(), source };
    if let Some(dir) = out.parent() {
        fs::create_dir_all(dir).map_err(|source| write(dir, source))?;
    }
    let part = out.with_extension("part");
    fs::write(&part, bytes).map_err(|source| write(&part, source))?;
    fs::rename(&part, out).map_err(|source| write(out, source))
}

/// Whether an image has a file at this place, which begins with a slash.
pub fn holds(image: &Path, place: &str) -> Result<bool, Error> {
    let file = fs::File::open(image).map_err(|source| Error::Read { path: image.to_owned(), source })?;
    let reader = backhand::FilesystemReader::from_reader(BufReader::new(file));
    let reader = reader.map_err(failed(image.display().to_string()))?;
    Ok(reader.files().any(|node| node.fullpath == Path::new(place)))
}

/// SHA-256 in hexadecimal.
pub fn digest(bytes: &[u8]) -> String {
    crate::hex(&ichor_pki::sha256(bytes))
}

/// A digest of files and links, their places and permissions.
pub fn tree_digest(tree: &Tree) -> String {
    let mut text = String::new();
    for (place, entry) in tree {
        text += &match entry {
            Entry::File { mode, bytes } => format!("{place} {mode:o} {}\n", digest(bytes)),
            Entry::Link(target) => format!("{place} -> {target}\n"),
        };
    }
    digest(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_come_parents_first_and_once() {
        let places = ["a/b/c".to_owned(), "a/d".to_owned(), "e".to_owned()];
        assert_eq!(directories(places.iter()).into_iter().collect::<Vec<_>>(), ["a", "a/b"]);
    }

    #[test]
    fn what_is_in_an_image_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("image");
        let tree = Tree::from([("a/b".to_owned(), Entry::file(b"x".to_vec()))]);
        replace(&out, &build(&tree, Packing::USUAL).unwrap()).unwrap();
        assert!(holds(&out, "/a/b").unwrap() && !holds(&out, "/a/c").unwrap());
        assert_eq!(build(&tree, Packing::USUAL).unwrap(), build(&tree, Packing::USUAL).unwrap());
        fs::write(&out, "text").unwrap();
        assert!(holds(&out, "/a/b").is_err());
    }
}
