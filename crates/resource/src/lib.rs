//! Resources: metadata, phases, finalizers, the Spec trait and every spec type.

pub mod definition;
pub mod spec;

pub use definition::Definition;
pub use spec::{DecodeError, RawSpec, Spec, TypedSpec};
