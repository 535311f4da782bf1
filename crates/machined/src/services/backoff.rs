//! How long a service rests before its next attempt.
//!
//! The original waits five seconds every time. A service that ran and was killed is not broken, so
//! it comes back at once here; one that dies at its start waits longer each time, up to those five.

use std::time::Duration;

/// Shortest rest.
pub const REST_MIN: Duration = Duration::from_millis(50);

/// Longest rest.
pub const REST_MAX: Duration = Duration::from_secs(5);

/// A process that lived this long got through its start.
pub const SETTLED: Duration = Duration::from_millis(250);

/// Counts quick deaths in a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backoff {
    quick: u32,
}

impl Backoff {
    /// The rest after an attempt that lasted `ran`.
    pub fn rest(&mut self, ran: Duration) -> Duration {
        if ran >= SETTLED {
            self.quick = 0;
            return REST_MIN;
        }
        let rest = REST_MIN.saturating_mul(1 << self.quick.min(10)).min(REST_MAX);
        self.quick = self.quick.saturating_add(1);
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_deaths_double_the_rest_up_to_the_limit() {
        let mut backoff = Backoff::default();
        let rests: Vec<u128> = (0..9).map(|_| backoff.rest(Duration::from_millis(3)).as_millis()).collect();
        assert_eq!(rests, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    }

    #[test]
    fn a_settled_process_comes_back_at_once() {
        let mut backoff = Backoff::default();
        for _ in 0..6 {
            backoff.rest(Duration::ZERO);
        }
        assert_eq!(backoff.rest(Duration::from_secs(1)), REST_MIN);
        assert_eq!(backoff.rest(Duration::ZERO), REST_MIN);
    }
}
