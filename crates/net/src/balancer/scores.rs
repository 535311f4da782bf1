//! Which upstream to ask next: scores, latency tiers, turns. Pure.

use std::time::Duration;

/// A score never leaves this range, so that neither a long good time nor a long bad one weighs more than three tries.
const SCORE_MAX: i8 = 3;
const SCORE_MIN: i8 = -3;
const SCORE_FIRST: i8 = 1;
/// Upper ends of the tiers; what is slower is in one more.
const TIERS: [Duration; 4] = [
    Duration::from_micros(100),
    Duration::from_millis(1),
    Duration::from_millis(10),
    Duration::from_millis(100),
];

/// The upstreams and what is known of them.
#[derive(Debug, Default)]
pub(super) struct Scores {
    upstreams: Vec<Upstream>,
    turn: usize,
}

#[derive(Debug)]
struct Upstream {
    address: String,
    score: i8,
    tier: usize,
}

impl Scores {
    /// Replaces the list. What stays keeps its score.
    pub(super) fn set(&mut self, addresses: Vec<String>) {
        let mut old = std::mem::take(&mut self.upstreams);
        for address in addresses {
            if self.upstreams.iter().any(|known| known.address == address) {
                continue;
            }
            let kept =
                old.iter().position(|known| known.address == address).map(|place| old.swap_remove(place));
            self.upstreams.push(kept.unwrap_or(Upstream { address, score: SCORE_FIRST, tier: 0 }));
        }
    }

    /// All addresses, in the order they were given.
    pub(super) fn addresses(&self) -> Vec<String> {
        self.upstreams.iter().map(|upstream| upstream.address.clone()).collect()
    }

    /// Whom to try for a connection, best first: usable ones by tier and in turn, then the others, since an upstream
    /// thought dead is still better than none.
    pub(super) fn order(&mut self) -> Vec<String> {
        let mut order: Vec<&Upstream> = self.upstreams.iter().collect();
        if !order.is_empty() {
            let length = order.len();
            self.turn = self.turn.wrapping_add(1) % length;
            order.rotate_left(self.turn);
        }
        order.sort_by_key(|upstream| match upstream.score {
            0.. => (0, upstream.tier),
            bad => (-bad, 0),
        });
        order.into_iter().map(|upstream| upstream.address.clone()).collect()
    }

    /// A connection was made, within this time.
    pub(super) fn succeeded(&mut self, address: &str, took: Duration) {
        if let Some(upstream) = self.find(address) {
            upstream.score = (upstream.score + 1).min(SCORE_MAX);
            upstream.tier = TIERS.iter().position(|end| took < *end).unwrap_or(TIERS.len());
        }
    }

    /// A connection was refused or not answered.
    pub(super) fn failed(&mut self, address: &str) {
        if let Some(upstream) = self.find(address) {
            upstream.score = (upstream.score - 1).max(SCORE_MIN);
        }
    }

    /// Several questions in a row found nobody: as bad as it gets, at once.
    pub(super) fn gone(&mut self, address: &str) {
        if let Some(upstream) = self.find(address) {
            upstream.score = SCORE_MIN;
        }
    }

    /// Whether any upstream but this one is usable.
    pub(super) fn others_usable(&self, address: &str) -> bool {
        self.upstreams.iter().any(|upstream| upstream.score >= 0 && upstream.address != address)
    }

    /// Whether there is a usable upstream.
    pub(super) fn healthy(&self) -> bool {
        self.others_usable("")
    }

    fn find(&mut self, address: &str) -> Option<&mut Upstream> {
        self.upstreams.iter_mut().find(|upstream| upstream.address == address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Duration = Duration::from_micros(50);
    const SLOW: Duration = Duration::from_millis(5);

    fn scores(addresses: &[&str]) -> Scores {
        let mut scores = Scores::default();
        scores.set(addresses.iter().map(|address| (*address).to_owned()).collect());
        scores
    }

    #[test]
    fn equals_take_turns() {
        let mut scores = scores(&["a", "b", "c"]);
        let first: Vec<String> = (0..6).map(|_| scores.order().remove(0)).collect();
        assert_eq!(first, ["b", "c", "a", "b", "c", "a"]);
    }

    #[test]
    fn the_nearest_is_asked_first_and_the_rest_stays_in_reserve() {
        let mut scores = scores(&["far", "near"]);
        scores.succeeded("far", SLOW);
        scores.succeeded("near", FAST);
        for _ in 0..4 {
            assert_eq!(scores.order(), ["near", "far"]);
        }
    }

    #[test]
    fn a_failing_upstream_falls_behind_and_comes_back() {
        let mut scores = scores(&["a", "b"]);
        scores.succeeded("b", SLOW);
        for _ in 0..9 {
            scores.failed("a");
        }
        assert_eq!(scores.order(), ["b", "a"]);
        for _ in 0..3 {
            scores.succeeded("a", FAST);
        }
        assert_eq!(scores.order(), ["a", "b"]);
    }

    #[test]
    fn one_failure_of_a_new_upstream_is_forgiven_and_the_second_is_not() {
        let mut scores = scores(&["a"]);
        scores.failed("a");
        assert!(scores.healthy());
        scores.failed("a");
        assert!(!scores.healthy());
        assert_eq!(scores.order(), ["a"], "still tried: there is nobody else");
    }

    #[test]
    fn a_new_list_keeps_what_is_known_and_names_each_once() {
        let mut scores = scores(&["a", "b"]);
        scores.gone("a");
        scores.set(["c", "a", "c"].map(str::to_owned).into());
        assert_eq!(scores.addresses(), ["c", "a"]);
        assert!(!scores.others_usable("c"));
        assert_eq!(scores.order(), ["c", "a"]);
        scores.set(Vec::new());
        assert!(scores.order().is_empty() && !scores.healthy());
    }
}
