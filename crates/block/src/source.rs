//! Where bytes come from: a device, a file, a part of one, a buffer.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes that can be read at any place.
pub trait Source {
    /// How many there are.
    fn size(&self) -> u64;

    /// Fills the buffer from `offset` on.
    ///
    /// # Errors
    /// `UnexpectedEof` when there are fewer bytes, or the device's.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// As many bytes from `offset` on, at most up to the end.
    ///
    /// # Errors
    /// The device's.
    fn read_up_to(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let left = self.size().saturating_sub(offset);
        let mut buffer = vec![0; usize::try_from(left).unwrap_or(len).min(len)];
        if !buffer.is_empty() {
            self.read_at(offset, &mut buffer)?;
        }
        Ok(buffer)
    }
}

impl<T: Source + ?Sized> Source for &T {
    fn size(&self) -> u64 {
        (**self).size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset, buffer)
    }
}

impl Source for [u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let found = usize::try_from(offset).ok().and_then(|at| self.get(at..at.checked_add(buffer.len())?));
        buffer.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl Source for Vec<u8> {
    fn size(&self) -> u64 {
        self.as_slice().size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.as_slice().read_at(offset, buffer)
    }
}

/// A file or device of known size.
#[derive(Debug)]
pub struct FileSource<'a> {
    file: &'a File,
    size: u64,
}

impl<'a> FileSource<'a> {
    /// The first `size` bytes of a file or device.
    pub fn new(file: &'a File, size: u64) -> Self {
        Self { file, size }
    }
}

impl Source for FileSource<'_> {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }
}

/// A part of a source, such as a partition.
#[derive(Debug)]
pub struct Window<S> {
    source: S,
    offset: u64,
    len: u64,
}

impl<S: Source> Window<S> {
    /// The `len` bytes from `offset` on; `None` when they are not all there.
    pub fn new(source: S, offset: u64, len: u64) -> Option<Self> {
        (offset.checked_add(len)? <= source.size()).then_some(Self { source, offset, len })
    }
}

impl<S: Source> Source for Window<S> {
    fn size(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= self.len);
        end.ok_or(io::ErrorKind::UnexpectedEof)?;
        self.source.read_at(self.offset + offset, buffer)
    }
}
