//! A number as control groups write it: whole, with decimals, or `max`.

use std::fmt;
use std::time::Duration;

use crate::text;

/// One value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// The file or the key is not there.
    Unset,
    /// No limit.
    Max,
    /// A number with so many decimals.
    Number {
        /// All digits.
        digits: i64,
        /// How many of them stand behind the point.
        decimals: u32,
    },
}

impl Value {
    /// No value.
    pub const UNSET: Self = Self::Unset;

    /// Reads a value.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "max" {
            return Some(Self::Max);
        }
        let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
        let digits = format!("{whole}{decimals}").parse().ok()?;
        Some(Self::Number { digits, decimals: u32::try_from(decimals.len()).ok()? })
    }

    /// A size for people.
    pub fn bytes(self) -> String {
        match self {
            Self::Number { digits, decimals: 0 } => {
                text::binary_bytes(u64::try_from(digits).unwrap_or_default())
            }
            other => other.to_string(),
        }
    }

    /// Microseconds as a length of time.
    pub fn duration(self) -> String {
        match self {
            Self::Number { digits, .. } => {
                text::duration(Duration::from_micros(u64::try_from(digits).unwrap_or_default()))
            }
            other => other.to_string(),
        }
    }

    /// Percent of another value, with two decimals.
    pub fn percent_of(self, other: Self) -> Self {
        let hundredths = |digits| Self::Number { digits, decimals: 2 };
        match (self, other) {
            (Self::Unset, _) | (_, Self::Unset) => Self::Unset,
            (Self::Max, Self::Max) => hundredths(10_000),
            (_, Self::Max) => hundredths(0),
            (_, Self::Number { digits: 0, .. }) | (Self::Max, _) => Self::Max,
            (Self::Number { digits: part, .. }, Self::Number { digits: whole, .. }) => {
                hundredths((part as f64 / whole as f64 * 10_000.0).round() as i64)
            }
        }
    }

    /// The number, unlimited and missing ones as such.
    pub fn float(self) -> f64 {
        match self {
            Self::Unset => f64::NAN,
            Self::Max => f64::INFINITY,
            Self::Number { digits, decimals } => {
                digits as f64 / 10_f64.powi(i32::try_from(decimals).unwrap_or(i32::MAX))
            }
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unset => f.write_str("unset"),
            Self::Max => f.write_str("max"),
            Self::Number { digits, decimals: 0 } => write!(f, "{digits}"),
            Self::Number { digits, decimals } => {
                let decimals = *decimals as usize;
                let text = format!("{digits:0width$}", width = decimals + 1);
                let (whole, rest) = text.split_at(text.len() - decimals);
                write!(f, "{whole}.{rest}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Value;

    #[test]
    fn values_are_written_as_they_were_read() {
        for text in ["42", "42.5", "0.00", "0.07", "max", "-3"] {
            assert_eq!(Value::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Value::parse("x"), None);
        assert_eq!(Value::UNSET.to_string(), "unset");
    }

    #[test]
    fn shares_have_two_decimals_and_know_limits() {
        let value = |text: &str| Value::parse(text).unwrap();
        for (part, whole, share) in [
            ("1", "3", "33.33"),
            ("5", "0", "max"),
            ("5", "max", "0.00"),
            ("max", "max", "100.00"),
            ("max", "5", "max"),
        ] {
            assert_eq!(value(part).percent_of(value(whole)).to_string(), share, "{part} of {whole}");
        }
        assert_eq!(value("5").percent_of(Value::UNSET), Value::UNSET);
        assert_eq!(value("1048576").bytes(), "1.0 MiB");
        assert_eq!(value("1500000").duration(), "1.5s");
    }
}
