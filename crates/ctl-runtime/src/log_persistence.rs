//! Logs on disk, for as long as the volumes are there.

use std::path::PathBuf;
use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, strong, weak};
use ichor_ctl::volumes::{EPHEMERAL, Readiness, readiness};
use ichor_observe::LogManager;
use ichor_observe::persist::persist;
use ichor_resource::Phase;
use ichor_resource::block::{VolumeLifecycle, VolumeMountStatus, VolumeStatus};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::warn;

/// The one id of the volumes' life.
const VOLUMES: &str = "volumes";

/// The last lines get this long to reach the disk.
const STOP_MAX: Duration = Duration::from_secs(10);

/// Keeps logs in files, and lets the volumes go only when the last line is written.
pub struct LogPersistenceController {
    logs: LogManager,
    folder: PathBuf,
    /// Whether EPHEMERAL may be a disk that has to be mounted first.
    waits: bool,
    running: Option<(watch::Sender<bool>, JoinHandle<()>)>,
}

impl LogPersistenceController {
    /// A controller that keeps these logs in this folder.
    pub fn new(logs: LogManager, folder: impl Into<PathBuf>) -> Self {
        Self { logs, folder: folder.into(), waits: false, running: None }
    }

    /// The same on a machine whose EPHEMERAL may be a disk: logs are kept while that is mounted.
    #[must_use]
    pub fn on_volume(mut self, waits: bool) -> Self {
        self.waits = waits;
        self
    }

    /// Whether the folder is where it stays. Holds the mount that it is in, and lets go of one that is to end.
    async fn is_usable(&mut self, ctx: &Context) -> Result<bool, ControllerError> {
        if !self.waits {
            return Ok(true);
        }
        let mounted = ctx.get::<VolumeMountStatus>(EPHEMERAL)?;
        match &mounted {
            Some(mounted) if mounted.meta().is_running() => {
                ctx.add_finalizer::<VolumeMountStatus>(EPHEMERAL)?;
            }
            Some(_) => {
                self.stop().await;
                ctx.remove_finalizer::<VolumeMountStatus>(EPHEMERAL)?;
                return Ok(false);
            }
            None => {}
        }
        let volume = ctx.get::<VolumeStatus>(EPHEMERAL)?;
        Ok(readiness(volume.as_ref().map(|volume| volume.spec()), mounted.is_some()) == Readiness::Usable)
    }

    fn start(&mut self) -> std::io::Result<()> {
        if self.running.is_none() {
            std::fs::create_dir_all(&self.folder)?;
            let (stop, stopped) = watch::channel(false);
            let task = tokio::spawn(persist(self.logs.clone(), self.folder.clone(), stopped));
            self.running = Some((stop, task));
        }
        Ok(())
    }

    async fn stop(&mut self) {
        let Some((stop, task)) = self.running.take() else { return };
        let _ = stop.send(true);
        if tokio::time::timeout(STOP_MAX, task).await.is_err() {
            warn!("the last lines of some logs are not on disk");
        }
    }
}

impl Controller for LogPersistenceController {
    const NAME: &'static str = "runtime.LogPersistenceController";

    fn inputs(&self) -> Vec<Input> {
        let mut all = vec![strong::<VolumeLifecycle>().id(VOLUMES)];
        if self.waits {
            all.extend([weak::<VolumeStatus>().id(EPHEMERAL), strong::<VolumeMountStatus>().id(EPHEMERAL)]);
        }
        all
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Some(volumes) = ctx.get::<VolumeLifecycle>(VOLUMES)? else {
            self.stop().await;
            return Ok(());
        };
        let is_usable = self.is_usable(ctx).await?;
        match volumes.meta().phase() {
            Phase::Running => {
                ctx.add_finalizer::<VolumeLifecycle>(VOLUMES)?;
                if is_usable {
                    self.start()?;
                }
            }
            Phase::TearingDown => {
                self.stop().await;
                ctx.remove_finalizer::<VolumeLifecycle>(VOLUMES)?;
            }
        }
        Ok(())
    }
}
