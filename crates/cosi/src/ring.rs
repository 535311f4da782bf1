//! The recent history of a kind: a ring that grows until its first wrap.

use std::sync::{Arc, OnceLock};

use ichor_resource::Resource;

use crate::event::{Bookmark, Encoded, Event, EventKind};

/// How much history a kind keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History {
    /// The first capacity.
    pub initial: usize,
    /// The capacity it grows to.
    pub max: usize,
    /// How far from the oldest event a replay must stay.
    pub gap: usize,
}

impl Default for History {
    /// What the original uses.
    fn default() -> Self {
        Self { initial: 8, max: 1024, gap: 4 }
    }
}

pub(crate) struct Entry {
    pub(crate) kind: EventKind,
    pub(crate) resource: Arc<Resource>,
    pub(crate) old: Option<Arc<Resource>>,
    encoded: OnceLock<Arc<Encoded>>,
}

impl Entry {
    pub(crate) fn new(kind: EventKind, resource: Arc<Resource>, old: Option<Arc<Resource>>) -> Self {
        Self { kind, resource, old, encoded: OnceLock::new() }
    }

    /// The event at `position`; `shared` when it goes over the wire.
    pub(crate) fn event(&self, cookie: u64, position: u64, shared: bool) -> Event {
        Event {
            kind: self.kind,
            resource: self.resource.clone(),
            old: self.old.clone(),
            bookmark: Some(Bookmark { cookie, position: position as i64 }),
            error: None,
            encoded: shared.then(|| self.encoded.get_or_init(Arc::default).clone()),
        }
    }
}

pub(crate) struct Ring {
    entries: Vec<Entry>,
    capacity: usize,
    max: usize,
    write_pos: u64,
}

impl Ring {
    pub(crate) fn new(history: History) -> Self {
        let max = history.max.max(1);
        Self { entries: Vec::new(), capacity: history.initial.clamp(1, max), max, write_pos: 0 }
    }

    /// The position the next event gets.
    #[inline]
    pub(crate) fn write_pos(&self) -> u64 {
        self.write_pos
    }

    #[inline]
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity as u64
    }

    /// How far back a bookmark may point. While the ring still grows nothing is ever lost, and even
    /// the place before the first event is good; after that a replay keeps its distance from the
    /// next event to go.
    pub(crate) fn reach_back(&self, gap: usize) -> u64 {
        if self.capacity < self.max { self.write_pos + 1 } else { self.capacity.saturating_sub(gap) as u64 }
    }

    /// Appends; hands back what fell out, to be dropped after the lock is.
    #[inline]
    pub(crate) fn push(&mut self, entry: Entry) -> Option<Entry> {
        // Only before the first wrap does `position % capacity` stay valid over a growth.
        if self.write_pos == self.capacity as u64 && self.capacity < self.max {
            self.capacity = (self.capacity * 2).min(self.max);
        }
        let at = (self.write_pos % self.capacity as u64) as usize;
        self.write_pos += 1;
        if at < self.entries.len() {
            Some(std::mem::replace(&mut self.entries[at], entry))
        } else {
            self.entries.push(entry);
            None
        }
    }

    #[inline]
    pub(crate) fn get(&self, position: u64) -> Option<&Entry> {
        self.entries.get((position % self.capacity as u64) as usize)
    }
}

#[cfg(test)]
mod tests {
    use ichor_resource::Kind;

    use super::*;

    #[test]
    fn it_grows_once_and_then_forgets_the_oldest() {
        let kind = Arc::new(Kind::new("ns", "type"));
        let mut ring = Ring::new(History { initial: 2, max: 7, gap: 1 });
        for number in 0..50_u64 {
            let resource = Arc::new(Resource::tombstone(kind.clone(), number.to_string()));
            let evicted = ring.push(Entry::new(EventKind::Created, resource, None));
            assert_eq!(evicted.is_some(), number >= 7);
            for position in ring.write_pos().saturating_sub(ring.capacity())..ring.write_pos() {
                let id = ring.get(position).map(|entry| entry.resource.id().to_string());
                assert_eq!(id, Some(position.to_string()));
            }
        }
        assert_eq!(ring.capacity(), 7);
    }
}
