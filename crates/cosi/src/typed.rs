//! Resources whose contents have a Rust type.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use ichor_resource::{Id, Metadata, Resource, TypedSpec};

/// A stored resource known to hold a `T`. Derefs to the contents.
pub struct Typed<T> {
    resource: Arc<Resource>,
    of: PhantomData<fn() -> T>,
}

impl<T: TypedSpec> Typed<T> {
    /// Checks that the resource holds a `T`.
    pub fn new(resource: Arc<Resource>) -> Option<Self> {
        resource.downcast::<T>()?;
        Some(Self::trusted(resource))
    }

    /// For resources of a kind whose contents were checked when they were stored.
    pub(crate) fn trusted(resource: Arc<Resource>) -> Self {
        Self { resource, of: PhantomData }
    }

    /// The contents.
    pub fn spec(&self) -> &T {
        self
    }
}

impl<T> Typed<T> {
    /// The metadata.
    pub fn meta(&self) -> &Metadata {
        self.resource.meta()
    }

    /// The id.
    pub fn id(&self) -> &Id {
        self.resource.id()
    }

    /// The resource itself.
    pub fn resource(&self) -> &Arc<Resource> {
        &self.resource
    }
}

impl<T: TypedSpec> Deref for Typed<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        match self.resource.downcast() {
            Some(spec) => spec,
            // Every constructor checks the type, and a stored resource never changes.
            None => unreachable!("{} holds another type", self.resource.meta()),
        }
    }
}

impl<T> Clone for Typed<T> {
    fn clone(&self) -> Self {
        Self { resource: self.resource.clone(), of: PhantomData }
    }
}

impl<T: TypedSpec> fmt::Debug for Typed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Typed")
            .field("meta", &format_args!("{}", self.meta()))
            .field("spec", self.spec())
            .finish()
    }
}
