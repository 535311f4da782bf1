//! The system clock: steps and slews.

use std::io;
use std::os::fd::AsRawFd;

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

/// The clock that runs while the machine is off.
const HARDWARE_CLOCK: &str = "/dev/rtc0";
/// `RTC_SET_TIME`: writes a `struct rtc_time`.
const RTC_SET_TIME: libc::c_ulong = 0x4024_700a;

/// Writes the system's time, in UTC, to the clock that runs while the machine is off.
///
/// # Errors
/// When there is no such clock, or it cannot be set.
pub fn write_hardware() -> io::Result<()> {
    let device = std::fs::OpenOptions::new().read(true).open(HARDWARE_CLOCK)?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_err(io::Error::other)?;
    let fields = hardware_time(i64::try_from(now.as_secs()).map_err(io::Error::other)?);
    // SAFETY: the request reads nine integers, `struct rtc_time`, which outlive the call.
    match unsafe { libc::ioctl(device.as_raw_fd(), RTC_SET_TIME as _, fields.as_ptr()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// A time as `struct rtc_time` has it: second, minute, hour, day, month from 0, year from 1900; day of the week and of the
/// year are for the clock to work out.
fn hardware_time(seconds: i64) -> [libc::c_int; 9] {
    const DAY: i64 = 86_400;
    let (days, rest) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
    // Years begin in March here, so that the leap day is the last of its year; eras of 400 years are all alike.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 2, 0) } else { (month - 10, 1) };
    let year = year_of_era + era * 400 + next - 1900;
    let field = |value: i64| libc::c_int::try_from(value).unwrap_or_default();
    [
        field(rest % 60),
        field(rest / 60 % 60),
        field(rest / 3600),
        field(day),
        field(month),
        field(year),
        0,
        0,
        0,
    ]
}

/// What the kernel thinks of its clock.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClockState {
    /// What is left of a slew, in nanoseconds.
    pub offset_ns: i64,
    /// How much faster than the hardware the clock runs.
    pub frequency_ratio: f64,
    /// The most it may be off, in microseconds.
    pub max_error_us: i64,
    /// How much it probably is off, in microseconds.
    pub estimated_error_us: i64,
    /// The flags by name, joined by bars.
    pub status: String,
    /// How slowly it follows.
    pub constant: i64,
    /// Whether somebody keeps it right.
    pub synced: bool,
    /// The name of its state.
    pub state: &'static str,
}

/// Asks the kernel; changes nothing.
pub fn state() -> io::Result<ClockState> {
    let mut seen = blank();
    // SAFETY: the pointer is to a whole `timex` that lives through the call; no mode bit is set.
    let answer = unsafe { libc::clock_adjtime(libc::CLOCK_REALTIME, &mut seen) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(describe(&seen, answer)) }
}

fn describe(seen: &libc::timex, answer: i32) -> ClockState {
    const FLAGS: [(i32, &str); 16] = [
        (libc::STA_PLL, "STA_PLL"),
        (libc::STA_PPSFREQ, "STA_PPSFREQ"),
        (libc::STA_PPSTIME, "STA_PPSTIME"),
        (libc::STA_FLL, "STA_FLL"),
        (libc::STA_INS, "STA_INS"),
        (libc::STA_DEL, "STA_DEL"),
        (libc::STA_UNSYNC, "STA_UNSYNC"),
        (libc::STA_FREQHOLD, "STA_FREQHOLD"),
        (libc::STA_PPSSIGNAL, "STA_PPSSIGNAL"),
        (libc::STA_PPSJITTER, "STA_PPSJITTER"),
        (libc::STA_PPSWANDER, "STA_PPSWANDER"),
        (libc::STA_PPSERROR, "STA_PPSERROR"),
        (libc::STA_CLOCKERR, "STA_CLOCKERR"),
        (libc::STA_NANO, "STA_NANO"),
        (libc::STA_MODE, "STA_MODE"),
        (libc::STA_CLK, "STA_CLK"),
    ];
    const STATES: [&str; 6] = ["TIME_OK", "TIME_INS", "TIME_DEL", "TIME_OOP", "TIME_WAIT", "TIME_ERROR"];
    let set = FLAGS.iter().filter(|(bit, _)| seen.status & bit != 0).map(|(_, name)| *name);
    let nanos = seen.status & libc::STA_NANO != 0;
    ClockState {
        offset_ns: if nanos { seen.offset } else { seen.offset.saturating_mul(1000) },
        // Parts per million, with 16 bits behind the point.
        frequency_ratio: 1.0 + seen.freq as f64 / 65_536.0 / 1e6,
        max_error_us: seen.maxerror,
        estimated_error_us: seen.esterror,
        status: set.collect::<Vec<_>>().join(" | "),
        constant: seen.constant,
        synced: seen.status & libc::STA_UNSYNC == 0,
        state: usize::try_from(answer).ok().and_then(|index| STATES.get(index)).copied().unwrap_or("UNKNOWN"),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hardware_clock_gets_the_civil_time() {
        let time = |seconds: i64| hardware_time(seconds)[..6].to_vec();
        assert_eq!(time(0), [0, 0, 0, 1, 0, 70]);
        assert_eq!(time(951_827_696), [56, 34, 12, 29, 1, 100]);
        assert_eq!(time(1_735_689_599), [59, 59, 23, 31, 11, 124]);
        assert_eq!(time(1_735_689_600), [0, 0, 0, 1, 0, 125]);
        assert_eq!(time(4_107_542_400), [0, 0, 0, 1, 2, 200]);
    }

    #[test]
    fn the_state_of_a_clock_is_told_in_words() {
        let mut seen = blank();
        (seen.offset, seen.freq, seen.maxerror, seen.esterror) = (-1500, 65_536_000, 191_500, 7);
        seen.status = libc::STA_PLL | libc::STA_NANO;
        expect_test::expect![[r#"
            ClockState {
                offset_ns: -1500,
                frequency_ratio: 1.001,
                max_error_us: 191500,
                estimated_error_us: 7,
                status: "STA_PLL | STA_NANO",
                constant: 0,
                synced: true,
                state: "TIME_OK",
            }
        "#]]
        .assert_debug_eq(&describe(&seen, 0));
        seen.status = libc::STA_UNSYNC;
        let unsynced = describe(&seen, 5);
        assert_eq!((unsynced.offset_ns, unsynced.synced), (-1_500_000, false));
        assert_eq!((unsynced.state, unsynced.status.as_str()), ("TIME_ERROR", "STA_UNSYNC"));
    }

    #[test]
    fn the_own_clock_can_be_asked() {
        assert!(state().unwrap().frequency_ratio > 0.0);
    }
}
