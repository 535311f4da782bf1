//! The state as one controller sees it: reads and writes are checked against its declarations.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hashbrown::HashSet;
use ichor_resource::{Definition, Id, Metadata, Resource, TypedSpec};

use crate::access::Access;
use crate::collection::Subscriber;
use crate::controller::{Controller, Wake};
use crate::dependency::Input;
use crate::error::StateError;
use crate::handle::KindHandle;
use crate::state::{State, TypeEntry, list_of};
use crate::typed::Typed;

/// What a controller gets for one pass.
pub struct Context {
    pub(crate) access: Arc<Access>,
    /// Who is told when inputs change.
    pub(crate) target: Arc<dyn Subscriber>,
    wake: Wake,
    /// Inputs stay as they were registered.
    fixed: bool,
    requeue: Mutex<Option<Duration>>,
    trouble: Mutex<Option<String>>,
}

impl Context {
    pub(crate) fn new(access: Arc<Access>, target: Arc<dyn Subscriber>, wake: Wake) -> Self {
        Self { access, target, wake, fixed: false, requeue: Mutex::new(None), trouble: Mutex::new(None) }
    }

    pub(crate) fn fixed(access: Arc<Access>, target: Arc<dyn Subscriber>, wake: Wake) -> Self {
        Self { fixed: true, ..Self::new(access, target, wake) }
    }

    /// A context outside of a runtime, so that a test can run single passes. The wake handle is
    /// what inputs call.
    pub fn detached<C: Controller>(state: &State, controller: &C) -> Result<(Self, Wake), StateError> {
        let (inputs, outputs) = (controller.inputs(), controller.outputs());
        let access = Arc::new(Access::new(state, C::NAME, inputs, outputs)?);
        let wake = Wake::new();
        let target: Arc<dyn Subscriber> = wake.0.clone();
        access.subscribe(&target);
        Ok((Self::new(access, target, wake.clone()), wake))
    }

    /// The name of the controller, which owns what it writes.
    pub fn name(&self) -> &'static str {
        self.access.name
    }

    /// Now.
    pub fn now(&self) -> jiff::Timestamp {
        self.access.state.now().timestamp()
    }

    /// A handle that asks for one more pass.
    pub fn wake(&self) -> &Wake {
        &self.wake
    }

    /// The resource in its default namespace, if it is there.
    pub fn get<T: TypedSpec>(&self, id: &str) -> Result<Option<Typed<T>>, StateError> {
        self.get_in(T::definition().default_namespace, id)
    }

    /// The resource, if it is there.
    pub fn get_in<T: TypedSpec>(&self, namespace: &str, id: &str) -> Result<Option<Typed<T>>, StateError> {
        Ok(self.find(namespace, T::definition(), id)?.and_then(Typed::new))
    }

    // The calls of all controllers on all types come down to the ones below without type parameters: a copy for
    // each type was half a megabyte.
    fn find(
        &self,
        namespace: &str,
        of: &'static Definition,
        id: &str,
    ) -> Result<Option<Arc<Resource>>, StateError> {
        self.access.read(namespace, of.type_name, Some(id))?;
        Ok(self.access.state.look_up(namespace, of.type_name, id))
    }

    fn all(&self, namespace: &str, entry: TypeEntry) -> Result<Vec<Arc<Resource>>, StateError> {
        self.access.read(namespace, entry.definition.type_name, None)?;
        Ok(list_of(&self.access.state.kind_of_entry(namespace, entry), None, entry.spec_type))
    }

    /// The kind of an output.
    fn output(&self, namespace: &str, entry: TypeEntry, id: Option<&str>) -> Result<KindHandle, StateError> {
        self.access.write(namespace, entry.definition.type_name, id)?;
        Ok(self.access.state.kind_of_entry(namespace, entry))
    }

    /// The kind of an input that may be held.
    fn held(&self, namespace: &str, entry: TypeEntry, id: &str) -> Result<KindHandle, StateError> {
        self.access.finalize(namespace, entry.definition.type_name, id)?;
        Ok(self.access.state.kind_of_entry(namespace, entry))
    }

    fn remove(&self, namespace: &str, entry: TypeEntry, id: &str) -> Result<bool, StateError> {
        let kind = self.output(namespace, entry, Some(id))?;
        match kind.teardown(id, self.access.name) {
            Ok(true) => kind.destroy(id, self.access.name).map(|_| true),
            Ok(false) => Ok(false),
            Err(StateError::NotFound(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn keep(&self, namespace: &str, entry: TypeEntry, keep: &dyn Fn(&Id) -> bool) -> Result<(), StateError> {
        for resource in self.output(namespace, entry, None)?.list() {
            let own = resource.meta().owner() == self.access.name;
            if own && !keep(resource.id()) {
                self.remove(namespace, entry, resource.id())?;
            }
        }
        Ok(())
    }

    /// Gives way to a new life of an own output that is on its way out and held by nobody.
    fn bury(&self, namespace: &str, entry: TypeEntry, id: &Id) -> Result<(), StateError> {
        let kind = self.output(namespace, entry, Some(id))?;
        if let Some(current) = kind.find(id)
            && current.meta().owner() == self.access.name
            && current.meta().is_destroy_ready()
        {
            kind.destroy(id, self.access.name)?;
        }
        Ok(())
    }

    /// All resources in the default namespace, sorted by id.
    pub fn list<T: TypedSpec>(&self) -> Result<Vec<Typed<T>>, StateError> {
        self.list_in(T::definition().default_namespace)
    }

    /// All resources, sorted by id.
    pub fn list_in<T: TypedSpec>(&self, namespace: &str) -> Result<Vec<Typed<T>>, StateError> {
        let list = self.all(namespace, TypeEntry::of::<T>())?;
        Ok(list.into_iter().map(Typed::trusted).collect())
    }

    /// Edits the contents of an output in its default namespace, or makes it. Writes nothing when
    /// nothing changed.
    pub fn modify<T: TypedSpec>(&self, id: &str, edit: impl FnMut(&mut T)) -> Result<Typed<T>, StateError> {
        self.modify_in(T::definition().default_namespace, id, edit)
    }

    /// As [`Context::modify`], in any namespace.
    pub fn modify_in<T: TypedSpec>(
        &self,
        namespace: &str,
        id: &str,
        mut edit: impl FnMut(&mut T),
    ) -> Result<Typed<T>, StateError> {
        self.modify_with(namespace, id, |spec, _| edit(spec))
    }

    /// As [`Context::modify_in`], with labels and annotations.
    pub fn modify_with<T: TypedSpec>(
        &self,
        namespace: &str,
        id: &str,
        mut edit: impl FnMut(&mut T, &mut Metadata),
    ) -> Result<Typed<T>, StateError> {
        self.change(namespace, id, &mut edit)
    }

    /// As [`Context::modify_with`], in one copy for a type.
    fn change<T: TypedSpec>(
        &self,
        namespace: &str,
        id: &str,
        edit: &mut dyn FnMut(&mut T, &mut Metadata),
    ) -> Result<Typed<T>, StateError> {
        self.access.write(namespace, T::definition().type_name, Some(id))?;
        let owner = &self.access.owner;
        self.access.state.modify_with(namespace, id, owner, edit)
    }

    /// Asks for the end of an output. True when it may be destroyed.
    pub fn teardown<T: TypedSpec>(&self, id: &str) -> Result<bool, StateError> {
        self.teardown_in::<T>(T::definition().default_namespace, id)
    }

    /// As [`Context::teardown`], in any namespace.
    pub fn teardown_in<T: TypedSpec>(&self, namespace: &str, id: &str) -> Result<bool, StateError> {
        self.teardown_owned::<T>(namespace, id, self.access.name)
    }

    /// Asks for the end of an output that somebody else owns.
    pub fn teardown_owned<T: TypedSpec>(
        &self,
        namespace: &str,
        id: &str,
        owner: &str,
    ) -> Result<bool, StateError> {
        self.output(namespace, TypeEntry::of::<T>(), Some(id))?.teardown(id, owner)
    }

    /// Destroys an output; fails while somebody holds it.
    pub fn destroy<T: TypedSpec>(&self, id: &str) -> Result<(), StateError> {
        self.destroy_in::<T>(T::definition().default_namespace, id)
    }

    /// As [`Context::destroy`], in any namespace.
    pub fn destroy_in<T: TypedSpec>(&self, namespace: &str, id: &str) -> Result<(), StateError> {
        self.destroy_owned::<T>(namespace, id, self.access.name)
    }

    /// Destroys an output that somebody else owns.
    pub fn destroy_owned<T: TypedSpec>(
        &self,
        namespace: &str,
        id: &str,
        owner: &str,
    ) -> Result<(), StateError> {
        self.output(namespace, TypeEntry::of::<T>(), Some(id))?.destroy(id, owner).map(drop)
    }

    /// The polite end of an output: tears it down, and destroys it when nobody holds it. True when
    /// it is gone. Declare the type as a `destroy_ready` input to be woken for the rest.
    pub fn remove_in<T: TypedSpec>(&self, namespace: &str, id: &str) -> Result<bool, StateError> {
        self.remove(namespace, TypeEntry::of::<T>(), id)
    }

    /// Makes the outputs of type `T` in the default namespace exactly these: each is modified, and
    /// own ones that are not named are removed.
    pub fn publish<T: TypedSpec>(
        &self,
        wanted: impl IntoIterator<Item = (impl Into<Id>, T)>,
    ) -> Result<(), StateError> {
        self.publish_in(T::definition().default_namespace, wanted)
    }

    /// As [`Context::publish`], in any namespace.
    pub fn publish_in<T: TypedSpec>(
        &self,
        namespace: &str,
        wanted: impl IntoIterator<Item = (impl Into<Id>, T)>,
    ) -> Result<(), StateError> {
        let mut named = HashSet::new();
        for (id, spec) in wanted {
            let id = id.into();
            self.put(namespace, &id, spec)?;
            named.insert(id);
        }
        self.keep_only::<T>(namespace, |id| named.contains(id))
    }

    /// Removes own outputs of type `T` that `keep` does not name.
    pub fn keep_only<T: TypedSpec>(
        &self,
        namespace: &str,
        keep: impl Fn(&Id) -> bool,
    ) -> Result<(), StateError> {
        self.keep(namespace, TypeEntry::of::<T>(), &keep)
    }

    /// The kind of an output, for many reads in a row.
    pub(crate) fn outputs<T: TypedSpec>(&self, namespace: &str) -> Result<KindHandle, StateError> {
        self.output(namespace, TypeEntry::of::<T>(), None)
    }

    /// Makes one output hold exactly this.
    pub fn put<T: TypedSpec>(&self, namespace: &str, id: &Id, spec: T) -> Result<(), StateError> {
        self.bury(namespace, TypeEntry::of::<T>(), id)?;
        self.modify_in::<T>(namespace, id, |stored| {
            if *stored != spec {
                stored.clone_from(&spec);
            }
        })?;
        Ok(())
    }

    /// Holds a strong input under the controller's name.
    pub fn add_finalizer<T: TypedSpec>(&self, id: &str) -> Result<(), StateError> {
        self.add_finalizer_in::<T>(T::definition().default_namespace, id)
    }

    /// As [`Context::add_finalizer`], in any namespace.
    pub fn add_finalizer_in<T: TypedSpec>(&self, namespace: &str, id: &str) -> Result<(), StateError> {
        self.held(namespace, TypeEntry::of::<T>(), id)?.add_finalizer(id, self.access.name)
    }

    /// Lets go of a strong input.
    pub fn remove_finalizer<T: TypedSpec>(&self, id: &str) -> Result<(), StateError> {
        self.remove_finalizer_in::<T>(T::definition().default_namespace, id)
    }

    /// As [`Context::remove_finalizer`], in any namespace.
    pub fn remove_finalizer_in<T: TypedSpec>(&self, namespace: &str, id: &str) -> Result<(), StateError> {
        self.held(namespace, TypeEntry::of::<T>(), id)?.remove_finalizer(id, self.access.name)
    }

    /// Asks for one more pass after this time, counted from the end of this pass, if nothing wakes
    /// the controller earlier. Each pass says it anew; of several calls the shortest counts.
    pub fn requeue_after(&self, delay: Duration) {
        let mut requeue = self.requeue.lock().unwrap_or_else(PoisonError::into_inner);
        *requeue = Some(requeue.map_or(delay, |held| held.min(delay)));
    }

    /// What the last pass asked for; asking empties it.
    pub fn take_requeue(&self) -> Option<Duration> {
        self.requeue.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Says what this pass could not get done, where that is no failure of the controller: somebody outside
    /// does not answer, something it needs is not there yet. Shown to people who ask why, until the next pass
    /// ends. Of several calls the first counts.
    pub fn trouble(&self, text: impl Into<String>) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.get_or_insert_with(|| text.into());
    }

    /// What the last pass said; asking empties it.
    pub fn take_trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Replaces the declared inputs. When that changes anything, one more pass follows, since the
    /// new inputs may have changed before.
    pub fn update_inputs(&self, inputs: Vec<Input>) -> Result<(), StateError> {
        if self.fixed {
            let name = self.access.name;
            return Err(StateError::Access(format!("queue controller {name} cannot change its inputs")));
        }
        if self.access.update_inputs(inputs, &self.target)? {
            self.wake.wake();
        }
        Ok(())
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("controller", &self.access.name).finish_non_exhaustive()
    }
}
