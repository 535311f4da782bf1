//! A short wait without sleep.
//!
//! A thread that sleeps is woken by the scheduler, and where its core had nothing else to do, through the hypervisor:
//! on a quiet machine that takes longer than most calls. So while one call waits for the machine's answer, and only
//! one, its gateway looks for the answer again and again for a moment before it lets its thread sleep. With more calls
//! under way there is always something to do, and nobody waits on purpose.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::yield_now;

/// Knows how many calls wait for an answer.
pub(crate) struct Lookout {
    /// The longest wait without sleep.
    most: Duration,
    waiting: AtomicUsize,
    begun: Notify,
}

/// A call that waits, until it is dropped.
pub(crate) struct Waiting(Arc<Lookout>);

impl Lookout {
    /// Nobody waits yet.
    pub(crate) fn new(most: Duration) -> Arc<Self> {
        Arc::new(Self { most, waiting: AtomicUsize::new(0), begun: Notify::new() })
    }

    /// A call begins to wait.
    pub(crate) fn wait(self: &Arc<Self>) -> Waiting {
        if self.waiting.fetch_add(1, Relaxed) == 0 {
            self.begun.notify_one();
        }
        Waiting(self.clone())
    }

    /// Keeps the thread awake while a lone call waits. Ends never; of no use to a machine with one core, where it would
    /// keep the answer from being made.
    pub(crate) async fn keep(&self) {
        loop {
            self.begun.notified().await;
            let until = Instant::now() + self.most;
            while self.waiting.load(Relaxed) == 1 && Instant::now() < until {
                yield_now().await;
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Wake, Waker};
    use std::thread::sleep;

    use super::*;

    /// Long enough for a turn on a busy machine.
    const MOST: Duration = Duration::from_millis(500);

    #[derive(Default)]
    struct Turns(AtomicUsize);

    impl Wake for Turns {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    /// Whether a turn of the watch asks for another one at once. Outside of a runtime, yielding wakes directly.
    fn stays_awake(watch: &mut Pin<&mut impl Future<Output = ()>>) -> bool {
        let turns = Arc::new(Turns::default());
        let waker = Waker::from(turns.clone());
        assert_eq!(watch.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Pending);
        turns.0.load(Relaxed) > 0
    }

    #[test]
    fn a_lone_call_keeps_the_thread_awake_until_it_is_answered() {
        let lookout = Lookout::new(MOST);
        let mut watch = pin!(lookout.keep());
        assert!(!stays_awake(&mut watch), "nobody waits");
        let call = lookout.wait();
        assert!(stays_awake(&mut watch));
        drop(call);
        assert!(!stays_awake(&mut watch), "answered");
        let _next = lookout.wait();
        assert!(stays_awake(&mut watch), "the next one");
    }

    #[test]
    fn nobody_stays_awake_for_several_calls_or_for_a_slow_one() {
        let lookout = Lookout::new(MOST);
        let mut watch = pin!(lookout.keep());
        let first = lookout.wait();
        let second = lookout.wait();
        assert!(!stays_awake(&mut watch), "two calls");
        drop((first, second));
        let _slow = lookout.wait();
        assert!(stays_awake(&mut watch));
        sleep(MOST);
        assert!(!stays_awake(&mut watch), "a slow call");
    }
}
