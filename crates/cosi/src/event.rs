//! What a watch delivers.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use ichor_resource::{Kind, Resource, TypedSpec};

use crate::error::StateError;
use crate::typed::Typed;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// The resource is new, or new to this watch.
    Created,
    /// The resource changed; `old` is what it was.
    Updated,
    /// The resource is gone, or out of sight of this watch.
    Destroyed,
    /// All that was there when the watch began has been delivered.
    Bootstrapped,
    /// The watch broke; nothing follows.
    Errored,
    /// Carries a bookmark and nothing else.
    Noop,
}

/// A place in the history of a kind, to go on from after a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bookmark {
    /// Tells one process from another.
    pub(crate) cookie: u64,
    /// The position of the last event seen; -1 when there was none.
    pub(crate) position: i64,
}

impl Bookmark {
    /// The opaque form on the wire.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.cookie.to_be_bytes());
        out[8..].copy_from_slice(&self.position.to_be_bytes());
        out
    }

    /// Reads the opaque form.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, StateError> {
        let (cookie, position) = bytes.split_first_chunk::<8>().ok_or(StateError::InvalidBookmark)?;
        let position = position.try_into().map_err(|_| StateError::InvalidBookmark)?;
        Ok(Self { cookie: u64::from_be_bytes(*cookie), position: i64::from_be_bytes(position) })
    }
}

/// One event of a watch.
#[derive(Debug, Clone)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The resource after it; a tombstone where there is none.
    pub resource: Arc<Resource>,
    /// The resource before an update.
    pub old: Option<Arc<Resource>>,
    /// Where to go on from.
    pub bookmark: Option<Bookmark>,
    /// Why the watch broke.
    pub error: Option<Box<str>>,
    /// Shared by all watches that deliver this event over the wire.
    pub(crate) encoded: Option<Arc<Encoded>>,
}

impl Event {
    /// The resource after it, when there is one and it holds a `T`.
    pub fn typed<T: TypedSpec>(&self) -> Option<Typed<T>> {
        Typed::new(self.resource.clone())
    }

    pub(crate) fn new(kind: EventKind, resource: Arc<Resource>) -> Self {
        Self { kind, resource, old: None, bookmark: None, error: None, encoded: None }
    }

    pub(crate) fn tombstone(kind: EventKind, of: &Arc<Kind>, id: &str) -> Self {
        Self::new(kind, Arc::new(Resource::tombstone(of.clone(), id)))
    }
}

/// The wire form of an event, made once for all watches. The form depends on how the filter of a
/// watch sees the event.
#[derive(Debug, Default)]
pub(crate) struct Encoded {
    pub(crate) as_is: OnceLock<Bytes>,
    pub(crate) as_created: OnceLock<Bytes>,
    pub(crate) as_destroyed: OnceLock<Bytes>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bookmark_is_sixteen_bytes_and_reads_back() {
        for position in [-1, 0, 7, i64::MAX] {
            let mark = Bookmark { cookie: 0x0102_0304_0506_0708, position };
            let bytes = mark.to_bytes();
            assert_eq!(bytes[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
            assert_eq!(Bookmark::from_bytes(&bytes), Ok(mark));
            assert_eq!(Bookmark::from_bytes(&bytes[1..]), Err(StateError::InvalidBookmark));
        }
    }
}
