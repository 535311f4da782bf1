//! Who waits for the next event of a kind, and who for the next event of one id.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Waker;
use std::thread::{self, ThreadId};

use tokio::runtime::Handle;
use tokio::task::yield_now;

/// From so many on, watches of another thread are woken by one of its own tasks.
const CROWD: usize = 16;

/// That task wakes so many, then lets them and those who carry their words have their turn.
const ROW: usize = 250;

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
    home: Option<Home>,
}

/// Where the newest of them waits, and most likely the others, too.
#[derive(Clone)]
struct Home {
    thread: ThreadId,
    runtime: Handle,
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
        self.come_home();
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
    pub(crate) fn take(&mut self) -> Taken {
        self.epoch += 1;
        self.free.clear();
        let capacity = self.list.len();
        let list = std::mem::replace(&mut self.list, Vec::with_capacity(capacity));
        let home = self.home.clone().filter(|_| list.len() >= CROWD);
        Taken { list: list.into_iter(), home }
    }

    fn come_home(&mut self) {
        let thread = thread::current().id();
        if self.home.as_ref().is_none_or(|home| home.thread != thread) {
            self.home = Handle::try_current().ok().map(|runtime| Home { thread, runtime });
        }
    }
}

/// Watches that have something to see. Each is woken, at the latest when this is dropped.
pub(crate) struct Taken {
    list: std::vec::IntoIter<Option<Waker>>,
    home: Option<Home>,
}

impl Taken {
    /// Wakes them; no lock may be held, since a waker may run foreign code that drops a watch.
    ///
    /// To wake a task of another thread is to wake that thread: for a thousand watches a thousand system calls. So a
    /// crowd is woken from within its own thread.
    pub(crate) fn wake(mut self) {
        if let Some(home) = self.home.take()
            && home.thread != thread::current().id()
        {
            // Without its runtime it is dropped at once.
            home.runtime.spawn(self.wake_in_rows());
        }
    }

    async fn wake_in_rows(mut self) {
        while self.list.len() > 0 {
            self.list.by_ref().take(ROW).flatten().for_each(Waker::wake);
            yield_now().await;
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.list.by_ref().flatten().for_each(Waker::wake);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    /// Counts wake-ups, and those of the thread that made it.
    struct Count {
        home: ThreadId,
        all: AtomicUsize,
        at_home: AtomicUsize,
    }

    impl Count {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                home: thread::current().id(),
                all: AtomicUsize::new(0),
                at_home: AtomicUsize::new(0),
            })
        }

        fn seen(&self) -> (usize, usize) {
            (self.all.load(Ordering::SeqCst), self.at_home.load(Ordering::SeqCst))
        }
    }

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.all.fetch_add(1, Ordering::SeqCst);
            if thread::current().id() == self.home {
                self.at_home.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    fn waiting(many: usize, count: &Arc<Count>) -> Waiters {
        let mut waiters = Waiters::default();
        let waker = Waker::from(count.clone());
        for _ in 0..many {
            waiters.register(None, &waker);
        }
        waiters
    }

    async fn until_all(count: &Count, many: usize) -> usize {
        while count.seen().0 < many {
            yield_now().await;
        }
        count.seen().1
    }

    #[tokio::test]
    async fn a_crowd_is_woken_within_its_own_thread() {
        let count = Count::new();
        let mut waiters = waiting(3 * ROW + 1, &count);
        thread::spawn(move || waiters.take().wake()).join().unwrap();
        assert_eq!(count.seen(), (0, 0), "the writer has nothing to do with it");
        assert_eq!(until_all(&count, 3 * ROW + 1).await, 3 * ROW + 1);
    }

    #[tokio::test]
    async fn a_few_are_woken_by_the_writer() {
        let count = Count::new();
        let mut waiters = waiting(CROWD - 1, &count);
        thread::spawn(move || waiters.take().wake()).join().unwrap();
        assert_eq!(count.seen(), (CROWD - 1, 0));
    }

    #[test]
    fn a_crowd_whose_runtime_is_gone_is_woken_all_the_same() {
        let count = Count::new();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut waiters = runtime.block_on(async { waiting(100, &count) });
        drop(runtime);
        thread::spawn(move || waiters.take().wake()).join().unwrap();
        assert_eq!(count.seen().0, 100);
    }
}
