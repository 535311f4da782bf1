//! Wire forms of whole lists. Some kinds never change and are listed by every client: definitions
//! are read before each `get`. Encoding them again each time would be most of such a call.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use ichor_resource::Resource;

use crate::collection::Collection;

/// All lists of a state that are kept take at most this much.
const BUDGET: usize = 1024 * 1024;

/// What is left of [`BUDGET`] is counted here, for all kinds of a state.
#[derive(Default)]
pub(crate) struct Spent(AtomicUsize);

impl Spent {
    fn take(&self, bytes: usize) -> bool {
        let fits = |spent: usize| spent.checked_add(bytes).filter(|total| *total <= BUDGET);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The list of one kind as it was at one position of its history.
#[derive(Default)]
pub(crate) struct ListCache {
    position: Option<u64>,
    held: Option<Arc<[Bytes]>>,
    bytes: usize,
}

/// A list to be sent.
pub(crate) enum Listing {
    Encoded(Arc<[Bytes]>),
    Plain(Vec<Arc<Resource>>),
}

/// The list of a kind; encoded when it was asked for twice without a change in between.
pub(crate) fn list(collection: &Collection, encode: fn(&Resource) -> Bytes) -> Listing {
    let mut cache = collection.lists.lock().unwrap_or_else(PoisonError::into_inner);
    let (position, resources) = {
        let inner = collection.read();
        let position = inner.ring.write_pos();
        if cache.position == Some(position)
            && let Some(held) = &cache.held
        {
            return Listing::Encoded(held.clone());
        }
        (position, inner.list())
    };
    let spent = &collection.shared.lists;
    let asked_before = cache.position == Some(position);
    if !asked_before {
        spent.give_back(std::mem::take(&mut cache.bytes));
        (cache.position, cache.held) = (Some(position), None);
        return Listing::Plain(resources);
    }
    let mut encoded = Vec::with_capacity(resources.len());
    let mut bytes = 0;
    for resource in &resources {
        let one = encode(resource);
        bytes += one.len() + size_of::<Bytes>();
        if bytes > BUDGET {
            return Listing::Plain(resources);
        }
        encoded.push(one);
    }
    let encoded: Arc<[Bytes]> = encoded.into();
    if spent.take(bytes) {
        (cache.held, cache.bytes) = (Some(encoded.clone()), bytes);
    }
    Listing::Encoded(encoded)
}

#[cfg(test)]
mod tests {
    use ichor_resource::RawSpec;

    use super::*;
    use crate::clock::SystemClock;
    use crate::handle::KindHandle;
    use crate::state::State;

    fn encode(resource: &Resource) -> Bytes {
        Bytes::copy_from_slice(resource.id().as_bytes())
    }

    fn add(kind: &KindHandle, id: &str) {
        let draft = kind.draft(id, Arc::new(RawSpec::default()));
        kind.create(draft, "").unwrap();
    }

    #[test]
    fn a_list_is_encoded_once_and_anew_after_a_change() {
        let state = State::new(SystemClock);
        let kind = state.kind("ns", "type");
        add(&kind, "a");
        assert!(matches!(list(&kind.0, encode), Listing::Plain(found) if found.len() == 1));
        let encoded = || match list(&kind.0, encode) {
            Listing::Encoded(encoded) => encoded,
            Listing::Plain(_) => panic!("not encoded"),
        };
        let first = encoded();
        assert_eq!(first[..], [Bytes::from_static(b"a")]);
        assert!(Arc::ptr_eq(&first, &encoded()));

        add(&kind, "b");
        assert!(matches!(list(&kind.0, encode), Listing::Plain(found) if found.len() == 2));
        assert_eq!(encoded().len(), 2);
    }

    #[test]
    fn lists_above_the_budget_are_not_kept() {
        fn large(_: &Resource) -> Bytes {
            vec![0; BUDGET / 3].into()
        }
        let state = State::new(SystemClock);
        let kinds: Vec<_> = (0..4).map(|number| state.kind("ns", &number.to_string())).collect();
        for kind in &kinds {
            add(kind, "a");
            for _ in 0..3 {
                list(&kind.0, large);
            }
        }
        let held = |kind: &KindHandle| {
            let cache = kind.0.lists.lock().unwrap();
            cache.held.is_some()
        };
        assert_eq!(kinds.iter().filter(|kind| held(kind)).count(), 2);
        // A change gives the share back.
        add(&kinds[0], "b");
        list(&kinds[0].0, encode);
        list(&kinds[3].0, large);
        assert!(held(&kinds[3]));
    }
}
