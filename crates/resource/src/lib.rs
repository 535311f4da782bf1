//! Resources: metadata, phases, finalizers, the Spec trait and every spec type.

extern crate self as ichor_resource;

pub mod catalogue;
mod custom;
pub mod definition;
pub mod id;
pub mod metadata;
pub mod resource;
pub mod spec;
pub mod value;

// Each type below is documented; its fields are the YAML keys of the wire format, and named after them.
#[allow(missing_docs)]
pub mod block;
#[allow(missing_docs)]
pub mod cluster;
#[allow(missing_docs)]
pub mod config;
#[allow(missing_docs)]
pub mod cri;
#[allow(missing_docs)]
pub mod etcd;
#[allow(missing_docs)]
pub mod files;
#[allow(missing_docs)]
pub mod hardware;
#[allow(missing_docs)]
pub mod k8s;
#[allow(missing_docs)]
pub mod kubeaccess;
#[allow(missing_docs)]
pub mod kubespan;
#[allow(missing_docs)]
pub mod meta;
#[allow(missing_docs)]
pub mod network;
#[allow(missing_docs)]
pub mod perf;
#[allow(missing_docs)]
pub mod runtime;
#[allow(missing_docs)]
pub mod secrets;
#[allow(missing_docs)]
pub mod siderolink;
#[allow(missing_docs)]
pub mod time;
#[allow(missing_docs)]
pub mod v1alpha1;

pub use catalogue::{Visitor, catalogue, visit_all};
pub use definition::Definition;
pub use id::Id;
pub use metadata::{BadMetadata, Kind, Metadata, Nanos, Pairs, Phase, Version};
pub use resource::Resource;
pub use spec::{DecodeError, RawSpec, Spec, TypedSpec};
