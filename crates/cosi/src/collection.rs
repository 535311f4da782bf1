//! The resources and the history of one kind, under one lock.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use ichor_resource::{Id, Kind, Nanos, Phase, Resource, Version};

use crate::clock::Clock;
use crate::error::{Pointer, StateError};
use crate::event::EventKind;
use crate::list_cache::{ListCache, Spent};
use crate::map::Map;
use crate::owner::Owner;
use crate::query::Query;
use crate::ring::{Entry, History, Ring};
use crate::waiters::{IdSlot, Waiters};

/// What all kinds of a state share.
pub(crate) struct Shared {
    pub(crate) clock: Box<dyn Clock>,
    pub(crate) history: History,
    /// Tells bookmarks of this process from those of another.
    pub(crate) cookie: u64,
    /// Memory taken by encoded lists.
    pub(crate) lists: Spent,
}

/// Gets told of changes, after all locks are gone. Must not block.
pub(crate) trait Subscriber: Send + Sync {
    fn changed(&self, resource: &Arc<Resource>);
}

/// Somebody who wants to know that something changed, but not what.
#[derive(Clone)]
pub(crate) struct Subscription {
    pub(crate) id: Option<Id>,
    /// Only when the resource is tearing down and held by nobody.
    pub(crate) destroy_ready: bool,
    pub(crate) target: Arc<dyn Subscriber>,
}

impl Subscription {
    fn wants(&self, event: EventKind, resource: &Resource) -> bool {
        let id = self.id.as_ref().is_none_or(|id| id == resource.id());
        let moment =
            !self.destroy_ready || (event != EventKind::Destroyed && resource.meta().is_destroy_ready());
        id && moment
    }
}

pub(crate) struct Collection {
    pub(crate) kind: Arc<Kind>,
    pub(crate) shared: Arc<Shared>,
    /// The type all contents have, once it is known.
    pub(crate) spec_type: OnceLock<TypeId>,
    inner: RwLock<Inner>,
    pub(crate) waiters: Mutex<Waiters>,
    /// Somebody may be in `waiters`. Set under the read lock, read under the write lock.
    pub(crate) waiting: AtomicBool,
    pub(crate) lists: Mutex<ListCache>,
}

pub(crate) struct Inner {
    pub(crate) map: Map,
    pub(crate) ring: Ring,
    pub(crate) by_id: HashMap<Id, Vec<Arc<IdSlot>>>,
    subscriptions: Option<Arc<Vec<Subscription>>>,
    /// The time of the last write.
    stamp: Nanos,
}

impl Collection {
    pub(crate) fn new(kind: Arc<Kind>, shared: Arc<Shared>) -> Self {
        let inner = Inner {
            map: Map::default(),
            ring: Ring::new(shared.history),
            by_id: HashMap::new(),
            subscriptions: None,
            stamp: Nanos::default(),
        };
        Self {
            kind,
            shared,
            spec_type: OnceLock::new(),
            inner: RwLock::new(inner),
            waiters: Mutex::default(),
            waiting: AtomicBool::new(false),
            lists: Mutex::default(),
        }
    }

    // A panic under the lock cannot leave it half-written: nothing foreign runs there.
    #[inline]
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn find(&self, id: &str) -> Option<Arc<Resource>> {
        self.read().map.get(id).cloned()
    }

    pub(crate) fn list(&self) -> Vec<Arc<Resource>> {
        self.read().list()
    }

    pub(crate) fn query(&self, query: &Query) -> Vec<Arc<Resource>> {
        self.read().query(query)
    }

    pub(crate) fn create(&self, mut draft: Resource, owner: Owner<'_>) -> Result<Arc<Resource>, StateError> {
        let owner = owner.shared();
        let mut inner = self.write();
        self.check_spec(&draft)?;
        let hash = inner.map.hash(draft.id().as_bytes());
        if inner.map.find(hash, draft.id()).is_some() {
            drop(inner);
            return Err(StateError::AlreadyExists(Pointer::of(draft.meta())));
        }
        let now = inner.tick(&*self.shared.clock);
        let meta = draft.meta_mut();
        meta.set_version(Version::FIRST);
        meta.set_owner(owner);
        meta.set_times(now, now);
        let resource = Arc::new(draft);
        inner.map.insert(hash, resource.clone());
        self.publish(inner, EventKind::Created, &resource, None);
        Ok(resource)
    }

    pub(crate) fn update(
        &self,
        mut draft: Resource,
        owner: &str,
        expected: Option<Phase>,
    ) -> Result<Arc<Resource>, StateError> {
        let mut inner = self.write();
        self.check_spec(&draft)?;
        let slot = inner.map.find(inner.map.hash(draft.id().as_bytes()), draft.id());
        let Some((slot, current)) = slot.and_then(|slot| Some((slot, inner.map.at(slot)?))) else {
            drop(inner);
            return Err(StateError::NotFound(Pointer::of(draft.meta())));
        };
        let stored = current.meta();
        if !stored.is_owned_by(owner) {
            return Err(owner_conflict(current));
        }
        let version = draft.meta().version();
        if stored.version() != version {
            return Err(StateError::VersionConflict {
                pointer: Pointer::of(stored),
                expected: version,
                actual: stored.version(),
            });
        }
        if let Some(expected) = expected
            && stored.phase() != expected
        {
            return Err(StateError::PhaseConflict { pointer: Pointer::of(stored), expected });
        }

        let (created, owner) = (stored.created(), stored.shared_owner().cloned());
        let now = inner.tick(&*self.shared.clock);
        let meta = draft.meta_mut();
        meta.set_version(version.next());
        meta.set_owner(owner);
        meta.set_times(created, now);
        let resource = Arc::new(draft);
        let old = inner.map.replace(slot, resource.clone());
        self.publish(inner, EventKind::Updated, &resource, old);
        Ok(resource)
    }

    pub(crate) fn destroy(&self, id: &str, owner: &str) -> Result<Arc<Resource>, StateError> {
        let mut inner = self.write();
        let Some(current) = inner.map.get(id) else {
            drop(inner);
            return Err(StateError::NotFound(Pointer::absent(&self.kind, id)));
        };
        if !current.meta().is_owned_by(owner) {
            return Err(owner_conflict(current));
        }
        if !current.meta().finalizers().is_empty() {
            return Err(StateError::PendingFinalizers {
                pointer: Pointer::of(current.meta()),
                finalizers: current.meta().finalizers().to_vec(),
            });
        }
        let hash = inner.map.hash(id.as_bytes());
        let Some(resource) = inner.map.remove(hash, id.as_bytes()) else {
            drop(inner);
            return Err(StateError::NotFound(Pointer::absent(&self.kind, id)));
        };
        self.publish(inner, EventKind::Destroyed, &resource, None);
        Ok(resource)
    }

    /// Puts the event into the history, lets go of the lock, then tells everybody.
    #[inline]
    fn publish(
        &self,
        mut inner: RwLockWriteGuard<'_, Inner>,
        kind: EventKind,
        resource: &Arc<Resource>,
        old: Option<Arc<Resource>>,
    ) {
        let position = inner.ring.write_pos();
        let evicted = inner.ring.push(Entry::new(kind, resource.clone(), old));
        let slots = if inner.by_id.is_empty() {
            Vec::new()
        } else {
            let slots = inner.by_id.get(resource.id()).cloned().unwrap_or_default();
            slots.iter().for_each(|slot| slot.note(position));
            slots
        };
        let subscriptions = inner.subscriptions.clone();
        let waiting = self.waiting.load(Ordering::Relaxed);
        drop(inner);

        drop(evicted);
        if waiting {
            self.wake_all();
        }
        for slot in slots {
            slot.wake();
        }
        for subscription in subscriptions.iter().flat_map(|list| list.iter()) {
            if subscription.wants(kind, resource) {
                subscription.target.changed(resource);
            }
        }
    }

    #[inline(never)]
    fn wake_all(&self) {
        let taken = {
            let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
            self.waiting.store(false, Ordering::Relaxed);
            waiters.take()
        };
        taken.wake();
    }

    pub(crate) fn subscribe(&self, subscription: Subscription) {
        let mut inner = self.write();
        let list = inner.subscriptions.get_or_insert_default();
        Arc::make_mut(list).push(subscription);
    }

    /// Removes all subscriptions of one target.
    pub(crate) fn unsubscribe(&self, target: &Arc<dyn Subscriber>) {
        let mut inner = self.write();
        let Some(list) = &mut inner.subscriptions else {
            return;
        };
        Arc::make_mut(list).retain(|held| !Arc::ptr_eq(&held.target, target));
        if list.is_empty() {
            inner.subscriptions = None;
        }
    }

    /// True when all contents are and will be of this type.
    #[inline]
    pub(crate) fn holds_only(&self, spec: TypeId) -> bool {
        match self.spec_type.get() {
            Some(known) => *known == spec,
            None => self.claim(spec),
        }
    }

    /// Claims a kind that was first named as text, unless it holds something else already.
    #[cold]
    fn claim(&self, spec: TypeId) -> bool {
        let inner = self.write();
        let mut all = true;
        inner.map.for_each(|resource| all &= resource.spec().as_any().type_id() == spec);
        all && *self.spec_type.get_or_init(|| spec) == spec
    }

    /// Under the write lock, so that no claim comes between the check and the write.
    #[inline]
    fn check_spec(&self, draft: &Resource) -> Result<(), StateError> {
        match self.spec_type.get() {
            Some(expected) if *expected != draft.spec().as_any().type_id() => {
                Err(StateError::SpecType(Pointer::of(draft.meta())))
            }
            _ => Ok(()),
        }
    }
}

impl Inner {
    /// The time of a write: later than the one before, so that two lives of an id can be told apart
    /// although the clock stands still in between.
    #[inline]
    fn tick(&mut self, clock: &dyn Clock) -> Nanos {
        self.stamp = clock.stamp().max(Nanos(self.stamp.0.saturating_add(1)));
        self.stamp
    }

    pub(crate) fn list(&self) -> Vec<Arc<Resource>> {
        let mut out = Vec::with_capacity(self.map.len());
        self.map.for_each(|resource| out.push(resource.clone()));
        out
    }

    pub(crate) fn query(&self, query: &Query) -> Vec<Arc<Resource>> {
        if query.is_all() {
            return self.list();
        }
        let mut out = Vec::new();
        self.map.for_each(|resource| {
            if query.matches(resource.meta()) {
                out.push(resource.clone());
            }
        });
        out
    }
}

fn owner_conflict(current: &Arc<Resource>) -> StateError {
    StateError::OwnerConflict {
        pointer: Pointer::of(current.meta()),
        owner: current.meta().owner().to_owned(),
    }
}
