//! Threads for blocking work that clients ask for, a few for each kind.
//!
//! What waits here waits for a disk, a name server or another's filesystem, and may wait for long. A kind that is stuck
//! holds up its own kind alone, and all of them give way to the rest of the node. Saving the configuration, META and certificates have threads that no client reaches: the
//! blocking threads of the controllers' runtime.

use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;

thread_local! {
    /// The first use lowers the priority of the thread: where there is more work than there are cores, the node's own
    /// comes first.
    static PRIORITY: () = {
        if let Err(error) = ichor_sys::process::lower_priority() {
            tracing::debug!(%error, "priority of a thread not lowered");
        }
    };
}

/// One kind of work and its threads.
#[derive(Debug)]
pub struct Lane {
    places: Semaphore,
}

/// Files and directories: listing, reading, copying, disk usage.
pub static FILES: Lane = Lane::new(FEW);
/// Logs of containers.
pub static LOGS: Lane = Lane::new(FEW);
/// What the kernel says about the machine.
pub static HOST: Lane = Lane::new(FEW);
/// How full filesystems are; one that is gone does not answer.
pub static MOUNTS: Lane = Lane::new(FEW);
/// Clocks that are devices, and names of time servers.
pub static TIME: Lane = Lane::new(FEW);
/// Disks that are wiped.
pub static DISKS: Lane = Lane::new(FEW);
/// Everything else: new keys, mostly.
pub static OTHER: Lane = Lane::new(FEW);

/// Threads of a lane: enough for a disk to have something to do, few beside those of the node itself.
const FEW: usize = 4;

/// Threads of all lanes together.
pub const THREADS: usize = 7 * FEW;

impl Lane {
    const fn new(threads: usize) -> Self {
        Self { places: Semaphore::const_new(threads) }
    }

    /// Runs `work` on one of the lane's threads; waits for one when all are taken.
    ///
    /// The place is given back when the work ends, not when the caller goes away: a call that was cancelled still has
    /// its thread. A task of its own waits for the place, since a stream is not polled while its client does not read,
    /// and would keep a place that it was given meanwhile.
    ///
    /// # Errors
    /// `Internal` when the work panics.
    pub async fn run<T: Send + 'static>(
        &'static self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        let waiting = tokio::spawn(async move {
            let place = self.places.acquire().await;
            let done = tokio::task::spawn_blocking(move || {
                let _place = place;
                PRIORITY.with(|()| ());
                work()
            });
            done.await
        });
        match AbortOnDropHandle::new(waiting).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) | Err(error) => Err(Status::internal(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_lane_that_is_stuck_holds_up_no_other_even_when_its_callers_are_gone() {
        static STUCK: Lane = Lane::new(2);
        static FREE: Lane = Lane::new(1);
        let (release, held) = mpsc::channel::<()>();
        let held = std::sync::Arc::new(std::sync::Mutex::new(held));
        for _ in 0..8 {
            let held = held.clone();
            let call = STUCK.run(move || held.lock().unwrap().recv().is_err());
            // Every caller gives up; the threads are still in their work.
            assert!(tokio::time::timeout(Duration::from_millis(10), call).await.is_err());
        }
        assert_eq!(STUCK.places.available_permits(), 0);
        assert_eq!(FREE.run(|| 7).await.unwrap(), 7);
        drop(release);
        assert_eq!(STUCK.run(|| 8).await.unwrap(), 8);
    }

    #[tokio::test]
    async fn a_caller_that_is_not_polled_keeps_no_place() {
        static ONE: Lane = Lane::new(1);
        let (release, held) = mpsc::channel::<()>();
        let first = tokio::spawn(ONE.run(move || held.recv().is_err()));
        // A spawned task starts when this one waits.
        while ONE.places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let mut stalled = Box::pin(ONE.run(|| 1));
        // It waits for the place, and then nobody asks it any more.
        let polled = tokio::time::timeout(Duration::from_millis(10), &mut stalled).await;
        assert!(polled.is_err());
        drop(release);
        assert!(first.await.unwrap().unwrap());
        let other = tokio::time::timeout(Duration::from_secs(10), ONE.run(|| 2)).await;
        assert_eq!(other.expect("the place is kept").unwrap(), 2);
        assert_eq!(stalled.await.unwrap(), 1);
    }
}
