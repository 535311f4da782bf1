//! One description per type: from a [`section!`] come decoding, encoding, key order, merging, deletion,
//! documentation and schema.
//!
//! A type of the configuration is a Rust type that implements [`Field`]. How two values merge and when a
//! value counts as absent follows from the type, so a description only names keys, types and flags.

mod collections;
mod decoder;
mod free;
mod macros;
mod scalars;
mod shape;

pub use collections::{Keyed, KeyedList, List, Map, Replace};
pub(crate) use decoder::PROBLEMS_MAX;
pub use decoder::{Decoder, Path, Step, UnknownKey};
pub use free::{Free, FreeValue};
pub(crate) use macros::{choices, section};
pub use shape::{FieldInfo, ListMerge, ObjectInfo, Shape, has_flag};

use ichor_yaml::Node;

/// A value that a configuration key can hold.
pub trait Field: Clone + Default + PartialEq + std::fmt::Debug {
    /// True for mappings with a fixed set of keys: null is not a value of a list of them.
    const IS_OBJECT: bool = false;

    /// Reads the value; problems go to the decoder and leave the default.
    fn decode(node: &Node, decoder: &mut Decoder) -> Self;

    /// Writes the value without comments.
    fn encode(&self) -> Node;

    /// True if a key with this value is left out unless it is marked to be always written.
    fn is_empty(&self) -> bool;

    /// Merges the value of a patch into this one.
    fn merge(&mut self, right: &Self) -> Result<(), MergeError>;

    /// Merges a value that is known to be present in the patch: zero counts.
    fn merge_present(&mut self, right: &Self) -> Result<(), MergeError> {
        self.merge(right)
    }

    /// Takes the value of a patch as a whole if it is present there.
    fn take_present(&mut self, right: &Self) {
        if !right.is_empty() {
            *self = right.clone();
        }
    }

    /// Deletes what the path leads to; an empty path never reaches here.
    fn delete(&mut self, _path: &[DeleteStep]) -> Result<(), DeleteError> {
        Err(DeleteError::LookupFailed)
    }

    /// The text of a string member, for selecting list items.
    fn member_text(&self, _key: &str) -> Option<&str> {
        None
    }

    /// What values look like, for documentation and schema.
    fn shape() -> Shape;
}

/// One step towards something to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeleteStep {
    /// A key of a mapping.
    Key(String),
    /// The first item of a list whose member has this text.
    Item {
        /// The member that is compared.
        key: String,
        /// The text it must have.
        value: String,
    },
}

/// Two values that cannot be merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// Free-form values of different types under the same key.
    #[error("merge type mismatch left {left} right {right}")]
    TypeMismatch {
        /// Type in the configuration.
        left: &'static str,
        /// Type in the patch.
        right: &'static str,
    },
    /// The same, somewhere below a key.
    #[error("merge field {key}: {source}")]
    Below {
        /// The key.
        key: String,
        /// What went wrong below it.
        source: Box<MergeError>,
    },
}

impl MergeError {
    /// The same error seen from one level up.
    pub fn below(self, key: &str) -> Self {
        Self::Below { key: key.to_owned(), source: Box::new(self) }
    }
}

/// Something that cannot be deleted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeleteError {
    /// Nothing is there.
    #[error("lookup failed")]
    LookupFailed,
    /// A path that goes on below a list item.
    #[error("searching for complex paths in slices is not supported")]
    ComplexPath,
    /// A list whose items were addressed by name.
    #[error("searching for non-integer keys in slices is not supported")]
    NotAnItem,
}
