//! Searches for a configuration from the moment the boot sequence asks for one until it is there.

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
pub const ID: &str = "machine-config";

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
}

impl<P: AcquirePort> AcquireController<P> {
    /// A controller that puts what it finds into `store`.
    pub fn new(port: P, store: ConfigStore) -> Self {
        Self { port, store, stage: Stage::Search(Source::State) }
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
            Stage::Search(source) => {
                let source = *source;
                let found = self.search(source).await?;
                self.stage = next(source, found).map_or(Stage::Done, Stage::Search);
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
