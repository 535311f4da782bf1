//! Texts with a rule of their own: expressions, file modes, manifests.

use ichor_yaml::Node;

use crate::model::{Decoder, Field, MergeError, Shape};

/// A CEL expression; a patch takes it over whether it has one or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expression(pub String);

impl Expression {
    /// True if an expression was given.
    pub fn is_set(&self) -> bool {
        !self.0.is_empty()
    }
}

impl Field for Expression {
    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        Self(decoder.text(node, "expression").unwrap_or_default().to_owned())
    }

    fn encode(&self) -> Node {
        Node::string(self.0.as_str())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        self.clone_from(right);
        Ok(())
    }

    fn shape() -> Shape {
        Shape::Format("CEL expression")
    }
}

/// Permissions of a file, written in octal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileMode(pub u32);

impl Field for FileMode {
    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        Self(u32::decode(node, decoder))
    }

    fn encode(&self) -> Node {
        Node::plain(format!("0o{:o}", self.0))
    }

    fn is_empty(&self) -> bool {
        self.0 == 0
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        self.0.merge(&right.0)
    }

    fn shape() -> Shape {
        Shape::Format("octal file mode")
    }
}

/// The text of a manifest: blank lines and tabs in front are dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManifestText(pub String);

impl Field for ManifestText {
    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        let text = String::decode(node, decoder);
        Self(text.trim_start_matches(['\t', '\n', '\u{b}', '\u{c}', '\r']).to_owned())
    }

    fn encode(&self) -> Node {
        Node::string(self.0.as_str())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        self.0.merge(&right.0)
    }

    fn shape() -> Shape {
        Shape::String
    }
}
