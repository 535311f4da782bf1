//! What is on its way: a machine that stops gives it a moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Nothing new for this long counts as the end.
const QUIET: Duration = Duration::from_millis(100);

/// Counts what is being sent. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Drain(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    underway: AtomicUsize,
    used: AtomicBool,
}

/// One thing on its way.
#[derive(Debug)]
pub struct Underway(Arc<Counts>);

impl Drain {
    /// Something is on its way until the answer is dropped.
    pub fn begin(&self) -> Underway {
        self.0.used.store(true, Ordering::Release);
        self.0.underway.fetch_add(1, Ordering::AcqRel);
        Underway(Arc::clone(&self.0))
    }

    /// Waits until nothing was on its way for a moment, but no longer than `limit`; not at all where nothing was
    /// ever sent.
    pub async fn settled(&self, limit: Duration) {
        if !self.0.used.load(Ordering::Acquire) {
            return;
        }
        let quiet = async {
            loop {
                tokio::time::sleep(QUIET).await;
                if self.0.underway.load(Ordering::Acquire) == 0 {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(limit, quiet).await;
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.underway.fetch_sub(1, Ordering::AcqRel);
    }
}
