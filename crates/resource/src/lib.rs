//! Resources: metadata, phases, finalizers, the Spec trait and every spec type.

pub mod definition;
pub mod id;
pub mod metadata;
pub mod resource;
pub mod spec;

pub use definition::Definition;
pub use id::Id;
pub use metadata::{BadMetadata, Kind, Metadata, Nanos, Pairs, Phase, Version};
pub use resource::Resource;
pub use spec::{DecodeError, RawSpec, Spec, TypedSpec};
