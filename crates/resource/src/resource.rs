//! A resource: metadata plus contents, immutable once stored.

use std::sync::Arc;

use crate::id::Id;
use crate::metadata::{Kind, Metadata};
use crate::spec::{RawSpec, Spec};

/// Metadata and contents. Handed out as `Arc<Resource>` and never changed after it was stored.
///
/// The contents have an `Arc` of their own, so that a change of phase, finalizers or labels does
/// not copy them.
#[derive(Debug, Clone)]
pub struct Resource {
    meta: Metadata,
    spec: Arc<dyn Spec>,
}

impl Resource {
    /// A draft to be stored.
    #[inline]
    pub fn new(meta: Metadata, spec: Arc<dyn Spec>) -> Self {
        Self { meta, spec }
    }

    /// Stands for a resource that is not there: no contents, version undefined.
    pub fn tombstone(kind: Arc<Kind>, id: impl Into<Id>) -> Self {
        Self::new(Metadata::new(kind, id), Arc::new(RawSpec::default()))
    }

    /// The metadata.
    #[inline]
    pub fn meta(&self) -> &Metadata {
        &self.meta
    }

    /// The metadata of a draft.
    #[inline]
    pub fn meta_mut(&mut self) -> &mut Metadata {
        &mut self.meta
    }

    /// The id.
    #[inline]
    pub fn id(&self) -> &Id {
        self.meta.id()
    }

    /// The contents.
    #[inline]
    pub fn spec(&self) -> &Arc<dyn Spec> {
        &self.spec
    }

    /// Replaces the contents of a draft.
    pub fn set_spec(&mut self, spec: Arc<dyn Spec>) {
        self.spec = spec;
    }

    /// The contents as the type `T`, when they are of that type.
    #[inline]
    pub fn downcast<T: Spec>(&self) -> Option<&T> {
        self.spec.as_any().downcast_ref()
    }

    /// Equal but for times and the order of finalizers; the version counts.
    pub fn same(&self, other: &Self) -> bool {
        self.meta.same(&other.meta) && self.same_spec(other)
    }

    /// The same contents.
    pub fn same_spec(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.spec, &other.spec) || self.spec.same(&*other.spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_compared_by_value() {
        let kind = Arc::new(Kind::new("default", "os/path"));
        let make = |yaml: &str| {
            let spec = RawSpec { yaml: yaml.to_owned(), ..RawSpec::default() };
            Resource::new(Metadata::new(kind.clone(), "a"), Arc::new(spec))
        };
        assert!(make("x").same(&make("x")));
        assert!(!make("x").same(&make("y")));
        assert_eq!(make("x").downcast::<RawSpec>().map(|raw| raw.yaml.as_str()), Some("x"));
    }
}
