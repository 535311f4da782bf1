//! Who writes a resource.

use std::sync::Arc;

/// The writer of a resource. Nobody in particular is the empty text.
#[derive(Debug, Clone, Copy)]
pub enum Owner<'a> {
    /// By text; copied when a resource is created.
    Text(&'a str),
    /// Shared between all resources of the owner.
    Shared(&'a Arc<str>),
}

impl Owner<'_> {
    /// The text.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Shared(text) => text,
        }
    }

    pub(crate) fn shared(self) -> Option<Arc<str>> {
        match self {
            Self::Text("") => None,
            Self::Text(text) => Some(Arc::from(text)),
            Self::Shared(text) => Some(text.clone()),
        }
    }
}

impl<'a> From<&'a str> for Owner<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for Owner<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a Arc<str>> for Owner<'a> {
    fn from(text: &'a Arc<str>) -> Self {
        Self::Shared(text)
    }
}
