//! Values of expressions.

use std::sync::Arc;

use ichor_types::GoDuration;

use crate::eval::Object;

/// A value.
#[derive(Clone)]
pub enum Value {
    /// Nothing.
    Null,
    /// True or false.
    Bool(bool),
    /// A whole number with a sign.
    Int(i64),
    /// A whole number without.
    Uint(u64),
    /// Another number.
    Double(f64),
    /// Text.
    String(Arc<str>),
    /// Bytes.
    Bytes(Arc<[u8]>),
    /// A span of time.
    Duration(GoDuration),
    /// A list.
    List(Arc<[Value]>),
    /// A mapping.
    Map(Arc<[(Value, Value)]>),
    /// A value that may be absent.
    Optional(Option<Arc<Value>>),
    /// Something with fields.
    Message(Arc<dyn Object>),
}

impl Value {
    /// Text.
    pub fn string(text: impl AsRef<str>) -> Self {
        Self::String(text.as_ref().into())
    }

    /// Bytes.
    pub fn bytes(bytes: impl AsRef<[u8]>) -> Self {
        Self::Bytes(bytes.as_ref().into())
    }

    /// A list.
    pub fn list(items: impl IntoIterator<Item = Value>) -> Self {
        Self::List(items.into_iter().collect())
    }

    /// A value that may be absent.
    pub fn optional(value: Option<Value>) -> Self {
        Self::Optional(value.map(Arc::new))
    }

    /// The name of its type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::String(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::Duration(_) => "google.protobuf.Duration",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Optional(_) => "optional_type",
            Self::Message(_) => "message",
        }
    }
}

impl PartialEq for Value {
    /// Equality of the language: numbers compare by value across types.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Int(a), Self::Int(b)) => a == b,
            (Self::Uint(a), Self::Uint(b)) => a == b,
            (Self::Double(a), Self::Double(b)) => a == b,
            (Self::Int(a), Self::Uint(b)) | (Self::Uint(b), Self::Int(a)) => u64::try_from(*a) == Ok(*b),
            (Self::Int(a), Self::Double(b)) | (Self::Double(b), Self::Int(a)) => *a as f64 == *b,
            (Self::Uint(a), Self::Double(b)) | (Self::Double(b), Self::Uint(a)) => *a as f64 == *b,
            (Self::String(a), Self::String(b)) => a == b,
            (Self::Bytes(a), Self::Bytes(b)) => a == b,
            (Self::Duration(a), Self::Duration(b)) => a == b,
            (Self::List(a), Self::List(b)) => a == b,
            (Self::Map(a), Self::Map(b)) => {
                let find = |key: &Value| b.iter().find(|(have, _)| have == key).map(|(_, value)| value);
                a.len() == b.len() && a.iter().all(|(key, value)| find(key) == Some(value))
            }
            (Self::Optional(a), Self::Optional(b)) => a == b,
            (Self::Message(a), Self::Message(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Uint(value) => write!(f, "{value}u"),
            Self::Double(value) => write!(f, "{value:?}"),
            Self::String(value) => write!(f, "{value:?}"),
            Self::Bytes(value) => write!(f, "b{value:?}"),
            Self::Duration(value) => write!(f, "duration({:?})", value.to_string()),
            Self::List(items) => f.debug_list().entries(items.iter()).finish(),
            Self::Map(entries) => f.debug_map().entries(entries.iter().map(|(k, v)| (k, v))).finish(),
            Self::Optional(None) => f.write_str("optional.none()"),
            Self::Optional(Some(value)) => write!(f, "optional.of({value:?})"),
            Self::Message(_) => f.write_str("message"),
        }
    }
}
