//! Carries volumes through their phases.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Typed, Wake, exclusive, strong, weak};
use ichor_resource::Phase;
use ichor_resource::block::{
    DiscoveredVolume, DiscoveryRefreshRequest, DiscoveryRefreshStatus, Disk, SystemDisk, VolumeConfig,
    VolumeLifecycle, VolumePhase, VolumeStatus,
};
use ichor_resource::runtime::DevicesStatus;
use tokio::time::Instant;
use tracing::{info, warn};

use super::decide::{Action, Decision, Outcome, World, conclude, decide, failed};
use crate::mounts::MountFailures;
use crate::system_disk::{META_LABEL, SYSTEM_DISK};

/// The one id of the lifecycle of all volumes.
pub(crate) const LIFECYCLE: &str = "volumes";
/// The one id of request and status.
const REFRESH: &str = "refresh";
/// Before volumes that may do better are tried again.
const RETRY: Duration = Duration::from_secs(30);
/// Steps of one volume in one pass; no volume has as many.
const STEPS_MAX: usize = 32;

/// What carries actions out.
pub trait VolumePort: Send + Sync + 'static {
    /// Does it, and says what came of it.
    fn perform(&self, action: Action) -> impl Future<Output = Result<Outcome, ActionError>> + Send;
}

/// An action that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ActionError {
    /// Why.
    pub reason: String,
    /// Whether it may go better in a while, without anything else changing.
    pub is_retryable: bool,
}

/// Writes `VolumeStatuses`, and asks discovery to look at all devices once the device manager has settled.
#[derive(Debug)]
pub struct VolumeManagerController<P> {
    port: P,
    failures: MountFailures,
    /// Volumes that could not be mounted, and when that is tried again.
    unmountable: BTreeMap<String, Instant>,
}

impl<P: VolumePort> VolumeManagerController<P> {
    /// A controller that acts through this port, and hears of mounts that failed.
    pub fn new(port: P, failures: MountFailures) -> Self {
        Self { port, failures, unmountable: BTreeMap::new() }
    }

    /// The status of a volume that could not be mounted: it stays failed for a while, and is then tried again.
    fn unmountable(&mut self, ctx: &Context, id: &str, status: &VolumeStatus) -> Option<VolumeStatus> {
        if let Some(reason) = self.failures.take(id)
            && status.phase == VolumePhase::Ready
        {
            self.unmountable.insert(id.to_owned(), Instant::now() + RETRY);
            ctx.requeue_after(RETRY);
            return Some(failed(status.clone(), reason));
        }
        let left = self.unmountable.get(id)?.saturating_duration_since(Instant::now());
        if left.is_zero() || status.phase != VolumePhase::Failed {
            self.unmountable.remove(id);
            return None;
        }
        ctx.requeue_after(left);
        Some(status.clone())
    }

    /// One volume, as far as it gets now. True when an action failed that may go better later.
    async fn advance(
        &self,
        id: &str,
        config: &VolumeConfig,
        status: VolumeStatus,
        world: &World<'_>,
    ) -> (VolumeStatus, bool) {
        let mut decision = decide(config, &status, world);
        for _ in 0..STEPS_MAX {
            decision = match decision {
                Decision::Stay(status) => return (status, false),
                Decision::Move(status) => {
                    info!(volume = id, phase = %status.phase, location = status.location, "volume");
                    decide(config, &status, world)
                }
                Decision::Act(status, action) => match self.port.perform(action).await {
                    Ok(outcome) => conclude(config, &status, outcome),
                    Err(error) => {
                        warn!(volume = id, %error, "volume failed");
                        return (failed(status, error.reason), error.is_retryable);
                    }
                },
            };
        }
        (failed(status, "the volume does not settle"), false)
    }

    /// Whether all devices are there and were read since; asks for that when it is time.
    fn devices_ready(ctx: &Context) -> Result<bool, ControllerError> {
        if !ctx.get::<DevicesStatus>("devices")?.is_some_and(|devices| devices.ready) {
            return Ok(false);
        }
        let request =
            ctx.modify::<DiscoveryRefreshRequest>(REFRESH, |spec| spec.request = spec.request.max(1))?;
        let served = ctx.get::<DiscoveryRefreshStatus>(REFRESH)?.map_or(0, |status| status.request);
        Ok(served >= request.request)
    }

    /// Ends the volumes of configurations that go, once nobody uses them.
    fn tear_down(ctx: &Context, configs: &[Typed<VolumeConfig>]) -> Result<(), ControllerError> {
        for config in configs.iter().filter(|config| is_going(config)) {
            if ctx.remove_in::<VolumeStatus>("runtime", config.id())? {
                ctx.remove_finalizer::<VolumeConfig>(config.id())?;
            }
        }
        Ok(())
    }

    /// Closes all volumes that nobody uses any more. META stays open to the end.
    fn close(ctx: &Context, statuses: &[Typed<VolumeStatus>]) -> Result<(), ControllerError> {
        let mut all_closed = true;
        for status in statuses.iter().filter(|status| status.id() != META_LABEL) {
            match status.meta().finalizers().is_empty() {
                true => {
                    drop(ctx.modify::<VolumeStatus>(status.id(), |spec| spec.phase = VolumePhase::Closed)?)
                }
                false => all_closed = false,
            }
        }
        if all_closed {
            ctx.remove_finalizer::<VolumeLifecycle>(LIFECYCLE)?;
        }
        Ok(())
    }
}

fn is_going<T: ichor_resource::TypedSpec>(resource: &Typed<T>) -> bool {
    resource.meta().phase() == Phase::TearingDown
}

/// The status to go on from. A volume that is to be something else than before starts over, unless it is in use.
fn restarted(status: &Typed<VolumeStatus>, config: &VolumeConfig) -> VolumeStatus {
    let is_another = status.r#type != config.r#type && status.phase != VolumePhase::Waiting;
    match is_another && status.meta().finalizers().is_empty() {
        true => VolumeStatus::default(),
        false => status.spec().clone(),
    }
}

/// The order in which volumes of one wave get their place: what does not grow first, then what is small.
fn order(config: &VolumeConfig) -> (i64, bool, u64) {
    let spec = &config.provisioning.partition_spec;
    let largest = if spec.max_size == 0 { u64::MAX } else { spec.max_size };
    (config.provisioning.wave, spec.grow, largest)
}

/// Whether every volume of an earlier wave is ready.
fn waves_ready(wave: i64, configs: &[Typed<VolumeConfig>], phases: &BTreeMap<String, VolumePhase>) -> bool {
    configs
        .iter()
        .filter(|other| other.provisioning.wave < wave)
        .all(|other| phases.get(other.id().as_str()) == Some(&VolumePhase::Ready))
}

impl<P: VolumePort> Controller for VolumeManagerController<P> {
    const NAME: &'static str = "block.VolumeManagerController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            strong::<VolumeConfig>(),
            strong::<VolumeStatus>(),
            weak::<DiscoveredVolume>(),
            weak::<Disk>(),
            weak::<SystemDisk>().id(SYSTEM_DISK),
            weak::<DevicesStatus>().id("devices"),
            weak::<DiscoveryRefreshStatus>().id(REFRESH),
            strong::<VolumeLifecycle>().id(LIFECYCLE),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<VolumeStatus>(), exclusive::<DiscoveryRefreshRequest>()]
    }

    fn start(&mut self, wake: Wake) {
        self.failures.wake(wake);
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let statuses = ctx.list::<VolumeStatus>()?;
        match ctx.get::<VolumeLifecycle>(LIFECYCLE)? {
            Some(lifecycle) if is_going(&lifecycle) => return Self::close(ctx, &statuses),
            Some(_) => ctx.add_finalizer::<VolumeLifecycle>(LIFECYCLE)?,
            None => return Ok(()),
        }
        let devices_ready = Self::devices_ready(ctx)?;
        let mut configs = ctx.list::<VolumeConfig>()?;
        Self::tear_down(ctx, &configs)?;
        configs.retain(|config| !is_going(config));
        configs.sort_by_key(|config| order(config.spec()));

        let volumes = named(ctx.list::<DiscoveredVolume>()?);
        let disks = named(ctx.list::<Disk>()?);
        let system_disk = ctx.get::<SystemDisk>(SYSTEM_DISK)?.map(|system| system.disk_id.clone());
        let mut phases: BTreeMap<String, VolumePhase> =
            statuses.iter().map(|status| (status.id().to_string(), status.phase)).collect();
        for config in &configs {
            ctx.add_finalizer::<VolumeConfig>(config.id())?;
            let world = World {
                devices_ready,
                waves_ready: waves_ready(config.provisioning.wave, &configs, &phases),
                volumes: &volumes,
                disks: &disks,
                system_disk: system_disk.as_deref(),
            };
            let known = statuses.iter().find(|status| status.id() == config.id());
            let known = known.map(|status| restarted(status, config.spec())).unwrap_or_default();
            let status = match self.unmountable(ctx, config.id(), &known) {
                Some(status) => status,
                None => {
                    let (status, may_recover) = self.advance(config.id(), config.spec(), known, &world).await;
                    if may_recover {
                        ctx.requeue_after(RETRY);
                    }
                    status
                }
            };
            phases.insert(config.id().to_string(), status.phase);
            ctx.modify::<VolumeStatus>(config.id(), |stored| stored.clone_from(&status))?;
        }
        Ok(())
    }
}

fn named<T: ichor_resource::TypedSpec>(resources: Vec<Typed<T>>) -> Vec<(String, T)> {
    resources.iter().map(|resource| (resource.id().to_string(), resource.spec().clone())).collect()
}
