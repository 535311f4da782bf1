//! What a resource holds: the object-safe [`Spec`] that the store keeps, and the [`TypedSpec`] that
//! Rust code works with.

use std::any::Any;
use std::fmt;

use bytes::Bytes;

use crate::definition::Definition;
use crate::value::{Message, WireError};

/// The contents of a resource, as the store and the API see them.
pub trait Spec: Any + fmt::Debug + Send + Sync {
    /// Appends the protobuf form (`proto_spec` on the wire).
    fn encode_proto(&self, out: &mut Vec<u8>);

    /// Appends the YAML form (`yaml_spec` on the wire), four spaces a level, ending in a newline.
    fn encode_yaml(&self, out: &mut String);

    /// True when `other` is of the same type and holds the same values.
    fn same(&self, other: &dyn Spec) -> bool;

    /// For checked downcasts.
    fn as_any(&self) -> &dyn Any;
}

/// A spec with a name: everything the system knows about one resource type.
///
/// Implemented by `#[derive(ResourceSpec)]`; see the catalogue modules for examples.
pub trait TypedSpec: Spec + Clone + Default + PartialEq + Sized {
    /// The definition that `get rd` shows.
    fn definition() -> &'static Definition;

    /// Reads the protobuf form. Unknown fields are skipped, as proto3 asks.
    fn decode_proto(bytes: &[u8]) -> Result<Self, DecodeError>;
}

/// A protobuf spec that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("decode {message}: {reason}")]
pub struct DecodeError {
    /// The message that was being read.
    pub message: &'static str,
    /// What was wrong.
    pub reason: String,
}

/// Reads a message that stands for a whole spec.
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, DecodeError> {
    let mut message = M::default();
    match message.merge_message(bytes) {
        Ok(()) => Ok(message),
        Err(error) => Err(failed(M::NAME, &error)),
    }
}

#[cold]
#[inline(never)]
fn failed(message: &'static str, error: &WireError) -> DecodeError {
    DecodeError { message, reason: error.to_string() }
}

/// A spec of a type this program has no struct for, kept as it came over the wire.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawSpec {
    /// The protobuf half.
    pub proto: Bytes,
    /// The YAML half.
    pub yaml: String,
}

impl Spec for RawSpec {
    fn encode_proto(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.proto);
    }

    fn encode_yaml(&self, out: &mut String) {
        out.push_str(&self.yaml);
    }

    fn same(&self, other: &dyn Spec) -> bool {
        other.as_any().downcast_ref::<Self>() == Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
