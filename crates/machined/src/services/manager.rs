//! The table of services.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

use ichor_observe::LogManager;
use ichor_wire::machine;

use super::port::{ImagePort, Process, ProcessPort};
use super::record::{Record, ServiceState};
use super::runner;
use super::spec::{ContainerSpec, ServiceSpec};
use crate::events::{Events, Now};

/// A dependant gets this long to stop before the service it needs is stopped.
const DEPENDANT_STOP_MAX: Duration = Duration::from_secs(30);

/// Why a service operation was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// No such service.
    #[error("service \"{id}\" not defined")]
    NotDefined {
        /// The id asked for.
        id: String,
    },
    /// The API may not do that to this service.
    #[error("service \"{id}\" doesn't support {operation} operation via API")]
    NotSupported {
        /// The service.
        id: String,
        /// What was asked.
        operation: &'static str,
    },
    /// Services were still not up at the deadline.
    #[error("timed out waiting for services to be up: {}", pending.join(", "))]
    NotUp {
        /// Which ones.
        pending: Vec<String>,
    },
    /// A service was still running at the deadline.
    #[error("timed out waiting for service \"{id}\" to stop")]
    NotDown {
        /// Which one.
        id: String,
    },
}

/// All services of a node. Cheap to clone.
#[derive(Clone)]
pub struct ServiceManager {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    table: Mutex<Table>,
    changed: watch::Sender<u64>,
    terminating: AtomicBool,
    events: Events,
    now: Now,
    runtime: Handle,
    pub(super) logs: LogManager,
    pub(super) port: Arc<dyn ProcessPort>,
    pub(super) images: OnceLock<Arc<dyn ImagePort>>,
}

#[derive(Default)]
struct Table {
    services: BTreeMap<String, Entry>,
    /// Processes an earlier machined started, until their service is started here.
    inherited: BTreeMap<String, Process>,
}

struct Entry {
    spec: Arc<ServiceSpec>,
    record: Record,
    active: Option<CancellationToken>,
    /// Its process, while there is one.
    pid: Option<i32>,
}

/// What the outside may know of a service at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceView {
    /// Its id.
    pub id: String,
    /// Where it is in its life.
    pub state: ServiceState,
    /// Its health, unknown before the first check.
    pub healthy: Option<bool>,
}

impl ServiceManager {
    /// An empty table; service tasks run on `runtime`. `inherited` are processes that run already,
    /// by service id.
    pub fn new(
        events: Events,
        logs: LogManager,
        port: Arc<dyn ProcessPort>,
        inherited: BTreeMap<String, Process>,
        runtime: Handle,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                table: Mutex::new(Table { services: BTreeMap::new(), inherited }),
                changed: watch::Sender::new(0),
                terminating: AtomicBool::new(false),
                events,
                now: Timestamp::now,
                runtime,
                logs,
                port,
                images: OnceLock::new(),
            }),
        }
    }

    /// Who starts the processes.
    pub(crate) fn port(&self) -> Arc<dyn ProcessPort> {
        Arc::clone(&self.shared.port)
    }

    /// Says where the roots of containers come from. The first word counts.
    pub fn with_images(&self, images: Arc<dyn ImagePort>) {
        let _ = self.shared.images.set(images);
    }

    /// Makes a service known. One that is known already stays as it is.
    pub fn load(&self, spec: ServiceSpec) {
        if self.is_terminating() {
            return;
        }
        // Asking for the log makes it exist: `logs apid` has an answer before the first line.
        self.shared.logs.ring(&spec.id);
        {
            let mut table = self.shared.lock();
            if table.services.contains_key(&spec.id) {
                return;
            }
            let record = Record::new(&spec.id, spec.health.is_some());
            table
                .services
                .insert(spec.id.clone(), Entry { spec: Arc::new(spec), record, active: None, pid: None });
        }
        self.shared.bump();
    }

    /// Starts a service; one that runs stays as it is.
    pub fn start(&self, id: &str) -> Result<(), ServiceError> {
        if self.is_terminating() {
            return Ok(());
        }
        let (spec, stop, inherited) = {
            let mut table = self.shared.lock();
            let inherited = table.inherited.remove(id);
            let Some(entry) = table.services.get_mut(id) else {
                if let Some(process) = inherited {
                    table.inherited.insert(id.to_owned(), process);
                }
                return Err(ServiceError::NotDefined { id: id.to_owned() });
            };
            if entry.active.is_some() {
                return Ok(());
            }
            let stop = CancellationToken::new();
            entry.active = Some(stop.clone());
            (Arc::clone(&entry.spec), stop, inherited)
        };
        let manager = self.clone();
        self.shared.runtime.spawn(async move {
            let id = spec.id.clone();
            runner::run(&manager, spec, &stop, inherited).await;
            if let Some(entry) = manager.shared.lock().services.get_mut(&id) {
                entry.active = None;
            }
            manager.shared.bump();
        });
        Ok(())
    }

    /// Has the image of a container here, so that its start does not have to wait for it.
    ///
    /// # Errors
    /// Why it cannot be had.
    pub async fn prepare_image(&self, id: &str, container: &ContainerSpec) -> Result<(), String> {
        match self.shared.images.get() {
            Some(images) => images.prepare(id, container).await.map(drop),
            None => Err("there is nothing on this node that holds images".to_owned()),
        }
    }

    /// Says what a service that is being prepared waits for.
    pub fn tell(&self, id: &str, message: String) {
        self.shared.update(id, ServiceState::Preparing, message);
    }

    /// Runs what a spec describes once, to its end, beside the services; its log has its id.
    ///
    /// # Errors
    /// Why it could not be started, or how it failed.
    pub async fn run_once(&self, spec: &ServiceSpec) -> Result<(), String> {
        runner::run_once(&self.shared, spec).await
    }

    /// Stops one service and waits until it is down.
    pub async fn stop(&self, id: &str) -> Result<(), ServiceError> {
        let grace = {
            let table = self.shared.lock();
            let entry =
                table.services.get(id).ok_or_else(|| ServiceError::NotDefined { id: id.to_owned() })?;
            if let Some(stop) = &entry.active {
                stop.cancel();
            }
            entry.spec.grace
        };
        // SIGKILL comes after the grace; what is left is the kernel's time to reap.
        let limit = grace.saturating_mul(2);
        let mut changed = self.shared.changed.subscribe();
        let gone = changed.wait_for(|_| !self.is_active(id));
        match tokio::time::timeout(limit, gone).await {
            Ok(_) => Ok(()),
            Err(_) => Err(ServiceError::NotDown { id: id.to_owned() }),
        }
    }

    /// Stops services and, before them, everything that depends on them.
    pub async fn stop_with_dependants(&self, ids: &[&str]) -> Result<(), ServiceError> {
        for wave in self.stop_order(ids) {
            let stops = wave.iter().map(|id| async move {
                match tokio::time::timeout(DEPENDANT_STOP_MAX, self.stop(id)).await {
                    Ok(result) => result,
                    Err(_) => Err(ServiceError::NotDown { id: id.clone() }),
                }
            });
            for result in futures_util::future::join_all(stops).await {
                result?;
            }
        }
        Ok(())
    }

    /// Stops a service if it runs, then starts it.
    pub async fn restart(&self, id: &str) -> Result<(), ServiceError> {
        self.stop(id).await?;
        self.start(id)
    }

    /// Ends everything for good: later calls to load, start or stop do nothing.
    pub async fn shutdown(&self) {
        if self.shared.terminating.swap(true, Ordering::SeqCst) {
            return;
        }
        let ids: Vec<String> = self.shared.lock().services.keys().cloned().collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        if let Err(error) = self.stop_with_dependants(&ids).await {
            tracing::warn!(%error, "not every service stopped");
        }
    }

    /// Waits until these services are up.
    pub async fn wait_up(&self, ids: &[&str], limit: Duration) -> Result<(), ServiceError> {
        let mut changed = self.shared.changed.subscribe();
        let up = changed.wait_for(|_| self.pending(ids).is_empty());
        match tokio::time::timeout(limit, up).await {
            Ok(_) => Ok(()),
            Err(_) => Err(ServiceError::NotUp { pending: self.pending(ids) }),
        }
    }

    /// Which of these services are not up.
    pub fn pending(&self, ids: &[&str]) -> Vec<String> {
        let table = self.shared.lock();
        ids.iter()
            .filter(|id| !table.services.get(**id).is_some_and(|entry| entry.record.is_up()))
            .map(|id| (*id).to_owned())
            .collect()
    }

    /// Ids of all services.
    pub fn ids(&self) -> Vec<String> {
        self.shared.lock().services.keys().cloned().collect()
    }

    /// The wire form of all services, by id.
    pub fn list(&self) -> Vec<machine::ServiceInfo> {
        self.shared.lock().services.values().map(|entry| entry.record.info()).collect()
    }

    /// Looks at every service: what it needs and how it is.
    pub fn look<T>(&self, mut look: impl FnMut(&ServiceSpec, &Record) -> T) -> Vec<T> {
        self.shared.lock().services.values().map(|entry| look(&entry.spec, &entry.record)).collect()
    }

    /// All services at a glance, by id.
    pub fn views(&self) -> Vec<ServiceView> {
        let table = self.shared.lock();
        table
            .services
            .values()
            .map(|entry| ServiceView {
                id: entry.record.id().to_owned(),
                state: entry.record.state(),
                healthy: entry.record.health().healthy,
            })
            .collect()
    }

    /// The state and message of a service.
    pub fn state(&self, id: &str) -> Option<(ServiceState, String)> {
        let table = self.shared.lock();
        table.services.get(id).map(|entry| (entry.record.state(), entry.record.message().to_owned()))
    }

    /// Refuses what the API may not do to a service.
    pub fn check_api(&self, id: &str, operation: &'static str) -> Result<(), ServiceError> {
        let table = self.shared.lock();
        let entry = table.services.get(id).ok_or_else(|| ServiceError::NotDefined { id: id.to_owned() })?;
        let api = entry.spec.api;
        let allowed = match operation {
            "start" => api.start,
            "stop" => api.stop,
            _ => api.restart,
        };
        if allowed { Ok(()) } else { Err(ServiceError::NotSupported { id: id.to_owned(), operation }) }
    }

    /// Told of every change of the table.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.shared.changed.subscribe()
    }

    /// Whether a process of an earlier machined waits for this service to be started.
    pub fn is_inherited(&self, id: &str) -> bool {
        self.shared.lock().inherited.contains_key(id)
    }

    /// Services with a process, and its number.
    pub fn processes(&self) -> Vec<(String, i32)> {
        let table = self.shared.lock();
        table.services.iter().filter_map(|(id, entry)| Some((id.clone(), entry.pid?))).collect()
    }

    /// Names of inherited processes that no service will claim.
    pub fn unclaimed(&self) -> Vec<String> {
        let table = self.shared.lock();
        table.inherited.keys().filter(|id| !table.services.contains_key(*id)).cloned().collect()
    }

    /// Ends an inherited process that no service wants any more.
    pub fn drop_unclaimed(&self, id: &str) {
        let process = self.shared.lock().inherited.remove(id);
        if let Some(process) = process {
            let port = Arc::clone(&self.shared.port);
            port.signal(process.handle, runner::SIGKILL);
            self.shared.runtime.spawn(async move {
                let _ = process.exit.await;
                port.release(process.handle);
            });
        }
    }

    fn is_terminating(&self) -> bool {
        self.shared.terminating.load(Ordering::SeqCst)
    }

    fn is_active(&self, id: &str) -> bool {
        self.shared.lock().services.get(id).is_some_and(|entry| entry.active.is_some())
    }

    /// Waves of services to stop: dependants first.
    fn stop_order(&self, ids: &[&str]) -> Vec<Vec<String>> {
        let table = self.shared.lock();
        let depends: BTreeMap<String, Vec<String>> =
            table.services.iter().map(|(id, entry)| (id.clone(), entry.spec.depends.clone())).collect();
        stop_order(&depends, ids)
    }
}

/// Waves of services to stop: each wave's members have no running dependants outside earlier waves.
fn stop_order(depends: &BTreeMap<String, Vec<String>>, ids: &[&str]) -> Vec<Vec<String>> {
    let mut wanted: BTreeSet<&str> = ids.iter().copied().filter(|id| depends.contains_key(*id)).collect();
    loop {
        let more: Vec<&str> = depends
            .iter()
            .filter(|(id, needs)| {
                !wanted.contains(id.as_str()) && needs.iter().any(|need| wanted.contains(need.as_str()))
            })
            .map(|(id, _)| id.as_str())
            .collect();
        if more.is_empty() {
            break;
        }
        wanted.extend(more);
    }
    let mut waves = Vec::new();
    while !wanted.is_empty() {
        let free: Vec<String> = wanted
            .iter()
            .filter(|id| {
                !wanted.iter().any(|other| other != *id && depends[*other].iter().any(|need| need == *id))
            })
            .map(|id| (*id).to_owned())
            .collect();
        // A circle has no first member; it goes in one wave.
        let wave: Vec<String> =
            if free.is_empty() { wanted.iter().map(|id| (*id).to_owned()).collect() } else { free };
        for id in &wave {
            wanted.remove(id.as_str());
        }
        waves.push(wave);
    }
    waves
}

impl Shared {
    /// Moves a service to a state and tells everyone.
    pub(super) fn update(&self, id: &str, state: ServiceState, message: impl Into<String>) {
        let message = message.into();
        self.change(id, |record, now| record.update(state, message, now));
    }

    /// Notes which process a service has.
    pub(super) fn has_process(&self, id: &str, pid: Option<i32>) {
        if let Some(entry) = self.lock().services.get_mut(id) {
            entry.pid = pid;
        }
    }

    /// Notes the result of a health check and tells everyone if it matters.
    pub(super) fn checked(&self, id: &str, result: Result<(), String>) {
        self.change(id, |record, now| record.check(result, now));
    }

    fn change(
        &self,
        id: &str,
        edit: impl FnOnce(&mut Record, Timestamp) -> Option<machine::ServiceStateEvent>,
    ) {
        let now = (self.now)();
        let (event, state) = {
            let mut table = self.lock();
            let Some(entry) = table.services.get_mut(id) else { return };
            let Some(event) = edit(&mut entry.record, now) else { return };
            (event, entry.record.state())
        };
        info!("service[{id}]({}): {}", state.as_str(), event.message);
        self.events.publish(event);
        self.bump();
    }

    fn bump(&self) {
        self.changed.send_modify(|version| *version += 1);
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod order_tests {
    use super::*;

    #[track_caller]
    fn check(depends: &[(&str, &[&str])], ids: &[&str], expect: &[&[&str]]) {
        let depends = depends
            .iter()
            .map(|(id, needs)| ((*id).to_owned(), needs.iter().map(|n| (*n).to_owned()).collect()))
            .collect();
        assert_eq!(stop_order(&depends, ids), expect);
    }

    #[test]
    fn dependants_stop_first() {
        check(
            &[("apid", &["containerd"]), ("containerd", &[]), ("etcd", &["cri"]), ("cri", &["containerd"])],
            &["containerd"],
            &[&["apid", "etcd"], &["cri"], &["containerd"]],
        );
    }

    #[test]
    fn unknown_services_and_circles_do_not_hang() {
        check(&[("a", &["b"]), ("b", &["a"])], &["a", "nope"], &[&["a", "b"]]);
    }
}
