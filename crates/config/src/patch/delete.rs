//! `$patch: delete` and `$patch: replace`: found in a patch, taken out of it, carried out on a configuration.
//!
//! Deleting is the original's. Replacing is ours: a mapping with the marker, or a list whose first item is the
//! marker alone, takes the place of what is there instead of being merged into it.

use ichor_yaml::{Node, Span, Value};

use super::PatchError;
use crate::{
    diagnostic::{Diagnostic, Diagnostics, Stage},
    document::{DocumentId, ROOT_KIND},
    documents::Entry,
    model::{DeleteError, DeleteStep},
};

/// Something to delete.
#[derive(Clone, Debug)]
pub(super) struct Deletion {
    document: DocumentId,
    path: Vec<DeleteStep>,
    /// The path as messages show it.
    shown: String,
    /// Makes room for a new value; nothing to delete is fine.
    replaces: bool,
}

/// Takes all markers out of a document; nothing is left if they were all there was.
pub(super) fn extract(tree: Node) -> Result<(Vec<Deletion>, Option<Node>), Diagnostics> {
    let mut finder = Finder { root: tree.clone(), path: Vec::new(), shown: Vec::new(), found: Vec::new() };
    let rest = finder.node(tree, false).map_err(|(span, message)| {
        let base = Diagnostic::error(Stage::Stream, message);
        Diagnostics::single(Diagnostic { span, ..base })
    })?;
    let rest = rest.filter(|rest| finder.found.is_empty() || !is_spent(rest));
    Ok((finder.found, rest))
}

/// True if only the identity of a document is left.
fn is_spent(tree: &Node) -> bool {
    let Some(entries) = tree.as_map() else { return false };
    entries.iter().all(|(key, value)| {
        matches!(key.as_str(), Some("version" | "kind" | "name")) && value.as_scalar().is_some()
    })
}

fn is_marker(key: &Node, value: &Node) -> bool {
    key.as_str() == Some("$patch") && value.as_str() == Some("delete")
}

fn is_replace(key: &Node, value: &Node) -> bool {
    key.as_str() == Some("$patch") && value.as_str() == Some("replace")
}

/// True for a list item that is nothing but the marker.
fn is_replace_item(item: &Node) -> bool {
    matches!(item.as_map(), Some([(key, value)]) if is_replace(key, value))
}

type Found<T> = Result<T, (Span, String)>;

struct Finder {
    root: Node,
    path: Vec<DeleteStep>,
    shown: Vec<String>,
    found: Vec<Deletion>,
}

impl Finder {
    /// Returns what is left of a node.
    fn node(&mut self, node: Node, in_list: bool) -> Found<Option<Node>> {
        let span = node.span;
        match node.value {
            Value::Scalar(_) => Ok(Some(node)),
            Value::Map(entries) => {
                if entries.iter().any(|(key, value)| is_marker(key, value)) {
                    self.mark(&entries, in_list, span)?;
                    return Ok(None);
                }
                if entries.iter().any(|(key, value)| is_replace(key, value)) {
                    self.replace(span)?;
                    let rest = entries.into_iter().filter(|(key, value)| !is_replace(key, value)).collect();
                    return Ok(Some(Node { value: Value::Map(rest), span, comments: None }));
                }
                let was_empty = entries.is_empty();
                let mut rest = Vec::with_capacity(entries.len());
                for (key, value) in entries {
                    let name = key.as_str().unwrap_or_default().to_owned();
                    self.path.push(DeleteStep::Key(name.clone()));
                    self.shown.push(name);
                    let kept = self.node(value, false)?;
                    self.path.pop();
                    self.shown.pop();
                    rest.extend(kept.map(|value| (key, value)));
                }
                let gone = rest.is_empty() && !was_empty;
                Ok((!gone).then_some(Node { value: Value::Map(rest), span, comments: None }))
            }
            Value::Seq(items) => {
                let mut items = items;
                if items.first().is_some_and(is_replace_item) {
                    self.replace(span)?;
                    items.remove(0);
                    return Ok(Some(Node { value: Value::Seq(items), span, comments: None }));
                }
                let was_empty = items.is_empty();
                let mut rest = Vec::with_capacity(items.len());
                for item in items {
                    // Deleted items move the ones behind them forward, and the shown index with them.
                    let index = rest.len();
                    self.path.push(DeleteStep::Item { key: String::new(), value: String::new() });
                    self.shown.push(format!("[{index}]"));
                    let kept = self.node(item, true)?;
                    self.path.pop();
                    self.shown.pop();
                    rest.extend(kept);
                }
                let gone = rest.is_empty() && !was_empty;
                Ok((!gone).then_some(Node { value: Value::Seq(rest), span, comments: None }))
            }
        }
    }

    fn mark(&mut self, entries: &[(Node, Node)], in_list: bool, span: Span) -> Found<()> {
        let shown = self.shown.join(".");
        let below_item = self.path.iter().any(|step| matches!(step, DeleteStep::Item { .. }));
        let mut path = self.path.clone();
        if in_list {
            let other = entries.iter().find(|(key, value)| !is_marker(key, value));
            let Some((key, value)) = other else {
                return Err((span, format!("no key:val found in sequence node for path {shown}")));
            };
            let text = |node: &Node| node.as_str().unwrap_or_default().to_owned();
            if let Some(last) = path.last_mut() {
                *last = DeleteStep::Item { key: text(key), value: text(value) };
            }
        } else if below_item {
            return Err((span, format!("cannot delete an inner key in '{shown}'")));
        }
        let document = self.identity(path.is_empty(), &shown, span)?;
        self.found.push(Deletion { document, path, shown, replaces: false });
        Ok(())
    }

    /// Makes room for what stands here.
    fn replace(&mut self, span: Span) -> Found<()> {
        let shown = self.shown.join(".");
        if self.path.iter().any(|step| matches!(step, DeleteStep::Item { .. })) {
            return Err((span, format!("cannot replace an inner key in '{shown}'")));
        }
        let document = self.identity(self.path.is_empty(), &shown, span)?;
        self.found.push(Deletion { document, path: self.path.clone(), shown, replaces: true });
        Ok(())
    }

    fn identity(&self, whole_document: bool, shown: &str, span: Span) -> Found<DocumentId> {
        let text = |key: &str| self.root.get(key).and_then(Node::as_str).unwrap_or_default().to_owned();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        if whole_document {
            for (key, value) in [("apiVersion", &api_version), ("kind", &kind)] {
                if value.is_empty() {
                    let message = format!("missing {key} in document for which $patch: delete is used");
                    return Err((span, message));
                }
            }
        }
        match (api_version.is_empty(), kind.is_empty()) {
            (true, true) => Ok(DocumentId { api_version, kind: ROOT_KIND.to_owned(), name: String::new() }),
            (false, false) => Ok(DocumentId { api_version, kind, name: text("name") }),
            _ => Err((span, format!("kind and apiVersion must be both set for path {shown}"))),
        }
    }
}

impl Deletion {
    /// Carries the deletion out.
    pub(super) fn apply(&self, items: &mut Vec<Entry>) -> Result<(), PatchError> {
        let found = items.iter().position(|entry| entry.document.id() == self.document);
        let Some(at) = found else {
            // A document that is not there is as good as deleted; a part of it is a mistake.
            if self.path.is_empty() || self.replaces {
                return Ok(());
            }
            return Err(self.error(DeleteError::LookupFailed));
        };
        if self.path.is_empty() {
            items.remove(at);
            return Ok(());
        }
        let document = &mut items[at].document;
        match document.delete(&self.path) {
            Err(DeleteError::LookupFailed) if self.replaces && !self.is_there(&document.encode()) => Ok(()),
            result => result.map_err(|source| self.error(source)),
        }
    }

    /// True if the tree has something at the path.
    fn is_there(&self, tree: &Node) -> bool {
        let mut node = Some(tree);
        for step in &self.path {
            node = match step {
                DeleteStep::Key(key) => node.and_then(|node| node.get(key)),
                DeleteStep::Item { .. } => None,
            };
        }
        node.is_some()
    }

    fn error(&self, source: DeleteError) -> PatchError {
        let DocumentId { api_version, kind, name } = &self.document;
        let prefix = match name.as_str() {
            "" => format!("patch delete: path '{}' in document '{api_version}/{kind}': ", self.shown),
            _ => format!("named patch delete: document {api_version}/{kind}: "),
        };
        PatchError::Delete { prefix, path: self.shown.clone(), source }
    }
}
