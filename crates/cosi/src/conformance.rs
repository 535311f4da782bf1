//! What every state must do, as library code: run it against any [`CoreState`].
//!
//! The cases use kinds of their own and leave their resources behind, so give them a fresh state
//! that takes unregistered types.

mod filters;
mod life;
mod watches;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use ichor_resource::{Kind, Metadata, RawSpec, Resource};

use crate::core_state::{CoreState, EventSource};
use crate::error::{ErrorClass, StateError};
use crate::event::{Event, EventKind};
use crate::query::Query;

/// No event takes longer to come.
const PATIENCE: Duration = Duration::from_secs(10);

/// A case that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The case, a sentence about behaviour.
    pub case: &'static str,
    /// What was found instead.
    pub found: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.case.replace('_', " "), self.found)
    }
}

/// Runs all cases, one after the other, and tells which did not hold.
pub async fn run<S: CoreState>(state: &S) -> Vec<Failure> {
    let mut failures = Vec::new();
    macro_rules! cases {
        ($($module:ident :: $case:ident),* $(,)?) => {
            $(
                let own = kind(stringify!($case));
                if let Err(found) = $module::$case(state, &own).await {
                    failures.push(Failure { case: stringify!($case), found });
                }
            )*
        };
    }
    cases![
        life::a_resource_is_created_read_listed_and_destroyed,
        life::versions_count_writes_and_stale_ones_are_refused,
        life::only_the_owner_writes,
        life::one_that_is_tearing_down_is_updated_only_on_purpose,
        life::finalizers_hold_a_resource,
        life::a_change_of_nothing_writes_nothing,
        life::concurrent_finalizers_all_count,
        life::only_one_of_many_destroys_succeeds,
        life::teardown_waits_for_the_last_finalizer,
        filters::label_queries_select,
        filters::id_queries_select,
        filters::a_filtered_watch_sees_resources_come_and_go,
        watches::a_kind_watch_sees_changes_from_now_on,
        watches::bootstrap_comes_first_and_in_order,
        watches::a_bookmark_comes_first_when_asked_for,
        watches::tail_events_replay_the_past,
        watches::a_kind_watch_resumes_from_every_bookmark,
        watches::an_id_watch_starts_with_what_is_there,
        watches::an_id_watch_replays_only_its_id,
        watches::an_id_watch_resumes_from_every_bookmark,
        watches::foreign_bookmarks_are_refused,
        watches::contradicting_options_are_refused,
    ];
    failures
}

/// What a case returns.
type Outcome = Result<(), String>;

fn kind(case: &str) -> Arc<Kind> {
    Arc::new(Kind::new("conformance", case))
}

fn draft(kind: &Arc<Kind>, id: &str) -> Resource {
    let spec = RawSpec { yaml: "{}\n".to_owned(), ..RawSpec::default() };
    Resource::new(Metadata::new(kind.clone(), id), Arc::new(spec))
}

async fn create<S: CoreState>(state: &S, kind: &Arc<Kind>, id: &str) -> Result<Arc<Resource>, String> {
    good(state.create(draft(kind, id), "").await)
}

/// Stores the same contents again, which makes the next version.
async fn touch<S: CoreState>(state: &S, current: &Resource) -> Result<Arc<Resource>, String> {
    let owner = current.meta().owner().to_owned();
    good(state.update(current.clone(), &owner, None).await)
}

async fn ids<S: CoreState>(state: &S, kind: &Arc<Kind>, query: &Query) -> Result<Vec<String>, String> {
    let list = good(state.list(kind, query).await)?;
    Ok(list.iter().map(|found| found.id().to_string()).collect())
}

fn good<T>(result: Result<T, StateError>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

fn ensure(holds: bool, found: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(found()) }
}

fn equal<T: PartialEq + fmt::Debug>(found: T, expected: T) -> Outcome {
    ensure(found == expected, || format!("found {found:?} where {expected:?} was expected"))
}

fn refused<T: fmt::Debug>(result: Result<T, StateError>, class: ErrorClass) -> Outcome {
    match result {
        Err(error) if error.class() == class => Ok(()),
        other => Err(format!("found {other:?} where {class:?} was expected")),
    }
}

/// Events one by one, each within [`PATIENCE`].
struct Feed<W> {
    watch: W,
    batch: std::vec::IntoIter<Event>,
}

impl<W: EventSource> Feed<W> {
    fn new(watch: Result<W, StateError>) -> Result<Self, String> {
        Ok(Self { watch: good(watch)?, batch: Vec::new().into_iter() })
    }

    async fn next(&mut self) -> Result<Event, String> {
        loop {
            if let Some(event) = self.batch.next() {
                return Ok(event);
            }
            let batch = within(self.watch.next_batch()).await?;
            self.batch = batch.ok_or("the watch ended")?.into_iter();
        }
    }

    async fn take(&mut self, count: usize) -> Result<Vec<Event>, String> {
        let mut out = Vec::with_capacity(count);
        for _ in 0..count {
            out.push(self.next().await?);
        }
        Ok(out)
    }

    /// The next event must be of this kind and about this id.
    async fn expect(&mut self, kind: EventKind, id: &str) -> Result<Event, String> {
        let event = self.next().await?;
        equal((event.kind, event.resource.id().as_str()), (kind, id))?;
        Ok(event)
    }
}

async fn within<T>(wait: impl Future<Output = T>) -> Result<T, String> {
    let waited = tokio::time::timeout(PATIENCE, wait).await;
    waited.map_err(|_| format!("nothing came within {PATIENCE:?}"))
}
