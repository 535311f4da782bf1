//! Watches: where they begin, what they deliver, how they go on.

use std::sync::Arc;

use ichor_resource::{Kind, Phase, Version};

use super::{Feed, Outcome, create, ensure, equal, good, refused, touch};
use crate::core_state::CoreState;
use crate::error::ErrorClass;
use crate::event::{Bookmark, Event, EventKind};
use crate::watch::{WatchIdOptions, WatchOptions};

pub(super) async fn a_kind_watch_sees_changes_from_now_on<S: CoreState>(
    state: &S,
    kind: &Arc<Kind>,
) -> Outcome {
    create(state, kind, "before").await?;
    let mut feed = Feed::new(state.watch_kind(kind, WatchOptions::new()).await)?;
    life(state, kind, "a").await?;

    let created = feed.expect(EventKind::Created, "a").await?;
    equal(created.old.is_none(), true)?;
    equal(created.resource.meta().version(), Version::FIRST)?;
    for version in [2, 3] {
        let updated = feed.expect(EventKind::Updated, "a").await?;
        let old = updated.old.ok_or("an update without the old resource")?;
        equal(updated.resource.meta().version(), Version::new(version))?;
        equal(old.meta().version(), Version::new(version - 1))?;
    }
    let destroyed = feed.expect(EventKind::Destroyed, "a").await?;
    equal(destroyed.resource.meta().version(), Version::new(3))?;
    equal(destroyed.resource.meta().phase(), Phase::TearingDown)
}

pub(super) async fn bootstrap_comes_first_and_in_order<S: CoreState>(state: &S, kind: &Arc<Kind>) -> Outcome {
    for id in ["c", "a", "b"] {
        create(state, kind, id).await?;
    }
    let watch = state.watch_kind(kind, WatchOptions::with_contents()).await;
    let mut feed = Feed::new(watch)?;
    let current = good(state.get(kind, "b").await)?;
    touch(state, &current).await?;

    for id in ["a", "b", "c"] {
        let event = feed.expect(EventKind::Created, id).await?;
        equal(event.resource.meta().version(), Version::FIRST)?;
    }
    let bootstrapped = feed.expect(EventKind::Bootstrapped, "").await?;
    equal(bootstrapped.resource.meta().namespace(), kind.namespace())?;
    equal(bootstrapped.resource.meta().type_name(), kind.type_name())?;
    equal(bootstrapped.bookmark.is_some(), true)?;
    feed.expect(EventKind::Updated, "b").await?;
    Ok(())
}

pub(super) async fn a_bookmark_comes_first_when_asked_for<S: CoreState>(
    state: &S,
    kind: &Arc<Kind>,
) -> Outcome {
    // On a kind nobody ever touched, too.
    let options = WatchOptions { bootstrap_bookmark: true, ..WatchOptions::new() };
    let mut feed = Feed::new(state.watch_kind(kind, options).await)?;
    let noop = feed.expect(EventKind::Noop, "").await?;
    create(state, kind, "a").await?;
    feed.expect(EventKind::Created, "a").await?;

    let options = WatchOptions { bookmark: noop.bookmark, ..WatchOptions::new() };
    let mut feed = Feed::new(state.watch_kind(kind, options).await)?;
    feed.expect(EventKind::Created, "a").await?;
    Ok(())
}

pub(super) async fn tail_events_replay_the_past<S: CoreState>(state: &S, kind: &Arc<Kind>) -> Outcome {
    let mut feed = Feed::new(state.watch_kind(kind, WatchOptions::new()).await)?;
    life(state, kind, "a").await?;
    let past = feed.take(4).await?;
    for tail_events in [1, 3, 1000] {
        let options = WatchOptions { tail_events, ..WatchOptions::new() };
        let mut feed = Feed::new(state.watch_kind(kind, options).await)?;
        for expected in &past[4 - tail_events.min(4)..] {
            same_event(&feed.next().await?, expected)?;
        }
    }
    Ok(())
}

pub(super) async fn a_kind_watch_resumes_from_every_bookmark<S: CoreState>(
    state: &S,
    kind: &Arc<Kind>,
) -> Outcome {
    create(state, kind, "before").await?;
    let watch = state.watch_kind(kind, WatchOptions::with_contents()).await;
    let mut feed = Feed::new(watch)?;
    feed.expect(EventKind::Created, "before").await?;
    life(state, kind, "a").await?;
    let past = feed.take(5).await?;
    create(state, kind, "last").await?;

    for (at, event) in past.iter().enumerate() {
        let bookmark = event.bookmark.ok_or("an event without a bookmark")?;
        let options = WatchOptions { bookmark: Some(bookmark), ..WatchOptions::new() };
        let mut feed = Feed::new(state.watch_kind(kind, options).await)?;
        for expected in &past[at + 1..] {
            same_event(&feed.next().await?, expected)?;
        }
        feed.expect(EventKind::Created, "last").await?;
    }
    Ok(())
}

pub(super) async fn an_id_watch_starts_with_what_is_there<S: CoreState>(
    state: &S,
    kind: &Arc<Kind>,
) -> Outcome {
    let options = WatchIdOptions::default();
    let mut feed = Feed::new(state.watch_id(kind, "a", options.clone()).await)?;
    let absent = feed.expect(EventKind::Destroyed, "a").await?;
    equal(absent.resource.meta().version(), Version::UNDEFINED)?;

    create(state, kind, "other").await?;
    life(state, kind, "a").await?;
    create(state, kind, "a").await?;
    let kinds = [
        EventKind::Created,
        EventKind::Updated,
        EventKind::Updated,
        EventKind::Destroyed,
        EventKind::Created,
    ];
    for kind in kinds {
        feed.expect(kind, "a").await?;
    }
    let mut feed = Feed::new(state.watch_id(kind, "a", options).await)?;
    let present = feed.expect(EventKind::Created, "a").await?;
    equal(present.resource.meta().version(), Version::FIRST)
}

pub(super) async fn an_id_watch_replays_only_its_id<S: CoreState>(state: &S, kind: &Arc<Kind>) -> Outcome {
    let mut feed = Feed::new(state.watch_kind(kind, WatchOptions::new()).await)?;
    life(state, kind, "a").await?;
    life(state, kind, "b").await?;
    life(state, kind, "a").await?;
    let mut past = feed.take(12).await?;
    past.retain(|event| event.resource.id() == "a");
    for tail_events in [1, 5, 1000] {
        let options = WatchIdOptions { tail_events, bookmark: None };
        let mut feed = Feed::new(state.watch_id(kind, "a", options).await)?;
        for expected in &past[8 - tail_events.min(8)..] {
            same_event(&feed.next().await?, expected)?;
        }
    }
    Ok(())
}

pub(super) async fn an_id_watch_resumes_from_every_bookmark<S: CoreState>(
    state: &S,
    kind: &Arc<Kind>,
) -> Outcome {
    let options = WatchIdOptions::default();
    let mut feed = Feed::new(state.watch_id(kind, "a", options).await)?;
    feed.expect(EventKind::Destroyed, "a").await?;
    life(state, kind, "b").await?;
    life(state, kind, "a").await?;
    let past = feed.take(4).await?;
    create(state, kind, "a").await?;
    for (at, event) in past.iter().enumerate() {
        ensure(event.bookmark.is_some(), || format!("no bookmark at {at}"))?;
        let options = WatchIdOptions { tail_events: 0, bookmark: event.bookmark };
        let mut feed = Feed::new(state.watch_id(kind, "a", options).await)?;
        for expected in &past[at + 1..] {
            same_event(&feed.next().await?, expected)?;
        }
        feed.expect(EventKind::Created, "a").await?;
    }
    Ok(())
}

pub(super) async fn foreign_bookmarks_are_refused<S: CoreState>(state: &S, kind: &Arc<Kind>) -> Outcome {
    let mut feed = Feed::new(state.watch_kind(kind, WatchOptions::new()).await)?;
    create(state, kind, "a").await?;
    let own = feed.next().await?.bookmark.ok_or("no bookmark")?;
    let foreign = Bookmark { cookie: !own.cookie, ..own };
    let future = Bookmark { position: own.position + 1, ..own };
    let before_all = Bookmark { position: -2, ..own };
    for bookmark in [foreign, future, before_all] {
        let bookmark = Some(bookmark);
        let options = WatchOptions { bookmark, ..WatchOptions::new() };
        let watch = state.watch_kind(kind, options).await;
        refused(watch.map(drop), ErrorClass::InvalidBookmark)?;
        let options = WatchIdOptions { tail_events: 0, bookmark };
        let watch = state.watch_id(kind, "a", options).await;
        refused(watch.map(drop), ErrorClass::InvalidBookmark)?;
    }
    Ok(())
}

pub(super) async fn contradicting_options_are_refused<S: CoreState>(state: &S, kind: &Arc<Kind>) -> Outcome {
    let mut feed = Feed::new(state.watch_kind(kind, WatchOptions::new()).await)?;
    create(state, kind, "a").await?;
    let bookmark = feed.next().await?.bookmark;
    let contradictions = [
        WatchOptions { tail_events: 1, ..WatchOptions::with_contents() },
        WatchOptions { bookmark, ..WatchOptions::with_contents() },
        WatchOptions { tail_events: 1, bookmark, ..WatchOptions::new() },
    ];
    for options in contradictions {
        let watch = state.watch_kind(kind, options).await;
        refused(watch.map(drop), ErrorClass::Other)?;
    }
    let options = WatchIdOptions { tail_events: 1, bookmark };
    let watch = state.watch_id(kind, "a", options).await;
    refused(watch.map(drop), ErrorClass::Other)
}

/// Four events: created, updated, torn down, destroyed.
async fn life<S: CoreState>(state: &S, kind: &Arc<Kind>, id: &str) -> Outcome {
    let created = create(state, kind, id).await?;
    touch(state, &created).await?;
    good(state.teardown(kind, id, "").await)?;
    good(state.destroy(kind, id, "").await)
}

fn same_event(found: &Event, expected: &Event) -> Outcome {
    let same = found.kind == expected.kind
        && found.resource.same(&expected.resource)
        && found.bookmark == expected.bookmark;
    ensure(same, || format!("found {found:?} where {expected:?} was expected"))
}
