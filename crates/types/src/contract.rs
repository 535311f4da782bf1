//! Version contracts: which release a generated configuration has to fit.

use std::{fmt, str::FromStr};

/// A release by its major and minor number; generation asks it what that release understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VersionContract {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
}

/// A text that is not a version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("error parsing version {0:?}")]
pub struct BadVersion(pub String);

impl VersionContract {
    /// The release this code speaks.
    pub const CURRENT: Self = Self { major: 1, minor: 12 };

    /// The contract of release `major.minor`.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// True if this release is at least `1.<minor>`.
    pub const fn since(self, minor: u32) -> bool {
        self.major > 1 || (self.major == 1 && self.minor >= minor)
    }
}

impl Default for VersionContract {
    fn default() -> Self {
        Self::CURRENT
    }
}

impl FromStr for VersionContract {
    type Err = BadVersion;

    /// Reads `v1.12`, `1.12`, `v1.12.3-alpha.0`.
    fn from_str(text: &str) -> Result<Self, BadVersion> {
        let bad = || BadVersion(text.to_owned());
        let mut parts = text.strip_prefix('v').unwrap_or(text).splitn(3, '.');
        let mut number = || -> Option<u32> {
            let part = parts.next()?;
            let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            if digits { part.parse().ok() } else { None }
        };
        let major = number().ok_or_else(bad)?;
        let minor = number().ok_or_else(bad)?;
        Ok(Self { major, minor })
    }
}

impl fmt::Display for VersionContract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_major_and_minor_count() {
        for text in ["v1.12", "1.12", "v1.12.1", "1.12.0-beta.1"] {
            assert_eq!(text.parse(), Ok(VersionContract::new(1, 12)), "{text}");
        }
        for text in ["", "v1", "1.x", "v1.12-beta", "v1.-2"] {
            assert!(text.parse::<VersionContract>().is_err(), "{text}");
        }
        assert!(VersionContract::new(1, 12).since(12) && !VersionContract::new(1, 11).since(12));
    }
}
