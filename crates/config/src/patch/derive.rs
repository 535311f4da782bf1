//! From two configurations to the patches that lead from one to the other.

use ichor_yaml::{Node, Value};

use crate::{
    describe::kind_object,
    document::{API_VERSION, Document},
    documents::Documents,
    model::{ObjectInfo, Shape, has_flag},
};

/// Kinds in which a patch clears what it does not repeat; a changed document is made anew.
const REBUILT: &[&str] = &[
    "VolumeConfig",
    "UserVolumeConfig",
    "RawVolumeConfig",
    "SwapVolumeConfig",
    "ExistingVolumeConfig",
    "LinkAliasConfig",
    "OOMConfig",
];

/// At most two strategic patches: the first deletes and sets, the second brings back what had to go first.
/// Both may also stand in one stream, since no document has values to merge in both.
///
/// The root document cannot be deleted; if the new configuration has none, that part is left out.
pub fn derive(old: &Documents, new: &Documents) -> Vec<String> {
    let mut first = Vec::new();
    let mut second = Vec::new();
    for document in old.iter().filter(|document| !matches!(document, Document::Config(_))) {
        if new.iter().all(|other| other.id() != document.id()) {
            first.push(with_identity(document, vec![marker()]));
        }
    }
    for document in new.iter() {
        let Some(before) = old.iter().find(|other| other.id() == document.id()) else {
            first.push(document.encode());
            continue;
        };
        if before == document {
            continue;
        }
        let change = kind_object(document.kind()).and_then(|info| {
            let rebuilt = REBUILT.contains(&document.kind());
            (!rebuilt).then(|| compare(&before.encode(), &document.encode(), info)).flatten()
        });
        let patch =
            |entries: Vec<(Node, Node)>| (!entries.is_empty()).then(|| with_identity(document, entries));
        match change {
            Some(change) if change.second.is_empty() => first.extend(patch(change.first)),
            Some(change) if matches!(document, Document::Config(_)) => {
                let (deletions, values) = split(change.first);
                first.extend(patch(deletions));
                second.extend(patch(join(values, change.second)));
            }
            _ => {
                first.push(with_identity(document, vec![marker()]));
                second.push(document.encode());
            }
        }
    }
    let emit = |nodes: Vec<Node>| ichor_yaml::emit_all(&nodes);
    [first, second].into_iter().filter(|nodes| !nodes.is_empty()).map(emit).collect()
}

fn marker() -> (Node, Node) {
    (Node::string("$patch"), Node::string("delete"))
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
    } else if entries
        .iter()
        .any(|(key, value)| key.as_str() == Some("version") && value.as_scalar().is_some())
    {
        // The version alone does not mark the root document, and deletions do not count.
        let named = |name: &str| entries.iter().any(|(key, _)| key.as_str() == Some(name));
        let free = ["debug", "persist", "machine", "cluster"].into_iter().find(|name| !named(name));
        all.extend(free.map(|name| (Node::string(name), Node::null())));
    }
    let identity = |key: &Node| all.iter().any(|(have, _)| have.as_str() == key.as_str());
    let entries: Vec<_> = entries.into_iter().filter(|(key, _)| !identity(key)).collect();
    all.extend(entries);
    Node::map(all)
}

/// Keys with their values.
type Entries = Vec<(Node, Node)>;

/// Parts deletions from values.
fn split(entries: Entries) -> (Entries, Entries) {
    let (mut deletions, mut values) = (Vec::new(), Vec::new());
    for (key, node) in entries {
        match node.value {
            Value::Map(below) if below.iter().any(|(name, _)| name.as_str() == Some("$patch")) => {
                deletions.push((key, Node::map(below)));
            }
            Value::Map(below) if !below.is_empty() => {
                let (gone, set) = split(below);
                if !gone.is_empty() {
                    deletions.push((key.clone(), Node::map(gone)));
                }
                if !set.is_empty() {
                    values.push((key, Node::map(set)));
                }
            }
            _ => values.push((key, node)),
        }
    }
    (deletions, values)
}

/// The entries of both; what both have are mappings, joined in turn.
fn join(mut left: Entries, right: Entries) -> Entries {
    for (key, node) in right {
        match (left.iter_mut().find(|(have, _)| have.as_str() == key.as_str()), node.value) {
            (Some((_, Node { value: Value::Map(have), .. })), Value::Map(more)) => {
                *have = join(std::mem::take(have), more);
            }
            (_, value) => left.push((key, Node::new(value))),
        }
    }
    left
}

/// Entries of the two patches.
#[derive(Default)]
struct Change {
    first: Vec<(Node, Node)>,
    second: Vec<(Node, Node)>,
}

impl Change {
    fn delete(&mut self, key: &Node) {
        self.first.push((key.clone(), Node::map(vec![marker()])));
    }

    /// Delete first, then bring the new value in.
    fn renew(&mut self, key: &Node, value: &Node) {
        self.delete(key);
        if !value.is_null() {
            self.second.push((key.clone(), value.clone()));
        }
    }

    fn below(&mut self, key: &Node, change: Change) {
        let mut put = |list: fn(&mut Self) -> &mut Vec<(Node, Node)>, entries: Vec<(Node, Node)>| {
            if !entries.is_empty() {
                list(self).push((key.clone(), Node::map(entries)));
            }
        };
        put(|change| &mut change.first, change.first);
        put(|change| &mut change.second, change.second);
    }
}

/// What leads from one object to another; nothing if something would have to be deleted that cannot be.
fn compare(old: &Node, new: &Node, info: &'static ObjectInfo) -> Option<Change> {
    let mut change = Change::default();
    for (key, value, before) in pairs(old, new) {
        let field = info.field(key.as_str().unwrap_or_default())?;
        let names: Vec<&str> = field.flags.iter().map(|(name, _)| *name).collect();
        if has_flag(&names, "shared") {
            return None;
        }
        compare_value(&mut change, key, before, value, &(field.shape)())?;
    }
    Some(change)
}

/// Keys whose values differ: the new value and the one before.
fn pairs<'a>(old: &'a Node, new: &'a Node) -> Vec<(&'a Node, Option<&'a Node>, Option<&'a Node>)> {
    let name = |key: &'a Node| key.as_str().unwrap_or_default();
    let entries = |node: &'a Node| node.as_map().unwrap_or_default();
    let gone = entries(old).iter().filter(|(key, _)| new.get(name(key)).is_none());
    let gone = gone.map(|(key, value)| (key, None, Some(value)));
    let kept = entries(new).iter().map(|(key, value)| (key, Some(value), old.get(name(key))));
    let text = |node: Option<&Node>| node.map(ichor_yaml::emit);
    gone.chain(kept).filter(|(_, value, before)| text(*value) != text(*before)).collect()
}

fn compare_value(
    change: &mut Change,
    key: &Node,
    before: Option<&Node>,
    value: Option<&Node>,
    shape: &Shape,
) -> Option<()> {
    let Some(value) = value else {
        change.delete(key);
        return Some(());
    };
    let before = before.filter(|before| !before.is_null());
    let Some(before) = before else {
        change.first.push((key.clone(), value.clone()));
        return Some(());
    };
    let filled = |node: &Node| matches!(&node.value, Value::Map(entries) if !entries.is_empty());
    let text = value.as_str().unwrap_or_default();
    match shape {
        // A pair is always taken from the patch as a whole.
        Shape::Object(info) if info.name.starts_with("Pem") && !value.is_null() => {
            change.first.push((key.clone(), value.clone()));
        }
        Shape::Object(info) if filled(before) && filled(value) => {
            let inner = compare(before, value, info)?;
            change.below(key, inner);
        }
        Shape::Map(shape) if filled(before) && filled(value) => {
            let mut inner = Change::default();
            for (key, value, before) in pairs(before, value) {
                compare_value(&mut inner, key, before, value, shape)?;
            }
            change.below(key, inner);
        }
        Shape::Bool if !value.is_null() => change.first.push((key.clone(), value.clone())),
        Shape::String if !text.is_empty() && !value.is_null() => {
            change.first.push((key.clone(), value.clone()))
        }
        Shape::Integer { .. } if text != "0" && !value.is_null() => {
            change.first.push((key.clone(), value.clone()));
        }
        // Lists append, URLs mix, zero does not overwrite, free-form parts cannot be reached.
        _ => change.renew(key, value),
    }
    Some(())
}
