//! Sections with any content: kubelet configuration, audit policies, static pods.

use std::collections::BTreeMap;

use ichor_types::natural;
use ichor_yaml::{Node, Resolved, Value};
use serde_json::{Value as Json, json};

use super::{Decoder, Field, MergeError, Shape};

/// A mapping with any content.
#[derive(Clone, Debug, Default)]
pub struct Free(pub Option<BTreeMap<String, FreeValue>>);

impl PartialEq for Free {
    fn eq(&self, other: &Self) -> bool {
        self.entries().eq(other.entries())
    }
}

/// A value inside a free-form section.
#[derive(Clone, Debug, PartialEq)]
pub enum FreeValue {
    /// Nothing.
    Null,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A whole number beyond the signed range.
    Uint(u64),
    /// Another number.
    Float(f64),
    /// Text.
    Str(String),
    /// A list.
    Seq(Vec<FreeValue>),
    /// A mapping.
    Map(BTreeMap<String, FreeValue>),
}

impl Free {
    /// All entries, sorted by key.
    pub fn entries(&self) -> impl Iterator<Item = (&String, &FreeValue)> {
        self.0.iter().flatten()
    }

    /// The value under a key.
    pub fn get(&self, key: &str) -> Option<&FreeValue> {
        self.0.as_ref()?.get(key)
    }

    /// True if the section was written at all.
    pub fn is_present(&self) -> bool {
        self.0.is_some()
    }

    /// A section from JSON; anything but an object is absent.
    pub fn from_json(value: &Json) -> Self {
        match FreeValue::from_json(value) {
            FreeValue::Map(entries) => Self(Some(entries)),
            _ => Self(None),
        }
    }

    /// The section as a JSON object.
    pub fn to_json(&self) -> Json {
        Json::Object(self.entries().map(|(key, value)| (key.clone(), value.to_json())).collect())
    }
}

impl FreeValue {
    /// Reads any node; keys become text.
    pub fn from_node(node: &Node) -> Self {
        match &node.value {
            Value::Scalar(scalar) => match scalar.resolve() {
                Resolved::Null => Self::Null,
                Resolved::Bool(value) => Self::Bool(value),
                Resolved::Int(value) => Self::Int(value),
                Resolved::Uint(value) => Self::Uint(value),
                Resolved::Float(value) => Self::Float(value),
                Resolved::Timestamp | Resolved::Merge | Resolved::Str => Self::Str(scalar.text.clone()),
            },
            Value::Seq(items) => Self::Seq(items.iter().map(Self::from_node).collect()),
            Value::Map(entries) => Self::Map(
                entries
                    .iter()
                    .map(|(key, value)| (key.as_str().unwrap_or_default().to_owned(), Self::from_node(value)))
                    .collect(),
            ),
        }
    }

    /// Writes the value.
    pub fn to_node(&self) -> Node {
        match self {
            Self::Null => Node::null(),
            Self::Bool(value) => Node::bool(*value),
            Self::Int(value) => Node::plain(value.to_string()),
            Self::Uint(value) => Node::plain(value.to_string()),
            Self::Float(value) => Node::plain(float_text(*value)),
            Self::Str(text) => Node::string(text.as_str()),
            Self::Seq(items) => Node::seq(items.iter().map(Self::to_node).collect()),
            Self::Map(entries) => map_node(entries),
        }
    }

    /// The value of JSON.
    pub fn from_json(value: &Json) -> Self {
        match value {
            Json::Null => Self::Null,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(value), _) => Self::Int(value),
                (None, Some(value)) => Self::Uint(value),
                (None, None) => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Self::Str(text.clone()),
            Json::Array(items) => Self::Seq(items.iter().map(Self::from_json).collect()),
            Json::Object(entries) => {
                Self::Map(entries.iter().map(|(key, value)| (key.clone(), Self::from_json(value))).collect())
            }
        }
    }

    /// The value as JSON; numbers JSON has no word for become null.
    pub fn to_json(&self) -> Json {
        match self {
            Self::Null => Json::Null,
            Self::Bool(value) => json!(value),
            Self::Int(value) => json!(value),
            Self::Uint(value) => json!(value),
            Self::Float(value) => json!(value),
            Self::Str(text) => json!(text),
            Self::Seq(items) => Json::Array(items.iter().map(Self::to_json).collect()),
            Self::Map(entries) => {
                Json::Object(entries.iter().map(|(key, value)| (key.clone(), value.to_json())).collect())
            }
        }
    }

    /// The text, if it is text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }

    fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "nil",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint64",
            Self::Float(_) => "float64",
            Self::Str(_) => "string",
            Self::Seq(_) => "[]interface {}",
            Self::Map(_) => "map[string]interface {}",
        }
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        match (&mut *self, right) {
            (_, Self::Null) => Ok(()),
            (Self::Null, _) => {
                *self = right.clone();
                Ok(())
            }
            (Self::Map(left), Self::Map(right)) => merge_maps(left, right),
            (Self::Seq(left), Self::Seq(right)) => {
                left.extend(right.iter().cloned());
                Ok(())
            }
            (Self::Bool(left), Self::Bool(right)) => {
                *left = *right;
                Ok(())
            }
            (Self::Str(left), Self::Str(right)) => left.merge(right),
            (Self::Int(left), Self::Int(right)) => left.merge(right),
            (Self::Uint(left), Self::Uint(right)) => left.merge(right),
            (Self::Float(left), Self::Float(right)) => {
                if *right != 0.0 {
                    *left = *right;
                }
                Ok(())
            }
            (left, right) => {
                Err(MergeError::TypeMismatch { left: left.type_name(), right: right.type_name() })
            }
        }
    }
}

fn merge_maps(
    left: &mut BTreeMap<String, FreeValue>,
    right: &BTreeMap<String, FreeValue>,
) -> Result<(), MergeError> {
    for (key, value) in right {
        match left.get_mut(key) {
            Some(have) => have.merge(value).map_err(|error| error.below(key))?,
            None => {
                left.insert(key.clone(), value.clone());
            }
        }
    }
    Ok(())
}

fn map_node(entries: &BTreeMap<String, FreeValue>) -> Node {
    let mut entries: Vec<_> = entries.iter().collect();
    entries.sort_by(|(a, _), (b, _)| natural::compare(a, b));
    Node::map(entries.into_iter().map(|(key, value)| (Node::string(key.as_str()), value.to_node())).collect())
}

/// The shortest text of a float, with an exponent where Go uses one.
fn float_text(value: f64) -> String {
    if value.is_nan() {
        return ".nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { ".inf" } else { "-.inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    // Go's shortest form turns to an exponent at a million.
    if value == 0.0 || (-4..6).contains(&exponent) {
        return format!("{value}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

impl Field for Free {
    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        if node.is_null() {
            return Self::default();
        }
        if decoder.mapping(node).is_none() {
            return Self::default();
        }
        match FreeValue::from_node(node) {
            FreeValue::Map(entries) => Self(Some(entries)),
            _ => Self::default(),
        }
    }

    fn encode(&self) -> Node {
        self.0.as_ref().map_or_else(|| Node::map(Vec::new()), map_node)
    }

    fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(BTreeMap::is_empty)
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        match &right.0 {
            Some(more) => merge_maps(self.0.get_or_insert_default(), more),
            None => Ok(()),
        }
    }

    fn shape() -> Shape {
        Shape::Free
    }
}
