//! One kind of a state: the untyped calls. All are plain functions; only watches wait.

use std::sync::Arc;

use ichor_resource::{Kind, Metadata, Phase, Resource, Spec};

use crate::collection::Collection;
use crate::error::{Pointer, StateError};
use crate::event::{Event, EventKind};
use crate::owner::Owner;
use crate::query::Query;
use crate::watch::{Watch, WatchIdOptions, WatchOptions};

/// A change of a draft.
type Edit<'a> = dyn FnMut(&mut Resource) -> Result<(), StateError> + 'a;

/// A handle on one kind, resolved once. Cheap to clone.
#[derive(Clone)]
pub struct KindHandle(pub(crate) Arc<Collection>);

impl KindHandle {
    /// Namespace and type.
    #[inline]
    pub fn kind(&self) -> &Arc<Kind> {
        &self.0.kind
    }

    /// A draft of a resource of this kind.
    #[inline]
    pub fn draft(&self, id: &str, spec: Arc<dyn Spec>) -> Resource {
        Resource::new(Metadata::new(self.0.kind.clone(), id), spec)
    }

    /// The resource, if it is there.
    #[inline]
    pub fn find(&self, id: &str) -> Option<Arc<Resource>> {
        self.0.find(id)
    }

    /// The resource.
    #[inline]
    pub fn get(&self, id: &str) -> Result<Arc<Resource>, StateError> {
        self.find(id).ok_or_else(|| self.not_found(id))
    }

    /// All resources, sorted by id.
    pub fn list(&self) -> Vec<Arc<Resource>> {
        self.0.list()
    }

    /// The resources that match, sorted by id.
    pub fn query(&self, query: &Query) -> Vec<Arc<Resource>> {
        self.0.query(query)
    }

    /// Stores a new resource and hands back what was stored.
    pub fn create<'a>(
        &self,
        draft: Resource,
        owner: impl Into<Owner<'a>>,
    ) -> Result<Arc<Resource>, StateError> {
        self.0.create(draft, owner.into())
    }

    /// Stores the next version. The draft must carry the stored version; `expected` is the phase
    /// the stored one must be in, or `None` for any.
    pub fn update(
        &self,
        draft: Resource,
        owner: &str,
        expected: Option<Phase>,
    ) -> Result<Arc<Resource>, StateError> {
        self.0.update(draft, owner, expected)
    }

    /// Removes the resource, whatever its phase, unless somebody holds it.
    pub fn destroy(&self, id: &str, owner: &str) -> Result<Arc<Resource>, StateError> {
        self.0.destroy(id, owner)
    }

    /// Edits a copy and stores it, again when somebody else was faster. When nothing changed,
    /// nothing is written.
    pub fn update_with(
        &self,
        id: &str,
        owner: &str,
        expected: Option<Phase>,
        mut edit: impl FnMut(&mut Resource) -> Result<(), StateError>,
    ) -> Result<Arc<Resource>, StateError> {
        self.update_dyn(id, owner, expected, &mut edit)
    }

    /// As [`KindHandle::update_with`], in one copy for all edits.
    pub(crate) fn update_dyn(
        &self,
        id: &str,
        owner: &str,
        expected: Option<Phase>,
        edit: &mut Edit<'_>,
    ) -> Result<Arc<Resource>, StateError> {
        loop {
            let current = self.get(id)?;
            match self.try_edit(current, owner, expected, edit) {
                // Each round somebody else made progress, so this ends when they do.
                Err(StateError::VersionConflict { .. }) => {}
                done => return done,
            }
        }
    }

    /// As [`KindHandle::update_with`], but creates what is missing from `blank`.
    pub fn modify_with<'a>(
        &self,
        id: &str,
        owner: impl Into<Owner<'a>>,
        expected: Option<Phase>,
        blank: impl Fn() -> Arc<dyn Spec>,
        mut edit: impl FnMut(&mut Resource) -> Result<(), StateError>,
    ) -> Result<Arc<Resource>, StateError> {
        self.modify_dyn(id, owner.into(), expected, &blank, &mut edit)
    }

    /// As [`KindHandle::modify_with`], in one copy for all edits.
    pub(crate) fn modify_dyn(
        &self,
        id: &str,
        owner: Owner<'_>,
        expected: Option<Phase>,
        blank: &dyn Fn() -> Arc<dyn Spec>,
        edit: &mut Edit<'_>,
    ) -> Result<Arc<Resource>, StateError> {
        loop {
            let done = match self.find(id) {
                Some(current) => self.try_edit(current, owner.as_str(), expected, edit),
                None => {
                    let mut draft = self.draft(id, blank());
                    edit(&mut draft)?;
                    self.0.create(draft, owner)
                }
            };
            match done {
                // Written, created or destroyed by somebody else in between.
                Err(
                    StateError::VersionConflict { .. }
                    | StateError::AlreadyExists(_)
                    | StateError::NotFound(_),
                ) => {}
                done => return done,
            }
        }
    }

    fn try_edit(
        &self,
        current: Arc<Resource>,
        owner: &str,
        expected: Option<Phase>,
        edit: &mut Edit<'_>,
    ) -> Result<Arc<Resource>, StateError> {
        if let Some(expected) = expected
            && current.meta().phase() != expected
        {
            return Err(StateError::PhaseConflict { pointer: Pointer::of(current.meta()), expected });
        }
        let mut draft = Resource::clone(&current);
        edit(&mut draft)?;
        if draft.same(&current) {
            return Ok(current);
        }
        self.0.update(draft, owner, expected)
    }

    /// Asks for the end of the resource. True when nobody holds it and it may be destroyed.
    pub fn teardown(&self, id: &str, owner: &str) -> Result<bool, StateError> {
        let current = self.get(id)?;
        if !current.meta().is_owned_by(owner) {
            return Err(StateError::OwnerConflict {
                pointer: Pointer::of(current.meta()),
                owner: current.meta().owner().to_owned(),
            });
        }
        let torn = self.update_with(id, owner, None, |draft| {
            draft.meta_mut().set_phase(Phase::TearingDown);
            Ok(())
        })?;
        Ok(torn.meta().finalizers().is_empty())
    }

    /// Holds the resource, whoever owns it.
    pub fn add_finalizer(&self, id: &str, finalizer: &str) -> Result<(), StateError> {
        self.edit_as_owner(id, |meta| {
            meta.add_finalizer(finalizer);
        })
    }

    /// Lets go of the resource, whoever owns it.
    pub fn remove_finalizer(&self, id: &str, finalizer: &str) -> Result<(), StateError> {
        self.edit_as_owner(id, |meta| {
            meta.remove_finalizer(finalizer);
        })
    }

    fn edit_as_owner(&self, id: &str, edit: impl Fn(&mut Metadata)) -> Result<(), StateError> {
        loop {
            let current = self.get(id)?;
            let owner = current.meta().shared_owner().cloned();
            let done = self.try_edit(
                current,
                owner.as_deref().unwrap_or_default(),
                None,
                &mut |draft: &mut Resource| {
                    edit(draft.meta_mut());
                    Ok(())
                },
            );
            match done {
                // The owner only differs when the resource was destroyed and made anew.
                Err(StateError::VersionConflict { .. } | StateError::OwnerConflict { .. }) => {}
                done => return done.map(drop),
            }
        }
    }

    /// Events of the whole kind.
    pub fn watch(&self, options: WatchOptions) -> Result<Watch, StateError> {
        Watch::kind(&self.0, options)
    }

    /// Events of one id. Without tail or bookmark the first event tells what is there.
    pub fn watch_id(&self, id: &str, options: &WatchIdOptions) -> Result<Watch, StateError> {
        Watch::one(&self.0, id, options)
    }

    /// Waits until an event of this id satisfies the condition.
    pub async fn wait_for(
        &self,
        id: &str,
        mut condition: impl FnMut(&Event) -> bool,
    ) -> Result<Event, StateError> {
        let mut watch = self.watch_id(id, &WatchIdOptions::default())?;
        while let Some(event) = watch.next().await {
            if condition(&event) {
                return Ok(event);
            }
        }
        Err(StateError::WatchEnded(Pointer::absent(self.kind(), id)))
    }

    /// Asks for the end of the resource, waits until nobody holds it, and destroys it.
    pub async fn teardown_and_destroy(&self, id: &str, owner: &str) -> Result<(), StateError> {
        if !self.teardown(id, owner)? {
            self.wait_for(id, |event| {
                event.kind == EventKind::Destroyed || event.resource.meta().finalizers().is_empty()
            })
            .await?;
        }
        self.destroy(id, owner).map(drop)
    }

    fn not_found(&self, id: &str) -> StateError {
        StateError::NotFound(Pointer::absent(self.kind(), id))
    }
}

impl std::fmt::Debug for KindHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("KindHandle").field(self.kind()).finish()
    }
}
