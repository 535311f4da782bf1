//! Makes and ends mounts.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Typed, exclusive, strong, weak};
use ichor_resource::block::{MountRequest, MountStatus, VolumeConfig, VolumePhase, VolumeStatus, VolumeType};
use tokio::time::Instant;
use tracing::{info, warn};

use super::failures::MountFailures;
use super::plan::{MountPlan, MountSource, plan};
use super::port::MountPort;

/// Before an unmount is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// A volume that is still in use after this is unmounted by force.
const PATIENCE: Duration = Duration::from_secs(90);

/// Writes `MountStatuses`, through a port that mounts.
#[derive(Debug)]
pub struct MountController<P> {
    port: P,
    failures: MountFailures,
    /// Since when a volume that is in use is being unmounted.
    ending: BTreeMap<String, Instant>,
}

impl<P: MountPort> MountController<P> {
    /// A controller that mounts through this port and reports what fails.
    pub fn new(port: P, failures: MountFailures) -> Self {
        Self { port, failures, ending: BTreeMap::new() }
    }

    /// Mounts a volume if it is there and what it is in is mounted.
    async fn begin(&self, ctx: &Context, request: &Typed<MountRequest>) -> Result<(), ControllerError> {
        let id = request.volume_id.as_str();
        let Some(volume) = ctx.get::<VolumeStatus>(id)? else { return Ok(()) };
        if !volume.meta().is_running() || volume.phase != VolumePhase::Ready {
            return Ok(());
        }
        let parent = match request.parent_id.as_str() {
            "" => None,
            parent => match parent_target(ctx, parent)? {
                Some(target) => Some(target),
                None => return Ok(()),
            },
        };
        let config = ctx.get::<VolumeConfig>(id)?;
        let config = config.as_ref().map(|config| config.spec());
        let wanted = match plan(request.spec(), volume.spec(), config, parent.as_deref()) {
            Ok(wanted) => wanted,
            Err(reason) => {
                self.failures.report(id, reason);
                return Ok(());
            }
        };
        ctx.add_finalizer::<MountRequest>(request.id())?;
        ctx.add_finalizer::<VolumeStatus>(id)?;
        let is_parent_mounted = ctx.get::<MountStatus>(&request.parent_id)?.is_some();
        if is_parent_mounted {
            ctx.add_finalizer::<MountStatus>(&request.parent_id)?;
        }
        if let Err(error) = self.port.mount(&wanted).await {
            warn!(volume = id, %error, "volume not mounted");
            self.failures.report(id, error.reason);
            return self.let_go(ctx, request);
        }
        info!(volume = id, target = %wanted.target.display(), "volume mounted");
        let status = status(request.spec(), volume.spec(), &wanted);
        ctx.modify::<MountStatus>(request.id(), |stored| stored.clone_from(&status))?;
        Ok(())
    }

    /// Unmounts a volume that nobody needs any more, once nobody holds its mount.
    async fn end(&mut self, ctx: &Context, request: &Typed<MountRequest>) -> Result<(), ControllerError> {
        let id = request.id();
        let Some(status) = ctx.get::<MountStatus>(id)? else { return self.let_go(ctx, request) };
        if !ctx.teardown::<MountStatus>(id)? {
            return Ok(());
        }
        let since = *self.ending.entry(id.to_string()).or_insert_with(Instant::now);
        let by_force = since.elapsed() > PATIENCE;
        let volume = ctx.get::<VolumeStatus>(&request.volume_id)?;
        let volume = volume.map(|volume| volume.spec().clone()).unwrap_or_default();
        let mounted = match plan(request.spec(), &volume, None, None) {
            // Where it was mounted, whatever the volume says now.
            Ok(plan) => MountPlan { target: PathBuf::from(&status.target), ..plan },
            Err(reason) => {
                ctx.trouble(format!("unmount {id}: {reason}"));
                return self.ended(ctx, request);
            }
        };
        match self.port.unmount(&mounted, by_force).await {
            Ok(()) => {
                info!(volume = request.volume_id, target = status.target, "volume unmounted");
                self.ended(ctx, request)
            }
            Err(error) => {
                if by_force {
                    warn!(volume = request.volume_id, %error, "volume not unmounted");
                }
                ctx.trouble(error.reason);
                ctx.requeue_after(RETRY);
                Ok(())
            }
        }
    }

    fn ended(&mut self, ctx: &Context, request: &Typed<MountRequest>) -> Result<(), ControllerError> {
        self.ending.remove(request.id().as_str());
        ctx.destroy::<MountStatus>(request.id())?;
        self.let_go(ctx, request)
    }

    /// Lets go of everything that a mount holds.
    fn let_go(&self, ctx: &Context, request: &Typed<MountRequest>) -> Result<(), ControllerError> {
        let parent = request.parent_id.as_str();
        let statuses = ctx.list::<MountStatus>()?;
        let has_others =
            statuses.iter().any(|other| other.spec.parent_id == parent && other.id() != request.id());
        if !parent.is_empty() && !has_others && ctx.get::<MountStatus>(parent)?.is_some() {
            ctx.remove_finalizer::<MountStatus>(parent)?;
        }
        if ctx.get::<VolumeStatus>(&request.volume_id)?.is_some() {
            ctx.remove_finalizer::<VolumeStatus>(&request.volume_id)?;
        }
        // One that was never mounted may be gone by now.
        if ctx.get::<MountRequest>(request.id())?.is_some() {
            ctx.remove_finalizer::<MountRequest>(request.id())?;
        }
        Ok(())
    }
}

/// Where the volume is that another one is in: mounted, or a directory that is there anyway.
fn parent_target(ctx: &Context, id: &str) -> Result<Option<PathBuf>, ControllerError> {
    if let Some(status) = ctx.get::<MountStatus>(id)? {
        return Ok(status.meta().is_running().then(|| PathBuf::from(&status.target)));
    }
    let volume = ctx.get::<VolumeStatus>(id)?;
    let directory = volume.filter(|volume| {
        let is_ready = volume.phase == VolumePhase::Ready && volume.r#type == VolumeType::Directory;
        is_ready && volume.mount_spec.parent_id.is_empty()
    });
    Ok(directory.map(|volume| PathBuf::from(&volume.mount_spec.target_path)))
}

fn status(request: &MountRequest, volume: &VolumeStatus, plan: &MountPlan) -> MountStatus {
    let target = plan.target.to_string_lossy().into_owned();
    let source = match &plan.source {
        MountSource::Filesystem { device, .. } | MountSource::Swap { device } => device.clone(),
        MountSource::Directory { .. } => target.clone(),
    };
    MountStatus {
        spec: request.clone(),
        source,
        target,
        filesystem: volume.filesystem,
        encryption_provider: volume.encryption_provider,
        read_only: plan.read_only,
        project_quota_support: plan.quota,
        // What is mounted can be seen by its path.
        detached: false,
    }
}

impl<P: MountPort> Controller for MountController<P> {
    const NAME: &'static str = "block.MountController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            strong::<MountRequest>(),
            strong::<VolumeStatus>(),
            strong::<MountStatus>(),
            weak::<VolumeConfig>(),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<MountStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let requests = ctx.list::<MountRequest>()?;
        for request in requests.iter().filter(|request| !request.meta().is_running()) {
            self.end(ctx, request).await?;
        }
        for request in requests.iter().filter(|request| request.meta().is_running()) {
            match ctx.get::<MountStatus>(request.id())? {
                None => self.begin(ctx, request).await?,
                Some(status) if status.meta().is_running() => {
                    let spec = request.spec();
                    ctx.modify::<MountStatus>(request.id(), |stored| stored.spec.clone_from(spec))?;
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}
