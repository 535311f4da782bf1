//! Remembers answers for as long as they say. Pure: the time goes in.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::message::{self, Keep, Key};

/// No answer is kept longer.
const POSITIVE_MAX: Duration = Duration::from_secs(3600);
/// How long "there is no such thing" is kept.
const NEGATIVE: Duration = Duration::from_secs(5);
/// Answers remembered; the oldest goes first.
const ENTRIES_MAX: usize = 1024;
/// Longer answers are rare and would fill the memory.
const ANSWER_MAX: usize = 1500;

/// A cache of answers.
#[derive(Debug, Default)]
pub struct Cache {
    entries: HashMap<Key, Entry>,
    /// Keys in order of arrival, with the stamp of the entry they mean.
    order: VecDeque<(Key, u64)>,
    stamp: u64,
}

#[derive(Debug)]
struct Entry {
    response: Box<[u8]>,
    stored: Duration,
    until: Duration,
    stamp: u64,
}

impl Cache {
    /// The answer, with what is left of its times to live.
    pub fn get(&self, key: &Key, now: Duration) -> Option<Vec<u8>> {
        let entry = self.entries.get(key).filter(|entry| now < entry.until)?;
        let mut response = entry.response.to_vec();
        let age = u32::try_from((now - entry.stored).as_secs()).unwrap_or(u32::MAX);
        message::age(&mut response, age);
        Some(response)
    }

    /// Remembers an answer, if it may be.
    pub fn put(&mut self, key: Key, response: &[u8], now: Duration) {
        let time = match message::keep(response) {
            Keep::Positive(seconds) => Duration::from_secs(seconds.into()).min(POSITIVE_MAX),
            Keep::Negative => NEGATIVE,
            Keep::No => return,
        };
        if time.is_zero() || response.len() > ANSWER_MAX {
            return;
        }
        self.stamp += 1;
        let entry = Entry { response: response.into(), stored: now, until: now + time, stamp: self.stamp };
        self.entries.insert(key.clone(), entry);
        self.order.push_back((key, self.stamp));
        while self.entries.len() > ENTRIES_MAX || self.order.len() > 2 * ENTRIES_MAX {
            let Some((oldest, stamp)) = self.order.pop_front() else { break };
            // A later answer to the same question stands further back.
            if self.entries.get(&oldest).is_some_and(|entry| entry.stamp == stamp) {
                self.entries.remove(&oldest);
            }
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::Query;
    use super::super::message::tests::{answer, question};
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn an_answer_ages_and_is_forgotten() {
        let bytes = question(1, "example.org");
        let key = Query::parse(&bytes).unwrap().key;
        let mut cache = Cache::default();
        cache.put(key.clone(), &answer(&bytes, 60, [1, 2, 3, 4]), at(100));
        let held = cache.get(&key, at(130)).unwrap();
        assert_eq!(message::keep(&held), Keep::Positive(30));
        assert_eq!(cache.get(&key, at(160)), None);
        cache.clear();
        assert_eq!(cache.get(&key, at(101)), None);
    }

    #[test]
    fn the_oldest_makes_room_and_the_order_stays_bounded() {
        let mut cache = Cache::default();
        let name = |n: usize| format!("host-{n}.example.org");
        for n in 0..ENTRIES_MAX + 10 {
            let bytes = question(1, &name(n));
            let key = Query::parse(&bytes).unwrap().key;
            cache.put(key, &answer(&bytes, 60, [1, 2, 3, 4]), at(0));
        }
        assert_eq!(cache.entries.len(), ENTRIES_MAX);
        let first = Query::parse(&question(1, &name(0))).unwrap().key;
        assert_eq!(cache.get(&first, at(1)), None);
        let bytes = question(1, &name(ENTRIES_MAX));
        let key = Query::parse(&bytes).unwrap().key;
        for _ in 0..10 * ENTRIES_MAX {
            cache.put(key.clone(), &answer(&bytes, 60, [1, 2, 3, 4]), at(0));
        }
        assert!(cache.order.len() <= 2 * ENTRIES_MAX);
        assert!(cache.get(&key, at(1)).is_some());
    }
}
