//! Who holds how many bytes, who waits, and who has to give way. No I/O and no clock here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;

use tokio::time::Instant;

use super::{BodyLimits, CallBudget, ConnectionBudget, Group};

/// The state behind a [`super::BodyBudget`].
#[derive(Debug)]
pub(super) struct Book {
    limits: BodyLimits,
    used: usize,
    /// Of those, held by calls with large messages.
    used_large: usize,
    /// Bodies that have not arrived in full, by call.
    open: HashMap<u64, Open>,
    /// Calls that wait for room; lower numbers came first.
    waiting: BTreeMap<u64, Waiting>,
}

#[derive(Debug)]
struct Open {
    group: Group,
    held: usize,
    since: Instant,
    progress: Instant,
    received: usize,
    evicted: bool,
    waker: Waker,
}

#[derive(Debug)]
struct Waiting {
    connection: Arc<ConnectionBudget>,
    held: usize,
    bytes: usize,
    refused: bool,
    waker: Waker,
}

/// The answer to a call that wants room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It has it.
    Granted,
    /// It has to wait.
    Queued,
    /// Too many wait already.
    Refused,
}

impl Book {
    pub(super) fn new(limits: BodyLimits) -> Self {
        Self { limits, used: 0, used_large: 0, open: HashMap::new(), waiting: BTreeMap::new() }
    }

    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Changes what a call holds to `bytes`, if there is room and nobody comes before it.
    pub(super) fn hold(&mut self, call: &CallBudget, bytes: usize, now: Instant) -> Admission {
        let held = call.held.load(Relaxed);
        if self.waiting.get(&call.id).is_some_and(|waiting| waiting.refused) {
            self.waiting.remove(&call.id);
            return Admission::Refused;
        }
        if bytes <= held || (self.fits(&call.connection, held, bytes) && self.is_next(call, bytes)) {
            let waited = self.waiting.remove(&call.id).is_some();
            self.set(call, bytes);
            if bytes < held || waited {
                self.wake_waiting();
            }
            return Admission::Granted;
        }
        if self.waiting.contains_key(&call.id) || self.makes_room_to_wait(call.connection.group) {
            self.evict_for(call, held, bytes, now);
            return Admission::Queued;
        }
        Admission::Refused
    }

    /// Notes that a call waits for what [`Self::hold`] did not grant.
    pub(super) fn wait(&mut self, call: &CallBudget, bytes: usize, waker: &Waker) {
        let (connection, held) = (call.connection.clone(), call.held.load(Relaxed));
        let waiting = Waiting { connection, held, bytes, refused: false, waker: waker.clone() };
        self.waiting.insert(call.id, waiting);
    }

    /// Notes that a body is not complete; false when it has to give way.
    pub(super) fn open(
        &mut self,
        call: &CallBudget,
        received: usize,
        progress: bool,
        now: Instant,
        waker: &Waker,
    ) -> bool {
        let open = self.open.entry(call.id).or_insert_with(|| Open {
            group: call.connection.group,
            held: 0,
            since: now,
            progress: now,
            received,
            evicted: false,
            waker: waker.clone(),
        });
        open.held = call.held.load(Relaxed);
        open.received = received;
        open.waker.clone_from(waker);
        if progress {
            open.progress = now;
        }
        !open.evicted
    }

    /// A body that is complete, or given up. The room stays with its call.
    pub(super) fn close(&mut self, id: u64) {
        self.open.remove(&id);
        if self.waiting.remove(&id).is_some() {
            self.wake_waiting();
        }
    }

    /// Takes everything back from a call.
    pub(super) fn release(&mut self, call: &CallBudget) {
        if call.held.load(Relaxed) > 0 {
            self.set(call, 0);
            self.wake_waiting();
        }
    }

    fn set(&mut self, call: &CallBudget, bytes: usize) {
        let held = call.held.swap(bytes, Relaxed);
        let of_connection = &call.connection.used;
        of_connection.store(of_connection.load(Relaxed) - held + bytes, Relaxed);
        self.used = self.used - held + bytes;
        self.used_large = self.used_large - self.large(held) + self.large(bytes);
    }

    /// What of this many bytes counts as large.
    fn large(&self, bytes: usize) -> usize {
        if bytes > self.limits.small { bytes } else { 0 }
    }

    fn connection_fits(&self, connection: &ConnectionBudget, held: usize, bytes: usize) -> bool {
        connection.used.load(Relaxed) - held + bytes <= self.limits.connection
    }

    fn fits(&self, connection: &ConnectionBudget, held: usize, bytes: usize) -> bool {
        self.connection_fits(connection, held, bytes) && self.shortage(held, bytes) == 0
    }

    /// How many bytes are missing for a call that holds `held` to hold `bytes`.
    fn shortage(&self, held: usize, bytes: usize) -> usize {
        let all = (self.used - held + bytes).saturating_sub(self.limits.total);
        if bytes <= self.limits.small {
            return all;
        }
        let large = self.used_large - self.large(held) + bytes;
        all.max(large.saturating_sub(self.limits.total - self.limits.reserve))
    }

    /// Whether no other call that waits for the same kind of room comes first: that of whoever has the fewest bodies
    /// under way, then the oldest.
    fn is_next(&self, call: &CallBudget, bytes: usize) -> bool {
        if self.waiting.is_empty() {
            return true;
        }
        let crowd = self.crowd();
        let count = |group: &Group| crowd.get(group).copied().unwrap_or_default();
        let own = (count(&call.connection.group), call.id);
        let is_large = bytes > self.limits.small;
        self.waiting
            .iter()
            .filter(|(id, waiting)| {
                **id != call.id
                    && !waiting.refused
                    && (waiting.bytes > self.limits.small) == is_large
                    && self.fits(&waiting.connection, waiting.held, waiting.bytes)
            })
            .all(|(id, waiting)| own <= (count(&waiting.connection.group), *id))
    }

    /// Bodies under way and waiting, by group.
    fn crowd(&self) -> HashMap<Group, usize> {
        let mut crowd = HashMap::new();
        let waiting = self.waiting.values().map(|waiting| waiting.connection.group);
        for group in self.open.values().map(|open| open.group).chain(waiting) {
            *crowd.entry(group).or_default() += 1;
        }
        crowd
    }

    /// Whether one more may wait. When all places are taken the group with the most of them gives one up, unless it is
    /// the newcomer's.
    fn makes_room_to_wait(&mut self, newcomer: Group) -> bool {
        let mut crowd: HashMap<Group, usize> = HashMap::new();
        let mut count = 0;
        for waiting in self.waiting.values().filter(|waiting| !waiting.refused) {
            *crowd.entry(waiting.connection.group).or_default() += 1;
            count += 1;
        }
        if count < self.limits.waiting {
            return true;
        }
        let own = crowd.get(&newcomer).copied().unwrap_or_default();
        let Some(largest) =
            crowd.into_iter().filter(|(_, count)| *count > own + 1).max_by_key(|found| found.1)
        else {
            return false;
        };
        let of_largest = |waiting: &&mut Waiting| !waiting.refused && waiting.connection.group == largest.0;
        if let Some(last) = self.waiting.values_mut().rev().find(of_largest) {
            last.refused = true;
            last.waker.wake_by_ref();
        }
        true
    }

    /// Asks slow bodies to give way until what they hold covers what is missing.
    fn evict_for(&mut self, call: &CallBudget, held: usize, bytes: usize, now: Instant) {
        if !self.connection_fits(&call.connection, held, bytes) {
            return;
        }
        let shortage = self.shortage(held, bytes);
        let only_large = bytes > self.limits.small
            && (self.used - held + bytes).saturating_sub(self.limits.total) < shortage;
        let useful = |open: &Open| open.held > if only_large { self.limits.small } else { 0 };
        let mut coming: usize =
            self.open.values().filter(|open| open.evicted && useful(open)).map(|open| open.held).sum();
        let crowd = self.crowd();
        let mut slow: Vec<(usize, Instant, u64, usize)> = self
            .open
            .iter()
            .filter(|(id, open)| {
                **id != call.id && !open.evicted && useful(open) && open.is_slow(&self.limits, now)
            })
            .map(|(id, open)| {
                (crowd.get(&open.group).copied().unwrap_or_default(), open.since, *id, open.held)
            })
            .collect();
        // Of the group with the most bodies under way, the oldest first.
        slow.sort_unstable_by_key(|(count, since, id, _)| (std::cmp::Reverse(*count), *since, *id));
        for (_, _, id, held) in slow {
            if coming >= shortage {
                return;
            }
            coming += held;
            if let Some(open) = self.open.get_mut(&id) {
                open.evicted = true;
                open.waker.wake_by_ref();
            }
        }
    }

    fn wake_waiting(&self) {
        for waiting in self.waiting.values() {
            waiting.waker.wake_by_ref();
        }
    }
}

impl Open {
    /// Whether the body arrives too slowly to be waited for.
    fn is_slow(&self, limits: &BodyLimits, now: Instant) -> bool {
        let age = now - self.since;
        let expected = age.as_secs_f64() * limits.rate as f64;
        now - self.progress >= limits.stall || (age >= limits.stall && (self.received as f64) < expected)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::task::Waker;
    use std::time::Duration;

    use super::super::BodyBudget;
    use super::*;

    const STALL: Duration = Duration::from_secs(1);

    fn limits() -> BodyLimits {
        BodyLimits {
            message: 400,
            connection: 500,
            total: 1000,
            small: 10,
            reserve: 100,
            waiting: 3,
            wait: STALL,
            stall: STALL,
            rate: 100,
            deadline: STALL,
        }
    }

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    fn hold(budget: &BodyBudget, call: &CallBudget, bytes: usize, now: Instant) -> Admission {
        let mut book = budget.book();
        let admission = book.hold(call, bytes, now);
        if admission == Admission::Queued {
            book.wait(call, bytes, Waker::noop());
        }
        admission
    }

    #[test]
    fn room_is_bounded_per_connection_and_in_all_and_comes_back() {
        let (budget, now) = (BodyBudget::new(limits()), Instant::now());
        let (one, two) = (budget.connection(address(1)), budget.connection(address(2)));
        let calls: Vec<_> = (0..4).map(|_| one.call()).collect();
        assert_eq!(hold(&budget, &calls[0], 400, now), Admission::Granted);
        assert_eq!(
            hold(&budget, &calls[1], 200, now),
            Admission::Queued,
            "more than its connection may hold"
        );
        let other = two.call();
        assert_eq!(hold(&budget, &other, 400, now), Admission::Granted);
        let third = budget.connection(address(3)).call();
        assert_eq!(hold(&budget, &third, 300, now), Admission::Queued, "more than all may hold");
        assert_eq!(budget.used(), 800);
        drop(calls);
        assert_eq!(hold(&budget, &third, 300, now), Admission::Granted);
        drop((other, third));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn small_messages_have_room_that_large_ones_never_take() {
        let (budget, now) = (BodyBudget::new(limits()), Instant::now());
        let large: Vec<_> = (1..=3).map(|last| budget.connection(address(last)).call()).collect();
        assert_eq!(hold(&budget, &large[0], 400, now), Admission::Granted);
        assert_eq!(hold(&budget, &large[1], 400, now), Admission::Granted);
        assert_eq!(hold(&budget, &large[2], 101, now), Admission::Queued);
        let small: Vec<_> = (0..21).map(|last| budget.connection(address(100 + last)).call()).collect();
        let granted = small.iter().filter(|call| hold(&budget, call, 10, now) == Admission::Granted).count();
        assert_eq!(granted, 20);
    }

    #[test]
    fn a_stalled_body_gives_way_and_one_that_arrives_does_not() {
        let (budget, now) = (BodyBudget::new(limits()), Instant::now());
        let held: Vec<_> = (1..=2).map(|last| budget.connection(address(last)).call()).collect();
        for call in &held {
            assert_eq!(hold(&budget, call, 400, now), Admission::Granted);
            assert!(budget.book().open(call, 1, true, now, Waker::noop()));
        }
        let newcomer = budget.connection(address(3)).call();
        let at = now + STALL;
        assert!(budget.book().open(&held[0], 390, true, at, Waker::noop()));
        assert_eq!(hold(&budget, &newcomer, 400, at), Admission::Queued);
        assert!(budget.book().open(&held[0], 390, false, at, Waker::noop()), "it arrives fast enough");
        assert!(!budget.book().open(&held[1], 1, false, at, Waker::noop()), "it has stalled");
        drop(held);
        assert_eq!(hold(&budget, &newcomer, 400, at), Admission::Granted);
    }

    #[test]
    fn a_body_that_drips_is_as_slow_as_one_that_stalls() {
        let (budget, now) = (BodyBudget::new(limits()), Instant::now());
        let dripping = budget.connection(address(1)).call();
        assert_eq!(hold(&budget, &dripping, 400, now), Admission::Granted);
        for tenth in 0..=20 {
            let at = now + STALL / 10 * tenth;
            assert!(budget.book().open(&dripping, tenth as usize, true, at, Waker::noop()));
        }
        let others: Vec<_> = (2..=3).map(|last| budget.connection(address(last)).call()).collect();
        assert_eq!(hold(&budget, &others[0], 400, now + STALL * 2), Admission::Granted);
        assert_eq!(hold(&budget, &others[1], 400, now + STALL * 2), Admission::Queued);
        assert!(!budget.book().open(&dripping, 20, true, now + STALL * 2, Waker::noop()));
    }

    #[test]
    fn a_crowd_neither_comes_first_nor_fills_the_queue() {
        let (budget, now) = (BodyBudget::new(limits()), Instant::now());
        let mut held: Vec<_> = (1..=2).map(|last| budget.connection(address(last)).call()).collect();
        for call in &held {
            assert_eq!(hold(&budget, call, 400, now), Admission::Granted);
        }
        let crowd: Vec<_> = (0..4).map(|_| budget.connection(address(9)).call()).collect();
        for call in &crowd[..3] {
            assert_eq!(hold(&budget, call, 400, now), Admission::Queued);
        }
        assert_eq!(hold(&budget, &crowd[3], 400, now), Admission::Refused, "all places to wait are taken");
        let lone = budget.connection(address(5)).call();
        assert_eq!(hold(&budget, &lone, 400, now), Admission::Queued, "one of the crowd gave its place");
        assert_eq!(hold(&budget, &crowd[2], 400, now), Admission::Refused);
        held.pop();
        assert_eq!(hold(&budget, &crowd[0], 400, now), Admission::Queued, "the lone one comes first");
        assert_eq!(hold(&budget, &lone, 400, now), Admission::Granted);
        assert_eq!(hold(&budget, &crowd[0], 400, now), Admission::Queued);
        held.pop();
        assert_eq!(hold(&budget, &crowd[1], 400, now), Admission::Queued, "the older one comes first");
        assert_eq!(hold(&budget, &crowd[0], 400, now), Admission::Granted);
    }
}
