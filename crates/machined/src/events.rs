//! Runtime events: a ring of the last thousand, with readers that tail, filter and follow.
//!
//! A reader is a cursor into the ring. One that falls a full ring behind has lost events and ends;
//! a reader of history stays a small gap away from the slot that is overwritten next.

mod payload;
mod xid;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Notify;

use ichor_wire::machine;

pub use payload::Payload;
pub use xid::{Xid, XidSource};

/// Events kept.
pub const CAPACITY: usize = 1000;

/// History handed out ends this far from the oldest slot, so that it is not overwritten at once.
pub const GAP: usize = 10;

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Sortable by time.
    pub id: Xid,
    /// The API call that caused it, or empty.
    pub actor: Arc<str>,
    /// When it was published.
    pub at: Timestamp,
    /// What happened.
    pub payload: Payload,
}

impl Event {
    /// The wire form.
    pub fn encode(&self) -> machine::Event {
        machine::Event {
            metadata: None,
            data: Some(self.payload.encode()),
            id: self.id.to_string(),
            actor_id: self.actor.to_string(),
        }
    }
}

/// Where a reader of events begins. The three ways exclude each other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Tail {
    /// Only what comes from now on.
    #[default]
    None,
    /// The last so many; `None` is all.
    Count(Option<usize>),
    /// Those with a greater id.
    After(String),
    /// Those younger than this.
    Younger(Duration),
}

/// An events request that contradicts itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("only one of tail_events, tail_id and tail_seconds may be given")]
pub struct TailConflict;

impl Tail {
    /// Reads the tail options of a request.
    pub fn from_request(request: &machine::EventsRequest) -> Result<Self, TailConflict> {
        let given = [request.tail_events != 0, !request.tail_id.is_empty(), request.tail_seconds != 0];
        if given.iter().filter(|given| **given).count() > 1 {
            return Err(TailConflict);
        }
        if request.tail_events != 0 {
            return Ok(Self::Count(usize::try_from(request.tail_events).ok()));
        }
        if !request.tail_id.is_empty() {
            return Ok(Self::After(request.tail_id.clone()));
        }
        match u64::try_from(request.tail_seconds) {
            Ok(seconds) if seconds > 0 => Ok(Self::Younger(Duration::from_secs(seconds))),
            Ok(_) | Err(_) => Ok(Self::None),
        }
    }
}

/// The clock, as a function so that tests can stand still.
pub type Now = fn() -> Timestamp;

/// The events of a node. Cheap to clone.
#[derive(Clone)]
pub struct Events {
    shared: Arc<Shared>,
}

struct Shared {
    ring: Mutex<Ring>,
    published: Notify,
    ids: XidSource,
    now: Now,
}

#[derive(Default)]
struct Ring {
    events: VecDeque<Arc<Event>>,
    /// Position of the next event; the oldest kept is at `next - events.len()`.
    next: u64,
}

impl Ring {
    fn oldest(&self) -> u64 {
        self.next - self.events.len() as u64
    }

    fn get(&self, position: u64) -> Option<&Arc<Event>> {
        let index = position.checked_sub(self.oldest())?;
        self.events.get(usize::try_from(index).ok()?)
    }
}

impl Default for Events {
    fn default() -> Self {
        Self::new(Timestamp::now)
    }
}

impl Events {
    /// A node where nothing happened yet.
    pub fn new(now: Now) -> Self {
        Self {
            shared: Arc::new(Shared {
                ring: Mutex::new(Ring::default()),
                published: Notify::new(),
                ids: XidSource::new(),
                now,
            }),
        }
    }

    /// Publishes an event in the name of no one.
    pub fn publish(&self, payload: impl Into<Payload>) {
        self.publish_as("", payload);
    }

    /// Publishes an event that an API call caused.
    pub fn publish_as(&self, actor: &str, payload: impl Into<Payload>) {
        let at = (self.shared.now)();
        let payload = payload.into();
        let old = {
            let mut ring = self.lock();
            // The id is drawn under the lock: ids ascend in ring order.
            let id = self.shared.ids.next(at);
            let event = Arc::new(Event { id, actor: actor.into(), at, payload });
            let old = if ring.events.len() == CAPACITY { ring.events.pop_front() } else { None };
            ring.events.push_back(event);
            ring.next += 1;
            old
        };
        drop(old);
        self.shared.published.notify_waiters();
    }

    /// The first message of every stream: no payload, a fresh id, the actor asked for.
    pub fn hello(&self, actor: &str) -> machine::Event {
        let id = self.shared.ids.next((self.shared.now)());
        machine::Event {
            metadata: None,
            data: Some(prost_types::Any::default()),
            id: id.to_string(),
            actor_id: actor.to_owned(),
        }
    }

    /// A reader from `tail` on; with an actor, only events that carry it.
    pub fn watch(&self, tail: &Tail, actor: Option<&str>) -> EventWatch {
        let ring = self.lock();
        let reach = (ring.events.len()).min(CAPACITY - GAP) as u64;
        let floor = ring.next - reach;
        let position = match tail {
            Tail::None => ring.next,
            Tail::Count(None) => floor,
            Tail::Count(Some(count)) => floor.max(ring.next.saturating_sub(*count as u64)),
            Tail::After(id) => first(&ring, floor, |event| event.id.to_string() > *id),
            Tail::Younger(age) => {
                let since = (self.shared.now)().checked_sub(*age).unwrap_or(Timestamp::MIN);
                first(&ring, floor, |event| event.at > since)
            }
        };
        drop(ring);
        EventWatch {
            events: self.clone(),
            position,
            actor: actor.filter(|actor| !actor.is_empty()).map(Arc::from),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.shared.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first position at or after `floor` whose event is wanted, or the end.
fn first(ring: &Ring, floor: u64, wanted: impl Fn(&Event) -> bool) -> u64 {
    (floor..ring.next)
        .find(|position| ring.get(*position).is_some_and(|event| wanted(event)))
        .unwrap_or(ring.next)
}

/// A reader of events.
pub struct EventWatch {
    events: Events,
    position: u64,
    actor: Option<Arc<str>>,
}

enum Step {
    Event(Arc<Event>),
    Wait,
    Lost,
}

impl EventWatch {
    /// The next event, or `None` when this reader fell a full ring behind.
    pub async fn next(&mut self) -> Option<Arc<Event>> {
        let shared = Arc::clone(&self.events.shared);
        loop {
            let published = shared.published.notified();
            tokio::pin!(published);
            published.as_mut().enable();
            match self.step() {
                Step::Event(event) => return Some(event),
                Step::Lost => return None,
                Step::Wait => published.await,
            }
        }
    }

    /// The next event if it is there already.
    pub fn try_next(&mut self) -> Option<Arc<Event>> {
        match self.step() {
            Step::Event(event) => Some(event),
            Step::Wait | Step::Lost => None,
        }
    }

    fn step(&mut self) -> Step {
        let ring = self.events.lock();
        if self.position < ring.oldest() {
            return Step::Lost;
        }
        while let Some(event) = ring.get(self.position) {
            self.position += 1;
            if self.actor.as_ref().is_none_or(|actor| *actor == event.actor) {
                return Step::Event(Arc::clone(event));
            }
        }
        Step::Wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: i64 = 1_700_000_000;

    fn still() -> Timestamp {
        Timestamp::from_second(BASE).unwrap()
    }

    fn task(name: &str) -> machine::TaskEvent {
        machine::TaskEvent { task: name.to_owned(), action: 0 }
    }

    fn filled(count: usize) -> Events {
        let events = Events::new(still);
        for n in 0..count {
            events.publish_as(if n % 2 == 0 { "even" } else { "" }, task(&n.to_string()));
        }
        events
    }

    fn names(mut watch: EventWatch) -> Vec<String> {
        let mut names = Vec::new();
        while let Some(event) = watch.try_next() {
            if let Payload::Task(task) = &event.payload {
                names.push(task.task.clone());
            }
        }
        names
    }

    #[test]
    fn without_a_tail_only_new_events_come() {
        let events = filled(3);
        let watch = events.watch(&Tail::None, None);
        events.publish(task("new"));
        assert_eq!(names(watch), ["new"]);
    }

    #[test]
    fn a_count_tail_gives_the_last_ones() {
        let events = filled(5);
        assert_eq!(names(events.watch(&Tail::Count(Some(2)), None)), ["3", "4"]);
        assert_eq!(names(events.watch(&Tail::Count(Some(50)), None)).len(), 5);
        assert_eq!(names(events.watch(&Tail::Count(None), None)).len(), 5);
    }

    #[test]
    fn history_keeps_away_from_the_slot_overwritten_next() {
        let events = filled(CAPACITY + 500);
        let all = names(events.watch(&Tail::Count(None), None));
        assert_eq!(all.len(), CAPACITY - GAP);
        assert_eq!(all.last().unwrap(), &(CAPACITY + 499).to_string());
    }

    #[test]
    fn an_id_tail_is_exclusive() {
        let events = filled(4);
        let second = {
            let mut watch = events.watch(&Tail::Count(None), None);
            watch.try_next();
            watch.try_next().unwrap().id.to_string()
        };
        assert_eq!(names(events.watch(&Tail::After(second), None)), ["2", "3"]);
    }

    #[test]
    fn an_actor_filters() {
        assert_eq!(names(filled(4).watch(&Tail::Count(None), Some("even"))), ["0", "2"]);
        assert_eq!(names(filled(4).watch(&Tail::Count(None), Some(""))).len(), 4);
    }

    #[test]
    fn two_tails_contradict_each_other() {
        let request =
            machine::EventsRequest { tail_events: -1, tail_seconds: 5, ..machine::EventsRequest::default() };
        assert_eq!(Tail::from_request(&request), Err(TailConflict));
        let all = machine::EventsRequest { tail_events: -1, ..machine::EventsRequest::default() };
        assert_eq!(Tail::from_request(&all), Ok(Tail::Count(None)));
    }

    #[tokio::test]
    async fn a_reader_a_full_ring_behind_ends() {
        let events = filled(1);
        let mut watch = events.watch(&Tail::None, None);
        for n in 0..=CAPACITY {
            events.publish(task(&n.to_string()));
        }
        assert!(watch.next().await.is_none());
    }

    #[tokio::test]
    async fn a_waiting_reader_is_woken() {
        let events = filled(0);
        let mut watch = events.watch(&Tail::None, None);
        let publisher = events.clone();
        let task_handle = tokio::spawn(async move { publisher.publish(task("late")) });
        let event = tokio::time::timeout(Duration::from_secs(10), watch.next()).await.unwrap();
        assert!(matches!(&event.unwrap().payload, Payload::Task(task) if task.task == "late"));
        task_handle.await.unwrap();
    }

    #[test]
    fn hello_has_an_empty_any_and_the_actor() {
        let hello = filled(0).hello("me");
        assert_eq!(hello.data, Some(prost_types::Any::default()));
        assert_eq!((hello.actor_id.as_str(), hello.id.len()), ("me", 20));
    }
}
