//! META: a few values that outlive everything else on the machine.
//!
//! Values are in memory, on disk and in the state (`MetaKeys`), in this order of making: a value is on disk
//! before anybody can read it.
//!
//! META of which both copies are damaged is not taken for an empty one. The machine goes on without its values, says so
//! in a diagnostic, and writes nothing over what is left until META is reset.

pub mod tlv;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ichor_cosi::{State, StateError};
use ichor_resource::runtime::{MetaKey, MetaLoad};
use tokio::runtime::Handle;
use tracing::{error, warn};

use tlv::{COPY_LEN, Content, META_LEN, Tags};

/// The file of META where it is no partition, in the state directory.
pub const META_FILE: &str = "meta";

/// The key of the installation to go back to.
pub const UPGRADE: u8 = 0x06;
/// The key of the encryption of STATE.
pub const STATE_ENCRYPTION: u8 = 0x09;
/// The key that replaces the UUID of the machine.
pub const UUID_OVERRIDE: u8 = 0x0f;

/// The one id of `MetaLoads`.
const LOADED: &str = "meta-loaded";
const NAMESPACE: &str = "runtime";

/// Why META could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum MetaError {
    /// No such key.
    #[error("META has no key 0x{key:02x}")]
    NotFound {
        /// The key asked for.
        key: u8,
    },
    /// A key that the format on disk keeps for itself.
    #[error("META has no key 0x{key:02x}: keys are 0x01 to 0xff")]
    BadKey {
        /// The key asked for.
        key: u8,
    },
    /// The values would not fit.
    #[error("no space left in META")]
    NoSpace,
    /// Neither copy can be read, and neither is overwritten.
    #[error(
        "{path}: both copies of META are damaged and are kept as they are; reset META to start over with an empty one \
         (`reset --system-labels-to-wipe META`)"
    )]
    Damaged {
        /// META's file or partition.
        path: PathBuf,
    },
    /// The disk.
    #[error("{path}: {source}")]
    Disk {
        /// META's file or partition.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The state refused the mirror; a bug.
    #[error(transparent)]
    State(#[from] StateError),
}

/// META of this machine. Cheap to clone.
#[derive(Clone)]
pub struct Meta {
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    state: State,
    /// Where the disk is waited for: the runtime of whoever made this, and no caller's.
    runtime: Handle,
    tags: Mutex<Tags>,
    /// Whether what is on disk was read or written, and is good.
    intact: AtomicBool,
    /// Whether what was read is damaged.
    damaged: AtomicBool,
}

impl Meta {
    /// META kept in the file or partition at `path`, shown in `state`; `runtime` waits for the disk. Nothing is read
    /// yet.
    pub fn new(state: State, path: impl Into<PathBuf>, runtime: Handle) -> Self {
        let (intact, damaged) = (AtomicBool::new(false), AtomicBool::new(false));
        let (path, tags) = (path.into(), Mutex::default());
        Self { shared: Arc::new(Shared { path, state, runtime, tags, intact, damaged }) }
    }

    /// Where META is kept, if both of its copies are damaged.
    pub fn damaged(&self) -> Option<&Path> {
        self.shared.damaged.load(Ordering::SeqCst).then_some(self.shared.path.as_path())
    }

    /// A value.
    pub fn get(&self, key: u8) -> Option<Vec<u8>> {
        self.shared.lock().get(&key).cloned()
    }

    /// Reads META and says so in the state. What is in memory already wins over what was read, and a META
    /// that is not there is empty. One that is damaged has no values, is told as an error, and is left as it is.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn load(&self) -> Result<(), MetaError> {
        self.blocking(|shared, tags| {
            let mut read = match shared.read() {
                Err(damaged @ MetaError::Damaged { .. }) => {
                    error!("{damaged}");
                    Tags::new()
                }
                read => read?,
            };
            read.append(tags);
            *tags = read;
            for (key, value) in &*tags {
                shared.show(*key, value)?;
            }
            shared.state.modify::<MetaLoad>(NAMESPACE, LOADED, "", |spec| spec.done = true)?;
            Ok(())
        })
        .await
    }

    /// Sets a value; it is on disk when this returns.
    ///
    /// # Errors
    /// [`MetaError::NoSpace`], [`MetaError::BadKey`], [`MetaError::Damaged`], or the disk's.
    pub async fn set(&self, key: u8, value: Vec<u8>) -> Result<(), MetaError> {
        self.blocking(move |shared, tags| {
            if key == tlv::END {
                return Err(MetaError::BadKey { key });
            }
            shared.check(tags)?;
            let mut wanted = tags.clone();
            wanted.insert(key, value);
            shared.write(&wanted)?;
            *tags = wanted;
            shared.show(key, &tags[&key])
        })
        .await
    }

    /// Takes a value away, on disk too.
    ///
    /// # Errors
    /// [`MetaError::NotFound`], or the disk's.
    pub async fn delete(&self, key: u8) -> Result<(), MetaError> {
        self.blocking(move |shared, tags| {
            shared.check(tags)?;
            let mut wanted = tags.clone();
            wanted.remove(&key).ok_or(MetaError::NotFound { key })?;
            shared.write(&wanted)?;
            *tags = wanted;
            shared.hide(key)
        })
        .await
    }

    /// Writes what is in memory, after whatever held the file was cleared.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn flush(&self) -> Result<(), MetaError> {
        self.blocking(|shared, tags| {
            shared.check(tags)?;
            shared.write(tags)
        })
        .await
    }

    /// Forgets all values, on disk too, also those of a META that is damaged.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn clear(&self) -> Result<(), MetaError> {
        self.blocking(|shared, tags| {
            shared.write(&Tags::new())?;
            for key in std::mem::take(tags).into_keys() {
                shared.hide(key)?;
            }
            Ok(())
        })
        .await
    }

    async fn blocking(
        &self,
        work: impl FnOnce(&Shared, &mut Tags) -> Result<(), MetaError> + Send + 'static,
    ) -> Result<(), MetaError> {
        let shared = Arc::clone(&self.shared);
        let done = self.shared.runtime.spawn_blocking(move || work(&shared, &mut shared.lock()));
        match done.await {
            Ok(result) => result,
            Err(error) => Err(self.shared.disk(io::Error::other(error))),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Tags> {
        self.tags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn disk(&self, source: io::Error) -> MetaError {
        MetaError::Disk { path: self.path.clone(), source }
    }

    fn show(&self, key: u8, value: &[u8]) -> Result<(), MetaError> {
        let text = String::from_utf8_lossy(value);
        self.state
            .modify::<MetaKey>(NAMESPACE, &id(key), "", |spec| text.as_ref().clone_into(&mut spec.value))?;
        Ok(())
    }

    fn hide(&self, key: u8) -> Result<(), MetaError> {
        match self.state.destroy::<MetaKey>(NAMESPACE, &id(key), "") {
            Ok(()) | Err(StateError::NotFound(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The values on disk; notes whether they are damaged.
    fn read(&self) -> Result<Tags, MetaError> {
        let mut copies = vec![0; 2 * COPY_LEN];
        let content = match File::open(&self.path).and_then(|file| read_up_to(&file, &mut copies)) {
            Ok(len) => tlv::decode_either(&copies[..len]),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Content::Blank,
            Err(error) => return Err(self.disk(error)),
        };
        self.damaged.store(content == Content::Damaged, Ordering::SeqCst);
        self.intact.store(content != Content::Damaged, Ordering::SeqCst);
        match content {
            Content::Blank => Ok(Tags::new()),
            Content::Values { tags, both } => {
                if !both {
                    warn!(path = %self.path.display(), "one of the two copies of META is damaged; using the other");
                }
                Ok(tags)
            }
            Content::Damaged => Err(MetaError::Damaged { path: self.path.clone() }),
        }
    }

    /// Before a change: what is on disk and was not read yet is read, and is an error while it is damaged. It may have
    /// been cleared since it was found so.
    fn check(&self, tags: &mut Tags) -> Result<(), MetaError> {
        if !self.intact.load(Ordering::SeqCst) {
            let mut read = self.read()?;
            read.append(tags);
            *tags = read;
        }
        Ok(())
    }

    fn write(&self, tags: &Tags) -> Result<(), MetaError> {
        let copy = tlv::encode(tags).ok_or(MetaError::NoSpace)?;
        write_copies(&self.path, &copy).map_err(|error| self.disk(error))?;
        self.damaged.store(false, Ordering::SeqCst);
        self.intact.store(true, Ordering::SeqCst);
        Ok(())
    }
}

/// Fills the buffer as far as the file goes, and gives how far that is.
fn read_up_to(file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut at = 0;
    while at < buffer.len() {
        match file.read_at(&mut buffer[at..], at as u64)? {
            0 => break,
            read => at += read,
        }
    }
    Ok(at)
}

/// One copy after the other, each on disk before the next: a power cut leaves at least one of them whole.
fn write_copies(path: &Path, copy: &[u8]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let found = file.metadata()?;
    if found.is_file() && found.len() < META_LEN as u64 {
        file.set_len(META_LEN as u64)?;
    }
    for at in [0, COPY_LEN as u64] {
        file.write_all_at(copy, at)?;
        file.sync_all()?;
    }
    if let Some(folder) = path.parent().filter(|_| found.is_file()) {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

fn id(key: u8) -> String {
    format!("0x{key:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn values_outlive_the_process_and_show_in_the_state() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(META_FILE);
        let (state, _) = ichor_testkit::state();
        let meta = Meta::new(state.clone(), &path, Handle::current());
        meta.load().await.unwrap();
        assert!(state.get::<MetaLoad>("runtime", "meta-loaded").unwrap().done);
        meta.set(0x0a, b"hello".to_vec()).await.unwrap();
        meta.set(0x0c, b"gone soon".to_vec()).await.unwrap();
        assert_eq!(state.get::<MetaKey>("runtime", "0x0a").unwrap().value, "hello");
        meta.delete(0x0c).await.unwrap();
        assert!(state.get::<MetaKey>("runtime", "0x0c").is_err());
        let error = meta.delete(0x0c).await.unwrap_err();
        assert_eq!(error.to_string(), "META has no key 0x0c");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), META_LEN as u64);

        let (state, _) = ichor_testkit::state();
        let again = Meta::new(state.clone(), &path, Handle::current());
        again.shared.lock().insert(0x0f, b"set before it was read".to_vec());
        again.load().await.unwrap();
        assert_eq!(again.get(0x0a).as_deref(), Some(&b"hello"[..]));
        assert_eq!(state.list::<MetaKey>("runtime").len(), 2);
    }

    #[tokio::test]
    async fn what_does_not_fit_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (state, _) = ichor_testkit::state();
        let meta = Meta::new(state.clone(), folder.path().join(META_FILE), Handle::current());
        meta.set(1, b"small".to_vec()).await.unwrap();
        assert!(matches!(meta.set(2, vec![b'x'; COPY_LEN]).await, Err(MetaError::NoSpace)));
        // Key 0 ends the list on disk: a value there would hide all others.
        assert!(matches!(meta.set(0, b"x".to_vec()).await, Err(MetaError::BadKey { .. })));
        assert_eq!(meta.get(2), None);
        assert!(state.get::<MetaKey>("runtime", "0x02").is_err());
    }

    #[tokio::test]
    async fn a_disk_that_fails_is_named() {
        let (state, _) = ichor_testkit::state();
        let meta = Meta::new(state, "/proc/no/such/meta", Handle::current());
        let error = meta.set(1, Vec::new()).await.unwrap_err();
        assert!(error.to_string().starts_with("/proc/no/such/meta: "), "{error}");
        assert_eq!(meta.get(1), None);
    }
    #[tokio::test]
    async fn a_meta_with_two_bad_copies_is_an_error_and_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(META_FILE);
        let (state, _) = ichor_testkit::state();
        let meta = Meta::new(state.clone(), &path, Handle::current());
        meta.set(0x0a, b"hello".to_vec()).await.unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[20] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let one_bad = Meta::new(ichor_testkit::state().0, &path, Handle::current());
        one_bad.load().await.unwrap();
        assert_eq!((one_bad.damaged(), one_bad.get(0x0a).as_deref()), (None, Some(&b"hello"[..])));

        bytes[COPY_LEN + 20] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let (state, _) = ichor_testkit::state();
        let meta = Meta::new(state.clone(), &path, Handle::current());
        let unread = meta.set(0x0b, b"new".to_vec()).await;
        assert!(matches!(unread, Err(MetaError::Damaged { .. })), "before it was read, too");
        // The machine starts without its values, and says so.
        meta.load().await.unwrap();
        assert!(state.get::<MetaLoad>("runtime", "meta-loaded").unwrap().done);
        assert_eq!(meta.damaged(), Some(path.as_path()));
        let error = meta.set(0x0b, b"new".to_vec()).await.unwrap_err();
        assert!(error.to_string().contains("both copies of META are damaged"), "{error}");
        assert!(matches!(meta.flush().await, Err(MetaError::Damaged { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "the old bytes are still there");
        // The way out: a reset of META, or of the filesystem it is in.
        meta.clear().await.unwrap();
        meta.set(0x0b, b"new".to_vec()).await.unwrap();
        assert_eq!(meta.damaged(), None);
        std::fs::write(&path, &bytes).unwrap();
        meta.load().await.unwrap();
        std::fs::remove_file(&path).unwrap();
        meta.flush().await.unwrap();
        assert_eq!(meta.damaged(), None);
    }
}
