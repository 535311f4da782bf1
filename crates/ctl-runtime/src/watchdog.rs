//! The watchdog: as long as this controller gets its turn, the machine is not reset.

use std::io;
use std::path::Path;
use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_resource::runtime::{WatchdogTimerConfig, WatchdogTimerStatus};
use ichor_sys::watchdog::Watchdog;
use ichor_types::GoDuration;
use tracing::{info, warn};

/// The one id of both resources.
const TIMER: &str = "timer";

/// Fed this often within its timeout.
const FEEDS: u32 = 3;

/// A watchdog device.
pub trait WatchdogPort: Send + Sync + 'static {
    /// What an armed one is.
    type Armed: Armed;

    /// Arms the device.
    fn arm(&self, device: &str, timeout: Duration) -> impl Future<Output = io::Result<Self::Armed>> + Send;
}

/// An armed watchdog; dropped, it stays armed.
pub trait Armed: Send + 'static {
    /// Starts its timeout anew.
    fn feed(&self) -> io::Result<()>;

    /// Switches it off.
    fn disarm(self) -> io::Result<()>;
}

/// The kernel's watchdogs.
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelWatchdog;

impl WatchdogPort for KernelWatchdog {
    type Armed = Watchdog;

    async fn arm(&self, device: &str, timeout: Duration) -> io::Result<Watchdog> {
        Watchdog::arm(Path::new(device), timeout).map(|(watchdog, _)| watchdog)
    }
}

impl Armed for Watchdog {
    fn feed(&self) -> io::Result<()> {
        Watchdog::feed(self)
    }

    fn disarm(self) -> io::Result<()> {
        Watchdog::disarm(self)
    }
}

/// A watchdog that is not there, or refuses.
#[derive(Debug, thiserror::Error)]
#[error("{what} watchdog {device}")]
struct WatchdogError {
    what: &'static str,
    device: String,
    #[source]
    source: io::Error,
}

/// Arms and feeds the watchdog, and writes `WatchdogTimerStatuses`.
pub struct WatchdogTimerController<P: WatchdogPort> {
    port: P,
    armed: Option<(WatchdogTimerConfig, P::Armed)>,
}

impl<P: WatchdogPort> WatchdogTimerController<P> {
    /// A controller of these devices.
    pub fn new(port: P) -> Self {
        Self { port, armed: None }
    }

    /// Brings the watchdog to what is wanted.
    async fn change(&mut self, wanted: Option<&WatchdogTimerConfig>) -> Result<(), WatchdogError> {
        if self.armed.as_ref().map(|(config, _)| config) == wanted {
            return Ok(());
        }
        if let Some((config, armed)) = self.armed.take() {
            match armed.disarm() {
                Ok(()) => info!(device = config.device, "watchdog switched off"),
                Err(error) => warn!(device = config.device, %error, "watchdog stays armed"),
            }
        }
        if let Some(config) = wanted {
            let armed = self.port.arm(&config.device, config.timeout.to_std()).await;
            let failed = |source| WatchdogError { what: "arm", device: config.device.clone(), source };
            self.armed = Some((config.clone(), armed.map_err(failed)?));
        }
        Ok(())
    }
}

impl<P: WatchdogPort> Controller for WatchdogTimerController<P> {
    const NAME: &'static str = "runtime.WatchdogTimerController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<WatchdogTimerConfig>().id(TIMER)]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<WatchdogTimerStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = ctx.get::<WatchdogTimerConfig>(TIMER)?;
        let changed = self.change(config.as_ref().map(|config| config.spec())).await;
        let status = self.armed.as_ref().map(|(config, armed)| {
            let interval = config.timeout.to_std() / FEEDS;
            ctx.requeue_after(interval);
            let status = WatchdogTimerStatus {
                device: config.device.clone(),
                timeout: config.timeout,
                feed_interval: GoDuration::from_std(interval),
            };
            (status, armed.feed())
        });
        let (status, fed) = match status {
            Some((status, fed)) => (Some(status), fed),
            None => (None, Ok(())),
        };
        ctx.publish(status.clone().map(|status| (TIMER, status)))?;
        changed?;
        fed.map_err(|source| {
            let device = status.map(|status| status.device).unwrap_or_default();
            WatchdogError { what: "feed", device, source }
        })?;
        Ok(())
    }
}
