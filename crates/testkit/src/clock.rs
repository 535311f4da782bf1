//! A clock that stands still until it is told to move.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use ichor_cosi::Clock;
use ichor_resource::Nanos;

/// 2025-01-01T00:00:00Z: a start that looks like a date in golden files.
const START: i64 = 1_735_689_600 * 1_000_000_000;

/// A clock under the control of the test. Clones are one clock.
#[derive(Debug, Clone)]
pub struct FakeClock(Arc<AtomicI64>);

impl Default for FakeClock {
    fn default() -> Self {
        Self(Arc::new(AtomicI64::new(START)))
    }
}

impl FakeClock {
    /// Moves forward.
    pub fn advance(&self, by: Duration) {
        let by = i64::try_from(by.as_nanos()).unwrap_or(i64::MAX);
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    /// Jumps.
    pub fn set(&self, now: Nanos) {
        self.0.store(now.0, Ordering::Relaxed);
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Relaxed))
    }
}
