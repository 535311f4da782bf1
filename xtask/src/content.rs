//! What an image consists of beside its fixed directories, files and links.

use std::collections::BTreeMap;

/// A file or a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A file with its permissions.
    File {
        /// Permissions.
        mode: u16,
        /// Content.
        bytes: Vec<u8>,
    },
    /// A symbolic link and where it leads.
    Link(String),
}

impl Entry {
    /// A file that can be executed.
    pub(crate) fn program(bytes: Vec<u8>) -> Self {
        Self::File { mode: 0o755, bytes }
    }

    /// A file that can be read.
    pub(crate) fn file(bytes: Vec<u8>) -> Self {
        Self::File { mode: 0o644, bytes }
    }
}

/// Entries by their place, without a slash at the front.
pub(crate) type Content = BTreeMap<String, Entry>;

/// Every directory above these places, parents first.
pub(crate) fn directories<'a>(places: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut all = std::collections::BTreeSet::new();
    for place in places {
        all.extend(place.match_indices('/').map(|(at, _)| place[..at].to_owned()));
    }
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_come_parents_first_and_once() {
        let places = ["a/b/c".to_owned(), "a/d".to_owned(), "e".to_owned()];
        assert_eq!(directories(places.iter()), ["a", "a/b"]);
    }
}
