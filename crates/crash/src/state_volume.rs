//! The volume of the configuration, written through `ichor_sys::file`.
//!
//! It promises what POSIX does and no more, which is less than XFS: after a sync of a file its bytes and its size are on
//! disk, after one of a directory the names in it. Everything else may be there or not, in any order: a name without its
//! file's bytes, a size without the bytes (zeros), a rename without the creation before it. A rename is one write.

use std::cell::RefCell;
use std::io;
use std::path::Path;

use ichor_sys::file::{Files, replace_on};

use crate::disk::{Barrier, Domain, Inode, Recorder, SECTOR, State, Write};

/// The file of the configuration.
const CONFIG: &str = "config.yaml";
const MODE: u32 = 0o600;

/// The files of that volume. One directory is enough.
struct Volume<'a>(RefCell<&'a mut Recorder>);

/// A file that is written from its beginning to its end.
#[derive(Debug, Clone, Copy)]
struct Handle {
    inode: Inode,
    len: usize,
}

fn name(path: &Path) -> io::Result<String> {
    let name = path.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(name.to_owned())
}

impl Volume<'_> {
    fn write_one(&self, write: Write) {
        self.0.borrow_mut().write(Domain::State, write);
    }

    fn find(&self, path: &Path) -> io::Result<(String, Inode)> {
        let name = name(path)?;
        let inode = self.0.borrow().state.entries.get(&name).copied();
        inode.map(|inode| (name, inode)).ok_or(io::ErrorKind::NotFound.into())
    }
}

impl Files for &Volume<'_> {
    type File = Handle;

    fn remove_stale(&self, path: &Path) -> io::Result<()> {
        self.remove(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let (name, _) = self.find(path)?;
        self.write_one(Write::Entry { name, inode: None });
        Ok(())
    }

    fn create(&self, path: &Path, _mode: u32) -> io::Result<Handle> {
        if self.find(path).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let inode = {
            let recorder = &mut *self.0.borrow_mut();
            recorder.state.next += 1;
            recorder.state.next
        };
        self.write_one(Write::Entry { name: name(path)?, inode: Some(inode) });
        Ok(Handle { inode, len: 0 })
    }

    fn write(&self, file: &mut Handle, bytes: &[u8]) -> io::Result<()> {
        assert_eq!(file.len, 0, "written in one go");
        // The size may be on disk before the bytes are.
        self.write_one(Write::Size { inode: file.inode, len: bytes.len() });
        for (sector, bytes) in bytes.chunks(SECTOR).enumerate() {
            self.write_one(Write::Data { inode: file.inode, sector, bytes: bytes.into() });
        }
        file.len = bytes.len();
        Ok(())
    }

    fn sync(&self, file: &Handle) -> io::Result<()> {
        self.0.borrow_mut().barrier(Barrier::File(file.inode));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, inode) = self.find(from)?;
        self.write_one(Write::Rename { from, to: name(to)?, inode });
        Ok(())
    }

    fn sync_directory(&self, _of: &Path) -> io::Result<()> {
        self.0.borrow_mut().barrier(Barrier::Names);
        Ok(())
    }
}

impl Recorder {
    /// Replaces the configuration.
    ///
    /// # Errors
    /// When that program fails.
    pub fn configure(&mut self, yaml: &[u8]) -> io::Result<()> {
        replace_on(&Volume(RefCell::new(self)), &Path::new("/state").join(CONFIG), yaml, MODE)
    }
}

impl State {
    /// The configuration that a machine finds when it starts.
    pub fn config(&self) -> Option<Vec<u8>> {
        let inode = *self.entries.get(CONFIG)?;
        let len = self.sizes.get(&inode).copied().unwrap_or(0);
        Some(self.sectors(inode, len, len.div_ceil(SECTOR), 0))
    }
}
