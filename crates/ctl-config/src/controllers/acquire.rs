//! Searches for a configuration from the moment the boot sequence asks for one until it is there.

use std::time::Duration;

use bytes::Bytes;
use tracing::info;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, destroy_ready, exclusive, weak};
use ichor_resource::config::MachineConfig;
use ichor_resource::runtime::MaintenanceServiceRequest;
use ichor_resource::v1alpha1::{AcquireConfigSpec, AcquireConfigStatus};

use super::BoxFuture;
use crate::acquire::{Found, Source, next};
use crate::store::ConfigStore;

/// The one id of question and answer.
pub(super) const ID: &str = "machine-config";

/// How often a disk that could not be used is looked at again.
const DISK_PAUSE: Duration = Duration::from_secs(2);

/// The one id of the maintenance service.
const MAINTENANCE: &str = "maintenance";

/// What the search needs from the node.
pub trait AcquirePort: Send + Sync + 'static {
    /// Looks whether a source has a configuration. STATE and maintenance are not asked here.
    fn load(&self, source: Source) -> BoxFuture<'_, Result<Option<Vec<u8>>, String>>;

    /// Checks a configuration.
    fn check(&self, source: Source, yaml: &[u8]) -> Result<Found, String>;

    /// The platform's name, for the log.
    fn platform(&self) -> &str;

    /// The machine begins to wait for a configuration.
    fn maintenance_began(&self);

    /// It has one.
    fn maintenance_ended(&self);

    /// A source failed.
    fn failed(&self, error: &str);
}

enum Stage {
    Search(Source),
    /// With the version of the submission dealt with last.
    Maintenance(Option<u64>),
    Leave,
    Done,
}

/// Answers the boot sequence's question for a configuration.
pub struct AcquireController<P> {
    port: P,
    store: ConfigStore,
    stage: Stage,
    /// Whether the disk could not be used when it was looked at: it may hold a configuration that no other replaces.
    is_disk_lost: bool,
}

impl<P: AcquirePort> AcquireController<P> {
    /// A controller that puts what it finds into `store`.
    pub fn new(port: P, store: ConfigStore) -> Self {
        Self { port, store, stage: Stage::Search(Source::State), is_disk_lost: false }
    }

    /// Looks at one source and puts what it has in place.
    async fn search(&self, source: Source) -> Result<Found, ControllerError> {
        let loaded = match source {
            Source::State => self.store.load().await?,
            Source::Maintenance => None,
            Source::Embedded | Source::CmdlineEarly | Source::Platform | Source::CmdlineLate => {
                self.port.load(source).await.map_err(ControllerError::new)?
            }
        };
        match loaded {
            Some(yaml) if !yaml.trim_ascii().is_empty() => self.accept(source, yaml.into()).await,
            Some(_) | None => Ok(Found::Nothing),
        }
    }

    async fn accept(&self, source: Source, yaml: Bytes) -> Result<Found, ControllerError> {
        let name = source.name(self.port.platform());
        let found = self
            .port
            .check(source, &yaml)
            .map_err(|error| ControllerError::new(format!("configuration from {name}: {error}")))?;
        let change = self.store.change().await;
        match source {
            Source::State => change.loaded(&yaml)?,
            Source::Embedded
            | Source::CmdlineEarly
            | Source::Platform
            | Source::CmdlineLate
            | Source::Maintenance => change.persist(&yaml).await?,
        }
        change.activate(&yaml)?;
        info!(source = name, complete = found == Found::Complete, "machine configuration loaded");
        Ok(found)
    }

    async fn step(&mut self, ctx: &Context) -> Result<bool, ControllerError> {
        match &mut self.stage {
            Stage::Search(Source::Maintenance) => {
                self.port.maintenance_began();
                self.stage = Stage::Maintenance(None);
            }
            Stage::Search(Source::State) if self.store.available().is_err() => {
                // There may be a configuration on it. The machine is reached by the maintenance API, where people see what
                // is wrong; a configuration that is handed in there is refused like any other that cannot be kept.
                if let Err(error) = self.store.available() {
                    self.port.failed(&chain(&error));
                }
                self.is_disk_lost = true;
                self.stage = Stage::Search(Source::Maintenance);
            }
            Stage::Search(source) => {
                let source = *source;
                let found = self.search(source).await?;
                self.stage = next(source, found).map_or(Stage::Done, Stage::Search);
            }
            Stage::Maintenance(_) if self.is_disk_lost => {
                ctx.modify::<MaintenanceServiceRequest>(MAINTENANCE, |_| {})?;
                if let Err(error) = self.store.available() {
                    ctx.trouble(chain(&error));
                    ctx.requeue_after(DISK_PAUSE);
                    return Ok(false);
                }
                // The disk is back: what it holds comes before what was handed in meanwhile.
                let found = self.search(Source::State).await?;
                self.is_disk_lost = false;
                if found == Found::Complete {
                    self.stage = Stage::Leave;
                }
            }
            Stage::Maintenance(seen) => {
                ctx.modify::<MaintenanceServiceRequest>(MAINTENANCE, |_| {})?;
                let Some(config) = ctx.get::<MachineConfig>(MachineConfig::MAINTENANCE)? else {
                    return Ok(false);
                };
                let version = config.meta().version().number();
                if *seen == Some(version) {
                    return Ok(false);
                }
                let found = self.accept(Source::Maintenance, config.yaml.clone()).await?;
                self.stage = match found {
                    Found::Complete => Stage::Leave,
                    Found::Partial | Found::Nothing => Stage::Maintenance(Some(version)),
                };
            }
            Stage::Leave => {
                if !ctx.remove_in::<MaintenanceServiceRequest>("runtime", MAINTENANCE)? {
                    return Ok(false);
                }
                self.port.maintenance_ended();
                self.stage = Stage::Done;
            }
            Stage::Done => {
                ctx.modify::<AcquireConfigStatus>(ID, |_| {})?;
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

impl<P: AcquirePort> Controller for AcquireController<P> {
    const NAME: &'static str = "config.AcquireController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<AcquireConfigSpec>(),
            weak::<MachineConfig>().id(MachineConfig::MAINTENANCE),
            destroy_ready::<MaintenanceServiceRequest>(),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<AcquireConfigStatus>(), exclusive::<MaintenanceServiceRequest>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        if ctx.get::<AcquireConfigSpec>(ID)?.is_none() {
            // Nobody asks, or nobody any more: the answer goes with the question.
            return Ok(ctx.publish::<AcquireConfigStatus>(std::iter::empty::<(&str, _)>())?);
        }
        loop {
            match self.step(ctx).await {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => {
                    self.port.failed(&error.to_string());
                    // Everything is looked at anew, except that a waiting machine goes on waiting.
                    if matches!(self.stage, Stage::Search(_)) {
                        self.stage = Stage::Search(Source::State);
                    }
                    return Err(error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use ichor_cosi::State;
    use ichor_testkit::Harness;
    use tokio::runtime::Handle;

    use super::*;
    use crate::disk::{ConfigDisk, DiskError, StateDir};

    /// Sources by name; a text with `kind:` alone counts as partial, `bad` is refused.
    #[derive(Clone, Default)]
    struct Fake(Arc<Mutex<Inner>>);

    #[derive(Default)]
    struct Inner {
        sources: Vec<(Source, &'static str)>,
        story: Vec<String>,
    }

    impl Fake {
        fn tell(&self, line: &str) {
            self.0.lock().unwrap().story.push(line.to_owned());
        }
    }

    impl AcquirePort for Fake {
        fn load(&self, source: Source) -> BoxFuture<'_, Result<Option<Vec<u8>>, String>> {
            let inner = self.0.lock().unwrap();
            let found = inner.sources.iter().find(|(at, _)| *at == source);
            Box::pin(std::future::ready(Ok(found.map(|(_, text)| text.as_bytes().to_vec()))))
        }

        fn check(&self, _source: Source, yaml: &[u8]) -> Result<Found, String> {
            match yaml {
                b"bad" => Err("does not parse".to_owned()),
                yaml if yaml.starts_with(b"kind:") => Ok(Found::Partial),
                _ => Ok(Found::Complete),
            }
        }

        fn platform(&self) -> &str {
            "sandbox"
        }

        fn maintenance_began(&self) {
            self.tell("maintenance began");
        }

        fn maintenance_ended(&self) {
            self.tell("maintenance ended");
        }

        fn failed(&self, error: &str) {
            self.tell(&format!("failed: {error}"));
        }
    }

    struct Bench {
        dir: tempfile::TempDir,
        state: State,
        port: Fake,
        harness: Harness<AcquireController<Fake>>,
    }

    fn bench(on_disk: Option<&str>, sources: &[(Source, &'static str)]) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let disk = StateDir::new(dir.path());
        if let Some(text) = on_disk {
            disk.save(text.as_bytes()).unwrap();
        }
        let (state, _clock) = ichor_testkit::state();
        let store = ConfigStore::new(state.clone(), Arc::new(disk), Handle::current());
        let port = Fake::default();
        port.0.lock().unwrap().sources = sources.to_vec();
        let harness = Harness::new(&state, AcquireController::new(port.clone(), store)).unwrap();
        state.create("runtime", ID, AcquireConfigSpec {}, "").unwrap();
        Bench { dir, state, port, harness }
    }

    impl Bench {
        fn active(&self) -> String {
            let found = self.state.find::<MachineConfig>("config", MachineConfig::ACTIVE);
            found.map(|config| String::from_utf8_lossy(&config.yaml).into_owned()).unwrap_or_default()
        }

        fn on_disk(&self) -> String {
            std::fs::read_to_string(self.dir.path().join("config.yaml")).unwrap_or_default()
        }

        fn is_done(&self) -> bool {
            self.state.find::<AcquireConfigStatus>("runtime", ID).is_some()
        }

        fn story(&self) -> Vec<String> {
            self.port.0.lock().unwrap().story.clone()
        }

        fn submit(&self, text: &'static str) {
            self.state
                .modify::<MachineConfig>("config", MachineConfig::MAINTENANCE, "test", |spec| {
                    *spec = MachineConfig::new(text);
                })
                .unwrap();
        }
    }

    #[tokio::test]
    async fn what_is_on_disk_is_taken_first() {
        let mut bench = bench(Some("from disk"), &[(Source::Platform, "from platform")]);
        bench.harness.reconcile().await.unwrap();
        assert!(bench.is_done());
        assert_eq!(bench.active(), "from disk");
    }

    #[tokio::test]
    async fn a_platform_configuration_is_persisted() {
        let mut bench =
            bench(None, &[(Source::Embedded, "kind: partial"), (Source::Platform, "from platform")]);
        bench.harness.reconcile().await.unwrap();
        assert!(bench.is_done());
        assert_eq!((bench.active(), bench.on_disk()), ("from platform".into(), "from platform".into()));
    }

    #[tokio::test]
    async fn without_any_source_the_machine_waits_in_maintenance() {
        let mut bench = bench(None, &[]);
        bench.harness.reconcile().await.unwrap();
        assert!(!bench.is_done());
        assert!(bench.state.find::<MaintenanceServiceRequest>("runtime", MAINTENANCE).is_some());

        bench.submit("kind: partial");
        bench.harness.reconcile().await.unwrap();
        assert!(!bench.is_done(), "a partial one is applied, and the machine goes on waiting");
        assert_eq!(bench.active(), "kind: partial");

        bench.submit("whole");
        bench.harness.reconcile().await.unwrap();
        assert!(bench.is_done());
        assert_eq!((bench.active(), bench.on_disk()), ("whole".into(), "whole".into()));
        assert!(bench.state.find::<MaintenanceServiceRequest>("runtime", MAINTENANCE).is_none());
        assert_eq!(bench.story(), ["maintenance began", "maintenance ended"]);
    }

    #[tokio::test]
    async fn the_service_is_torn_down_before_the_answer() {
        let mut bench = bench(None, &[]);
        bench.harness.reconcile().await.unwrap();
        let held = "service";
        bench.state.add_finalizer::<MaintenanceServiceRequest>("runtime", MAINTENANCE, held).unwrap();
        bench.submit("whole");
        bench.harness.reconcile().await.unwrap();
        assert!(!bench.is_done(), "the port is not free yet");
        bench.state.remove_finalizer::<MaintenanceServiceRequest>("runtime", MAINTENANCE, held).unwrap();
        bench.harness.reconcile().await.unwrap();
        assert!(bench.is_done());
    }

    #[tokio::test]
    async fn a_bad_configuration_is_told_and_the_search_begins_anew() {
        let mut bench = bench(None, &[(Source::Platform, "bad")]);
        bench.harness.reconcile().await.unwrap_err();
        assert_eq!(bench.story(), ["failed: configuration from sandbox: does not parse"]);
        bench.port.0.lock().unwrap().sources = vec![(Source::Embedded, "good")];
        bench.harness.reconcile().await.unwrap();
        assert_eq!(bench.active(), "good");
    }

    /// A disk that cannot be used until it is told to hold something.
    #[derive(Default)]
    struct BrokenDisk(Mutex<Option<Vec<u8>>>);

    impl ConfigDisk for BrokenDisk {
        fn available(&self) -> Result<(), DiskError> {
            if self.0.lock().unwrap().is_some() {
                return Ok(());
            }
            let source = std::io::Error::other("does not mount");
            Err(DiskError { action: "read", path: "config.yaml".into(), source })
        }

        fn load(&self) -> Result<Option<Vec<u8>>, DiskError> {
            self.available().map(|()| self.0.lock().unwrap().clone())
        }

        fn save(&self, yaml: &[u8]) -> Result<(), DiskError> {
            self.available().map(|()| *self.0.lock().unwrap() = Some(yaml.to_vec()))
        }
    }

    #[tokio::test]
    async fn a_machine_whose_disk_cannot_be_used_waits_and_takes_nothing_over_it() {
        let (state, _clock) = ichor_testkit::state();
        let disk = Arc::new(BrokenDisk::default());
        let store = ConfigStore::new(state.clone(), disk.clone(), Handle::current());
        let port = Fake::default();
        port.0.lock().unwrap().sources = vec![(Source::Platform, "from platform")];
        let mut harness = Harness::new(&state, AcquireController::new(port.clone(), store)).unwrap();
        state.create("runtime", ID, AcquireConfigSpec {}, "").unwrap();
        harness.reconcile().await.unwrap();
        assert!(state.find::<MaintenanceServiceRequest>("runtime", MAINTENANCE).is_some());
        assert!(state.find::<MachineConfig>("config", MachineConfig::ACTIVE).is_none());
        let told = port.0.lock().unwrap().story.clone();
        assert_eq!(told[0], "failed: persist the configuration: read config.yaml: does not mount");
        state
            .modify::<MachineConfig>("config", MachineConfig::MAINTENANCE, "test", |spec| {
                *spec = MachineConfig::new("whole");
            })
            .unwrap();
        harness.reconcile().await.unwrap();
        assert!(state.find::<MachineConfig>("config", MachineConfig::ACTIVE).is_none());
        assert!(harness.requeue().is_some(), "the disk is looked at again");
        // The disk comes back with the machine's own configuration.
        *disk.0.lock().unwrap() = Some(b"its own".to_vec());
        harness.reconcile().await.unwrap();
        let active = state.get::<MachineConfig>("config", MachineConfig::ACTIVE).unwrap();
        assert_eq!(active.yaml.as_ref(), b"its own");
        assert!(state.find::<AcquireConfigStatus>("runtime", ID).is_some());
        assert_eq!(disk.0.lock().unwrap().as_deref(), Some(&b"its own"[..]), "not overwritten");
    }

    #[tokio::test]
    async fn the_answer_goes_with_the_question() {
        let mut bench = bench(Some("whole"), &[]);
        bench.harness.reconcile().await.unwrap();
        bench.state.destroy::<AcquireConfigSpec>("runtime", ID, "").unwrap();
        bench.harness.reconcile().await.unwrap();
        assert!(!bench.is_done());
    }
}
