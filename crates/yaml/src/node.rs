//! The tree: scalars, sequences and mappings, each with its place in the text.

use std::fmt;

use crate::resolve::{Resolved, resolve};

/// A place in a text: line and column count from one, offsets are bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// Line of the first character; zero for nodes that no text had.
    pub line: u32,
    /// Column of the first character, in characters.
    pub column: u32,
    /// Byte offset of the first character.
    pub offset: u32,
    /// Byte offset after the last character.
    pub end: u32,
}

impl Span {
    /// The place of nodes made by code.
    pub const NONE: Self = Self { line: 0, column: 0, offset: 0, end: 0 };

    /// The first place of a text.
    pub const START: Self = Self { line: 1, column: 1, offset: 0, end: 0 };

    /// True if this place is in some text.
    pub fn is_known(self) -> bool {
        self.line > 0
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// How a scalar was or will be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// Bare text, whose type follows from its look.
    Plain,
    /// `'text'`.
    SingleQuoted,
    /// `"text"`.
    DoubleQuoted,
    /// `|` block.
    Literal,
    /// `>` block.
    Folded,
    /// A string for which the emitter picks the plainest style that stays a string.
    #[default]
    Auto,
}

/// A leaf: its text and the way it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scalar {
    /// The text after unescaping and unfolding.
    pub text: String,
    /// The way it was written.
    pub style: Style,
    /// Explicit tag such as `!!str`, in short form.
    pub tag: Option<Box<str>>,
}

/// What a node holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A leaf.
    Scalar(Scalar),
    /// A list.
    Seq(Vec<Node>),
    /// A mapping in its written order.
    Map(Vec<(Node, Node)>),
}

/// Comments around a node, for the emitter; lines without the leading `#`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comments {
    /// Lines above.
    pub head: String,
    /// Text behind, on the same line.
    pub line: String,
    /// Lines below.
    pub foot: String,
}

/// A value with its place.
#[derive(Clone, PartialEq, Eq)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Where it was written.
    pub span: Span,
    /// Comments to write along; the parser leaves them out.
    pub comments: Option<Box<Comments>>,
}

/// One document of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The root value; a null scalar when the document is empty.
    pub root: Node,
}

impl Node {
    /// A node without a place.
    pub fn new(value: Value) -> Self {
        Self { value, span: Span::NONE, comments: None }
    }

    /// A string; the emitter chooses how to write it.
    pub fn string(text: impl Into<String>) -> Self {
        Self::new(Value::Scalar(Scalar { text: text.into(), style: Style::Auto, tag: None }))
    }

    /// A bare word: number, boolean, null.
    pub fn plain(text: impl Into<String>) -> Self {
        Self::new(Value::Scalar(Scalar { text: text.into(), style: Style::Plain, tag: None }))
    }

    /// A boolean.
    pub fn bool(value: bool) -> Self {
        Self::plain(if value { "true" } else { "false" })
    }

    /// `null`.
    pub fn null() -> Self {
        Self::plain("null")
    }

    /// A list.
    pub fn seq(items: Vec<Node>) -> Self {
        Self::new(Value::Seq(items))
    }

    /// A mapping.
    pub fn map(entries: Vec<(Node, Node)>) -> Self {
        Self::new(Value::Map(entries))
    }

    /// The scalar, if it is one.
    pub fn as_scalar(&self) -> Option<&Scalar> {
        match &self.value {
            Value::Scalar(scalar) => Some(scalar),
            Value::Seq(_) | Value::Map(_) => None,
        }
    }

    /// The text of a scalar.
    pub fn as_str(&self) -> Option<&str> {
        self.as_scalar().map(|scalar| scalar.text.as_str())
    }

    /// The items of a list.
    pub fn as_seq(&self) -> Option<&[Node]> {
        match &self.value {
            Value::Seq(items) => Some(items),
            Value::Scalar(_) | Value::Map(_) => None,
        }
    }

    /// The entries of a mapping.
    pub fn as_map(&self) -> Option<&[(Node, Node)]> {
        match &self.value {
            Value::Map(entries) => Some(entries),
            Value::Scalar(_) | Value::Seq(_) => None,
        }
    }

    /// The value under a key of a mapping.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|(_, value)| value)
    }

    /// The key and value nodes under a key of a mapping.
    pub fn entry(&self, key: &str) -> Option<(&Node, &Node)> {
        let entries = self.as_map()?;
        entries.iter().find(|(name, _)| name.as_str() == Some(key)).map(|(name, value)| (name, value))
    }

    /// True for a null scalar (`null`, `~` or nothing at all).
    pub fn is_null(&self) -> bool {
        self.as_scalar().is_some_and(|scalar| scalar.resolve() == Resolved::Null)
    }

    /// What kind of value this is, as a YAML tag.
    pub fn tag(&self) -> &str {
        match &self.value {
            Value::Scalar(scalar) => scalar.resolved_tag(),
            Value::Seq(_) => "!!seq",
            Value::Map(_) => "!!map",
        }
    }
}

impl Scalar {
    /// The value this scalar stands for: quoted text is always a string.
    pub fn resolve(&self) -> Resolved {
        match (&self.tag, self.style) {
            (Some(tag), _) => match &**tag {
                "!!str" | "!" | "!!binary" => Resolved::Str,
                "!!null" => Resolved::Null,
                "!!float" => match resolve(&self.text) {
                    Resolved::Int(value) => Resolved::Float(value as f64),
                    other => other,
                },
                _ => resolve(&self.text),
            },
            (None, Style::Plain) => resolve(&self.text),
            (None, _) => Resolved::Str,
        }
    }

    fn resolved_tag(&self) -> &str {
        if let Some(tag) = &self.tag {
            return tag;
        }
        match self.resolve() {
            Resolved::Null => "!!null",
            Resolved::Bool(_) => "!!bool",
            Resolved::Int(_) | Resolved::Uint(_) => "!!int",
            Resolved::Float(_) => "!!float",
            Resolved::Timestamp => "!!timestamp",
            Resolved::Merge => "!!merge",
            Resolved::Str => "!!str",
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Value::Scalar(scalar) => write!(f, "{:?}@{:?}", scalar.text, self.span),
            Value::Seq(items) => f.debug_list().entries(items).finish(),
            Value::Map(entries) => f.debug_map().entries(entries.iter().map(|(k, v)| (k, v))).finish(),
        }
    }
}
