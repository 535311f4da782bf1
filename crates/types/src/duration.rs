//! Durations as Go writes them: `1h30m`, `1.5h`, `100ms`, printed as `1h30m0s`.

use std::{fmt, str::FromStr, time::Duration};

/// A signed span of time in nanoseconds with Go's text form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

/// A text that is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDuration {
    /// The text as a whole has no meaning.
    #[error("time: invalid duration {0:?}")]
    Invalid(String),
    /// A number without a unit.
    #[error("time: missing unit in duration {0:?}")]
    MissingUnit(String),
    /// A unit that is not one of ns, us, µs, ms, s, m, h.
    #[error("time: unknown unit {unit:?} in duration {text:?}")]
    UnknownUnit {
        /// The unit as written.
        unit: String,
        /// The whole text.
        text: String,
    },
}

const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

impl GoDuration {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// A duration of that many nanoseconds.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// A duration of that many whole seconds, saturating.
    pub const fn from_secs(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000))
    }

    /// The length in nanoseconds.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// True for `0s`.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The same length as an unsigned duration; negative values become zero.
    pub fn to_std(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }

    /// The nearest duration that fits, from an unsigned one.
    pub fn from_std(duration: Duration) -> Self {
        Self(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl FromStr for GoDuration {
    type Err = BadDuration;

    fn from_str(text: &str) -> Result<Self, BadDuration> {
        let invalid = || BadDuration::Invalid(text.to_owned());
        let (negative, mut rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(invalid());
        }

        let mut total: u64 = 0;
        while !rest.is_empty() {
            let (whole, fraction, after) = number(rest).ok_or_else(invalid)?;
            let unit_len = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
            let (unit, next) = after.split_at(unit_len);
            if unit.is_empty() {
                return Err(BadDuration::MissingUnit(text.to_owned()));
            }
            let scale =
                UNITS.iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale).ok_or_else(|| {
                    BadDuration::UnknownUnit { unit: unit.to_owned(), text: text.to_owned() }
                })?;
            let part = whole.checked_mul(scale).ok_or_else(invalid)?;
            let part = part.checked_add(scale_fraction(fraction, scale)).ok_or_else(invalid)?;
            total = total.checked_add(part).ok_or_else(invalid)?;
            if total > 1 << 63 {
                return Err(invalid());
            }
            rest = next;
        }

        let signed = match (negative, i64::try_from(total)) {
            (true, _) => 0i64.wrapping_sub_unsigned(total),
            (false, Ok(value)) => value,
            (false, Err(_)) => return Err(invalid()),
        };
        Ok(Self(signed))
    }
}

/// Splits `12.5h…` into whole part, digits of the fraction and the rest.
fn number(text: &str) -> Option<(u64, &str, &str)> {
    let whole_len = text.bytes().take_while(u8::is_ascii_digit).count();
    let (whole, after) = text.split_at(whole_len);
    let (fraction, after) = match after.strip_prefix('.') {
        Some(tail) => tail.split_at(tail.bytes().take_while(u8::is_ascii_digit).count()),
        None => ("", after),
    };
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let whole = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    Some((whole, fraction, after))
}

/// Nanoseconds in `0.<digits>` of a unit, rounded down.
fn scale_fraction(digits: &str, scale: u64) -> u64 {
    let mut value: u128 = 0;
    let mut divisor: u128 = 1;
    // Eighteen digits are finer than a nanosecond of an hour; more would only overflow.
    for digit in digits.bytes().take(18) {
        value = value * 10 + u128::from(digit - b'0');
        divisor *= 10;
    }
    u64::try_from(value * u128::from(scale) / divisor).unwrap_or(0)
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        if self.0 < 0 {
            f.write_str("-")?;
        }
        let nanos = self.0.unsigned_abs();
        match nanos {
            0..1_000 => write!(f, "{nanos}ns"),
            1_000..1_000_000 => write!(f, "{}µs", decimal(nanos, 1_000)),
            1_000_000..1_000_000_000 => write!(f, "{}ms", decimal(nanos, 1_000_000)),
            _ => {
                let minutes = nanos / 60_000_000_000;
                if minutes >= 60 {
                    write!(f, "{}h", minutes / 60)?;
                }
                if minutes > 0 {
                    write!(f, "{}m", minutes % 60)?;
                }
                write!(f, "{}s", decimal(nanos % 60_000_000_000, 1_000_000_000))
            }
        }
    }
}

/// `value / unit` with as many decimals as are needed and no more.
fn decimal(value: u64, unit: u64) -> String {
    let (whole, fraction) = (value / unit, value % unit);
    if fraction == 0 {
        return whole.to_string();
    }
    let width = unit.ilog10() as usize;
    let digits = format!("{fraction:0width$}");
    format!("{whole}.{}", digits.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, want: &str) {
        let got =
            text.parse::<GoDuration>().map_or_else(|error| error.to_string(), |value| value.to_string());
        assert_eq!(got, want, "for {text:?}");
    }

    #[test]
    fn texts_come_back_in_their_canonical_form() {
        for (text, want) in [
            ("0", "0s"),
            ("1h", "1h0m0s"),
            ("1.5h", "1h30m0s"),
            ("90m", "1h30m0s"),
            ("3m", "3m0s"),
            ("100ms", "100ms"),
            ("1500us", "1.5ms"),
            ("2µs", "2µs"),
            ("7ns", "7ns"),
            ("1m0.5s", "1m0.5s"),
            ("-1.5s", "-1.5s"),
            ("+5s", "5s"),
            (".5s", "500ms"),
            ("8760h", "8760h0m0s"),
            ("1h1m1s1ms", "1h1m1.001s"),
        ] {
            check(text, want);
        }
    }

    #[test]
    fn what_is_not_a_duration_says_why() {
        check("", "time: invalid duration \"\"");
        check("10", "time: missing unit in duration \"10\"");
        check("10d", "time: unknown unit \"d\" in duration \"10d\"");
        check("h", "time: invalid duration \"h\"");
        check("99999999999h", "time: invalid duration \"99999999999h\"");
        check("-", "time: invalid duration \"-\"");
    }
}
