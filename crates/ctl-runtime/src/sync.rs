//! Keeps the clock right and says whether it is.

use std::future::Future;
use std::io;
use std::time::Duration;

use ichor_config::Document;
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_ctl::{Configuration, active_input};
use ichor_resource::network::TimeServerStatus;
use ichor_resource::runtime::DevicesStatus;
use ichor_resource::time::TimeStatus;
use tokio::time::Instant;
use tracing::{debug, info, warn};

pub use ichor_sys::clock::Leap;

/// The clock is stepped from here on, and left to drift below.
const STEP_MIN: Duration = Duration::from_millis(400);
/// Corrections of this size make certificates be issued anew.
const EPOCH_MIN: Duration = Duration::from_secs(15 * 60);
const POLL_MIN: Duration = Duration::from_secs(32);
const POLL_MAX: Duration = Duration::from_secs(2048);
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(32);

/// What a time server's answer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measurement {
    /// Nanoseconds to add to the clock.
    pub offset_ns: i64,
    /// Time on the wire, both ways.
    pub round_trip: Duration,
    /// A leap second ahead.
    pub leap: Leap,
}

/// What to do to the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adjustment {
    /// Set it, at once.
    Step {
        /// Nanoseconds to add.
        offset_ns: i64,
    },
    /// Let it drift there.
    Slew {
        /// Nanoseconds to add.
        offset_ns: i64,
        /// How slowly, in powers of two of seconds.
        constant: i64,
    },
}

/// The clock, and those who know the time.
pub trait TimePort: Send + Sync + 'static {
    /// Whether this machine has a clock of its own to set.
    fn owns_clock(&self) -> bool;

    /// The first good answer of these servers; bounded.
    fn query(&self, servers: &[String]) -> impl Future<Output = io::Result<Measurement>> + Send;

    /// Sets the clock right.
    fn adjust(&self, adjustment: Adjustment, leap: Leap) -> io::Result<()>;

    /// Writes the time to the clock that runs while the machine is off, where it has one.
    fn write_hardware_clock(&self) -> io::Result<()>;
}

/// Writes `TimeStatuses`.
#[derive(Debug)]
pub struct SyncController<T> {
    port: T,
    filter: SpikeFilter,
    started: Instant,
    /// When to ask next; at once when there was no answer yet.
    due: Option<Instant>,
    poll: Option<Duration>,
    retry: Duration,
    servers: Vec<String>,
    synced: bool,
    epoch: i64,
    /// What the last question came to, if not to a right clock.
    trouble: Option<String>,
}

impl<T: TimePort> SyncController<T> {
    /// A controller of this clock.
    pub fn new(port: T) -> Self {
        Self {
            port,
            filter: SpikeFilter::default(),
            started: Instant::now(),
            due: None,
            poll: None,
            retry: RETRY_MIN,
            servers: Vec::new(),
            synced: false,
            epoch: 0,
            trouble: None,
        }
    }

    /// Asks, judges the answer, sets the clock.
    async fn ask(&mut self) -> Result<(), ControllerError> {
        let now = Instant::now();
        if self.due.is_some_and(|due| due > now) {
            return Ok(());
        }
        let answer = match self.port.query(&self.servers).await {
            Ok(answer) => answer,
            Err(error) => {
                debug!(servers = ?self.servers, %error, "no time server answers");
                self.trouble = Some(error.to_string());
                self.due = Some(Instant::now() + self.retry);
                self.retry = (self.retry * 2).min(RETRY_MAX);
                return Ok(());
            }
        };
        self.retry = RETRY_MIN;
        let spike = self.filter.is_spike(&answer);
        let poll = next_poll(self.poll, answer.offset_ns, spike);
        self.poll = Some(poll);
        self.due = Some(Instant::now() + poll);
        if spike {
            warn!(
                offset_ns = answer.offset_ns,
                "a time server's answer is far off the others and is left out"
            );
            return Ok(());
        }
        if !self.port.owns_clock() {
            self.trouble = wrong_clock(answer.offset_ns, &self.servers);
            return Ok(());
        }
        self.trouble = None;
        let adjustment = adjustment(answer.offset_ns, poll);
        self.port.adjust(adjustment, answer.leap)?;
        // The next start begins with this time. A slew is not over yet, but closer than that clock's seconds.
        let jumped = answer.offset_ns.unsigned_abs() > EPOCH_MIN.as_nanos() as u64;
        if (jumped || !self.synced)
            && let Err(error) = self.port.write_hardware_clock()
        {
            warn!(%error, "hardware clock not set");
        }
        if jumped {
            info!(offset_ns = answer.offset_ns, "the clock jumped");
            self.epoch += 1;
        }
        self.synced = true;
        Ok(())
    }
}

/// What the configuration says about time.
struct Settings {
    disabled: bool,
    boot_timeout: Duration,
    /// Time servers are named.
    named: bool,
}

fn settings(ctx: &Context) -> Result<Settings, ControllerError> {
    let documents = Configuration::active(ctx)?;
    let mut settings = Settings { disabled: false, boot_timeout: Duration::ZERO, named: false };
    for document in documents.iter().flat_map(|documents| documents.iter()) {
        match document {
            Document::Config(config) => {
                let time = config.machine.as_ref().and_then(|machine| machine.time.as_ref());
                if let Some(time) = time {
                    settings.disabled |= time.disabled.unwrap_or(false);
                    settings.named |= !time.servers.is_empty();
                    settings.boot_timeout = settings.boot_timeout.max(time.boot_timeout.to_std());
                }
            }
            Document::TimeSyncConfig(time) => {
                settings.disabled |= time.enabled == Some(false);
                settings.named |= time.ntp.as_ref().is_some_and(|ntp| !ntp.servers.is_empty());
                settings.boot_timeout = settings.boot_timeout.max(time.boot_timeout.to_std());
            }
            _ => {}
        }
    }
    Ok(settings)
}

impl<T: TimePort> Controller for SyncController<T> {
    const NAME: &'static str = "time.SyncController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<DevicesStatus>().id("devices"),
            weak::<TimeServerStatus>().id("timeservers"),
            active_input(),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<TimeStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let settings = settings(ctx)?;
        let disabled = settings.disabled || !self.port.owns_clock();
        // A clock that belongs to somebody else is not set, and still looked at where the configuration names
        // servers: certificates depend on it.
        let looked_at = !disabled || (!settings.disabled && settings.named);
        if !looked_at {
            self.trouble = None;
        }
        let devices_ready = ctx.get::<DevicesStatus>("devices")?.is_some_and(|devices| devices.ready);
        let servers = ctx.get::<TimeServerStatus>("timeservers")?;
        if looked_at
            && devices_ready
            && let Some(servers) = servers
        {
            if self.servers != servers.time_servers {
                self.servers.clone_from(&servers.time_servers);
                self.filter = SpikeFilter::default();
                (self.due, self.poll) = (None, None);
            }
            self.ask().await?;
            if let Some(due) = self.due {
                ctx.requeue_after(
                    due.saturating_duration_since(Instant::now()).max(Duration::from_millis(100)),
                );
            }
        }
        if let Some(trouble) = &self.trouble {
            ctx.trouble(trouble.clone());
        }
        let left = settings.boot_timeout.checked_sub(self.started.elapsed());
        let waited_enough = !settings.boot_timeout.is_zero() && left.is_none();
        let synced = disabled || self.synced || waited_enough;
        if !synced && let Some(left) = left.filter(|left| !left.is_zero()) {
            ctx.requeue_after(left);
        }
        ctx.modify::<TimeStatus>("node", |spec| {
            *spec = TimeStatus { synced, epoch: self.epoch, sync_disabled: disabled };
        })?;
        Ok(())
    }
}

/// What to say about a clock that this machine may not set.
fn wrong_clock(offset_ns: i64, servers: &[String]) -> Option<String> {
    if offset_ns.unsigned_abs() <= STEP_MIN.as_nanos() as u64 {
        return None;
    }
    let seconds = offset_ns.unsigned_abs() as f64 / 1e9;
    let way = if offset_ns > 0 { "behind" } else { "ahead of" };
    Some(format!(
        "the clock is {seconds:.1} s {way} time server {}, and is not this machine's to set",
        servers.join(", ")
    ))
}

/// How the clock gets over an offset.
fn adjustment(offset_ns: i64, poll: Duration) -> Adjustment {
    if offset_ns.unsigned_abs() > STEP_MIN.as_nanos() as u64 {
        return Adjustment::Step { offset_ns };
    }
    let constant = i64::from(poll.as_secs().max(1).ilog2()) - 4;
    Adjustment::Slew { offset_ns, constant: constant.max(0) }
}

/// When to ask again: soon while the clock is off, ever later while it is right.
fn next_poll(last: Option<Duration>, offset_ns: i64, spike: bool) -> Duration {
    let millis = offset_ns.unsigned_abs() / 1_000_000;
    let Some(last) = last else { return POLL_MIN };
    if millis > 200 && !spike {
        POLL_MIN
    } else if spike || millis > 150 {
        (last / 2).max(POLL_MIN)
    } else if millis < 50 {
        (last * 2).min(POLL_MAX)
    } else {
        last
    }
}

/// Tells answers that are far off the others.
#[derive(Debug, Default)]
struct SpikeFilter {
    samples: Vec<Measurement>,
    seen: usize,
    jitter_ns: f64,
}

impl SpikeFilter {
    const SAMPLES: usize = 8;
    /// Fewer answers than this say nothing about what is usual.
    const TRUSTED: usize = 4;

    fn is_spike(&mut self, answer: &Measurement) -> bool {
        self.seen += 1;
        let previous = self.samples.last().copied();
        let usual = self.jitter_ns;
        if self.samples.len() == Self::SAMPLES {
            self.samples.remove(0);
        }
        self.samples.push(*answer);
        self.jitter_ns = self.jitter();
        let offset = answer.offset_ns.unsigned_abs();
        // The first answers set the clock, and an offset beyond the time on the wire is no accident of the wire.
        if self.seen < Self::TRUSTED || u128::from(offset) > answer.round_trip.as_nanos() {
            return false;
        }
        previous.is_some_and(|previous| {
            (answer.offset_ns - previous.offset_ns).unsigned_abs() as f64 > 3.0 * usual
        })
    }

    /// How far answers usually are from the best one, which is the one with the shortest way.
    fn jitter(&self) -> f64 {
        let Some(best) = self.samples.iter().min_by_key(|sample| sample.round_trip) else { return 0.0 };
        let squares = self.samples.iter().map(|sample| ((sample.offset_ns - best.offset_ns) as f64).powi(2));
        (squares.sum::<f64>() / (Self::SAMPLES - 1) as f64).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    fn answer(offset_ms: i64) -> Measurement {
        Measurement { offset_ns: offset_ms * MS, round_trip: Duration::from_millis(400), leap: Leap::None }
    }

    #[test]
    fn large_offsets_are_steps_and_small_ones_drift() {
        assert_eq!(adjustment(-401 * MS, POLL_MIN), Adjustment::Step { offset_ns: -401 * MS });
        assert_eq!(adjustment(5 * MS, POLL_MIN), Adjustment::Slew { offset_ns: 5 * MS, constant: 1 });
        assert_eq!(adjustment(5 * MS, POLL_MAX), Adjustment::Slew { offset_ns: 5 * MS, constant: 7 });
    }

    #[test]
    fn a_right_clock_is_asked_about_less_and_less() {
        let mut poll = next_poll(None, 0, false);
        let mut seen = vec![poll.as_secs()];
        for _ in 0..7 {
            poll = next_poll(Some(poll), MS, false);
            seen.push(poll.as_secs());
        }
        assert_eq!(seen, [32, 64, 128, 256, 512, 1024, 2048, 2048]);
        assert_eq!(next_poll(Some(poll), 160 * MS, false).as_secs(), 1024);
        assert_eq!(next_poll(Some(poll), 100 * MS, false).as_secs(), 2048);
        assert_eq!(next_poll(Some(poll), 300 * MS, false).as_secs(), 32);
        assert_eq!(next_poll(Some(poll), 300 * MS, true).as_secs(), 1024);
    }

    #[test]
    fn an_answer_far_off_the_others_is_a_spike() {
        let mut filter = SpikeFilter::default();
        for offset in [1, 2, 1, 2, 1] {
            assert!(!filter.is_spike(&answer(offset)));
        }
        assert!(filter.is_spike(&answer(200)));
        assert!(!SpikeFilter::default().is_spike(&answer(200)), "the first answer is all there is");
    }
}
