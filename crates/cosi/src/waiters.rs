//! Who waits for the next event of a kind, and who for the next event of one id.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Waker;

/// Where a watch is registered: a place in the list of one epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    epoch: u64,
    at: u32,
}

/// Wakers of watches at the end of the history. A writer takes the whole list at once and begins
/// a new epoch, so a place of an earlier epoch is nobody's.
#[derive(Default)]
pub(crate) struct Waiters {
    epoch: u64,
    list: Vec<Option<Waker>>,
    free: Vec<u32>,
}

impl Waiters {
    /// Registers, or replaces the waker of a watch that is polled again.
    pub(crate) fn register(&mut self, place: Option<Place>, waker: &Waker) -> Place {
        if let Some(place) = place
            && place.epoch == self.epoch
            && let Some(Some(held)) = self.list.get_mut(place.at as usize)
        {
            held.clone_from(waker);
            return place;
        }
        let at = match self.free.pop() {
            Some(at) => {
                self.list[at as usize] = Some(waker.clone());
                at
            }
            None => {
                self.list.push(Some(waker.clone()));
                (self.list.len() - 1) as u32
            }
        };
        Place { epoch: self.epoch, at }
    }

    /// Gives the place of a dropped watch back.
    pub(crate) fn forget(&mut self, place: Place) -> Option<Waker> {
        if place.epoch != self.epoch {
            return None;
        }
        let waker = self.list.get_mut(place.at as usize)?.take();
        if waker.is_some() {
            self.free.push(place.at);
        }
        waker
    }

    /// Takes everybody; the caller wakes them after it let go of all locks.
    pub(crate) fn take(&mut self) -> Vec<Option<Waker>> {
        self.epoch += 1;
        self.free.clear();
        let capacity = self.list.len();
        std::mem::replace(&mut self.list, Vec::with_capacity(capacity))
    }
}

/// Nothing has happened to the id.
const NOTHING: u64 = u64::MAX;

/// The mailbox of a watch of one id. Events of other ids do not touch it.
pub(crate) struct IdSlot {
    first: AtomicU64,
    waker: Mutex<Option<Waker>>,
}

impl IdSlot {
    pub(crate) fn new(first: Option<u64>) -> Self {
        Self { first: AtomicU64::new(first.unwrap_or(NOTHING)), waker: Mutex::new(None) }
    }

    /// Notes an event; only under the write lock of the kind.
    pub(crate) fn note(&self, position: u64) {
        self.first.fetch_min(position, Ordering::Relaxed);
    }

    /// The first event not delivered yet; only under a lock of the kind.
    pub(crate) fn first(&self) -> Option<u64> {
        let first = self.first.load(Ordering::Relaxed);
        (first != NOTHING).then_some(first)
    }

    /// All events are taken; only under a lock of the kind.
    pub(crate) fn clear(&self) {
        self.first.store(NOTHING, Ordering::Relaxed);
    }

    /// Registers; only under a lock of the kind, so that no event slips by.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut held = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *held {
            Some(held) => held.clone_from(waker),
            None => *held = Some(waker.clone()),
        }
    }

    /// Wakes the watch; only after the lock of the kind is gone.
    pub(crate) fn wake(&self) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
