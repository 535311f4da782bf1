//! The clock as a port, so that tests decide what time it is.

use std::time::{SystemTime, UNIX_EPOCH};

use ichor_resource::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// Tells the time.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Nanos;

    /// Now, good enough to be written on a resource: may lag by a tick of the kernel.
    fn stamp(&self) -> Nanos {
        self.now()
    }
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

    // A tenth of every write was the precise clock; nobody needs it there.
    #[inline]
    fn stamp(&self) -> Nanos {
        let time = clock_gettime(ClockId::RealtimeCoarse);
        Nanos(time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec).max(0))
    }
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> Nanos {
        (**self).now()
    }

    fn stamp(&self) -> Nanos {
        (**self).stamp()
    }
}
