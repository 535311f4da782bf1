//! Client certificates that were checked a moment ago.
//!
//! The same few people and programs come again and again, and the check of who signed a certificate is a tenth of what
//! a connection costs. Whether the client has the certificate's key is checked every time all the same.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ichor_pki::CertInfo;
use rustls::pki_types::UnixTime;

/// How long a check holds.
const HOLDS: Duration = Duration::from_secs(60);
/// How many are known at most.
const KNOWN_MAX: usize = 16;
/// Larger certificates are checked every time.
const SIZE_MAX: usize = 4 * 1024;

/// What one set of authorities has found good.
#[derive(Debug, Default)]
pub(super) struct Seen(Mutex<VecDeque<Good>>);

#[derive(Debug)]
struct Good {
    certificate: Box<[u8]>,
    checked: u64,
    until: u64,
}

impl Seen {
    /// Whether this very certificate was found good a moment ago, and is valid still.
    pub(super) fn holds(&self, certificate: &[u8], now: UnixTime) -> bool {
        let now = now.as_secs();
        self.good()
            .iter()
            .any(|good| (good.checked..good.until).contains(&now) && *good.certificate == *certificate)
    }

    /// Remembers a certificate that was found good.
    pub(super) fn keep(&self, certificate: &[u8], info: &CertInfo, now: UnixTime) {
        if certificate.len() > SIZE_MAX {
            return;
        }
        let checked = now.as_secs();
        let ends = u64::try_from(info.not_after.as_second()).unwrap_or(0);
        let until = ends.min(checked.saturating_add(HOLDS.as_secs()));
        let mut known = self.good();
        known.retain(|good| *good.certificate != *certificate);
        known.truncate(KNOWN_MAX - 1);
        known.push_front(Good { certificate: certificate.into(), checked, until });
    }

    fn good(&self) -> std::sync::MutexGuard<'_, VecDeque<Good>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use ichor_pki::{Authority, KeyAlgorithm, Leaf};

    use super::*;

    fn at(seconds: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(seconds))
    }

    #[test]
    fn a_check_holds_for_a_while_but_not_beyond_the_certificate() {
        let now = jiff::Timestamp::from_second(1_000_000).unwrap();
        let authority =
            Authority::generate(KeyAlgorithm::Ed25519, "talos", now, Authority::TEN_YEARS).unwrap();
        let pair = authority.issue(&Leaf::client("", ["os:admin"]), now).unwrap();
        let info = CertInfo::parse(&pair.crt).unwrap();
        let ends = u64::try_from(info.not_after.as_second()).unwrap();

        let seen = Seen::default();
        seen.keep(b"one", &info, at(1_000_000));
        assert!(seen.holds(b"one", at(1_000_059)));
        assert!(!seen.holds(b"two", at(1_000_059)), "another one");
        assert!(!seen.holds(b"one", at(1_000_060)), "too long ago");
        assert!(!seen.holds(b"one", at(999_999)), "the clock was set back");

        seen.keep(b"one", &info, at(ends - 10));
        assert!(seen.holds(b"one", at(ends - 1)));
        assert!(!seen.holds(b"one", at(ends)), "it has ended");
    }

    #[test]
    fn few_are_remembered_and_large_ones_never() {
        let now = jiff::Timestamp::now();
        let authority =
            Authority::generate(KeyAlgorithm::Ed25519, "talos", now, Authority::TEN_YEARS).unwrap();
        let seen = Seen::default();
        let time = UnixTime::now();
        for number in 0..=KNOWN_MAX as u8 {
            seen.keep(&[number], authority.info(), time);
        }
        assert_eq!(seen.good().len(), KNOWN_MAX);
        assert!(!seen.holds(&[0], time), "the oldest made room");
        assert!(seen.holds(&[1], time));
        let large = vec![0; SIZE_MAX + 1];
        seen.keep(&large, authority.info(), time);
        assert!(!seen.holds(&large, time));
    }
}
