//! What every state can do, local or remote. The waiting forms cost the local state nothing.

use std::future::{Future, ready};
use std::sync::Arc;

use ichor_resource::{Kind, Metadata, Phase, Resource};

use crate::error::{Pointer, StateError};
use crate::event::{Event, EventKind};
use crate::query::Query;
use crate::state::State;
use crate::watch::{Watch, WatchIdOptions, WatchOptions};

type Stored = Result<Arc<Resource>, StateError>;

/// The calls a state must answer; everything else is built on them.
pub trait CoreState: Send + Sync {
    /// What a watch of this state is.
    type Watch: EventSource;

    /// The resource.
    fn get(&self, kind: &Arc<Kind>, id: &str) -> impl Future<Output = Stored> + Send;

    /// The resources that match, sorted by id.
    fn list(
        &self,
        kind: &Arc<Kind>,
        query: &Query,
    ) -> impl Future<Output = Result<Vec<Arc<Resource>>, StateError>> + Send;

    /// Stores a new resource.
    fn create(&self, draft: Resource, owner: &str) -> impl Future<Output = Stored> + Send;

    /// Stores the next version of a resource; `expected` is the phase it must be in, if any.
    fn update(
        &self,
        draft: Resource,
        owner: &str,
        expected: Option<Phase>,
    ) -> impl Future<Output = Stored> + Send;

    /// Removes a resource.
    fn destroy(
        &self,
        kind: &Arc<Kind>,
        id: &str,
        owner: &str,
    ) -> impl Future<Output = Result<(), StateError>> + Send;

    /// Follows a kind.
    fn watch_kind(
        &self,
        kind: &Arc<Kind>,
        options: WatchOptions,
    ) -> impl Future<Output = Result<Self::Watch, StateError>> + Send;

    /// Follows one id.
    fn watch_id(
        &self,
        kind: &Arc<Kind>,
        id: &str,
        options: WatchIdOptions,
    ) -> impl Future<Output = Result<Self::Watch, StateError>> + Send;

    /// Edits a copy and stores it, again when somebody else was faster. When nothing changed,
    /// nothing is written. `None` expects no phase.
    fn update_with(
        &self,
        kind: &Arc<Kind>,
        id: &str,
        owner: &str,
        expected: Option<Phase>,
        edit: impl Fn(&mut Metadata) + Send + Sync,
    ) -> impl Future<Output = Stored> + Send {
        async move {
            loop {
                let current = self.get(kind, id).await?;
                match try_edit(self, &current, owner, expected, &edit).await {
                    Err(error) if error.is_version_conflict() => {}
                    done => return done,
                }
            }
        }
    }

    /// Asks for the end of a resource. True when nobody holds it.
    fn teardown(
        &self,
        kind: &Arc<Kind>,
        id: &str,
        owner: &str,
    ) -> impl Future<Output = Result<bool, StateError>> + Send {
        async move {
            let current = self.get(kind, id).await?;
            if current.meta().owner() != owner {
                return Err(StateError::OwnerConflict {
                    pointer: Pointer::of(current.meta()),
                    owner: current.meta().owner().to_owned(),
                });
            }
            let edit = |meta: &mut Metadata| meta.set_phase(Phase::TearingDown);
            let torn = self.update_with(kind, id, owner, None, edit).await?;
            Ok(torn.meta().finalizers().is_empty())
        }
    }

    /// Holds or lets go of a resource, whoever owns it.
    fn finalizer(
        &self,
        kind: &Arc<Kind>,
        id: &str,
        finalizer: &str,
        hold: bool,
    ) -> impl Future<Output = Result<(), StateError>> + Send {
        async move {
            let edit = |meta: &mut Metadata| {
                if hold {
                    meta.add_finalizer(finalizer);
                } else {
                    meta.remove_finalizer(finalizer);
                }
            };
            loop {
                let current = self.get(kind, id).await?;
                let owner = current.meta().owner();
                match try_edit(self, &current, owner, None, &edit).await {
                    Err(error) if error.is_version_conflict() => {}
                    done => return done.map(drop),
                }
            }
        }
    }

    /// Waits until an event of this id satisfies the condition.
    fn wait_for(
        &self,
        kind: &Arc<Kind>,
        id: &str,
        condition: impl Fn(&Event) -> bool + Send + Sync,
    ) -> impl Future<Output = Result<Event, StateError>> + Send {
        async move {
            let mut watch = self.watch_id(kind, id, WatchIdOptions::default()).await?;
            while let Some(batch) = watch.next_batch().await {
                if let Some(event) = batch.into_iter().find(|event| condition(event)) {
                    return Ok(event);
                }
            }
            Err(StateError::WatchEnded(Pointer::absent(kind, id)))
        }
    }

    /// Asks for the end of a resource, waits until nobody holds it, and destroys it.
    fn teardown_and_destroy(
        &self,
        kind: &Arc<Kind>,
        id: &str,
        owner: &str,
    ) -> impl Future<Output = Result<(), StateError>> + Send {
        async move {
            if !self.teardown(kind, id, owner).await? {
                let free = |event: &Event| {
                    event.kind == EventKind::Destroyed || event.resource.meta().finalizers().is_empty()
                };
                self.wait_for(kind, id, free).await?;
            }
            self.destroy(kind, id, owner).await
        }
    }
}

async fn try_edit<S: CoreState + ?Sized>(
    state: &S,
    current: &Arc<Resource>,
    owner: &str,
    expected: Option<Phase>,
    edit: &(impl Fn(&mut Metadata) + Send + Sync),
) -> Stored {
    if let Some(expected) = expected
        && current.meta().phase() != expected
    {
        return Err(StateError::PhaseConflict { pointer: Pointer::of(current.meta()), expected });
    }
    let mut draft = Resource::clone(current);
    edit(draft.meta_mut());
    if draft.same(current) {
        return Ok(current.clone());
    }
    state.update(draft, owner, expected).await
}

/// Where events come from.
pub trait EventSource: Send {
    /// All events there are, at least one; `None` after the end.
    fn next_batch(&mut self) -> impl Future<Output = Option<Vec<Event>>> + Send;
}

impl EventSource for Watch {
    fn next_batch(&mut self) -> impl Future<Output = Option<Vec<Event>>> + Send {
        Watch::next_batch(self)
    }
}

impl CoreState for State {
    type Watch = Watch;

    fn get(&self, kind: &Arc<Kind>, id: &str) -> impl Future<Output = Stored> + Send {
        ready(self.kind_for_request(kind.namespace(), kind.type_name()).and_then(|handle| handle.get(id)))
    }

    fn list(
        &self,
        kind: &Arc<Kind>,
        query: &Query,
    ) -> impl Future<Output = Result<Vec<Arc<Resource>>, StateError>> + Send {
        let handle = self.kind_for_request(kind.namespace(), kind.type_name());
        ready(handle.map(|handle| handle.query(query)))
    }

    fn create(&self, draft: Resource, owner: &str) -> impl Future<Output = Stored> + Send {
        let kind = draft.meta().kind();
        let handle = self.kind_for_request(kind.namespace(), kind.type_name());
        ready(handle.and_then(|handle| handle.create(draft, owner)))
    }

    fn update(
        &self,
        draft: Resource,
        owner: &str,
        expected: Option<Phase>,
    ) -> impl Future<Output = Stored> + Send {
        let kind = draft.meta().kind();
        let handle = self.kind_for_request(kind.namespace(), kind.type_name());
        ready(handle.and_then(|handle| handle.update(draft, owner, expected)))
    }

    fn destroy(
        &self,
        kind: &Arc<Kind>,
        id: &str,
        owner: &str,
    ) -> impl Future<Output = Result<(), StateError>> + Send {
        let handle = self.kind_for_request(kind.namespace(), kind.type_name());
        ready(handle.and_then(|handle| handle.destroy(id, owner).map(drop)))
    }

    fn watch_kind(
        &self,
        kind: &Arc<Kind>,
        options: WatchOptions,
    ) -> impl Future<Output = Result<Watch, StateError>> + Send {
        let handle = self.kind_for_request(kind.namespace(), kind.type_name());
        ready(handle.and_then(|handle| handle.watch(options)))
    }

    fn watch_id(
        &self,
        kind: &Arc<Kind>,
        id: &str,
        options: WatchIdOptions,
    ) -> impl Future<Output = Result<Watch, StateError>> + Send {
        let handle = self.kind_for_request(kind.namespace(), kind.type_name());
        ready(handle.and_then(|handle| handle.watch_id(id, &options)))
    }
}
