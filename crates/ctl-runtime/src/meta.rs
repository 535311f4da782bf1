//! META: a few values that outlive everything else on the machine.
//!
//! Values are in memory, on disk and in the state (`MetaKeys`), in this order of making: a value is on disk
//! before anybody can read it.
//!
//! META of which both copies are damaged is not taken for an empty one. The machine goes on without its values, says so
//! in a diagnostic, and writes nothing over what is left until META is reset.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ichor_block::meta::tlv::{self, Content, Tags};
use ichor_block::meta::{self as format, Image, Place};
use ichor_cosi::{State, StateError};
use ichor_resource::runtime::{MetaKey, MetaLoad};
use tokio::runtime::Handle;
use tracing::{error, warn};

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

/// What META holds, in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Values {
    tags: Tags,
    /// Values in the block of old installations: read where there is no other, never written, only taken out.
    legacy: Tags,
}

impl Values {
    fn get(&self, key: u8) -> Option<&Vec<u8>> {
        self.tags.get(&key).or_else(|| self.legacy.get(&key))
    }

    /// Takes a value out; one of an old installation stays where a newer one has hidden it.
    fn remove(&mut self, key: u8) -> Option<Vec<u8>> {
        self.tags.remove(&key).or_else(|| self.legacy.remove(&key))
    }

    /// What was read, with what is in memory already on top of it.
    fn merge(&mut self, mut read: Self) {
        read.tags.append(&mut self.tags);
        *self = read;
    }

    fn keys(&self) -> impl Iterator<Item = u8> {
        self.tags.keys().chain(self.legacy.keys()).copied()
    }
}

/// META of this machine. Cheap to clone.
#[derive(Clone)]
pub struct Meta {
    shared: Arc<Shared>,
}

struct Shared {
    place: Mutex<Place>,
    state: State,
    /// Where the disk is waited for: the runtime of whoever made this, and no caller's.
    runtime: Handle,
    values: Mutex<Values>,
    /// Held while META is written, here or by somebody it was lent to.
    writing: tokio::sync::Mutex<()>,
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
        let (place, values) = (Mutex::new(Place::File(path.into())), Mutex::default());
        let writing = tokio::sync::Mutex::default();
        Self { shared: Arc::new(Shared { place, state, runtime, values, writing, intact, damaged }) }
    }

    /// Keeps META at another place from now on. Nothing is read or written yet; [`Meta::load`] reads what is there.
    pub fn move_to(&self, place: Place) {
        *self.shared.place.lock().unwrap_or_else(PoisonError::into_inner) = place;
        self.shared.intact.store(false, Ordering::SeqCst);
    }

    /// Whether META has a partition of its own, which outlives the state directory.
    pub fn is_on_partition(&self) -> bool {
        matches!(self.shared.place(), Place::Partition { .. })
    }

    /// Where META is kept, if both of its copies are damaged.
    pub fn damaged(&self) -> Option<PathBuf> {
        self.shared.damaged.load(Ordering::SeqCst).then(|| self.shared.path())
    }

    /// A value.
    pub fn get(&self, key: u8) -> Option<Vec<u8>> {
        self.shared.lock().get(key).cloned()
    }

    /// Reads META and says so in the state. What is in memory already wins over what was read, and a META
    /// that is not there is empty. One that is damaged has no values, is told as an error, and is left as it is.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn load(&self) -> Result<(), MetaError> {
        self.blocking(|shared, values| {
            let read = match shared.read() {
                Err(damaged @ MetaError::Damaged { .. }) => {
                    error!("{damaged}");
                    Values::default()
                }
                read => read?,
            };
            values.merge(read);
            for key in values.keys() {
                if let Some(value) = values.get(key) {
                    shared.show(key, value)?;
                }
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
        self.blocking(move |shared, values| {
            if key == tlv::END {
                return Err(MetaError::BadKey { key });
            }
            shared.check(values)?;
            let mut wanted = values.clone();
            wanted.tags.insert(key, value);
            shared.write(&wanted)?;
            *values = wanted;
            shared.show(key, &values.tags[&key])
        })
        .await
    }

    /// Takes a value away, on disk too.
    ///
    /// # Errors
    /// [`MetaError::NotFound`], or the disk's.
    pub async fn delete(&self, key: u8) -> Result<(), MetaError> {
        self.blocking(move |shared, values| {
            shared.check(values)?;
            let mut wanted = values.clone();
            wanted.remove(key).ok_or(MetaError::NotFound { key })?;
            shared.write(&wanted)?;
            *values = wanted;
            match values.get(key) {
                Some(older) => shared.show(key, older),
                None => shared.hide(key),
            }
        })
        .await
    }

    /// Writes what is in memory, after whatever held the file was cleared.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn flush(&self) -> Result<(), MetaError> {
        self.blocking(|shared, values| {
            shared.check(values)?;
            shared.write(values)
        })
        .await
    }

    /// Forgets all values, on disk too, also those of a META that is damaged.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn clear(&self) -> Result<(), MetaError> {
        self.blocking(|shared, values| {
            shared.write(&Values::default())?;
            for key in std::mem::take(values).keys() {
                shared.hide(key)?;
            }
            Ok(())
        })
        .await
    }

    /// Lets somebody else change META on disk while `work` runs: nothing is written from here meanwhile, and afterwards
    /// what is on disk counts.
    ///
    /// # Errors
    /// When META cannot be read afterwards.
    pub async fn lend<T>(&self, work: impl Future<Output = T>) -> Result<T, MetaError> {
        let _held = self.shared.writing.lock().await;
        let done = work.await;
        self.on_thread(|shared, values| {
            let read = shared.read()?;
            for key in values.keys().filter(|key| read.get(*key).is_none()) {
                shared.hide(key)?;
            }
            *values = read;
            for key in values.keys() {
                if let Some(value) = values.get(key) {
                    shared.show(key, value)?;
                }
            }
            Ok(())
        })
        .await?;
        Ok(done)
    }

    async fn blocking(
        &self,
        work: impl FnOnce(&Shared, &mut Values) -> Result<(), MetaError> + Send + 'static,
    ) -> Result<(), MetaError> {
        let _held = self.shared.writing.lock().await;
        self.on_thread(work).await
    }

    async fn on_thread(
        &self,
        work: impl FnOnce(&Shared, &mut Values) -> Result<(), MetaError> + Send + 'static,
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
    fn lock(&self) -> MutexGuard<'_, Values> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self) -> Place {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn path(&self) -> PathBuf {
        self.place().path().to_owned()
    }

    fn disk(&self, source: io::Error) -> MetaError {
        MetaError::Disk { path: self.path(), source }
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
    fn read(&self) -> Result<Values, MetaError> {
        let image = match format::read(&self.place()) {
            Ok(image) => image,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Image::blank(),
            Err(error) => return Err(self.disk(error)),
        };
        let damaged = image.content == Content::Damaged;
        self.damaged.store(damaged, Ordering::SeqCst);
        self.intact.store(!damaged, Ordering::SeqCst);
        let tags = match image.content {
            Content::Blank => Tags::new(),
            Content::Values { tags, both } => {
                if !both {
                    warn!(path = %self.path().display(), "one of the two copies of META is damaged; using the other");
                }
                tags
            }
            Content::Damaged => return Err(MetaError::Damaged { path: self.path() }),
        };
        Ok(Values { tags, legacy: image.legacy })
    }

    /// Before a change: what is on disk and was not read yet is read, and is an error while it is damaged. It may have
    /// been cleared since it was found so.
    fn check(&self, values: &mut Values) -> Result<(), MetaError> {
        if !self.intact.load(Ordering::SeqCst) {
            values.merge(self.read()?);
        }
        Ok(())
    }

    fn write(&self, values: &Values) -> Result<(), MetaError> {
        let written = format::write(&self.place(), &values.tags, &values.legacy);
        written.map_err(|error| self.disk(error))?.ok_or(MetaError::NoSpace)?;
        self.damaged.store(false, Ordering::SeqCst);
        self.intact.store(true, Ordering::SeqCst);
        Ok(())
    }
}

fn id(key: u8) -> String {
    format!("0x{key:02x}")
}

#[cfg(test)]
mod tests {
    use ichor_block::meta::adv;
    use ichor_block::meta::tlv::{COPY_LEN, META_LEN};

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
        again.shared.lock().tags.insert(0x0f, b"set before it was read".to_vec());
        again.load().await.unwrap();
        assert_eq!(again.get(0x0a).as_deref(), Some(&b"hello"[..]));
        assert_eq!(state.list::<MetaKey>("runtime").len(), 2);
    }

    #[tokio::test]
    async fn what_somebody_else_wrote_meanwhile_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(META_FILE);
        let (state, _) = ichor_testkit::state();
        let meta = Meta::new(state.clone(), &path, Handle::current());
        meta.set(0x0a, b"old".to_vec()).await.unwrap();
        meta.set(0x0c, b"gone soon".to_vec()).await.unwrap();
        let place = Place::File(path);
        let setting = {
            let meta = meta.clone();
            async move { meta.set(0x0f, b"from here".to_vec()).await }
        };
        let mut waiting = None;
        meta.lend(async {
            // A value that is set meanwhile waits until the other one is done, and does not undo what it did.
            waiting = Some(tokio::spawn(setting));
            tokio::task::yield_now().await;
            let tags = Tags::from([(0x0a, b"new".to_vec()), (0xe0, b"slots 1".to_vec())]);
            format::write(&place, &tags, &Tags::new()).unwrap().unwrap();
        })
        .await
        .unwrap();
        waiting.unwrap().await.unwrap().unwrap();
        let Content::Values { tags, .. } = format::read(&place).unwrap().content else { panic!() };
        let text = |key: u8| tags.get(&key).map(|value| String::from_utf8_lossy(value).into_owned());
        assert_eq!(text(0x0a).as_deref(), Some("new"));
        assert_eq!(text(0xe0).as_deref(), Some("slots 1"));
        assert_eq!(text(0x0f).as_deref(), Some("from here"));
        assert_eq!(text(0x0c), None);
        assert!(state.get::<MetaKey>("runtime", "0x0c").is_err());
        assert_eq!(state.get::<MetaKey>("runtime", "0xe0").unwrap().value, "slots 1");
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
    async fn values_of_an_old_installation_are_read_hidden_and_taken_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(META_FILE);
        let old = Tags::from([(0x06, b"A".to_vec()), (0x0a, b"old".to_vec())]);
        let zeros = vec![0; META_LEN - adv::LEN];
        std::fs::write(&path, [zeros, adv::encode(&old)].concat()).unwrap();
        let (state, _) = ichor_testkit::state();
        let meta = Meta::new(state.clone(), &path, Handle::current());
        meta.load().await.unwrap();
        assert_eq!(state.get::<MetaKey>("runtime", "0x06").unwrap().value, "A");
        meta.set(0x0a, b"new".to_vec()).await.unwrap();
        assert_eq!(meta.get(0x0a).as_deref(), Some(&b"new"[..]));
        // What hid the old value goes first, then the old value itself.
        meta.delete(0x0a).await.unwrap();
        assert_eq!(state.get::<MetaKey>("runtime", "0x0a").unwrap().value, "old");
        meta.delete(0x0a).await.unwrap();
        assert!(matches!(meta.delete(0x0a).await, Err(MetaError::NotFound { .. })));
        let again = Meta::new(ichor_testkit::state().0, &path, Handle::current());
        again.load().await.unwrap();
        assert_eq!((again.get(0x06).as_deref(), again.get(0x0a)), (Some(&b"A"[..]), None));
    }

    #[tokio::test]
    async fn what_was_set_before_its_partition_was_found_goes_there() {
        let folder = tempfile::tempdir().unwrap();
        let (disk, partition) = (folder.path().join("sda"), folder.path().join("sda1"));
        std::fs::write(&disk, "").unwrap();
        std::fs::write(&partition, vec![0; META_LEN]).unwrap();
        let (state, _) = ichor_testkit::state();
        let meta = Meta::new(state, folder.path().join(META_FILE), Handle::current());
        meta.set(0x0a, b"early".to_vec()).await.unwrap();
        assert!(!meta.is_on_partition());
        meta.move_to(Place::Partition { partition: partition.clone(), disk: disk.clone() });
        assert!(meta.is_on_partition());
        meta.load().await.unwrap();
        meta.set(0x0b, b"late".to_vec()).await.unwrap();
        let again = Meta::new(ichor_testkit::state().0, "/nowhere", Handle::current());
        again.move_to(Place::Partition { partition, disk });
        again.load().await.unwrap();
        assert_eq!(
            (again.get(0x0a).as_deref(), again.get(0x0b).as_deref()),
            (Some(&b"early"[..]), Some(&b"late"[..]))
        );
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
        assert_eq!(meta.damaged(), Some(path.clone()));
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
