//! The watchdog of the machine, which init has armed for a system that may be on trial: init lets go of it when the
//! configuration asks for one.

use std::io;
use std::time::Duration;

use ichor_ctl_runtime::{KernelWatchdog, WatchdogPort};
use ichor_sys::watchdog::{self, Watchdog};

use crate::supervisor::Supervisor;

/// Watchdogs of which init may hold the first one.
#[derive(Clone)]
pub struct SharedWatchdog {
    supervisor: Supervisor,
}

impl SharedWatchdog {
    /// Those of the machine that this init runs.
    pub fn new(supervisor: Supervisor) -> Self {
        Self { supervisor }
    }
}

impl WatchdogPort for SharedWatchdog {
    type Armed = Watchdog;

    async fn arm(&self, device: &str, timeout: Duration) -> io::Result<Watchdog> {
        if watchdog::is_first(device) {
            self.supervisor.take_watchdog().await?;
        }
        KernelWatchdog.arm(device, timeout).await
    }
}
