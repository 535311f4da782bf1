//! Creation, change, ownership and the end of resources.

use std::sync::Arc;

use futures_util::future::join_all;
use ichor_resource::{Kind, Phase, Version};

use super::{Feed, Outcome, create, draft, ensure, equal, good, ids, refused, touch, within};
use crate::core_state::CoreState;
use crate::error::ErrorClass;
use crate::event::EventKind;
use crate::query::Query;
use crate::watch::WatchOptions;

pub(super) async fn a_resource_is_created_read_listed_and_destroyed<S: CoreState>(
    state: &S,
    kind: &Arc<Kind>,
) -> Outcome {
    let all = Query::default();
    refused(state.get(kind, "b").await, ErrorClass::NotFound)?;
    equal(ids(state, kind, &all).await?, vec![])?;

    let stored = create(state, kind, "b").await?;
    equal(stored.meta().version(), Version::FIRST)?;
    equal(stored.meta().phase(), Phase::Running)?;
    create(state, kind, "c").await?;
    create(state, kind, "a").await?;
    refused(state.create(draft(kind, "b"), "").await, ErrorClass::AlreadyExists)?;

    let read = good(state.get(kind, "b").await)?;
    ensure(read.same(&stored), || format!("{read:?} is not {stored:?}"))?;
    equal(ids(state, kind, &all).await?, vec!["a".into(), "b".into(), "c".into()])?;

    good(state.destroy(kind, "b", "").await)?;
    refused(state.destroy(kind, "b", "").await, ErrorClass::NotFound)?;
    refused(state.teardown(kind, "b", "").await, ErrorClass::NotFound)?;
    refused(state.get(kind, "b").await, ErrorClass::NotFound)?;
    equal(ids(state, kind, &all).await?, vec!["a".into(), "c".into()])?;

    let again = create(state, kind, "b").await?;
    equal(again.meta().version(), Version::FIRST)
}

pub(super) async fn versions_count_writes_and_stale_ones_are_refused<S: CoreState>(
    state: &S,
    kind: &Arc<Kind>,
) -> Outcome {
    let missing = state.update(draft(kind, "a"), "", None).await;
    refused(missing, ErrorClass::NotFound)?;

    let first = create(state, kind, "a").await?;
    let second = touch(state, &first).await?;
    equal(second.meta().version(), Version::new(2))?;
    equal(second.meta().created(), first.meta().created())?;
    for version in [0, 1, 3] {
        let mut draft = first.as_ref().clone();
        draft.meta_mut().set_version(Version::new(version));
        let stale = state.update(draft, "", None).await;
        refused(stale, ErrorClass::VersionConflict)?;
    }
    equal(good(state.get(kind, "a").await)?.meta().version(), Version::new(2))
}

pub(super) async fn only_the_owner_writes<S: CoreState>(state: &S, kind: &Arc<Kind>) -> Outcome {
    let owned = good(state.create(draft(kind, "a"), "me").await)?;
    equal(owned.meta().owner(), "me")?;
    for other in ["", "you"] {
        let update = state.update(owned.as_ref().clone(), other, None).await;
        refused(update, ErrorClass::OwnerConflict)?;
        refused(state.teardown(kind, "a", other).await, ErrorClass::OwnerConflict)?;
        refused(state.destroy(kind, "a", other).await, ErrorClass::OwnerConflict)?;
    }
    let updated = touch(state, &owned).await?;
    equal(updated.meta().owner(), "me")?;

    // Anyone may hold it.
    good(state.finalizer(kind, "a", "holder", true).await)?;
    good(state.finalizer(kind, "a", "holder", false).await)?;
    equal(good(state.get(kind, "a").await)?.meta().owner(), "me")?;
    ensure(good(state.teardown(kind, "a", "me").await)?, || "somebody holds it".to_owned())?;
    good(state.destroy(kind, "a", "me").await)
}

pub(super) async fn one_that_is_tearing_down_is_updated_only_on_purpose<S: CoreState>(
    state: &S,
    kind: &Arc<Kind>,
) -> Outcome {
    create(state, kind, "a").await?;
    good(state.teardown(kind, "a", "").await)?;
    let torn = good(state.get(kind, "a").await)?;
    equal(torn.meta().phase(), Phase::TearingDown)?;

    let running = Some(Phase::Running);
    refused(state.update(torn.as_ref().clone(), "", running).await, ErrorClass::PhaseConflict)?;
    let edited = state.update_with(kind, "a", "", running, |meta| meta.set_label("x", "y")).await;
    refused(edited, ErrorClass::PhaseConflict)?;
    let on_purpose = Some(Phase::TearingDown);
    let torn = good(state.update(torn.as_ref().clone(), "", on_purpose).await)?;
    touch(state, &torn).await?;
    Ok(())
}

pub(super) async fn finalizers_hold_a_resource<S: CoreState>(state: &S, kind: &Arc<Kind>) -> Outcome {
    create(state, kind, "a").await?;
    for name in ["x", "y"] {
        good(state.finalizer(kind, "a", name, true).await)?;
        good(state.finalizer(kind, "a", name, true).await)?;
    }
    let held = good(state.get(kind, "a").await)?;
    equal(held.meta().finalizers(), &["x".to_owned(), "y".to_owned()])?;
    // Adding one twice changed nothing.
    equal(held.meta().version(), Version::new(3))?;

    let held = ErrorClass::PendingFinalizers;
    refused(state.destroy(kind, "a", "").await, held)?;
    for _ in 0..2 {
        equal(good(state.teardown(kind, "a", "").await)?, false)?;
    }
    refused(state.destroy(kind, "a", "").await, held)?;
    good(state.finalizer(kind, "a", "x", false).await)?;
    good(state.finalizer(kind, "a", "absent", false).await)?;
    equal(good(state.teardown(kind, "a", "").await)?, false)?;
    good(state.finalizer(kind, "a", "y", false).await)?;
    equal(good(state.teardown(kind, "a", "").await)?, true)?;
    good(state.destroy(kind, "a", "").await)
}

pub(super) async fn a_change_of_nothing_writes_nothing<S: CoreState>(state: &S, kind: &Arc<Kind>) -> Outcome {
    create(state, kind, "a").await?;
    for _ in 0..2 {
        let edited = state.update_with(kind, "a", "", None, |meta| meta.set_label("x", "y")).await;
        equal(good(edited)?.meta().version(), Version::new(2))?;
    }
    Ok(())
}

pub(super) async fn concurrent_finalizers_all_count<S: CoreState>(state: &S, kind: &Arc<Kind>) -> Outcome {
    create(state, kind, "a").await?;
    let names: Vec<_> = (0..8).map(|number| format!("f{number}")).collect();
    let add = names.iter().map(|name| state.finalizer(kind, "a", name, true));
    for added in join_all(add).await {
        good(added)?;
    }
    let remove = names[..3].iter().map(|name| state.finalizer(kind, "a", name, false));
    for removed in join_all(remove).await {
        good(removed)?;
    }
    let stored = good(state.get(kind, "a").await)?;
    let mut left = stored.meta().finalizers().to_vec();
    left.sort();
    equal(&left[..], &names[3..])
}

pub(super) async fn only_one_of_many_destroys_succeeds<S: CoreState>(state: &S, kind: &Arc<Kind>) -> Outcome {
    create(state, kind, "a").await?;
    let mut succeeded = 0;
    for outcome in join_all((0..10).map(|_| state.destroy(kind, "a", ""))).await {
        match outcome {
            Ok(()) => succeeded += 1,
            Err(error) => equal(error.class(), ErrorClass::NotFound)?,
        }
    }
    equal(succeeded, 1)
}

pub(super) async fn teardown_waits_for_the_last_finalizer<S: CoreState>(
    state: &S,
    kind: &Arc<Kind>,
) -> Outcome {
    create(state, kind, "a").await?;
    good(state.finalizer(kind, "a", "holder", true).await)?;
    let watch = state.watch_kind(kind, WatchOptions::with_contents()).await;
    let mut feed = Feed::new(watch)?;

    let holder = async {
        loop {
            let event = feed.next().await?;
            let meta = event.resource.meta();
            let ours = event.kind != EventKind::Bootstrapped && !meta.is_running();
            if ours {
                return good(state.finalizer(kind, "a", "holder", false).await);
            }
        }
    };
    let owner = within(state.teardown_and_destroy(kind, "a", ""));
    let (held, destroyed) = tokio::join!(holder, owner);
    held?;
    good(destroyed?)?;
    refused(state.get(kind, "a").await, ErrorClass::NotFound)
}
