//! The local state beyond what every state does: pointers shared, history bounded, nothing left
//! behind.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ichor_cosi::{Clock, EventKind, Query, StateError, Typed, Watch, WatchIdOptions, WatchOptions};
use ichor_resource::{RawSpec, Version};
use ichor_testkit::{A, B, state};

/// An event that must be there already.
#[track_caller]
fn now(watch: &mut Watch) -> ichor_cosi::Event {
    match watch.try_next() {
        Some(event) => event,
        None => panic!("no event"),
    }
}

#[test]
fn readers_share_what_writers_stored() {
    let (state, clock) = state();
    let stored = state.create("ns-a", "x", A::new(1), "me").unwrap();
    let read = state.get::<A>("ns-a", "x").unwrap();
    assert!(Arc::ptr_eq(stored.resource(), read.resource()));
    assert_eq!((read.number, read.meta().owner()), (1, "me"));
    assert_eq!(read.meta().created(), clock.now());

    clock.advance(Duration::from_secs(5));
    let updated = state
        .update_with::<A>("ns-a", "x", "me", |spec, meta| {
            spec.number = 2;
            meta.set_label("l", "v");
        })
        .unwrap();
    assert_eq!(updated.meta().updated(), clock.now());
    assert_eq!(updated.meta().created(), read.meta().created());
    // The old one is as it was.
    assert_eq!((read.number, read.meta().version()), (1, Version::FIRST));
    assert_eq!(state.list::<A>("ns-a").len(), 1);
    assert_eq!(state.query::<A>("ns-a", &Query::label("l")).len(), 1);
    assert!(state.list::<B>("ns-b").is_empty());
}

#[test]
fn modify_creates_edits_and_leaves_alone() {
    let (state, _) = state();
    for (number, version) in [(1, 1), (1, 1), (2, 2)] {
        let stored = state.modify::<A>("ns-a", "x", "me", |spec| spec.number = number).unwrap();
        assert_eq!(stored.meta().version(), Version::new(version));
    }
    let other = state.modify::<A>("ns-a", "x", "you", |spec| spec.number = 3);
    assert!(other.is_err_and(|error| error.is_owner_conflict()));
    assert_eq!(state.teardown::<A>("ns-a", "x", "me"), Ok(true));
    let torn = state.modify::<A>("ns-a", "x", "me", |spec| spec.number = 3);
    assert!(torn.is_err_and(|error| error.is_phase_conflict()));
}

#[test]
fn metadata_writes_share_the_contents() {
    let (state, _) = state();
    let first = state.create("ns-a", "x", A::new(1), "").unwrap();
    state.add_finalizer::<A>("ns-a", "x", "f").unwrap();
    let second = state.get::<A>("ns-a", "x").unwrap();
    assert!(Arc::ptr_eq(first.resource().spec(), second.resource().spec()));
}

#[test]
fn a_kind_holds_one_type_of_contents() {
    let (state, _) = state();
    let kind = state.kind_of::<A>("ns-a");
    let draft = kind.draft("x", Arc::new(RawSpec::default()));
    assert!(matches!(kind.create(draft, ""), Err(StateError::SpecType(_))));
}

#[test]
fn requests_cannot_make_kinds_up() {
    let (state, _) = state();
    let unknown = state.kind_for_request("ns", "Unknown");
    assert_eq!(unknown.map(drop), Err(StateError::UnknownType("Unknown".to_owned())));
    state.register::<A>();
    assert!(state.kind_for_request("anywhere", "As.test.ichor.dev").is_ok());
    assert_eq!(state.kinds().len(), 1);
}

#[test]
fn a_watch_more_than_a_ring_behind_breaks_and_ends() {
    let (state, _) = state();
    let mut behind = state.watch::<A>("ns-a", WatchOptions::new()).unwrap();
    let mut filtered = state
        .watch::<A>("ns-a", WatchOptions { query: Query::label("none"), ..WatchOptions::new() })
        .unwrap();
    let mut one = state.watch_id::<A>("ns-a", "x").unwrap();
    let mut other = state.watch_id::<A>("ns-a", "y").unwrap();
    for number in 0..1025 {
        state.modify::<A>("ns-a", "x", "", |spec| spec.number = number).unwrap();
    }
    for watch in [&mut behind, &mut filtered] {
        let event = now(watch);
        assert_eq!(event.kind, EventKind::Errored);
        assert_eq!(
            event.error.as_deref(),
            Some(
                "buffer overrun: namespace \"ns-a\" type \"As.test.ichor.dev\", write pos 1025, \
                 pos 0, capacity 1024"
            )
        );
        assert!(watch.try_next().is_none());
    }
    assert_eq!(now(&mut one).kind, EventKind::Destroyed);
    assert_eq!(now(&mut one).kind, EventKind::Errored);
    // Events of other ids do not overrun a watch of one id.
    assert_eq!(now(&mut other).kind, EventKind::Destroyed);
    assert!(other.try_next().is_none());
    state.create("ns-a", "y", A::new(1), "").unwrap();
    assert_eq!(now(&mut other).kind, EventKind::Created);
}

#[test]
fn a_full_ring_of_backlog_is_delivered() {
    let (state, _) = state();
    let mut watch = state.watch::<A>("ns-a", WatchOptions::new()).unwrap();
    for number in 0..1024 {
        state.modify::<A>("ns-a", "x", "", |spec| spec.number = number).unwrap();
    }
    for number in 0..1024 {
        let event = now(&mut watch);
        let spec = Typed::<A>::new(event.resource).map(|found| found.number);
        assert_eq!(spec, Some(number));
    }
    assert!(watch.try_next().is_none());
}

#[test]
fn bookmarks_reach_back_a_ring_minus_the_gap() {
    let (state, _) = state();
    let kind = state.kind_of::<A>("ns-a");
    let mut watch = kind.watch(WatchOptions::new()).unwrap();
    let mut marks = Vec::new();
    for number in 0..3000 {
        state.modify::<A>("ns-a", "x", "", |spec| spec.number = number).unwrap();
        marks.push(now(&mut watch).bookmark);
    }
    for (at, bookmark) in marks.into_iter().enumerate() {
        let options = WatchOptions { bookmark, ..WatchOptions::new() };
        // A bookmark at 3000 - (1024 - 4) replays all that came after it.
        assert_eq!(kind.watch(options).is_ok(), at >= 1980, "{at}");
        let options = WatchIdOptions { tail_events: 0, bookmark };
        assert_eq!(kind.watch_id("x", &options).is_ok(), at >= 1980, "{at}");
    }
    let options = WatchOptions { tail_events: usize::MAX, ..WatchOptions::new() };
    let mut replay = kind.watch(options).unwrap();
    assert_eq!(std::iter::from_fn(|| replay.try_next()).count(), 1020);
}

#[tokio::test]
async fn a_watch_polled_again_is_woken_once_and_a_dropped_one_never() {
    let (state, _) = state();
    let kind = state.kind_of::<A>("ns-a");
    let mut watch = kind.watch(WatchOptions::new()).unwrap();
    let mut dropped = kind.watch(WatchOptions::new()).unwrap();
    let counter = Arc::new(Counter::default());
    let waker = Waker::from(counter.clone());
    let mut cx = Context::from_waker(&waker);
    for _ in 0..3 {
        assert!(matches!(watch.poll_next(&mut cx), Poll::Pending));
        assert!(matches!(dropped.poll_next(&mut cx), Poll::Pending));
    }
    drop(dropped);
    state.create("ns-a", "x", A::new(1), "").unwrap();
    assert_eq!(counter.count(), 1);
    assert!(matches!(watch.poll_next(&mut cx), Poll::Ready(Some(_))));
    state.create("ns-a", "y", A::new(1), "").unwrap();
    assert_eq!(counter.count(), 1, "nobody waited");
}

#[tokio::test]
async fn a_busy_watch_lets_others_run() {
    let (state, _) = state();
    let mut watch = state.watch::<A>("ns-a", WatchOptions::new()).unwrap();
    let writer = state.clone();
    let mut number = 0;
    let endless = async {
        loop {
            number += 1;
            writer.modify::<A>("ns-a", "x", "", |spec| spec.number = number).unwrap();
            watch.next().await;
        }
    };
    tokio::select! {
        () = endless => {}
        () = tokio::time::sleep(Duration::from_millis(20)) => {}
    }
}

#[tokio::test]
async fn waiting_ends_when_the_condition_holds() {
    let (state, _) = state();
    let writer = state.clone();
    let wait = state.wait_for::<A>("ns-a", "x", |found| found.number == 3);
    let write = async {
        for number in 0..5 {
            tokio::task::yield_now().await;
            writer.modify::<A>("ns-a", "x", "", |spec| spec.number = number).unwrap();
        }
    };
    let (found, ()) = tokio::join!(wait, write);
    assert_eq!(found.unwrap().number, 3);
}

#[derive(Default)]
struct Counter(std::sync::atomic::AtomicUsize);

impl Counter {
    fn count(&self) -> usize {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}

impl std::task::Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}
