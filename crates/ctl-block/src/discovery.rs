//! What is on the devices.

mod queue;
mod specs;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_resource::block::{BlockDevice, DiscoveredVolume, DiscoveryRefreshRequest, DiscoveryRefreshStatus};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::debug;

use crate::ports::{BlockPort, ProbeError, Probed};
use queue::Queue;

/// The one id of request and status.
const REFRESH: &str = "refresh";
/// Changes within this time are looked at together.
const BATCH: Duration = Duration::from_millis(100);
/// Devices that are read at the same time.
const AT_ONCE: usize = 4;
/// A device that does not answer within this has failed; it is not asked again before it answers.
const PROBE_MAX: Duration = Duration::from_secs(30);

/// Writes `DiscoveredVolumes`, and says in `DiscoveryRefreshStatuses` which request has been served.
#[derive(Debug)]
pub struct DiscoveryController<P> {
    port: P,
    queue: Queue,
    /// When the batch that is being gathered is due.
    due: Option<Instant>,
    /// Devices whose probe has not come back.
    stuck: Arc<Mutex<BTreeSet<String>>>,
}

/// What became of a probe.
enum Outcome {
    Found(Box<Probed>),
    Failed,
    Retry,
}

impl<P: BlockPort> DiscoveryController<P> {
    /// A controller of this machine's devices.
    pub fn new(port: P) -> Self {
        Self { port, queue: Queue::default(), due: None, stuck: Arc::default() }
    }

    /// Probes these devices, a few at a time.
    async fn probe(&self, names: BTreeMap<String, bool>) -> BTreeMap<String, Outcome> {
        let (places, mut running) = (Arc::new(Semaphore::new(AT_ONCE)), JoinSet::new());
        for (name, is_disk) in names {
            let (port, places, stuck) = (self.port.clone(), Arc::clone(&places), Arc::clone(&self.stuck));
            running.spawn(async move {
                let _place = places.acquire().await;
                let outcome = probe_one(port, &name, is_disk, stuck).await;
                (name, outcome)
            });
        }
        let mut outcomes = BTreeMap::new();
        while let Some(ended) = running.join_next().await {
            // A probe that panics is told by the task around it; here it counts as failed.
            if let Ok((name, outcome)) = ended {
                outcomes.insert(name, outcome);
            }
        }
        outcomes
    }

    /// Looks at the batch, and publishes what was found.
    async fn rescan(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let devices = ctx.list::<BlockDevice>()?;
        let devices: BTreeMap<&str, &BlockDevice> =
            devices.iter().map(|device| (device.id().as_str(), device.spec())).collect();
        let batch = self.queue.take();
        let wanted = batch.iter().filter_map(|name| {
            let device = devices.get(name.as_str())?;
            Some((name.clone(), device.r#type == "disk"))
        });
        let outcomes = self.probe(wanted.collect()).await;

        let (mut touched, mut failed) = (BTreeSet::new(), BTreeSet::new());
        for name in batch {
            match (devices.get(name.as_str()), outcomes.get(&name)) {
                (Some(device), Some(Outcome::Found(probed))) => {
                    for (id, spec) in specs::volumes(&name, device, probed) {
                        ctx.modify::<DiscoveredVolume>(&id, |stored| stored.clone_from(&spec))?;
                        touched.insert(id);
                    }
                }
                (_, Some(Outcome::Retry)) => self.queue.retry(name),
                (_, Some(Outcome::Failed) | None) | (None, _) => drop(failed.insert(name)),
            }
        }
        for volume in ctx.list::<DiscoveredVolume>()? {
            let (id, parent) = (volume.id().as_str(), volume.parent.as_str());
            let is_orphan = !parent.is_empty() && (touched.contains(parent) || failed.contains(parent));
            // A partition that no table names may be a device of its own, and is looked at as one.
            let is_probed_alone = devices.contains_key(id) && !failed.contains(id);
            if !touched.contains(id) && (failed.contains(id) || is_orphan && !is_probed_alone) {
                ctx.destroy::<DiscoveredVolume>(id)?;
            }
        }
        for (name, device) in &devices {
            // Partitions of tables that are not ours to read.
            if touched.contains(device.parent.as_str()) && !touched.contains(*name) && !failed.contains(*name)
            {
                self.queue.alone(name);
            }
        }
        Ok(())
    }
}

async fn probe_one<P: BlockPort>(
    port: P,
    name: &str,
    is_disk: bool,
    stuck: Arc<Mutex<BTreeSet<String>>>,
) -> Outcome {
    let lock = |stuck: &Mutex<BTreeSet<String>>, name: &str, is_busy: bool| {
        let mut names = stuck.lock().unwrap_or_else(PoisonError::into_inner);
        if is_busy { names.insert(name.to_owned()) } else { names.remove(name) }
    };
    if !lock(&stuck, name, true) {
        return Outcome::Failed;
    }
    let owned = name.to_owned();
    let probe = tokio::task::spawn_blocking(move || {
        let probed = port.probe(&owned, is_disk);
        lock(&stuck, &owned, false);
        probed
    });
    match tokio::time::timeout(PROBE_MAX, probe).await {
        Ok(Ok(Ok(probed))) => Outcome::Found(Box::new(probed)),
        Ok(Ok(Err(ProbeError::Locked))) => Outcome::Retry,
        Ok(Ok(Err(ProbeError::Io(error)))) => {
            debug!(device = name, %error, "device not probed");
            Outcome::Failed
        }
        Ok(Err(_)) => Outcome::Failed,
        Err(_) => {
            tracing::warn!(device = name, seconds = PROBE_MAX.as_secs(), "device does not answer");
            Outcome::Failed
        }
    }
}

impl<P: BlockPort> Controller for DiscoveryController<P> {
    const NAME: &'static str = "block.DiscoveryController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<BlockDevice>(), weak::<DiscoveryRefreshRequest>().id(REFRESH)]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<DiscoveredVolume>(), exclusive::<DiscoveryRefreshStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let request = ctx.get::<DiscoveryRefreshRequest>(REFRESH)?.map_or(0, |request| request.request);
        let devices = ctx.list::<BlockDevice>()?;
        let seen = devices.iter().map(|device| (device.id().as_str(), device.spec()));
        self.queue.observe(request, seen);
        if self.queue.is_empty() {
            return Ok(());
        }
        let now = Instant::now();
        let due = *self.due.get_or_insert(now + BATCH);
        if now < due {
            ctx.requeue_after(due - now);
            return Ok(());
        }
        self.due = None;
        // What the request asked for is in this batch, or was in one before.
        let served = self.queue.request();
        self.rescan(ctx).await?;
        ctx.modify::<DiscoveryRefreshStatus>(REFRESH, |status| status.request = served)?;
        if !self.queue.is_empty() {
            self.due = Some(Instant::now() + BATCH);
            ctx.requeue_after(BATCH);
        }
        Ok(())
    }
}
