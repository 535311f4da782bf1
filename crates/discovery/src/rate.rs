//! How many calls one address may make: a bucket for each, in bounded memory. Pure.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Calls a second, and calls at once.
const RATE: u32 = 15;
const BURST: u32 = 60;
/// Addresses remembered. An address that is forgotten starts with a full bucket.
const ADDRESSES_MAX: usize = 4096;

/// The buckets.
#[derive(Debug, Default)]
pub struct Rates(HashMap<IpAddr, Instant>);

impl Rates {
    /// Takes a call from an address, and says how long it should wait. A bucket is kept as the time at which it is
    /// full again.
    pub fn take(&mut self, address: IpAddr, now: Instant) -> Duration {
        let interval = Duration::from_secs(1) / RATE;
        if self.0.len() >= ADDRESSES_MAX {
            self.0.retain(|_, full| *full > now);
            if self.0.len() >= ADDRESSES_MAX {
                self.0.clear();
            }
        }
        let full = self.0.entry(address).or_insert(now);
        *full = (*full).max(now) + interval;
        (*full - now).saturating_sub(interval * BURST)
    }

    /// Gives a call back that was not made after all.
    pub fn give_back(&mut self, address: IpAddr) {
        if let Some(full) = self.0.get_mut(&address) {
            *full -= Duration::from_secs(1) / RATE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_what_follows_waits() {
        let (mut rates, now) = (Rates::default(), Instant::now());
        let address = IpAddr::from([127, 0, 0, 1]);
        assert!((0..60).all(|_| rates.take(address, now).is_zero()));
        assert!(rates.take(address, now) > Duration::from_millis(60));
        assert!(rates.take(IpAddr::from([127, 0, 0, 2]), now).is_zero());
        assert!(rates.take(address, now + Duration::from_secs(5)).is_zero());
    }

    #[test]
    fn addresses_without_end_take_bounded_memory() {
        let (mut rates, now) = (Rates::default(), Instant::now());
        for n in 0..20_000u32 {
            rates.take(IpAddr::from(n.to_be_bytes()), now);
        }
        assert!(rates.0.len() <= ADDRESSES_MAX);
    }
}
