//! The guard of a system that may be on trial: it restarts the machine, through its firmware, when machined makes no progress
//! or nobody has decided about the system long after its deadline. The boot loader then starts the default.
//!
//! Whether a system is on trial is written in META, which machined reads; until it has told, every system may be. A watchdog
//! device, where there is one, is armed meanwhile and fed by init, so that a kernel or an init that hangs ends as well.

use std::path::Path;
use std::time::Duration;

use ichor_sys::supervisor::{GuardNotice, RebootCommand};
use ichor_sys::watchdog::{self, Watchdog};
use ichor_types::Cmdline;

use crate::pid1::say;

/// How often the guard looks, and feeds the watchdog.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// A machined that was not heard for this long hangs; it tells every five seconds.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// What comes before and after the deadline of a trial: disks that take four minutes to show, and the writing of its outcome,
/// two minutes.
const DECISION_SLACK: Duration = Duration::from_secs(360);
/// Timeouts of the watchdog, the first one that it takes. Long against a machine that is emulated on a busy host.
const TIMEOUTS: [Duration; 3] = [Duration::from_secs(120), Duration::from_secs(60), Duration::from_secs(30)];

/// How long what may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    silence: Duration,
    decision: Duration,
    look_every: Duration,
}

impl Limits {
    /// Those of this command line. None for a machine that is to stay as it is when something breaks, for somebody to read
    /// what went wrong: one whose kernel does not restart after a panic.
    pub(crate) fn of(cmdline: &Cmdline) -> Option<Self> {
        // The kernel goes by the last one.
        let panic: i32 = cmdline.all("panic").last()?.parse().ok()?;
        let deadline = ichor_boot::health::deadline(cmdline);
        let limits = Self {
            silence: SILENCE_MAX.min(deadline),
            decision: deadline + DECISION_SLACK,
            look_every: LOOK_EVERY,
        };
        (panic != 0).then_some(limits)
    }

    /// For tests: a second of silence is too much.
    pub(crate) fn brief() -> Self {
        let silence = Duration::from_secs(1);
        Self { silence, decision: silence * 3, look_every: silence / 10 }
    }

    fn of_this_machine() -> Option<Self> {
        Self::of(&Cmdline::parse(&ichor_sys::host::command_line().ok()?))
    }
}

/// Why the machine has to restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expired {
    Silent,
    Undecided,
}

impl Expired {
    fn text(self) -> &'static str {
        match self {
            Self::Silent => "machined makes no progress",
            Self::Undecided => "nobody decided about this system within its deadline",
        }
    }
}

/// What is known of machined. Time in which this process did not run does not count: the whole machine stood still.
#[derive(Debug)]
struct Progress {
    limits: Limits,
    looked: Duration,
    silent: Duration,
    age: Duration,
}

impl Progress {
    fn new(limits: Limits, now: Duration) -> Self {
        Self { limits, looked: now, silent: Duration::ZERO, age: Duration::ZERO }
    }

    fn heard(&mut self) {
        self.silent = Duration::ZERO;
    }

    fn look(&mut self, now: Duration) -> Option<Expired> {
        let passed = now.saturating_sub(self.looked).min(self.limits.look_every * 2);
        self.looked = now;
        self.silent += passed;
        self.age += passed;
        if self.silent >= self.limits.silence {
            return Some(Expired::Silent);
        }
        (self.age >= self.limits.decision).then_some(Expired::Undecided)
    }
}

/// The watchdog device.
#[derive(Debug)]
enum Timer {
    /// Not there yet: the driver of some is loaded by the device manager.
    Wanted,
    Held(Watchdog),
    /// Not ours, or no longer.
    Released,
}

impl Timer {
    /// Arms it where it is not, else feeds it.
    fn tend(&mut self) {
        match self {
            Self::Wanted => {
                if let Some(armed) = arm() {
                    *self = Self::Held(armed);
                }
            }
            // One that cannot be fed restarts the machine; there is nothing else to do about it.
            Self::Held(armed) => drop(armed.feed()),
            Self::Released => {}
        }
    }

    /// Nobody needs it any more. One that cannot be switched off is kept, and fed for ever.
    fn release(&mut self) {
        if matches!(self, Self::Held(_)) && !watchdog::first_can_stop() {
            return;
        }
        if let Self::Held(armed) = std::mem::replace(self, Self::Released) {
            let _ = armed.disarm();
        }
    }

    /// Somebody else opens and feeds it from here on.
    fn hand_over(&mut self) {
        if let Self::Held(armed) = std::mem::replace(self, Self::Released) {
            let _ = armed.disarm();
        }
    }
}

fn arm() -> Option<Watchdog> {
    let device = Path::new(watchdog::FIRST);
    TIMEOUTS.iter().find_map(|timeout| Watchdog::arm(device, *timeout).ok()).map(|(armed, _)| armed)
}

/// Arms the watchdog before there is anything to feed it; [`Guard::begin`] takes it over.
pub(crate) fn arm_first() {
    if Limits::of_this_machine().is_some() {
        // It stays armed when it is closed.
        drop(arm());
    }
}

/// The guard. Does nothing once it was told that the system is not on trial.
#[derive(Debug)]
pub(crate) struct Guard {
    progress: Option<Progress>,
    timer: Timer,
    look_every: Duration,
    next: Duration,
}

impl Guard {
    /// Guards this machine, if it is one that restarts by itself, and arms its watchdog.
    pub(crate) fn begin(now: Duration) -> Self {
        match Limits::of_this_machine() {
            Some(limits) => {
                let mut guard = Self { timer: Timer::Wanted, ..Self::with(limits, now) };
                guard.timer.tend();
                guard
            }
            None => Self { progress: None, timer: Timer::Released, look_every: LOOK_EVERY, next: now },
        }
    }

    /// Guards with these limits, without a device.
    pub(crate) fn with(limits: Limits, now: Duration) -> Self {
        Self {
            progress: Some(Progress::new(limits, now)),
            timer: Timer::Released,
            look_every: limits.look_every,
            next: now + limits.look_every,
        }
    }

    /// Guards nothing.
    pub(crate) fn none() -> Self {
        Self { progress: None, timer: Timer::Released, look_every: LOOK_EVERY, next: Duration::ZERO }
    }

    /// What machined says.
    pub(crate) fn heed(&mut self, notice: GuardNotice) {
        match notice {
            GuardNotice::Progress => self.progress.iter_mut().for_each(Progress::heard),
            GuardNotice::Decided => {
                self.progress = None;
                self.timer.release();
            }
            GuardNotice::Yield => self.timer.hand_over(),
        }
    }

    /// How long the loop may wait; none for as long as it likes.
    pub(crate) fn timeout(&self, now: Duration) -> Option<Duration> {
        let is_busy = self.progress.is_some() || matches!(self.timer, Timer::Held(_));
        is_busy.then(|| self.next.saturating_sub(now))
    }

    /// Looks, where it is time to; whether the machine has to restart.
    pub(crate) fn look(&mut self, now: Duration) -> bool {
        if now < self.next {
            return false;
        }
        self.next = now + self.look_every;
        if let Some(expired) = self.progress.as_mut().and_then(|progress| progress.look(now)) {
            say(&[expired.text(), "; restarting, so that the boot loader starts the default system"]);
            return true;
        }
        self.timer.tend();
        false
    }

    /// The machine is about to end. The watchdog sees to it that a restart is one; whoever wants it off gets it off.
    pub(crate) fn ending(&mut self, command: RebootCommand) {
        match command {
            RebootCommand::Restart => self.timer.tend(),
            RebootCommand::PowerOff | RebootCommand::Halt | RebootCommand::Kexec => self.timer.hand_over(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits(cmdline: &str) -> Option<Limits> {
        Limits::of(&Cmdline::parse(cmdline))
    }

    #[test]
    fn only_a_machine_that_restarts_by_itself_is_guarded() {
        for cmdline in ["", "panic", "panic=0", "panic=10 panic=0", "panic=x"] {
            assert_eq!(limits(cmdline), None, "{cmdline}");
        }
        for cmdline in ["panic=10", "panic=0 panic=-1"] {
            assert!(limits(cmdline).is_some(), "{cmdline}");
        }
    }

    #[test]
    fn a_shorter_deadline_makes_all_limits_shorter() {
        let seconds = |cmdline| {
            let limits = limits(cmdline).unwrap();
            (limits.silence.as_secs(), limits.decision.as_secs())
        };
        assert_eq!(seconds("panic=10"), (120, 960));
        assert_eq!(seconds("panic=10 ichor.trial_deadline=60"), (60, 420));
        assert_eq!(seconds("panic=10 ichor.trial_deadline=1"), (60, 420));
        assert_eq!(seconds("panic=10 ichor.trial_deadline=3600"), (120, 3960));
    }

    /// Looks every five seconds; after how many it expires, and why.
    fn expires(mut progress: Progress, hears_until: u32) -> (u32, Expired) {
        for second in (5..).step_by(5) {
            if second <= hears_until {
                progress.heard();
            }
            if let Some(expired) = progress.look(SECOND * second) {
                return (second, expired);
            }
        }
        unreachable!("the loop has no end");
    }

    #[test]
    fn silence_expires_and_so_does_a_trial_that_nobody_decides() {
        let progress = || Progress::new(limits("panic=10").unwrap(), Duration::ZERO);
        assert_eq!(expires(progress(), 0), (120, Expired::Silent));
        assert_eq!(expires(progress(), 300), (415, Expired::Silent));
        assert_eq!(expires(progress(), 10_000), (960, Expired::Undecided));
    }

    #[test]
    fn a_machine_that_stood_still_is_not_restarted_for_it() {
        let mut progress = Progress::new(limits("panic=10").unwrap(), Duration::ZERO);
        // Each time the whole machine was stopped for ten minutes.
        for pause in 1..=11 {
            assert_eq!(progress.look(SECOND * 600 * pause), None, "{pause}");
        }
        assert_eq!(progress.look(SECOND * 600 * 12), Some(Expired::Silent));
    }

    #[test]
    fn a_decided_system_is_left_alone_and_costs_no_turn() {
        let mut guard = Guard::with(limits("panic=10").unwrap(), Duration::ZERO);
        assert_eq!(guard.timeout(SECOND), Some(SECOND * 4));
        guard.heed(GuardNotice::Progress);
        assert!(!guard.look(SECOND * 5));
        guard.heed(GuardNotice::Decided);
        assert_eq!(guard.timeout(SECOND * 6), None);
        assert!((1..1000).all(|turn| !guard.look(SECOND * 5 * turn)));
    }
}
