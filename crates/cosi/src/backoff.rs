//! Pauses between failed attempts: 0.5 s, half as much more each time, up to a minute.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(500);
const FACTOR: f64 = 1.5;
const JITTER: f64 = 0.5;
const CAP: Duration = Duration::from_secs(60);

/// Grows with each failure until it is reset. The jitter keeps failed controllers from retrying
/// in step.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    interval: Duration,
    random: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::seeded(RandomState::new().build_hasher().finish())
    }
}

impl Backoff {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self { interval: FIRST, random: seed | 1 }
    }

    pub(crate) fn reset(&mut self) {
        self.interval = FIRST;
    }

    /// The pause before the next attempt.
    pub(crate) fn next(&mut self) -> Duration {
        // xorshift64: good enough to spread retries.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let unit = (self.random >> 11) as f64 / (1_u64 << 53) as f64;
        let pause = self.interval.mul_f64(1.0 - JITTER + 2.0 * JITTER * unit);
        self.interval = self.interval.mul_f64(FACTOR).min(CAP);
        pause.min(CAP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_cap_and_start_over() {
        for seed in 0..50 {
            let mut backoff = Backoff::seeded(seed);
            let mut interval = 0.5;
            for _ in 0..30 {
                let pause = backoff.next().as_secs_f64();
                let (low, high) = (interval * 0.499, f64::min(interval * 1.501, 60.0));
                assert!((low..=high).contains(&pause), "{pause} at {interval}, seed {seed}");
                interval = f64::min(interval * 1.5, 60.0);
            }
            backoff.reset();
            assert!(backoff.next() <= Duration::from_millis(750), "seed {seed}");
        }
    }
}
