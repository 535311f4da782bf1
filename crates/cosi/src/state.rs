//! The state: all kinds, and typed calls on them.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, PoisonError, RwLock};

use hashbrown::{DefaultHashBuilder, HashTable};
use ichor_resource::{DecodeError, Definition, Kind, Metadata, Nanos, Phase, Resource, Spec, TypedSpec};

use crate::clock::Clock;
use crate::collection::{Collection, Shared};
use crate::error::{Pointer, StateError};
use crate::event::{Event, EventKind};
use crate::handle::KindHandle;
use crate::list_cache::Spent;
use crate::owner::Owner;
use crate::query::Query;
use crate::ring::History;
use crate::typed::Typed;
use crate::watch::{Watch, WatchIdOptions, WatchOptions};

/// Settings of a state.
#[derive(Debug, Clone)]
pub struct StateOptions {
    /// How much history each kind keeps.
    pub history: History,
    /// Accept types nobody registered; their contents stay as they came over the wire.
    pub unregistered_types: bool,
    /// At most this many kinds: requests can name kinds, so there is a bound.
    pub max_kinds: usize,
}

impl Default for StateOptions {
    fn default() -> Self {
        Self {
            history: History::default(),
            unregistered_types: false,
            // 158 types in at most a handful of namespaces each.
            max_kinds: 4096,
        }
    }
}

/// Resources of all kinds, in memory. Cheap to clone; all clones are one state.
#[derive(Clone)]
pub struct State(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    options: StateOptions,
    hasher: DefaultHashBuilder,
    kinds: RwLock<HashTable<Arc<Collection>>>,
    types: RwLock<BTreeMap<&'static str, TypeEntry>>,
}

type Decode = fn(&[u8]) -> Result<Arc<dyn Spec>, DecodeError>;

/// What the state knows about a registered type.
#[derive(Clone, Copy)]
pub(crate) struct TypeEntry {
    pub(crate) definition: &'static Definition,
    pub(crate) spec_type: TypeId,
    pub(crate) decode: Decode,
}

impl TypeEntry {
    #[inline]
    pub(crate) fn of<T: TypedSpec>() -> Self {
        Self { definition: T::definition(), spec_type: TypeId::of::<T>(), decode: decode::<T> }
    }
}

fn decode<T: TypedSpec>(bytes: &[u8]) -> Result<Arc<dyn Spec>, DecodeError> {
    Ok(Arc::new(T::decode_proto(bytes)?))
}

impl State {
    /// An empty state.
    pub fn new(clock: impl Clock) -> Self {
        Self::with_options(clock, StateOptions::default())
    }

    /// An empty state with its own settings.
    pub fn with_options(clock: impl Clock, options: StateOptions) -> Self {
        let shared = Shared {
            clock: Box::new(clock),
            history: options.history,
            cookie: RandomState::new().build_hasher().finish(),
            lists: Spent::default(),
        };
        Self(Arc::new(Inner {
            shared: Arc::new(shared),
            options,
            hasher: DefaultHashBuilder::default(),
            kinds: RwLock::default(),
            types: RwLock::default(),
        }))
    }

    /// The time on the clock of this state.
    pub fn now(&self) -> Nanos {
        self.0.shared.clock.now()
    }

    /// Makes a type known, so that requests that name it are understood.
    pub fn register<T: TypedSpec>(&self) {
        self.register_entry(TypeEntry::of::<T>());
    }

    fn register_entry(&self, entry: TypeEntry) {
        let mut types = self.0.types.write().unwrap_or_else(PoisonError::into_inner);
        types.entry(entry.definition.type_name).or_insert(entry);
    }

    /// Definitions of all registered types, by type name.
    pub fn definitions(&self) -> Vec<&'static Definition> {
        let types = self.0.types.read().unwrap_or_else(PoisonError::into_inner);
        types.values().map(|entry| entry.definition).collect()
    }

    /// The definition of a registered type.
    pub fn definition(&self, type_name: &str) -> Option<&'static Definition> {
        self.type_entry(type_name).map(|entry| entry.definition)
    }

    pub(crate) fn type_entry(&self, type_name: &str) -> Option<TypeEntry> {
        let types = self.0.types.read().unwrap_or_else(PoisonError::into_inner);
        types.get(type_name).copied()
    }

    /// All kinds that were ever used, by namespace and type.
    pub fn kinds(&self) -> Vec<Arc<Kind>> {
        let kinds = self.0.kinds.read().unwrap_or_else(PoisonError::into_inner);
        let mut out: Vec<_> = kinds.iter().map(|held| held.kind.clone()).collect();
        out.sort();
        out
    }

    /// The handle of a kind. For our own code, which only names kinds it knows.
    pub fn kind(&self, namespace: &str, type_name: &str) -> KindHandle {
        match self.find_kind(namespace, type_name) {
            Some(handle) => handle,
            None => self.add_kind(namespace, type_name),
        }
    }

    /// The handle of a kind a request names: only registered types, unless the state takes all.
    pub fn kind_for_request(&self, namespace: &str, type_name: &str) -> Result<KindHandle, StateError> {
        if let Some(handle) = self.find_kind(namespace, type_name) {
            return Ok(handle);
        }
        if !self.0.options.unregistered_types && self.type_entry(type_name).is_none() {
            return Err(StateError::UnknownType(type_name.to_owned()));
        }
        let count = self.0.kinds.read().unwrap_or_else(PoisonError::into_inner).len();
        if count >= self.0.options.max_kinds {
            return Err(StateError::TooManyKinds(count));
        }
        Ok(self.add_kind(namespace, type_name))
    }

    /// The handle of a kind that is in use.
    #[inline]
    pub fn find_kind(&self, namespace: &str, type_name: &str) -> Option<KindHandle> {
        let hash = self.hash(namespace, type_name);
        let kinds = self.0.kinds.read().unwrap_or_else(PoisonError::into_inner);
        let found = kinds.find(hash, |held| is(&held.kind, namespace, type_name))?;
        Some(KindHandle(found.clone()))
    }

    #[cold]
    fn add_kind(&self, namespace: &str, type_name: &str) -> KindHandle {
        let hash = self.hash(namespace, type_name);
        let entry = self.type_entry(type_name);
        let mut kinds = self.0.kinds.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = kinds.find(hash, |held| is(&held.kind, namespace, type_name)) {
            return KindHandle(found.clone());
        }
        let kind = Arc::new(Kind::new(namespace, type_name));
        let collection = Arc::new(Collection::new(kind, self.0.shared.clone()));
        if let Some(entry) = entry {
            // Nobody else has it yet.
            let _ = collection.spec_type.set(entry.spec_type);
        }
        kinds.insert_unique(hash, collection.clone(), |held| {
            self.hash(held.kind.namespace(), held.kind.type_name())
        });
        KindHandle(collection)
    }

    #[inline]
    fn hash(&self, namespace: &str, type_name: &str) -> u64 {
        let mut hasher = self.0.hasher.build_hasher();
        hasher.write(type_name.as_bytes());
        hasher.write(namespace.as_bytes());
        hasher.finish()
    }

    /// The handle of the kind of `T` in a namespace. Registers the type.
    #[inline]
    pub fn kind_of<T: TypedSpec>(&self, namespace: &str) -> KindHandle {
        self.kind_of_entry(namespace, TypeEntry::of::<T>())
    }

    /// As [`State::kind_of`], in one copy for all types.
    pub(crate) fn kind_of_entry(&self, namespace: &str, entry: TypeEntry) -> KindHandle {
        let type_name = entry.definition.type_name;
        let handle = match self.find_kind(namespace, type_name) {
            Some(handle) => handle,
            None => {
                self.register_entry(entry);
                self.add_kind(namespace, type_name)
            }
        };
        handle.0.holds_only(entry.spec_type);
        handle
    }

    /// Looks a resource up without taking hold of its kind.
    #[inline]
    pub(crate) fn look_up(&self, namespace: &str, type_name: &str, id: &str) -> Option<Arc<Resource>> {
        let hash = self.hash(namespace, type_name);
        let kinds = self.0.kinds.read().unwrap_or_else(PoisonError::into_inner);
        let kind = kinds.find(hash, |held| is(&held.kind, namespace, type_name))?;
        kind.find(id)
    }

    /// The resource.
    #[inline]
    pub fn get<T: TypedSpec>(&self, namespace: &str, id: &str) -> Result<Typed<T>, StateError> {
        match self.look_up(namespace, T::definition().type_name, id) {
            Some(resource) => typed(resource),
            None => {
                let kind = self.kind_of::<T>(namespace);
                Err(StateError::NotFound(Pointer::absent(kind.kind(), id)))
            }
        }
    }

    /// The resource, if it is there.
    #[inline]
    pub fn find<T: TypedSpec>(&self, namespace: &str, id: &str) -> Option<Typed<T>> {
        Typed::new(self.look_up(namespace, T::definition().type_name, id)?)
    }

    /// All resources of the kind, sorted by id.
    pub fn list<T: TypedSpec>(&self, namespace: &str) -> Vec<Typed<T>> {
        typed_list(&self.kind_of::<T>(namespace), None)
    }

    /// The resources of the kind that match, sorted by id.
    pub fn query<T: TypedSpec>(&self, namespace: &str, query: &Query) -> Vec<Typed<T>> {
        typed_list(&self.kind_of::<T>(namespace), Some(query))
    }

    /// Stores a new resource.
    pub fn create<'a, T: TypedSpec>(
        &self,
        namespace: &str,
        id: &str,
        spec: T,
        owner: impl Into<Owner<'a>>,
    ) -> Result<Typed<T>, StateError> {
        let handle = self.kind_of::<T>(namespace);
        typed(handle.create(handle.draft(id, Arc::new(spec)), owner)?)
    }

    /// Edits a copy of contents and metadata and stores it when it differs; fails while it is
    /// tearing down.
    pub fn update_with<T: TypedSpec>(
        &self,
        namespace: &str,
        id: &str,
        owner: &str,
        mut edit: impl FnMut(&mut T, &mut Metadata),
    ) -> Result<Typed<T>, StateError> {
        let handle = self.kind_of::<T>(namespace);
        typed(handle.update_dyn(id, owner, Some(Phase::Running), &mut |draft| edit_typed(draft, &mut edit))?)
    }

    /// As [`State::update_with`] on the contents alone, and creates what is missing from the
    /// default.
    pub fn modify<'a, T: TypedSpec>(
        &self,
        namespace: &str,
        id: &str,
        owner: impl Into<Owner<'a>>,
        mut edit: impl FnMut(&mut T),
    ) -> Result<Typed<T>, StateError> {
        self.modify_with(namespace, id, owner, |spec, _| edit(spec))
    }

    /// As [`State::modify`], with the metadata.
    pub fn modify_with<'a, T: TypedSpec>(
        &self,
        namespace: &str,
        id: &str,
        owner: impl Into<Owner<'a>>,
        mut edit: impl FnMut(&mut T, &mut Metadata),
    ) -> Result<Typed<T>, StateError> {
        let handle = self.kind_of::<T>(namespace);
        let blank = || -> Arc<dyn Spec> { Arc::new(T::default()) };
        let running = Some(Phase::Running);
        typed(
            handle
                .modify_dyn(id, owner.into(), running, &blank, &mut |draft| edit_typed(draft, &mut edit))?,
        )
    }

    /// Asks for the end of the resource. True when nobody holds it and it may be destroyed.
    pub fn teardown<T: TypedSpec>(&self, namespace: &str, id: &str, owner: &str) -> Result<bool, StateError> {
        self.kind_of::<T>(namespace).teardown(id, owner)
    }

    /// Removes the resource, unless somebody holds it.
    pub fn destroy<T: TypedSpec>(&self, namespace: &str, id: &str, owner: &str) -> Result<(), StateError> {
        self.kind_of::<T>(namespace).destroy(id, owner).map(drop)
    }

    /// Holds the resource, whoever owns it.
    pub fn add_finalizer<T: TypedSpec>(
        &self,
        namespace: &str,
        id: &str,
        finalizer: &str,
    ) -> Result<(), StateError> {
        self.kind_of::<T>(namespace).add_finalizer(id, finalizer)
    }

    /// Lets go of the resource, whoever owns it.
    pub fn remove_finalizer<T: TypedSpec>(
        &self,
        namespace: &str,
        id: &str,
        finalizer: &str,
    ) -> Result<(), StateError> {
        self.kind_of::<T>(namespace).remove_finalizer(id, finalizer)
    }

    /// Events of the kind.
    pub fn watch<T: TypedSpec>(&self, namespace: &str, options: WatchOptions) -> Result<Watch, StateError> {
        self.kind_of::<T>(namespace).watch(options)
    }

    /// Events of one id; the first tells what is there.
    pub fn watch_id<T: TypedSpec>(&self, namespace: &str, id: &str) -> Result<Watch, StateError> {
        self.kind_of::<T>(namespace).watch_id(id, &WatchIdOptions::default())
    }

    /// Waits until the resource is there and satisfies the condition. Bound it with a timeout.
    pub async fn wait_for<T: TypedSpec>(
        &self,
        namespace: &str,
        id: &str,
        mut condition: impl FnMut(&Typed<T>) -> bool,
    ) -> Result<Typed<T>, StateError> {
        let handle = self.kind_of::<T>(namespace);
        let matching = |event: &Event| match event.kind {
            EventKind::Created | EventKind::Updated => Typed::new(event.resource.clone()),
            EventKind::Destroyed | EventKind::Bootstrapped | EventKind::Errored | EventKind::Noop => None,
        };
        let event =
            handle.wait_for(id, |event| matching(event).is_some_and(|found| condition(&found))).await?;
        typed(event.resource)
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("kinds", &self.kinds().len()).finish_non_exhaustive()
    }
}

#[inline]
fn is(kind: &Kind, namespace: &str, type_name: &str) -> bool {
    kind.type_name() == type_name && kind.namespace() == namespace
}

#[inline]
fn typed<T: TypedSpec>(resource: Arc<Resource>) -> Result<Typed<T>, StateError> {
    match resource.downcast::<T>() {
        Some(_) => Ok(Typed::trusted(resource)),
        None => Err(StateError::SpecType(Pointer::of(resource.meta()))),
    }
}

fn typed_list<T: TypedSpec>(handle: &KindHandle, query: Option<&Query>) -> Vec<Typed<T>> {
    let list = list_of(handle, query, TypeId::of::<T>());
    list.into_iter().map(Typed::trusted).collect()
}

/// The resources whose contents are of this type.
pub(crate) fn list_of(handle: &KindHandle, query: Option<&Query>, spec_type: TypeId) -> Vec<Arc<Resource>> {
    let mut list = match query {
        Some(query) => handle.query(query),
        None => handle.list(),
    };
    if !handle.0.holds_only(spec_type) {
        list.retain(|resource| resource.spec().as_any().type_id() == spec_type);
    }
    list
}

fn edit_typed<T: TypedSpec>(
    draft: &mut Resource,
    edit: &mut dyn FnMut(&mut T, &mut Metadata),
) -> Result<(), StateError> {
    let Some(spec) = draft.downcast::<T>() else {
        return Err(StateError::SpecType(Pointer::of(draft.meta())));
    };
    let mut edited = spec.clone();
    edit(&mut edited, draft.meta_mut());
    draft.set_spec(Arc::new(edited));
    Ok(())
}
