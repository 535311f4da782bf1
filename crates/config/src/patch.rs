//! Changes to a configuration: strategic merge with `$patch: delete`, and RFC 6902.

mod delete;
mod derive;
mod json6902;

use std::io;

pub use derive::derive;

use crate::{
    diagnostic::Diagnostics,
    document::Document,
    documents::{CommentMode, Documents, Entry, no_documents, parse, utf8},
    model::{DeleteError, MergeError},
};
use delete::Deletion;

/// A loaded patch.
#[derive(Clone, Debug)]
pub enum Patch {
    /// Documents that are merged and parts that are deleted, in the order of the text.
    Strategic(StrategicPatch),
    /// Operations on the JSON form of a single document.
    Json(json_patch::Patch),
}

/// Documents that are merged and parts that are deleted.
#[derive(Clone, Debug, Default)]
pub struct StrategicPatch {
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
enum Step {
    Delete(Deletion),
    Merge(Box<Document>),
}

/// Why a patch cannot be loaded or applied.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// The file cannot be read.
    #[error("open {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The text is neither configuration nor a list of operations.
    #[error(transparent)]
    Load(Diagnostics),
    /// The text is a list, but not one of operations.
    #[error("{0}")]
    BadOperations(String),
    /// The configuration that is to be patched cannot be read.
    #[error(transparent)]
    Config(Diagnostics),
    /// Operations need a single document.
    #[error("JSON6902 patches are not supported for multi-document machine configuration")]
    MultiDocument,
    /// An operation failed.
    #[error("failure applying rfc6902 patches to talos machine config: {0}")]
    Operation(String),
    /// Two values cannot be merged.
    #[error(transparent)]
    Merge(#[from] MergeError),
    /// A part cannot be deleted.
    #[error("{prefix}failed to delete path '{path}': {source}")]
    Delete {
        /// Which document.
        prefix: String,
        /// Which part.
        path: String,
        /// Why.
        #[source]
        source: DeleteError,
    },
}

impl Patch {
    /// Loads a patch from text, finding out by itself which language it is in.
    pub fn load(text: &[u8]) -> Result<Self, PatchError> {
        let strategic = match StrategicPatch::load(text) {
            Ok(patch) => return Ok(Self::Strategic(patch)),
            Err(error) => error,
        };
        match json6902::load(text) {
            Ok(patch) => Ok(Self::Json(patch)),
            Err(error) if text.trim_ascii_start().starts_with(b"[") => Err(PatchError::BadOperations(error)),
            Err(_) => Err(PatchError::Load(strategic)),
        }
    }
}

/// Loads patch arguments: `@file`, a file name, or the patch itself. Neighbouring RFC 6902 patches become one.
pub fn load_all<T: AsRef<str>>(
    arguments: &[T],
    mut read: impl FnMut(&str) -> io::Result<Vec<u8>>,
) -> Result<Vec<Patch>, PatchError> {
    let mut patches: Vec<Patch> = Vec::new();
    for argument in arguments {
        let argument = argument.as_ref();
        let inline = argument.contains(['\n', ' ']) || argument.starts_with(['[', '{']);
        let text = match argument.strip_prefix('@') {
            Some(path) => read_file(path, &mut read)?,
            None if !inline => read_file(argument, &mut read)?,
            None => argument.as_bytes().to_vec(),
        };
        match (Patch::load(&text)?, patches.last_mut()) {
            (Patch::Json(more), Some(Patch::Json(last))) => last.0.extend(more.0),
            (patch, _) => patches.push(patch),
        }
    }
    Ok(patches)
}

fn read_file(path: &str, read: &mut impl FnMut(&str) -> io::Result<Vec<u8>>) -> Result<Vec<u8>, PatchError> {
    read(path).map_err(|source| PatchError::Read { path: path.to_owned(), source })
}

/// A configuration on its way through patches: as text or as documents, whichever came last.
#[derive(Clone, Debug)]
pub enum Target {
    /// Text.
    Bytes(Vec<u8>),
    /// Documents.
    Documents(Documents),
}

impl Target {
    /// The text to write: untouched input stays as it is.
    pub fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Documents(documents) => documents.encode(CommentMode::None).into_bytes(),
        }
    }

    /// The documents.
    pub fn into_documents(self) -> Result<Documents, PatchError> {
        match self {
            Self::Bytes(bytes) => Documents::load(&bytes).map_err(PatchError::Config),
            Self::Documents(documents) => Ok(documents),
        }
    }
}

/// Applies patches one after another.
pub fn apply(mut target: Target, patches: &[Patch]) -> Result<Target, PatchError> {
    for patch in patches {
        target = match patch {
            Patch::Json(patch) => Target::Bytes(json6902::apply(&target.into_bytes(), patch)?),
            Patch::Strategic(patch) => Target::Documents(patch.apply(target.into_documents()?)?),
        };
    }
    Ok(target)
}

/// Applies patches to a text and returns the new text.
pub fn apply_to_bytes(text: &[u8], patches: &[Patch]) -> Result<Vec<u8>, PatchError> {
    apply(Target::Bytes(text.to_vec()), patches).map(Target::into_bytes)
}

impl StrategicPatch {
    /// Reads a patch: configuration documents in which `$patch: delete` marks what goes.
    pub fn load(text: &[u8]) -> Result<Self, Diagnostics> {
        let trees = parse(utf8(text)?)?;
        if trees.is_empty() {
            return Err(no_documents());
        }
        let mut steps = Vec::new();
        let mut order = Vec::new();
        let mut bodies = Vec::new();
        for tree in trees {
            let (deletions, rest) = delete::extract(tree)?;
            order.push((deletions, rest.is_some()));
            bodies.extend(rest);
        }
        let mut documents = match bodies.is_empty() {
            true => Vec::new().into_iter(),
            false => read_in_order(bodies)?.into_iter(),
        };
        for (deletions, has_body) in order {
            steps.extend(deletions.into_iter().map(Step::Delete));
            if has_body {
                steps.extend(documents.next().map(|document| Step::Merge(Box::new(document))));
            }
        }
        Ok(Self { steps })
    }

    /// A patch that merges documents.
    pub fn from_documents(documents: impl IntoIterator<Item = Document>) -> Self {
        Self { steps: documents.into_iter().map(|document| Step::Merge(Box::new(document))).collect() }
    }

    /// The documents that are merged.
    pub fn documents(&self) -> impl Iterator<Item = &Document> {
        self.steps.iter().filter_map(|step| match step {
            Step::Merge(document) => Some(&**document),
            Step::Delete(_) => None,
        })
    }

    /// Applies the patch.
    pub fn apply(&self, mut config: Documents) -> Result<Documents, PatchError> {
        config.forget_source();
        let mut items = std::mem::take(&mut config.items);
        for step in &self.steps {
            match step {
                Step::Delete(deletion) => deletion.apply(&mut items)?,
                Step::Merge(right) => {
                    let id = right.id();
                    match items.iter_mut().find(|entry| entry.document.id() == id) {
                        Some(left) => left.document.merge(right)?,
                        None => items.push(Entry { document: (**right).clone(), tree: None }),
                    }
                }
            }
        }
        Documents::assemble(items).map_err(PatchError::Config)
    }
}

/// Reads documents and keeps the order of the text.
fn read_in_order(trees: Vec<ichor_yaml::Node>) -> Result<Vec<Document>, Diagnostics> {
    let ids: Vec<_> = trees.iter().map(crate::documents::claimed_id).collect();
    let documents = Documents::from_trees(trees)?;
    let mut items: Vec<Document> = documents.items.into_iter().map(|entry| entry.document).collect();
    items.sort_by_key(|document| {
        let (kind, name) = (document.kind(), document.name());
        ids.iter().position(|id| id.kind == kind && id.name == name)
    });
    Ok(items)
}
