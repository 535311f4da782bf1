//! The commented form: a description beside each key and samples of keys that are not set.

use ichor_yaml::{Node, Value};

use crate::{
    document::{self, Document},
    documents::CommentMode,
    model::{Field, FieldInfo, ObjectInfo, Shape},
    v1alpha1,
};

/// The tree of a document with comments from the descriptions.
pub(crate) fn annotate(document: &Document, mode: CommentMode) -> Node {
    let mut node = document.encode();
    if let Document::Config(config) = document {
        keep_empty_lists(&mut node, config);
    }
    let info = match document {
        Document::Config(_) => &v1alpha1::Config::INFO,
        other => match document::kind_info(other.kind()) {
            Some(kind) => kind.object,
            None => return node,
        },
    };
    annotate_object(&mut node, info, mode);
    node
}

/// Lists that are there but empty are shown in this form, so that people see where to add to them.
fn keep_empty_lists(node: &mut Node, config: &v1alpha1::Config) {
    if let Some(cluster) = &config.cluster {
        let lists = [
            (
                "extraManifests",
                cluster.extra_manifests.is_present() && Field::is_empty(&cluster.extra_manifests),
            ),
            (
                "inlineManifests",
                cluster.inline_manifests.is_present() && Field::is_empty(&cluster.inline_manifests),
            ),
        ];
        for (key, empty) in lists {
            if empty {
                insert_in_order(node, "cluster", &v1alpha1::ClusterConfig::INFO, key);
            }
        }
    }
    if let Some(machine) = &config.machine
        && machine.seccomp_profiles.is_present()
        && Field::is_empty(&machine.seccomp_profiles)
    {
        insert_in_order(node, "machine", &v1alpha1::MachineConfig::INFO, "seccompProfiles");
    }
}

fn insert_in_order(root: &mut Node, section: &str, info: &ObjectInfo, key: &str) {
    let Value::Map(sections) = &mut root.value else { return };
    let Some((_, body)) = sections.iter_mut().find(|(name, _)| name.as_str() == Some(section)) else {
        return;
    };
    let Value::Map(entries) = &mut body.value else { return };
    let rank = |key: Option<&str>| info.fields.iter().position(|field| Some(field.key) == key);
    let at =
        entries.iter().position(|(name, _)| rank(name.as_str()) > rank(Some(key))).unwrap_or(entries.len());
    entries.insert(at, (Node::string(key), Node::seq(Vec::new())));
}

fn annotate_object(node: &mut Node, info: &'static ObjectInfo, mode: CommentMode) {
    let Value::Map(entries) = &mut node.value else { return };
    for (key, value) in entries.iter_mut() {
        let Some(field) = key.as_str().and_then(|key| info.field(key)) else { continue };
        annotate_value(value, &(field.shape)(), mode);
        if matches!(mode, CommentMode::Docs | CommentMode::All) {
            let text = field.summary();
            let comments = key.comments.get_or_insert_default();
            // Behind the last line of a block a comment would be part of the text.
            let one_line = value.as_str().is_some_and(|text| !text.contains('\n'));
            if one_line { comments.line = text } else { comments.head = text }
        }
    }
    if matches!(mode, CommentMode::Examples | CommentMode::All) {
        let set = |field: &&FieldInfo| entries.iter().any(|(key, _)| key.as_str() == Some(field.key));
        let missing = info.fields.iter().filter(|field| !set(field) && field.deprecated().is_none());
        let samples: Vec<String> = missing.filter_map(sample).collect();
        if let Some((last, _)) = entries.last_mut().filter(|_| !samples.is_empty()) {
            last.comments.get_or_insert_default().foot = format!("\n{}", samples.join("\n\n"));
        }
    }
}

/// A key that is not set, as commented text.
fn sample(field: &FieldInfo) -> Option<String> {
    let example = field.flag("example")?;
    let summary = field.summary();
    let lines = std::iter::once(format!("# {summary}")).chain(example.lines().map(str::to_owned));
    Some(lines.collect::<Vec<_>>().join("\n"))
}

fn annotate_value(node: &mut Node, shape: &Shape, mode: CommentMode) {
    match (shape, &mut node.value) {
        (Shape::Object(info), _) => annotate_object(node, info, mode),
        (Shape::List(item, _), Value::Seq(items)) => {
            items.iter_mut().for_each(|node| annotate_value(node, item, mode));
        }
        (Shape::Map(value), Value::Map(entries)) => {
            entries.iter_mut().for_each(|(_, node)| annotate_value(node, value, mode));
            entries.sort_by(|(a, _), (b, _)| a.as_str().cmp(&b.as_str()));
        }
        _ => {}
    }
}
