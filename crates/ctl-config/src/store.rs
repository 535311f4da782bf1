//! The one writer of the machine configuration: on disk first, in state after.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use ichor_cosi::{State, StateError, Typed};
use ichor_resource::TypedSpec;
use ichor_resource::config::MachineConfig;

use crate::disk::{ConfigDisk, DiskError};

/// Tells clients that the YAML half of the resource is one string.
pub const YAML_ANNOTATION: (&str, &str) = ("talos.dev/yaml-spec", "1");

/// These resources have no controller as owner.
const OWNER: &str = "";

/// A configuration that could not be put in place.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk did not take it.
    #[error("persist the configuration")]
    Disk(#[from] DiskError),
    /// The state did not take it.
    #[error("publish the configuration")]
    State(#[from] StateError),
    /// The writer died.
    #[error("the writer of the configuration panicked")]
    Panic,
}

/// Writes the machine configuration. Cheap to clone.
#[derive(Clone)]
pub struct ConfigStore {
    inner: Arc<Inner>,
}

struct Inner {
    state: State,
    disk: Arc<dyn ConfigDisk>,
    runtime: Handle,
    /// One change at a time: an apply reads, decides and writes.
    change: tokio::sync::Mutex<()>,
    rollback: Mutex<Option<JoinHandle<()>>>,
}

/// The right to change the configuration; others wait.
pub struct Change<'a> {
    store: &'a ConfigStore,
    _turn: tokio::sync::MutexGuard<'a, ()>,
}

impl ConfigStore {
    /// A store over a state and a disk; timers run on `runtime`.
    pub fn new(state: State, disk: Arc<dyn ConfigDisk>, runtime: Handle) -> Self {
        let (change, rollback) = (tokio::sync::Mutex::new(()), Mutex::new(None));
        Self { inner: Arc::new(Inner { state, disk, runtime, change, rollback }) }
    }

    /// The active configuration.
    pub fn active(&self) -> Option<Typed<MachineConfig>> {
        self.find(MachineConfig::ACTIVE)
    }

    /// The configuration as it is on disk.
    pub fn persistent(&self) -> Option<Typed<MachineConfig>> {
        self.find(MachineConfig::PERSISTENT)
    }

    /// Whether the disk can be used.
    pub fn available(&self) -> Result<(), StoreError> {
        Ok(self.inner.disk.available()?)
    }

    /// What the disk holds.
    pub async fn load(&self) -> Result<Option<Vec<u8>>, StoreError> {
        let disk = Arc::clone(&self.inner.disk);
        let loaded = self.inner.runtime.spawn_blocking(move || disk.load()).await;
        Ok(loaded.map_err(|_| StoreError::Panic)??)
    }

    /// Waits for the turn to change the configuration.
    pub async fn change(&self) -> Change<'_> {
        Change { store: self, _turn: self.inner.change.lock().await }
    }

    fn find(&self, id: &str) -> Option<Typed<MachineConfig>> {
        self.inner.state.find(MachineConfig::definition().default_namespace, id)
    }

    fn publish(&self, id: &str, yaml: &Bytes) -> Result<(), StoreError> {
        let namespace = MachineConfig::definition().default_namespace;
        self.inner.state.modify_with::<MachineConfig>(namespace, id, OWNER, |spec, meta| {
            let (key, value) = YAML_ANNOTATION;
            meta.set_annotation(key, value);
            if spec.yaml != yaml {
                *spec = MachineConfig::new(yaml.clone());
            }
        })?;
        Ok(())
    }

    fn stop_rollback(&self) {
        let pending = self.inner.rollback.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(timer) = pending {
            timer.abort();
        }
    }
}

impl Change<'_> {
    /// Notes that the disk holds this already.
    pub fn loaded(&self, yaml: &Bytes) -> Result<(), StoreError> {
        self.store.publish(MachineConfig::PERSISTENT, yaml)
    }

    /// Writes to disk, then to state. Ends a trial.
    pub async fn persist(&self, yaml: &Bytes) -> Result<(), StoreError> {
        let disk = Arc::clone(&self.store.inner.disk);
        let bytes = yaml.clone();
        let saved = self.store.inner.runtime.spawn_blocking(move || disk.save(&bytes)).await;
        saved.map_err(|_| StoreError::Panic)??;
        // Not before: a trial whose successor could not be saved still has to end.
        self.store.stop_rollback();
        self.store.publish(MachineConfig::PERSISTENT, yaml)
    }

    /// Makes it the active configuration. Ends a trial.
    pub fn activate(&self, yaml: &Bytes) -> Result<(), StoreError> {
        self.store.stop_rollback();
        self.store.publish(MachineConfig::ACTIVE, yaml)
    }

    /// Makes it the active configuration for a while; then the one that is active now comes back.
    ///
    /// A second trial starts from the first: it is the first that comes back.
    pub fn try_for(&self, yaml: &Bytes, time: Duration) -> Result<(), StoreError> {
        self.store.stop_rollback();
        let before = self.store.active().map(|config| config.yaml.clone());
        self.store.publish(MachineConfig::ACTIVE, yaml)?;
        let Some(before) = before else { return Ok(()) };
        let store = self.store.clone();
        let timer = self.store.inner.runtime.spawn(async move {
            tokio::time::sleep(time).await;
            let change = store.change().await;
            info!("the configuration trial is over, returning to the one before");
            if let Err(error) = change.store.publish(MachineConfig::ACTIVE, &before) {
                warn!(%error, "the configuration before the trial did not come back");
            }
        });
        *self.store.inner.rollback.lock().unwrap_or_else(PoisonError::into_inner) = Some(timer);
        Ok(())
    }

    /// Whether a trial runs.
    pub fn is_trial(&self) -> bool {
        let rollback = self.store.inner.rollback.lock().unwrap_or_else(PoisonError::into_inner);
        rollback.as_ref().is_some_and(|timer| !timer.is_finished())
    }
}

#[cfg(test)]
mod tests {
    use ichor_testkit::eventually;

    use super::*;
    use crate::disk::StateDir;

    fn text(config: Option<Typed<MachineConfig>>) -> String {
        config.map(|config| String::from_utf8_lossy(&config.yaml).into_owned()).unwrap_or_default()
    }

    fn bench() -> (tempfile::TempDir, ConfigStore) {
        let dir = tempfile::tempdir().unwrap();
        let (state, _clock) = ichor_testkit::state();
        let disk = Arc::new(StateDir::new(dir.path()));
        (dir, ConfigStore::new(state, disk, Handle::current()))
    }

    #[tokio::test]
    async fn a_persisted_configuration_is_on_disk_and_in_state() {
        let (_dir, store) = bench();
        let change = store.change().await;
        change.persist(&Bytes::from_static(b"a")).await.unwrap();
        assert_eq!(store.load().await.unwrap().as_deref(), Some(&b"a"[..]));
        assert_eq!(text(store.persistent()), "a");
        assert_eq!(text(store.active()), "", "persisting does not activate");
        let annotation = store.persistent().unwrap().meta().annotation(YAML_ANNOTATION.0).map(str::to_owned);
        assert_eq!(annotation.as_deref(), Some("1"));
    }

    #[tokio::test]
    async fn what_the_disk_refuses_is_not_in_state() {
        let (dir, store) = bench();
        std::fs::create_dir(dir.path().join(".config.yaml.new")).unwrap();
        let change = store.change().await;
        change.persist(&Bytes::from_static(b"a")).await.unwrap_err();
        assert_eq!(text(store.persistent()), "");
    }

    #[tokio::test]
    async fn a_trial_ends_with_the_configuration_before() {
        let (_dir, store) = bench();
        let change = store.change().await;
        change.activate(&Bytes::from_static(b"old")).unwrap();
        change.try_for(&Bytes::from_static(b"new"), Duration::from_millis(30)).unwrap();
        assert_eq!(text(store.active()), "new");
        assert!(change.is_trial());
        drop(change);
        eventually("the return of the old one", || text(store.active()) == "old").await;
        assert_eq!(text(store.persistent()), "", "a trial is never persisted");
    }

    #[tokio::test]
    async fn a_second_trial_returns_to_the_first() {
        let (_dir, store) = bench();
        let change = store.change().await;
        change.activate(&Bytes::from_static(b"old")).unwrap();
        change.try_for(&Bytes::from_static(b"first"), Duration::from_millis(20)).unwrap();
        change.try_for(&Bytes::from_static(b"second"), Duration::from_millis(60)).unwrap();
        drop(change);
        tokio::time::sleep(Duration::from_millis(30)).await;
        assert_eq!(text(store.active()), "second", "the first timer is gone");
        eventually("the return of the first", || text(store.active()) == "first").await;
    }

    #[tokio::test]
    async fn a_trial_does_not_outlive_the_program() {
        let (dir, store) = bench();
        let change = store.change().await;
        change.persist(&Bytes::from_static(b"kept")).await.unwrap();
        change.activate(&Bytes::from_static(b"kept")).unwrap();
        change.try_for(&Bytes::from_static(b"tried"), Duration::from_secs(60)).unwrap();
        drop(change);
        // A new program knows the disk alone.
        let (state, _clock) = ichor_testkit::state();
        let disk = Arc::new(StateDir::new(dir.path()));
        let after = ConfigStore::new(state, disk, Handle::current());
        assert_eq!(after.load().await.unwrap().as_deref(), Some(&b"kept"[..]));
        assert_eq!(text(after.active()), "");
    }

    #[tokio::test]
    async fn accepting_a_configuration_ends_the_trial() {
        let (_dir, store) = bench();
        let change = store.change().await;
        change.activate(&Bytes::from_static(b"old")).unwrap();
        change.try_for(&Bytes::from_static(b"new"), Duration::from_millis(20)).unwrap();
        change.persist(&Bytes::from_static(b"new")).await.unwrap();
        change.activate(&Bytes::from_static(b"new")).unwrap();
        drop(change);
        tokio::time::sleep(Duration::from_millis(80)).await;
        assert_eq!(text(store.active()), "new");
    }
}
