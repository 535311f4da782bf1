//! Bytes that are put together only when they are written: literal bytes, files and runs of zeros, one after the other.
//!
//! An initramfs, the kernel image that holds it, the filesystem around that and the disk around the filesystem are all
//! [`Content`], so that an image of gigabytes is laid out in memory as a short list and written in one pass, with holes
//! where it is empty.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Error;

/// Bytes of known length that are read when they are needed.
#[derive(Debug, Clone, Default)]
pub struct Content {
    pieces: Vec<Piece>,
    len: u64,
}

#[derive(Debug, Clone)]
enum Piece {
    Bytes(Arc<[u8]>),
    File { path: Arc<Path>, start: u64, len: u64 },
    Zeros(u64),
}

impl Piece {
    fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File { len, .. } | Self::Zeros(len) => *len,
        }
    }
}

impl Content {
    /// These bytes.
    pub fn bytes(bytes: impl Into<Arc<[u8]>>) -> Self {
        let mut content = Self::default();
        content.push(Piece::Bytes(bytes.into()));
        content
    }

    /// So many zeros.
    pub fn zeros(len: u64) -> Self {
        let mut content = Self::default();
        content.push(Piece::Zeros(len));
        content
    }

    /// A file as long as it is now.
    pub fn file(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Read { path: path.to_owned(), source };
        let data = std::fs::metadata(path).map_err(failed)?;
        if !data.is_file() {
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
        }
        let mut content = Self::default();
        content.push(Piece::File { path: path.into(), start: 0, len: data.len() });
        Ok(content)
    }

    /// A part of a file, without a look at whether the file is so long.
    pub fn file_part(path: &Path, start: u64, len: u64) -> Self {
        let mut content = Self::default();
        content.push(Piece::File { path: path.into(), start, len });
        content
    }

    fn push(&mut self, piece: Piece) {
        if piece.len() > 0 {
            self.len += piece.len();
            self.pieces.push(piece);
        }
    }

    /// The number of bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True without a single byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts `other` after what is there.
    pub fn append(&mut self, other: Self) {
        for piece in other.pieces {
            self.push(piece);
        }
    }

    /// Puts bytes after what is there.
    pub fn append_bytes(&mut self, bytes: impl Into<Arc<[u8]>>) {
        self.push(Piece::Bytes(bytes.into()));
    }

    /// Adds zeros until the length is a multiple of `unit`.
    pub fn align(&mut self, unit: u64) {
        self.push(Piece::Zeros(self.len.next_multiple_of(unit) - self.len));
    }

    /// Adds zeros until the length is `len`; false when it is longer already.
    #[must_use]
    pub fn extend_to(&mut self, len: u64) -> bool {
        let Some(missing) = len.checked_sub(self.len) else { return false };
        self.push(Piece::Zeros(missing));
        true
    }

    /// Reads from the beginning.
    pub fn reader(&self) -> Reader {
        Reader { pieces: self.pieces.iter().cloned().collect(), at: 0, open: None }
    }

    /// All bytes in memory, at most `max` of them.
    pub fn read(&self, max: u64) -> Result<Vec<u8>, Error> {
        if self.len > max {
            return Err(Error::TooLarge { what: self.name(), len: self.len, max });
        }
        let mut bytes = Vec::with_capacity(usize::try_from(self.len).unwrap_or(0));
        self.reader().read_to_end(&mut bytes).map_err(|source| self.failed(source))?;
        Ok(bytes)
    }

    /// The digest of all bytes.
    pub fn sha256(&self) -> Result<[u8; 32], Error> {
        ichor_pki::sha256_reader(&mut self.reader()).map_err(|source| self.failed(source))
    }

    /// Writes all bytes to a new file; runs of zeros become holes.
    pub fn write_to(&self, out: &mut File) -> io::Result<()> {
        out.set_len(0)?;
        out.rewind()?;
        for piece in &self.pieces {
            match piece {
                Piece::Bytes(bytes) => out.write_all(bytes)?,
                Piece::File { path, start, len } => {
                    let mut source = open(path, *start)?.take(*len);
                    if io::copy(&mut source, out)? != *len {
                        return Err(changed(path));
                    }
                }
                Piece::Zeros(len) => {
                    let ahead = i64::try_from(*len).map_err(io::Error::other)?;
                    out.seek(SeekFrom::Current(ahead))?;
                }
            }
        }
        out.set_len(self.len)
    }

    /// What the content is called in errors: its first file.
    fn name(&self) -> String {
        let first = self.pieces.iter().find_map(|piece| match piece {
            Piece::File { path, .. } => Some(path.display().to_string()),
            Piece::Bytes(_) | Piece::Zeros(_) => None,
        });
        first.unwrap_or_else(|| "content".to_owned())
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::Read { path: PathBuf::from(self.name()), source }
    }
}

fn open(path: &Path, start: u64) -> io::Result<File> {
    let open = || {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(start))?;
        Ok(file)
    };
    open().map_err(|error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn changed(path: &Path) -> io::Error {
    io::Error::other(format!("{} became shorter while it was read; build again", path.display()))
}

/// Reads a [`Content`].
pub struct Reader {
    pieces: VecDeque<Piece>,
    /// What was read of the first piece.
    at: u64,
    open: Option<File>,
}

impl Reader {
    /// How many bytes that follow are known to be zeros.
    pub fn zeros_ahead(&self) -> u64 {
        let zeros = self.pieces.iter().map_while(|piece| match piece {
            Piece::Zeros(len) => Some(*len),
            Piece::Bytes(_) | Piece::File { .. } => None,
        });
        zeros.sum::<u64>().saturating_sub(self.at)
    }

    /// Passes over `count` bytes of those that are [known to be zeros](Self::zeros_ahead).
    pub fn skip_zeros(&mut self, mut count: u64) {
        while count > 0
            && let Some(Piece::Zeros(len)) = self.pieces.front()
        {
            let step = count.min(len - self.at);
            count -= step;
            self.advance(step);
        }
    }

    fn advance(&mut self, count: u64) {
        self.at += count;
        if self.pieces.front().is_some_and(|piece| piece.len() == self.at) {
            self.pieces.pop_front();
            self.at = 0;
            self.open = None;
        }
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(piece) = self.pieces.front() else { return Ok(0) };
        let most = usize::try_from(piece.len() - self.at).unwrap_or(usize::MAX).min(buffer.len());
        let buffer = &mut buffer[..most];
        if buffer.is_empty() {
            return Ok(0);
        }
        let count = match piece {
            Piece::Bytes(bytes) => {
                let start = usize::try_from(self.at).map_err(io::Error::other)?;
                buffer.copy_from_slice(&bytes[start..start + most]);
                most
            }
            Piece::File { path, start, .. } => {
                let file = match &mut self.open {
                    Some(file) => file,
                    None => self.open.insert(open(path, *start)?),
                };
                match file.read(buffer)? {
                    0 => return Err(changed(path)),
                    count => count,
                }
            }
            Piece::Zeros(_) => {
                buffer.fill(0);
                most
            }
        };
        self.advance(count as u64);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(dir: &Path) -> Content {
        let file = dir.join("file");
        std::fs::write(&file, b"from a file").unwrap();
        let mut content = Content::bytes(*b"head");
        content.append(Content::file(&file).unwrap());
        content.align(8);
        content.append(Content::zeros(100_000));
        content.append_bytes(*b"tail");
        content
    }

    #[test]
    fn pieces_are_read_in_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let content = sample(dir.path());
        let bytes = content.read(1 << 20).unwrap();
        assert_eq!(bytes.len() as u64, content.len());
        assert_eq!(&bytes[..16], b"headfrom a file\0");
        assert_eq!(&bytes[100_016..], b"tail");
        assert_eq!(content.sha256().unwrap(), ichor_pki::sha256(&bytes));
    }

    #[test]
    fn zeros_become_holes_in_a_file() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = tempfile::tempdir().unwrap();
        let mut content = sample(dir.path());
        content.append(Content::zeros(1 << 30));
        let mut file = File::create(dir.path().join("out")).unwrap();
        content.write_to(&mut file).unwrap();
        let data = file.metadata().unwrap();
        assert_eq!(data.len(), content.len());
        assert!(data.blocks() * 512 < 1 << 20, "{} blocks", data.blocks());
    }

    #[test]
    fn a_reader_passes_over_zeros_without_reading_them() {
        let mut content = Content::zeros(10);
        content.append(Content::zeros(20));
        content.append_bytes(*b"x");
        let mut reader = content.reader();
        assert_eq!(reader.zeros_ahead(), 30);
        reader.skip_zeros(25);
        assert_eq!(reader.zeros_ahead(), 5);
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"\0\0\0\0\0x");
    }

    #[test]
    fn a_file_that_became_shorter_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let content = sample(dir.path());
        std::fs::write(dir.path().join("file"), b"short").unwrap();
        let error = content.reader().read_to_end(&mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("became shorter"), "{error}");
        let mut out = File::create(dir.path().join("out")).unwrap();
        assert!(content.write_to(&mut out).is_err());
    }

    #[test]
    fn content_too_large_for_memory_is_refused() {
        let error = Content::zeros(1 << 40).read(1 << 20).unwrap_err();
        assert_eq!(error.to_string(), "content has 1099511627776 bytes, at most 1048576 fit");
    }
}
