//! Squashfs images written without a mount: the same content gives the same bytes.

use std::fs;
use std::io::Cursor;
use std::path::Path;

use anyhow::{Context, Result};
use backhand::compression::{CompressionOptions, Compressor, Zstd};
use backhand::{FilesystemCompressor, FilesystemWriter, NodeHeader};

use crate::content::{self, Content, Entry};

/// A tenth smaller than with the default of 3, for a few seconds more. Reading takes the same time.
const LEVEL: u32 = 12;

/// An empty filesystem whose bytes depend on its content alone.
pub(crate) fn new<'a>() -> Result<FilesystemWriter<'a, 'a, 'a>> {
    let mut image = FilesystemWriter::default();
    let options = CompressionOptions::Zstd(Zstd { compression_level: LEVEL });
    image.set_compressor(FilesystemCompressor::new(Compressor::Zstd, Some(options))?);
    image.set_time(0);
    image.set_root_mode(0o755);
    image.set_only_root_id();
    Ok(image)
}

/// The owner, time and permissions of an entry.
pub(crate) fn header(mode: u16) -> NodeHeader {
    NodeHeader::new(mode, 0, 0, 0)
}

/// Adds files and links with the directories above them, except those that are there.
pub(crate) fn push<'a>(
    image: &mut FilesystemWriter<'a, 'a, 'a>,
    content: &'a Content,
    there: &[&str],
) -> Result<()> {
    for path in content::directories(content.keys()) {
        if !there.contains(&path.as_str()) {
            image.push_dir(&path, header(0o755)).with_context(|| format!("directory {path}"))?;
        }
    }
    for (place, entry) in content {
        match entry {
            Entry::File { mode, bytes } => {
                image.push_file(Cursor::new(bytes.as_slice()), place, header(*mode))
            }
            Entry::Link(target) => image.push_symlink(target, place, header(0o777)),
        }
        .with_context(|| format!("file {place}"))?;
    }
    Ok(())
}

/// The bytes of a filesystem.
pub(crate) fn bytes(mut image: FilesystemWriter<'_, '_, '_>) -> Result<Vec<u8>> {
    let mut out = Cursor::new(Vec::new());
    image.write(&mut out)?;
    Ok(out.into_inner())
}

/// Puts a new file in the place of an old one. A running machine keeps the old image, so it is never written into.
pub(crate) fn replace(out: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(dir) = out.parent() {
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    }
    let part = out.with_extension("part");
    fs::write(&part, bytes).with_context(|| format!("write {}", part.display()))?;
    fs::rename(&part, out).with_context(|| format!("write {}", out.display()))
}

/// SHA-256 in hexadecimal.
pub(crate) fn digest(bytes: &[u8]) -> String {
    crate::images::hex(&ichor_pki::sha256(bytes))
}

/// A digest of files and links, their places and permissions, and of how they are compressed.
pub(crate) fn content_digest(content: &Content) -> String {
    let mut text = format!("zstd {LEVEL}\n");
    for (place, entry) in content {
        text += &match entry {
            Entry::File { mode, bytes } => format!("{place} {mode:o} {}\n", digest(bytes)),
            Entry::Link(target) => format!("{place} -> {target}\n"),
        };
    }
    digest(text.as_bytes())
}
