//! What can be wrong with a YAML text, and where.

use crate::node::Span;

/// A text that is not acceptable YAML.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("yaml: line {}: {kind}", span.line)]
pub struct Error {
    /// What is wrong.
    pub kind: ErrorKind,
    /// The place it was noticed.
    pub span: Span,
}

/// The ways a text can be unacceptable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ErrorKind {
    /// The text breaks the grammar.
    #[error("{0}")]
    Syntax(String),
    /// The same key twice in one mapping.
    #[error("mapping key {key:?} already defined at line {first_line}")]
    DuplicateKey {
        /// The repeated key.
        key: String,
        /// Where it was first.
        first_line: u32,
    },
    /// A `<<` whose value is not a mapping or a list of mappings.
    #[error("map merge requires map or sequence of maps as the value")]
    BadMerge,
    /// An anchor that contains itself.
    #[error("anchor contains itself")]
    Cycle,
    /// The text has more bytes than allowed.
    #[error("text has {actual} bytes, at most {limit} are read")]
    TooLong {
        /// The length of the text.
        actual: usize,
        /// The bound.
        limit: usize,
    },
    /// Collections nested deeper than allowed.
    #[error("nested deeper than {0} levels")]
    TooDeep(usize),
    /// More values than allowed.
    #[error("more than {0} values")]
    TooManyNodes(usize),
    /// Aliases expand to more values than allowed.
    #[error("document contains excessive aliasing")]
    ExcessiveAliasing,
    /// Bytes that are not UTF-8.
    #[error("invalid UTF-8")]
    NotUtf8,
}

impl Error {
    /// An error at a place.
    pub fn new(kind: ErrorKind, span: Span) -> Self {
        Self { kind, span }
    }
}
