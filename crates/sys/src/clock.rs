//! The system clock: steps and slews.

use std::io;

/// The kernel takes offsets of at most half a second for a slew.
const SLEW_MAX_NS: i64 = 500_000_000;
const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// A leap second the kernel should know of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Leap {
    /// None ahead.
    #[default]
    None,
    /// The last minute of the day has 61 seconds.
    Insert,
    /// The last minute of the day has 59 seconds.
    Delete,
}

impl Leap {
    fn status(self) -> i32 {
        match self {
            Self::None => 0,
            Self::Insert => libc::STA_INS,
            Self::Delete => libc::STA_DEL,
        }
    }
}

/// Moves the clock by so many nanoseconds at once.
pub fn step(offset_ns: i64, leap: Leap) -> io::Result<()> {
    let mut change = blank();
    change.modes =
        libc::ADJ_SETOFFSET | libc::ADJ_NANO | libc::ADJ_STATUS | libc::ADJ_MAXERROR | libc::ADJ_ESTERROR;
    // The part below a second counts upwards, also of a time in the past.
    change.time.tv_sec = offset_ns.div_euclid(NANOS_PER_SECOND);
    change.time.tv_usec = offset_ns.rem_euclid(NANOS_PER_SECOND);
    change.status = leap.status();
    adjust(&mut change)
}

/// Lets the clock drift towards the right time. `constant` says how slowly, in powers of two of seconds.
pub fn slew(offset_ns: i64, constant: i64, leap: Leap) -> io::Result<()> {
    let mut change = blank();
    change.modes = libc::ADJ_OFFSET
        | libc::ADJ_NANO
        | libc::ADJ_STATUS
        | libc::ADJ_TIMECONST
        | libc::ADJ_MAXERROR
        | libc::ADJ_ESTERROR;
    change.offset = offset_ns.clamp(-SLEW_MAX_NS, SLEW_MAX_NS);
    change.constant = constant;
    change.status = leap.status() | libc::STA_PLL;
    adjust(&mut change)
}

fn blank() -> libc::timex {
    // SAFETY: `timex` is plain integers, for which all zeroes is a value.
    unsafe { std::mem::zeroed() }
}

fn adjust(change: &mut libc::timex) -> io::Result<()> {
    // SAFETY: the pointer is to a whole `timex` that lives through the call.
    let answer = unsafe { libc::clock_adjtime(libc::CLOCK_REALTIME, change) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
