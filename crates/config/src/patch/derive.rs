//! From two configurations to the patches that lead from one to the other.

use ichor_yaml::{Node, Value};

use crate::{
    document::{API_VERSION, Document},
    documents::Documents,
};

/// At most two strategic patches: the first deletes and sets, the second brings changed lists back in full.
pub fn derive(old: &Documents, new: &Documents) -> Vec<String> {
    let mut first = Vec::new();
    let mut second = Vec::new();
    for document in old.iter() {
        if new.iter().all(|other| other.id() != document.id()) {
            first.push(with_identity(document, vec![marker()]));
        }
    }
    for document in new.iter() {
        match old.iter().find(|other| other.id() == document.id()) {
            None => first.push(document.encode()),
            Some(before) => {
                let change = compare(&before.encode(), &document.encode());
                if let Some(node) = change.first {
                    first.push(with_identity(document, entries(node)));
                }
                if let Some(node) = change.second {
                    second.push(with_identity(document, entries(node)));
                }
            }
        }
    }
    let emit = |nodes: Vec<Node>| ichor_yaml::emit_all(&nodes);
    [first, second].into_iter().filter(|nodes| !nodes.is_empty()).map(emit).collect()
}

fn marker() -> (Node, Node) {
    (Node::string("$patch"), Node::string("delete"))
}

fn entries(node: Node) -> Vec<(Node, Node)> {
    match node.value {
        Value::Map(entries) => entries,
        Value::Scalar(_) | Value::Seq(_) => Vec::new(),
    }
}

/// A patch document with the identity of a document and some entries.
fn with_identity(document: &Document, entries: Vec<(Node, Node)>) -> Node {
    let mut all = Vec::new();
    if !matches!(document, Document::Config(_)) {
        all.push((Node::string("apiVersion"), Node::string(API_VERSION)));
        all.push((Node::string("kind"), Node::string(document.kind())));
        if !document.name().is_empty() {
            all.push((Node::string("name"), Node::string(document.name())));
        }
    }
    let identity = |key: &Node| all.iter().any(|(have, _)| have.as_str() == key.as_str());
    let entries: Vec<_> = entries.into_iter().filter(|(key, _)| !identity(key)).collect();
    all.extend(entries);
    Node::map(all)
}

#[derive(Default)]
struct Change {
    first: Option<Node>,
    second: Option<Node>,
}

/// What leads from one mapping to another.
fn compare(old: &Node, new: &Node) -> Change {
    let (Some(old_entries), Some(new_entries)) = (old.as_map(), new.as_map()) else {
        return Change::default();
    };
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for (key, _) in old_entries {
        if new.get(key.as_str().unwrap_or_default()).is_none() {
            first.push((key.clone(), Node::map(vec![marker()])));
        }
    }
    for (key, value) in new_entries {
        let Some(before) = old.get(key.as_str().unwrap_or_default()) else {
            first.push((key.clone(), value.clone()));
            continue;
        };
        if same(before, value) {
            continue;
        }
        let is_plain_map = |node: &Node| node.as_map().is_some_and(|entries| !entries.is_empty());
        if is_plain_map(before) && is_plain_map(value) {
            let change = compare(before, value);
            first.extend(change.first.map(|node| (key.clone(), node)));
            second.extend(change.second.map(|node| (key.clone(), node)));
        } else if value.as_scalar().is_some_and(|scalar| !scalar.text.is_empty())
            && before.as_scalar().is_some()
        {
            first.push((key.clone(), value.clone()));
        } else {
            // Lists append, empty values do not overwrite: delete first, then bring the new value in.
            first.push((key.clone(), Node::map(vec![marker()])));
            second.push((key.clone(), value.clone()));
        }
    }
    let node = |entries: Vec<(Node, Node)>| (!entries.is_empty()).then(|| Node::map(entries));
    Change { first: node(first), second: node(second) }
}

fn same(left: &Node, right: &Node) -> bool {
    ichor_yaml::emit(left) == ichor_yaml::emit(right)
}
