//! Names in directories that somebody wrote to, made or took away.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Room for a few hundred events at once.
const BUFFER_LEN: usize = 16 << 10;

/// What to watch for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// A file was open for writing, and was closed.
    Written,
    /// A name came, went or changed.
    Names,
}

/// What a watcher was told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Names, without their directories.
    pub names: Vec<String>,
    /// Events were lost: look at everything.
    pub overrun: bool,
}

/// Waits for changes.
#[derive(Debug)]
pub struct Watcher {
    descriptor: AsyncFd<OwnedFd>,
}

impl Watcher {
    /// A watcher of nothing yet. Needs a tokio runtime.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new() -> io::Result<Self> {
        let descriptor = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        // SAFETY: an `OwnedFd` names the same open file until it is dropped, and the `AsyncFd` owns it.
        let descriptor = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?;
        Ok(Self { descriptor })
    }

    /// Watches a directory too; again is as good as once.
    ///
    /// # Errors
    /// The kernel's.
    pub fn add(&self, directory: &Path, topic: Topic) -> io::Result<()> {
        let flags = match topic {
            Topic::Written => WatchFlags::CLOSE_WRITE,
            Topic::Names => WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE,
        };
        inotify::add_watch(self.descriptor.get_ref(), directory, flags | WatchFlags::ONLYDIR)?;
        Ok(())
    }

    /// What changed since the last call; waits for something. Cancel safe.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn changed(&mut self) -> io::Result<Changes> {
        loop {
            let mut ready = self.descriptor.readable().await?;
            // Otherwise it was not ready after all.
            if let Ok(changes) = ready.try_io(|descriptor| read(descriptor.get_ref())) {
                return changes;
            }
        }
    }
}

fn read(descriptor: &OwnedFd) -> io::Result<Changes> {
    let mut buffer = [MaybeUninit::uninit(); BUFFER_LEN];
    let mut reader = Reader::new(descriptor, &mut buffer);
    let mut changes = Changes::default();
    loop {
        let event = match reader.next() {
            Ok(event) => event,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        changes.overrun |= event.events().contains(ReadFlags::QUEUE_OVERFLOW);
        changes.names.extend(event.file_name().and_then(|name| name.to_str().ok()).map(str::to_owned));
        if reader.is_buffer_empty() {
            return Ok(changes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_written_file_is_named_and_one_that_is_read_is_not() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("read"), "").unwrap();
        let mut watcher = Watcher::new().unwrap();
        watcher.add(dir.path(), Topic::Written).unwrap();
        std::fs::read(dir.path().join("read")).unwrap();
        std::fs::write(dir.path().join("written"), "x").unwrap();
        assert_eq!(
            watcher.changed().await.unwrap(),
            Changes { names: vec!["written".into()], overrun: false }
        );
        assert!(watcher.add(&dir.path().join("read"), Topic::Names).is_err(), "no directory");
    }

    #[tokio::test]
    async fn names_that_come_and_go_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut watcher = Watcher::new().unwrap();
        watcher.add(dir.path(), Topic::Names).unwrap();
        std::os::unix::fs::symlink("../sda", dir.path().join("one")).unwrap();
        std::fs::remove_file(dir.path().join("one")).unwrap();
        assert_eq!(watcher.changed().await.unwrap().names, ["one", "one"]);
    }
}
