//! Sizes in bytes that keep the text they were written with.

use ichor_types::size;
use ichor_yaml::Node;

use crate::model::{Decoder, Field, MergeError, Shape};

/// A size that a patch takes over whether it names one or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByteSize {
    text: Option<String>,
    bytes: u64,
}

impl ByteSize {
    /// Reads a size such as `10GiB`.
    pub fn parse(text: &str) -> Result<Self, size::BadSize> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        Ok(Self { bytes: size::parse(text)?, text: Some(text.to_owned()) })
    }

    /// The size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// True if a size was given.
    pub fn is_set(&self) -> bool {
        self.text.is_some()
    }
}

impl Field for ByteSize {
    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        decoder.parsed(node, "a size such as 10GiB", Self::parse)
    }

    fn encode(&self) -> Node {
        Node::string(self.text.as_deref().unwrap_or_default())
    }

    fn is_empty(&self) -> bool {
        self.text.is_none()
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        self.clone_from(right);
        Ok(())
    }

    fn shape() -> Shape {
        Shape::Size
    }
}

/// A size in bytes or in percent of the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Size {
    /// Not given.
    #[default]
    Unset,
    /// A number of bytes.
    Bytes(ByteSize),
    /// A share of the disk.
    Percent {
        /// The share.
        percent: u64,
        /// The text as written.
        text: String,
    },
}

impl Size {
    /// Reads `10GiB` or `50%`.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::Unset);
        }
        if !text.contains('%') {
            return ByteSize::parse(text).map(Self::Bytes).map_err(|error| error.to_string());
        }
        let number = text.strip_suffix('%').ok_or("percentage must end with '%'")?;
        let percent: i64 = number.parse().map_err(|_| format!("invalid percentage {text:?}"))?;
        match u64::try_from(percent) {
            Ok(percent @ 0..=100) => Ok(Self::Percent { percent, text: text.to_owned() }),
            _ => Err(format!("percentage must be between 0 and 100, got {percent}")),
        }
    }

    /// The size in bytes, if it is absolute.
    pub fn bytes(&self) -> Option<u64> {
        match self {
            Self::Bytes(size) => Some(size.bytes()),
            Self::Unset | Self::Percent { .. } => None,
        }
    }
}

impl Field for Size {
    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        decoder.parsed(node, "a size such as 100GiB or 50%", Self::parse)
    }

    fn encode(&self) -> Node {
        match self {
            Self::Unset => Node::string(""),
            Self::Bytes(size) => size.encode(),
            Self::Percent { text, .. } => Node::string(text.as_str()),
        }
    }

    fn is_empty(&self) -> bool {
        *self == Self::Unset
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        if *right != Self::Unset {
            self.clone_from(right);
        }
        Ok(())
    }

    fn shape() -> Shape {
        Shape::Size
    }
}

/// A size of a partition: written humanized only when that loses nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskSize(pub u64);

impl Field for DiskSize {
    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        Self(decoder.parsed(node, "a size such as 100 MB", size::parse))
    }

    fn encode(&self) -> Node {
        if self.0.is_multiple_of(1000) {
            let text = size::decimal(self.0);
            if size::parse(&text) == Ok(self.0) {
                return Node::string(text);
            }
        }
        Node::plain(self.0.to_string())
    }

    fn is_empty(&self) -> bool {
        self.0 == 0
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        if right.0 != 0 {
            *self = *right;
        }
        Ok(())
    }

    fn shape() -> Shape {
        Shape::Size
    }
}

/// How a disk size is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SizeOperator {
    /// `==`, also when no operator is written.
    #[default]
    Equal,
    /// `>=`.
    AtLeast,
    /// `<=`.
    AtMost,
    /// `>`.
    More,
    /// `<`.
    Less,
}

impl SizeOperator {
    /// The operator as an expression writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Equal => "==",
            Self::AtLeast => ">=",
            Self::AtMost => "<=",
            Self::More => ">",
            Self::Less => "<",
        }
    }
}

/// A condition on the size of a disk: `>= 100GB`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SizeMatcher {
    text: String,
    /// The comparison.
    pub operator: SizeOperator,
    /// The size it compares with.
    pub bytes: u64,
}

impl SizeMatcher {
    /// Reads `[>=|<=|>|<|==]<size>`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let operators = [
            (">=", SizeOperator::AtLeast),
            ("<=", SizeOperator::AtMost),
            ("==", SizeOperator::Equal),
            (">", SizeOperator::More),
            ("<", SizeOperator::Less),
        ];
        let found = operators.iter().find_map(|(sign, op)| text.strip_prefix(sign).map(|rest| (*op, rest)));
        let (operator, rest) = found.unwrap_or((SizeOperator::Equal, text));
        let bytes =
            size::parse(rest.trim()).map_err(|error| format!("failed to parse disk size {rest}: {error}"))?;
        Ok(Self { text: text.to_owned(), operator, bytes })
    }
}

impl Field for SizeMatcher {
    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        decoder.parsed(node, "a condition such as >= 100GB", Self::parse)
    }

    fn encode(&self) -> Node {
        Node::string(self.text.as_str())
    }

    fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        self.clone_from(right);
        Ok(())
    }

    fn shape() -> Shape {
        Shape::Format("size condition")
    }
}
