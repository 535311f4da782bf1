//! An open block device: its sizes, its lock, its partitions as the kernel knows them.

mod ioctl;
mod kernel_partitions;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

use crate::gpt::{Geometry, GptError, Health, Table};
use crate::source::FileSource;

pub use kernel_partitions::{KernelChange, KernelPartition, plan};

/// Between two attempts to lock a device.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Who else may use a device meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// Others who read.
    Shared,
    /// Nobody.
    Exclusive,
}

/// What is in an optical drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Media {
    /// No such drive.
    NotOptical,
    /// No disc, or the tray is open.
    Missing,
    /// A disc.
    Present,
}

/// An open block device, or a file that stands in for one.
#[derive(Debug)]
pub struct Device {
    file: File,
    path: PathBuf,
}

impl Device {
    /// Opens a device to look at it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(path: &Path) -> io::Result<Self> {
        // A drive without a disc opens only like this.
        let file =
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Opens a device to change it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open_writable(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Opens a device to change it, if nobody uses it: no mount, no mapping, no other such opener.
    ///
    /// # Errors
    /// `ResourceBusy` while it is in use.
    pub fn open_unused(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_EXCL).open(path)?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its bytes.
    ///
    /// # Errors
    /// The kernel's.
    pub fn source(&self) -> io::Result<FileSource<'_>> {
        Ok(FileSource::new(&self.file, self.size()?))
    }

    /// Has the kernel read it anew. A disk and its partitions are cached apart: what was written to a partition is not in
    /// what the kernel remembers of the disk.
    pub fn forget_cached(&self) {
        // Best effort: the worst is an old view, which the next look corrects.
        let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
    }

    /// How many bytes it has.
    ///
    /// # Errors
    /// The kernel's.
    pub fn size(&self) -> io::Result<u64> {
        match self.is_device()? {
            true => ioctl::size(self.file.as_fd()),
            false => Ok(self.file.metadata()?.len()),
        }
    }

    /// Bytes of a logical sector.
    pub fn sector_size(&self) -> u32 {
        ioctl::sector_size(self.file.as_fd()).unwrap_or(512)
    }

    /// The optimal size of a request, or the smallest where there is none.
    pub fn io_size(&self) -> u64 {
        ioctl::io_size(self.file.as_fd()).unwrap_or(512)
    }

    /// What a partition table has to know of it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn geometry(&self) -> io::Result<Geometry> {
        Ok(Geometry { size: self.size()?, sector_size: self.sector_size(), io_size: self.io_size() })
    }

    /// What is in it, if it is an optical drive.
    pub fn media(&self) -> Media {
        ioctl::media(self.file.as_fd())
    }

    fn is_device(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.file_type().is_block_device())
    }

    /// Locks the device until it is closed. False when somebody else has it.
    ///
    /// The device manager keeps to the same lock: it does not look at a disk that is locked exclusively.
    ///
    /// # Errors
    /// The kernel's.
    pub fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        let operation = match lock {
            Lock::Shared => FlockOperation::NonBlockingLockShared,
            Lock::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        match rustix::fs::flock(&self.file, operation) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Locks the device, and waits for others at most this long. Blocks the thread.
    ///
    /// # Errors
    /// `TimedOut` when somebody else keeps it locked.
    pub fn lock_within(&self, lock: Lock, most: Duration) -> io::Result<()> {
        let until = Instant::now() + most;
        while !self.try_lock(lock)? {
            if Instant::now() >= until {
                let text = format!(
                    "{} is still locked by somebody else after {} s",
                    self.path.display(),
                    most.as_secs()
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            thread::sleep(LOCK_PAUSE);
        }
        Ok(())
    }

    /// Its partition table, if it has one, aligned for the device.
    ///
    /// # Errors
    /// See [`Table::read`].
    pub fn table(&self) -> Result<Option<(Table, Health)>, GptError> {
        let source = self.source().map_err(|source| GptError::Io { what: "read", source })?;
        let mut found = Table::read(&source, self.sector_size())?;
        if let Some((table, _)) = &mut found {
            table.align_to(self.io_size());
        }
        Ok(found)
    }

    /// Writes a partition table, each copy on disk before the next, and tells the kernel of what changed.
    ///
    /// # Errors
    /// The device's, or the kernel's when it keeps an old partition because somebody uses it.
    pub fn write_table(&self, table: &Table) -> Result<(), GptError> {
        let mut file = &self.file;
        table.write_with(&mut file, |file| file.sync_all())?;
        match self.is_device() {
            Ok(true) => {
                self.tell_kernel(table).map_err(|source| GptError::Io { what: "tell the kernel of", source })
            }
            Ok(false) => Ok(()),
            Err(source) => Err(GptError::Io { what: "tell the kernel of", source }),
        }
    }

    /// Makes the kernel's partitions those of the table.
    ///
    /// # Errors
    /// The kernel's: `ResourceBusy` when a partition that has to go is in use.
    pub fn tell_kernel(&self, table: &Table) -> io::Result<()> {
        let wanted = table.partitions().keys().filter_map(|number| {
            let (start, size) = table.offset_and_size(*number)?;
            Some((*number, KernelPartition { start, size }))
        });
        let device = self.file.metadata()?.rdev();
        let known = kernel_partitions::known(Path::new("/"), device)?;
        for change in plan(&known, &wanted.collect()) {
            ioctl::change_partition(self.file.as_raw_fd(), change).map_err(|error| {
                io::Error::new(error.kind(), format!("{change} of {}: {error}", self.path.display()))
            })?;
        }
        Ok(())
    }

    /// Makes the kernel read the partition table itself. Fails while one of the partitions is in use.
    ///
    /// # Errors
    /// The kernel's.
    pub fn reread_table(&self) -> io::Result<()> {
        ioctl::reread_table(self.file.as_fd())
    }

    /// Tells the device that these bytes are not needed; it may keep or forget them.
    ///
    /// # Errors
    /// `Unsupported` where it does not care.
    pub fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        ioctl::range(self.file.as_fd(), ioctl::BLKDISCARD, offset, len)
    }

    /// As [`Device::discard`], and the bytes cannot be brought back.
    ///
    /// # Errors
    /// `Unsupported` where it cannot.
    pub fn discard_securely(&self, offset: u64, len: u64) -> io::Result<()> {
        ioctl::range(self.file.as_fd(), ioctl::BLKSECDISCARD, offset, len)
    }

    /// Makes these bytes zeros.
    ///
    /// # Errors
    /// The kernel's.
    pub fn zero_out(&self, offset: u64, len: u64) -> io::Result<()> {
        ioctl::range(self.file.as_fd(), ioctl::BLKZEROOUT, offset, len)
    }
}
