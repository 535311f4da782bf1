//! What can go wrong with a call to the state. The texts are those of the original.

use std::fmt;
use std::sync::Arc;

use ichor_resource::{Id, Kind, Metadata, Phase, Version};

/// Names one resource at one version, as error texts do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pointer {
    /// Namespace and type.
    pub kind: Arc<Kind>,
    /// The id.
    pub id: Id,
    /// The version; undefined when the resource was only asked for.
    pub version: Version,
}

impl Pointer {
    pub(crate) fn absent(kind: &Arc<Kind>, id: &str) -> Box<Self> {
        Box::new(Self { kind: kind.clone(), id: Id::new(id), version: Version::UNDEFINED })
    }

    pub(crate) fn of(meta: &Metadata) -> Box<Self> {
        Box::new(Self { kind: meta.kind().clone(), id: meta.id().clone(), version: meta.version() })
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, id, version) = (&self.kind, &self.id, self.version);
        write!(f, "{}({}/{id}@{version})", kind.type_name(), kind.namespace())
    }
}

/// Why the state refused a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// There is no such resource.
    #[error("resource {0} doesn't exist")]
    NotFound(Box<Pointer>),
    /// There is one already.
    #[error("resource {0} already exists")]
    AlreadyExists(Box<Pointer>),
    /// Somebody else wrote it in between.
    #[error(
        "resource {pointer} update conflict: expected version \"{expected}\", actual version \"{actual}\""
    )]
    VersionConflict {
        /// The stored resource.
        pointer: Box<Pointer>,
        /// The version the caller had.
        expected: Version,
        /// The stored version.
        actual: Version,
    },
    /// Only its owner may do this.
    #[error("resource {pointer} is owned by {owner:?}")]
    OwnerConflict {
        /// The stored resource.
        pointer: Box<Pointer>,
        /// The owner it has.
        owner: String,
    },
    /// It is in another phase than the caller expects.
    #[error("resource {pointer} is not in phase {expected}")]
    PhaseConflict {
        /// The stored resource.
        pointer: Box<Pointer>,
        /// The phase the caller expects.
        expected: Phase,
    },
    /// Somebody still holds it.
    #[error("resource {pointer} has pending finalizers &[{}]", .finalizers.join(" "))]
    PendingFinalizers {
        /// The stored resource.
        pointer: Box<Pointer>,
        /// Who holds it.
        finalizers: Vec<String>,
    },
    /// The bookmark is of another process, or too old.
    #[error("invalid watch bookmark")]
    InvalidBookmark,
    /// Options of a watch that exclude each other.
    #[error("{0}")]
    WatchOptions(&'static str),
    /// The contents are not of the type registered for this kind.
    #[error("resource {0} holds a spec of another type than its kind")]
    SpecType(Box<Pointer>),
    /// Nobody registered this type, and the state takes registered types only.
    #[error("resource type {0:?} is not registered")]
    UnknownType(String),
    /// A bound against endless growth.
    #[error("the state holds {0} kinds already and takes no more")]
    TooManyKinds(usize),
    /// The watch ended before what was waited for came.
    #[error("the watch of {0} ended early")]
    WatchEnded(Box<Pointer>),
    /// The function that edits the resource gave up.
    #[error("{0}")]
    Edit(String),
    /// A controller touched what it did not declare.
    #[error("{0}")]
    Access(String),
    /// The other end of a remote state refused.
    #[error("{text}")]
    Remote {
        /// What kind of refusal it is.
        class: ErrorClass,
        /// What the other end said.
        text: String,
    },
}

/// What a refusal means, wherever it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// There is no such resource.
    NotFound,
    /// There is one already.
    AlreadyExists,
    /// Somebody else wrote it in between.
    VersionConflict,
    /// Only its owner may do this.
    OwnerConflict,
    /// It is in another phase.
    PhaseConflict,
    /// Somebody still holds it.
    PendingFinalizers,
    /// The bookmark is of another process, or too old.
    InvalidBookmark,
    /// Anything else, a broken channel included.
    Other,
}

impl StateError {
    /// The class, whether local or remote.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NotFound(_) => ErrorClass::NotFound,
            Self::AlreadyExists(_) => ErrorClass::AlreadyExists,
            Self::VersionConflict { .. } => ErrorClass::VersionConflict,
            Self::OwnerConflict { .. } => ErrorClass::OwnerConflict,
            Self::PhaseConflict { .. } => ErrorClass::PhaseConflict,
            Self::PendingFinalizers { .. } => ErrorClass::PendingFinalizers,
            Self::InvalidBookmark => ErrorClass::InvalidBookmark,
            Self::Remote { class, .. } => *class,
            Self::WatchOptions(_)
            | Self::SpecType(_)
            | Self::UnknownType(_)
            | Self::TooManyKinds(_)
            | Self::WatchEnded(_)
            | Self::Edit(_)
            | Self::Access(_) => ErrorClass::Other,
        }
    }

    /// There is no such resource.
    pub fn is_not_found(&self) -> bool {
        self.class() == ErrorClass::NotFound
    }

    /// Any conflict: exists already, version, owner, phase, finalizers.
    pub fn is_conflict(&self) -> bool {
        match self.class() {
            ErrorClass::AlreadyExists
            | ErrorClass::VersionConflict
            | ErrorClass::OwnerConflict
            | ErrorClass::PhaseConflict
            | ErrorClass::PendingFinalizers => true,
            ErrorClass::NotFound | ErrorClass::InvalidBookmark | ErrorClass::Other => false,
        }
    }

    /// Written by somebody else in between; a retry may do.
    pub fn is_version_conflict(&self) -> bool {
        self.class() == ErrorClass::VersionConflict
    }

    /// Owned by somebody else.
    pub fn is_owner_conflict(&self) -> bool {
        self.class() == ErrorClass::OwnerConflict
    }

    /// In another phase.
    pub fn is_phase_conflict(&self) -> bool {
        self.class() == ErrorClass::PhaseConflict
    }
}
