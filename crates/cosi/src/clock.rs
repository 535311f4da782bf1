//! The clock as a port, so that tests decide what time it is.

use std::time::{SystemTime, UNIX_EPOCH};

use ichor_resource::Nanos;

/// Tells the time.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Nanos;
}

/// The clock of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Nanos {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        // A clock before 1970 reads as 1970.
        since.map_or(Nanos(0), |past| Nanos(i64::try_from(past.as_nanos()).unwrap_or(i64::MAX)))
    }
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> Nanos {
        (**self).now()
    }
}
