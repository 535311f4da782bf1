//! Machine configuration: documents, defaults, validation, patches, generation.
//!
//! Start with [`Documents::load`]; everything about a loaded configuration hangs off [`Documents`].

pub mod access;
pub mod comments;
pub mod describe;
pub mod diagnostic;
pub mod diff;
pub mod document;
pub mod documents;
pub mod generate;
pub mod ignored;
pub mod kinds;
pub mod model;
pub mod patch;
pub mod plan;
pub mod redact;
pub mod suggest;
pub mod talosconfig;
pub mod v1alpha1;
pub mod validate;
pub mod values;

pub use diagnostic::{Diagnostic, Diagnostics, Severity, Stage};
pub use document::{Document, DocumentId};
pub use documents::{CommentMode, Documents};
pub use validate::{Mode, ValidateOptions};
