//! Resources of one kind by id: a hash table over slots, with an order that is made when asked for.

use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::{DefaultHashBuilder, HashTable};
use ichor_resource::{Id, Resource};

/// Up to this many new ids are put in place one by one; more are merged.
const INSERT_MAX: usize = 8;

/// Below this many dead slots compaction is not worth the walk.
const COMPACT_MIN: usize = 16;

/// A slot and half of its hash: the table grows, and mostly also finds, without a look at the
/// resources, where the keys live.
#[derive(Clone, Copy)]
struct Entry {
    hash: u32,
    slot: u32,
}

impl Entry {
    fn new(hash: u64, slot: u32) -> Self {
        Self { hash: hash as u32, slot }
    }

    fn hash(self) -> u64 {
        spread(self.hash)
    }
}

/// The table takes its bits from both ends of a hash.
fn spread(half: u32) -> u64 {
    u64::from(half) << 32 | u64::from(half)
}

#[derive(Default)]
pub(crate) struct Map {
    index: HashTable<Entry>,
    slots: Vec<Option<Arc<Resource>>>,
    hasher: DefaultHashBuilder,
    // Behind a lock of its own, because a list under a read lock may finish the order.
    order: Mutex<Order>,
}

#[derive(Default)]
struct Order {
    /// Slots by id. May hold dead ones.
    sorted: Vec<u32>,
    /// Slots of creations since the last list.
    tail: Vec<u32>,
    /// Dead slots that `sorted` or `tail` may still name. Used again only after compaction: a list
    /// would otherwise show the new resource twice.
    limbo: Vec<u32>,
    /// Dead slots that nobody names.
    free: Vec<u32>,
}

impl Map {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    #[inline]
    pub(crate) fn hash(&self, id: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(id);
        spread(hasher.finish() as u32)
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, id: &Id) -> Option<usize> {
        let same = |slot: u32| self.at(slot as usize).is_some_and(|held| held.id() == id);
        let found = self.index.find(hash, |entry| entry.hash == hash as u32 && same(entry.slot))?;
        Some(found.slot as usize)
    }

    #[inline]
    pub(crate) fn get(&self, id: &str) -> Option<&Arc<Resource>> {
        let (hash, id) = (self.hash(id.as_bytes()), Some(id.as_bytes()));
        let found = self
            .index
            .find(hash, |entry| entry.hash == hash as u32 && id_of(&self.slots, entry.slot) == id)?;
        self.at(found.slot as usize)
    }

    #[inline]
    pub(crate) fn at(&self, slot: usize) -> Option<&Arc<Resource>> {
        self.slots.get(slot)?.as_ref()
    }

    /// Puts a resource under an id that is not there yet.
    pub(crate) fn insert(&mut self, hash: u64, resource: Arc<Resource>) {
        let order = self.order.get_mut().unwrap_or_else(PoisonError::into_inner);
        let slot = match order.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(resource);
                slot
            }
            None => {
                self.slots.push(Some(resource));
                (self.slots.len() - 1) as u32
            }
        };
        order.tail.push(slot);
        let entry = Entry::new(hash, slot);
        self.index.insert_unique(hash, entry, |other| other.hash());
    }

    /// Replaces the resource in a slot and hands back the old one.
    #[inline]
    pub(crate) fn replace(&mut self, slot: usize, resource: Arc<Resource>) -> Option<Arc<Resource>> {
        self.slots.get_mut(slot)?.replace(resource)
    }

    /// Takes the resource out.
    pub(crate) fn remove(&mut self, hash: u64, id: &[u8]) -> Option<Arc<Resource>> {
        let slots = &self.slots;
        let found = self
            .index
            .find_entry(hash, |entry| entry.hash == hash as u32 && id_of(slots, entry.slot) == Some(id));
        let (Entry { slot, .. }, _) = found.ok()?.remove();
        let taken = self.slots.get_mut(slot as usize)?.take();
        let order = self.order.get_mut().unwrap_or_else(PoisonError::into_inner);
        order.limbo.push(slot);
        order.compact(&self.slots);
        taken
    }

    /// Calls `visit` for every resource, in order of ids.
    #[inline]
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&Arc<Resource>)) {
        let order = self.ordered();
        for &slot in &order.sorted {
            if let Some(resource) = &self.slots[slot as usize] {
                visit(resource);
            }
        }
    }

    fn ordered(&self) -> MutexGuard<'_, Order> {
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        order.merge(&self.slots);
        order
    }
}

impl Order {
    /// Brings the tail in.
    fn merge(&mut self, slots: &[Option<Arc<Resource>>]) {
        if self.tail.is_empty() {
            return;
        }
        let mut tail = std::mem::take(&mut self.tail);
        tail.retain(|&slot| slots[slot as usize].is_some());
        tail.sort_unstable_by(|&a, &b| id_of(slots, a).cmp(&id_of(slots, b)));

        if tail.len() <= INSERT_MAX && self.limbo.is_empty() {
            for &slot in &tail {
                let id = id_of(slots, slot);
                let at = self.sorted.partition_point(|&other| id_of(slots, other) < id);
                self.sorted.insert(at, slot);
            }
        } else {
            self.merge_sorted(slots, &tail);
        }
        // Keep the allocation for the next creations.
        tail.clear();
        self.tail = tail;
    }

    /// Merges from the back, so that it ends as soon as the tail is in place.
    fn merge_sorted(&mut self, slots: &[Option<Arc<Resource>>], tail: &[u32]) {
        let mut left = self.sorted.len();
        let mut right = tail.len();
        self.sorted.resize(left + right, 0);
        let mut at = self.sorted.len();
        while right > 0 {
            at -= 1;
            // A dead slot has no id; it moves along until compaction drops it.
            let from_sorted = left > 0 && {
                let last = id_of(slots, self.sorted[left - 1]);
                last.is_none() || last > id_of(slots, tail[right - 1])
            };
            if from_sorted {
                left -= 1;
                self.sorted[at] = self.sorted[left];
            } else {
                right -= 1;
                self.sorted[at] = tail[right];
            }
        }
    }

    /// Drops dead slots once they are half of all.
    fn compact(&mut self, slots: &[Option<Arc<Resource>>]) {
        let named = self.sorted.len() + self.tail.len();
        if self.limbo.len() < COMPACT_MIN || self.limbo.len() * 2 < named {
            return;
        }
        self.sorted.retain(|&slot| slots[slot as usize].is_some());
        self.tail.retain(|&slot| slots[slot as usize].is_some());
        self.free.append(&mut self.limbo);
    }
}

#[inline]
fn id_of(slots: &[Option<Arc<Resource>>], slot: u32) -> Option<&[u8]> {
    let resource = slots.get(slot as usize)?.as_ref()?;
    Some(resource.id().as_bytes())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ichor_resource::{Kind, Resource};
    use proptest::prelude::*;

    use super::*;

    fn ids(map: &Map) -> Vec<String> {
        let mut out = Vec::new();
        map.for_each(|resource| out.push(resource.id().to_string()));
        out
    }

    proptest! {
        /// Op: (id, 0 = create or replace, 1 = remove, 2 = list).
        #[test]
        fn it_behaves_like_an_ordered_map(ops in prop::collection::vec((0u16..200, 0u8..3), 0..600)) {
            let kind = Arc::new(Kind::new("ns", "type"));
            let mut map = Map::default();
            let mut model: BTreeMap<String, Arc<Resource>> = BTreeMap::new();
            for (number, op) in ops {
                let id = format!("a rather long id so that both forms occur/{number}");
                let id = if number % 2 == 0 { id } else { number.to_string() };
                let hash = map.hash(id.as_bytes());
                match op {
                    0 => {
                        let resource = Arc::new(Resource::tombstone(kind.clone(), id.as_str()));
                        match map.find(hash, resource.id()) {
                            Some(slot) => { map.replace(slot, resource.clone()); }
                            None => map.insert(hash, resource.clone()),
                        }
                        model.insert(id, resource);
                    }
                    1 => {
                        let removed = map.remove(hash, id.as_bytes());
                        let expected = model.remove(&id);
                        prop_assert_eq!(removed.is_some(), expected.is_some());
                    }
                    _ => prop_assert_eq!(ids(&map), model.keys().cloned().collect::<Vec<_>>()),
                }
                prop_assert_eq!(map.len(), model.len());
            }
            prop_assert_eq!(ids(&map), model.keys().cloned().collect::<Vec<_>>());
            for (id, resource) in &model {
                prop_assert!(map.get(id).is_some_and(|found| Arc::ptr_eq(found, resource)));
            }
        }
    }

    #[test]
    fn slots_are_used_again() {
        let kind = Arc::new(Kind::new("ns", "type"));
        let mut map = Map::default();
        for round in 0..100 {
            for number in 0..32 {
                let id = format!("{round}-{number}");
                let hash = map.hash(id.as_bytes());
                map.insert(hash, Arc::new(Resource::tombstone(kind.clone(), id.as_str())));
            }
            for number in 0..32 {
                let id = format!("{round}-{number}");
                let hash = map.hash(id.as_bytes());
                assert!(map.remove(hash, id.as_bytes()).is_some());
            }
        }
        assert!(map.slots.len() <= 96, "{} slots", map.slots.len());
    }
}
