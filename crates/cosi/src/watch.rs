//! Watches: a cursor into the history of a kind. No task, no channel, no buffer of its own.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use ichor_resource::{Id, Kind, Resource};
use tokio::task::coop;

use crate::collection::{Collection, Inner};
use crate::error::StateError;
use crate::event::{Bookmark, Event, EventKind};
use crate::query::Query;
use crate::waiters::{IdSlot, Place};

/// A watch that fell behind once gives larger buffers back.
const KEPT_CAPACITY: usize = 8;

/// How a watch of a kind begins and what it shows.
#[derive(Debug, Clone, Default)]
pub struct WatchOptions {
    /// First all that is there, then `Bootstrapped`.
    pub bootstrap: bool,
    /// First a `Noop` that carries a bookmark.
    pub bootstrap_bookmark: bool,
    /// First up to this many events of the past.
    pub tail_events: usize,
    /// Go on after this event.
    pub bookmark: Option<Bookmark>,
    /// Shows only these.
    pub query: Query,
}

impl WatchOptions {
    /// Changes from now on.
    pub fn new() -> Self {
        Self::default()
    }

    /// First all that is there, then changes.
    pub fn with_contents() -> Self {
        Self { bootstrap: true, ..Self::default() }
    }
}

/// How a watch of one id begins.
#[derive(Debug, Clone, Default)]
pub struct WatchIdOptions {
    /// First up to this many events of the past.
    pub tail_events: usize,
    /// Go on after this event.
    pub bookmark: Option<Bookmark>,
}

/// Events of a kind or of one id. Ends after an `Errored` event.
pub struct Watch {
    collection: Arc<Collection>,
    position: u64,
    place: Option<Place>,
    more: Option<Box<More>>,
    ended: bool,
    shared: bool,
}

/// What plain watches have nothing of. Small, because a thousand watches may have it.
#[derive(Default)]
struct More {
    /// Contents still to be delivered, as `Created`; `Bootstrapped` follows them.
    contents: Option<std::vec::IntoIter<Arc<Resource>>>,
    start: Option<Bookmark>,
    /// The one event that comes before the history.
    first: Option<Box<Event>>,
    pending: VecDeque<Event>,
    query: Option<Box<Query>>,
    one: Option<Box<One>>,
}

/// The id and the mailbox of a watch of one id.
struct One {
    id: Id,
    slot: Arc<IdSlot>,
}

impl Watch {
    pub(crate) fn kind(collection: &Arc<Collection>, options: WatchOptions) -> Result<Self, StateError> {
        if options.bootstrap && (options.tail_events > 0 || options.bookmark.is_some()) {
            return Err(StateError::WatchOptions(
                "cannot use BootstrapContents with TailEvents and StartFromBookmark options",
            ));
        }
        check_start(options.tail_events, options.bookmark)?;

        let mut more = More::default();
        // Contents and start come from one hold of the lock, so nothing is missed or seen twice.
        let inner = collection.read();
        let position = match options.bookmark {
            Some(bookmark) => after_bookmark(collection, &inner, bookmark, -1)?,
            None => {
                let tail = reach_back(collection, &inner).min(options.tail_events as u64);
                inner.ring.write_pos().saturating_sub(tail)
            }
        };
        if options.bootstrap {
            more.contents = Some(inner.query(&options.query).into_iter());
        }
        drop(inner);

        let start = Bookmark { cookie: collection.shared.cookie, position: position as i64 - 1 };
        more.start = options.bootstrap.then_some(start);
        if options.bootstrap_bookmark {
            let mut noop = Event::tombstone(EventKind::Noop, &collection.kind, "");
            noop.bookmark = Some(start);
            more.first = Some(Box::new(noop));
        }
        more.query = (!options.query.is_all()).then(|| Box::new(options.query));
        Ok(Self::new(collection, position, more))
    }

    pub(crate) fn one(
        collection: &Arc<Collection>,
        id: &str,
        options: &WatchIdOptions,
    ) -> Result<Self, StateError> {
        check_start(options.tail_events, options.bookmark)?;

        let mut more = More::default();
        let mut inner = collection.write();
        let end = inner.ring.write_pos();
        let first = if let Some(bookmark) = options.bookmark {
            Some(after_bookmark(collection, &inner, bookmark, 0)?).filter(|&first| first < end)
        } else if options.tail_events > 0 {
            let oldest = end.saturating_sub(reach_back(collection, &inner));
            (oldest..end)
                .rev()
                .filter(|&position| is_of(&inner, position, id))
                .take(options.tail_events)
                .last()
        } else {
            let event = match inner.map.get(id) {
                Some(resource) => Event::new(EventKind::Created, resource.clone()),
                None => Event::tombstone(EventKind::Destroyed, &collection.kind, id),
            };
            more.first = Some(Box::new(event));
            None
        };
        let (id, slot) = (Id::new(id), Arc::new(IdSlot::new(first)));
        inner.by_id.entry(id.clone()).or_default().push(slot.clone());
        drop(inner);

        more.one = Some(Box::new(One { id, slot }));
        Ok(Self::new(collection, end, more))
    }

    fn new(collection: &Arc<Collection>, position: u64, more: More) -> Self {
        let plain =
            more.contents.is_none() && more.first.is_none() && more.query.is_none() && more.one.is_none();
        Self {
            collection: collection.clone(),
            position,
            place: None,
            more: (!plain).then(|| Box::new(more)),
            ended: false,
            shared: false,
        }
    }

    /// Lets all watches that say so share the wire form of their events.
    pub(crate) fn share_encoding(mut self) -> Self {
        self.shared = true;
        self
    }

    /// The kind that is watched.
    pub fn watched(&self) -> &Arc<Kind> {
        &self.collection.kind
    }

    /// The next event; `None` after an `Errored` one.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// All events there are, at least one. The whole bootstrap is one batch. `None` after `Errored`.
    pub async fn next_batch(&mut self) -> Option<Vec<Event>> {
        poll_fn(|cx| self.poll_batch(cx)).await
    }

    /// An event that is there already.
    pub fn try_next(&mut self) -> Option<Event> {
        self.pop().or_else(|| self.pull(None))
    }

    /// Poll form of [`Watch::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        // The store itself uses up no budget, so a busy watch would never let others run.
        let coop = ready!(coop::poll_proceed(cx));
        match self.pop().or_else(|| self.pull(Some(cx.waker()))) {
            Some(event) => {
                coop.made_progress();
                Poll::Ready(Some(event))
            }
            None if self.ended => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    /// Poll form of [`Watch::next_batch`].
    pub fn poll_batch(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<Event>>> {
        let coop = ready!(coop::poll_proceed(cx));
        let mut batch = Vec::new();
        if let Some(more) = &mut self.more
            && more.contents.is_some()
        {
            while more.contents.is_some()
                && let Some(event) = more.pop_content(&self.collection.kind)
            {
                batch.push(event);
            }
        } else if let Some(first) = self.pop().or_else(|| self.pull(Some(cx.waker()))) {
            batch.push(first);
            if let Some(more) = &mut self.more {
                batch.extend(more.pending.drain(..));
            }
        }
        if !batch.is_empty() {
            coop.made_progress();
            Poll::Ready(Some(batch))
        } else if self.ended {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    }

    /// What was set aside.
    fn pop(&mut self) -> Option<Event> {
        let more = self.more.as_mut()?;
        if more.contents.is_some() {
            return more.pop_content(&self.collection.kind);
        }
        if let Some(first) = more.first.take() {
            return Some(*first);
        }
        let event = more.pending.pop_front();
        if event.is_none() {
            if more.query.is_none() && more.one.is_none() {
                self.more = None;
            } else if more.pending.capacity() > KEPT_CAPACITY {
                more.pending = VecDeque::new();
            }
        }
        event
    }

    /// Takes the whole backlog, so that a slow reader falls behind as late as possible. Registers
    /// the waker when there is none.
    fn pull(&mut self, waker: Option<&Waker>) -> Option<Event> {
        while !self.ended {
            let pulled = match &self.more {
                Some(more) if more.one.is_some() => self.pull_one(waker)?,
                Some(_) => self.pull_filtered(waker)?,
                None => return self.pull_plain(waker),
            };
            if pulled.is_some() {
                return pulled;
            }
        }
        None
    }

    /// The common case: no filter, mostly one event.
    #[inline]
    fn pull_plain(&mut self, waker: Option<&Waker>) -> Option<Event> {
        let inner = self.collection.read();
        let end = inner.ring.write_pos();
        if self.position == end {
            self.place = register(&self.collection, self.place, waker);
            return None;
        }
        if end - self.position > inner.ring.capacity() {
            let event = overrun(&self.collection, &inner, self.position);
            self.ended = true;
            return Some(event);
        }
        let cookie = self.collection.shared.cookie;
        let first = inner.ring.get(self.position)?;
        let event = first.event(cookie, self.position, self.shared);
        self.position += 1;
        if self.position < end {
            let more = self.more.get_or_insert_default();
            more.pending.extend(
                (self.position..end).filter_map(|position| {
                    Some(inner.ring.get(position)?.event(cookie, position, self.shared))
                }),
            );
            self.position = end;
        }
        Some(event)
    }

    /// What the filter lets through: the first, with the others in `pending`. `None` at the end of
    /// the history.
    fn pull_filtered(&mut self, waker: Option<&Waker>) -> Option<Option<Event>> {
        let more = self.more.as_mut()?;
        let inner = self.collection.read();
        let end = inner.ring.write_pos();
        if self.position == end {
            self.place = register(&self.collection, self.place, waker);
            return None;
        }
        if end - self.position > inner.ring.capacity() {
            let event = overrun(&self.collection, &inner, self.position);
            self.ended = true;
            return Some(Some(event));
        }
        let cookie = self.collection.shared.cookie;
        more.pending.extend(
            (self.position..end)
                .filter_map(|position| Some(inner.ring.get(position)?.event(cookie, position, self.shared))),
        );
        self.position = end;
        drop(inner);

        if let Some(query) = &more.query {
            more.pending.retain_mut(|event| show(query, event));
        }
        Some(more.pending.pop_front())
    }

    /// As above, for one id.
    fn pull_one(&mut self, waker: Option<&Waker>) -> Option<Option<Event>> {
        let more = self.more.as_mut()?;
        let One { id, slot } = more.one.as_deref()?;
        let inner = self.collection.read();
        let Some(first) = slot.first() else {
            if let Some(waker) = waker {
                slot.register(waker);
            }
            return None;
        };
        let end = inner.ring.write_pos();
        if end - first > inner.ring.capacity() {
            let event = overrun(&self.collection, &inner, first);
            self.ended = true;
            return Some(Some(event));
        }
        let cookie = self.collection.shared.cookie;
        let mut events = (first..end).filter_map(|position| {
            let entry = inner.ring.get(position)?;
            (entry.resource.id() == id).then(|| entry.event(cookie, position, self.shared))
        });
        let event = events.next();
        more.pending.extend(events);
        slot.clear();
        Some(event)
    }
}

impl More {
    fn pop_content(&mut self, kind: &Arc<Kind>) -> Option<Event> {
        if let Some(resource) = self.contents.as_mut()?.next() {
            return Some(Event::new(EventKind::Created, resource));
        }
        self.contents = None;
        let mut event = Event::tombstone(EventKind::Bootstrapped, kind, "");
        event.bookmark = self.start;
        Some(event)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let waiters = &self.collection.waiters;
            let waker = waiters.lock().unwrap_or_else(PoisonError::into_inner).forget(place);
            drop(waker);
        }
        if let Some(one) = self.more.as_mut().and_then(|more| more.one.take()) {
            let One { id, slot } = *one;
            let mut inner = self.collection.write();
            if let Some(slots) = inner.by_id.get_mut(&id) {
                slots.retain(|held| !Arc::ptr_eq(held, &slot));
                if slots.is_empty() {
                    inner.by_id.remove(&id);
                }
            }
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch")
            .field("kind", &self.collection.kind)
            .field("position", &self.position)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

/// Registers while the caller still holds the read lock, so that no writer slips in between.
fn register(collection: &Collection, place: Option<Place>, waker: Option<&Waker>) -> Option<Place> {
    let Some(waker) = waker else {
        return place;
    };
    let mut waiters = collection.waiters.lock().unwrap_or_else(PoisonError::into_inner);
    collection.waiting.store(true, Ordering::Relaxed);
    Some(waiters.register(place, waker))
}

fn overrun(collection: &Collection, inner: &Inner, position: u64) -> Event {
    let kind = &collection.kind;
    let mut event = Event::tombstone(EventKind::Errored, kind, "");
    let text = format!(
        "buffer overrun: namespace {:?} type {:?}, write pos {}, pos {position}, capacity {}",
        kind.namespace(),
        kind.type_name(),
        inner.ring.write_pos(),
        inner.ring.capacity()
    );
    event.error = Some(text.into());
    event
}

/// How many events a replay may ask for.
fn reach_back(collection: &Collection, inner: &Inner) -> u64 {
    inner.ring.reach_back(collection.shared.history.gap)
}

fn check_start(tail_events: usize, bookmark: Option<Bookmark>) -> Result<(), StateError> {
    if tail_events > 0 && bookmark.is_some() {
        return Err(StateError::WatchOptions("cannot use both TailEvents and StartFromBookmark options"));
    }
    Ok(())
}

/// The position after the bookmarked event, when the history still holds it.
fn after_bookmark(
    collection: &Collection,
    inner: &Inner,
    bookmark: Bookmark,
    lowest: i64,
) -> Result<u64, StateError> {
    let end = inner.ring.write_pos() as i64;
    let oldest = end - reach_back(collection, inner) as i64;
    let position = bookmark.position;
    let known = position >= oldest.max(lowest) && position < end;
    if bookmark.cookie != collection.shared.cookie || !known {
        return Err(StateError::InvalidBookmark);
    }
    Ok((position + 1) as u64)
}

fn is_of(inner: &Inner, position: u64, id: &str) -> bool {
    let entry = inner.ring.get(position);
    entry.is_some_and(|entry| entry.resource.id() == id)
}

/// Decides whether a filtered watch shows the event, and as what.
fn show(query: &Query, event: &mut Event) -> bool {
    let new = query.matches(event.resource.meta());
    let old = match &event.old {
        Some(old) => query.matches(old.meta()),
        None => return new,
    };
    match (old, new) {
        (true, true) => true,
        (false, false) => false,
        (false, true) => {
            event.kind = EventKind::Created;
            event.old = None;
            true
        }
        (true, false) => {
            event.kind = EventKind::Destroyed;
            event.old = None;
            true
        }
    }
}
