//! Manifests: YAML to the objects in it.

use ichor_yaml::resolve::Resolved;
use ichor_yaml::{Node, Value as Yaml};
use serde_json::{Map, Number, Value};

/// A manifest that is none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// No YAML.
    #[error(transparent)]
    Yaml(ichor_yaml::Error),
    /// A document that is no object of Kubernetes.
    #[error("line {line}: {text}")]
    Object {
        /// Where it begins.
        line: u32,
        /// What it lacks.
        text: &'static str,
    },
}

/// The objects of a stream of documents. Empty documents are left out, lists are taken apart.
///
/// # Errors
/// When it is no YAML, or something in it is no object.
pub fn parse(text: &str) -> Result<Vec<Value>, ManifestError> {
    let mut objects = Vec::new();
    for document in ichor_yaml::parse(text).map_err(ManifestError::Yaml)? {
        if document.root.is_null() {
            continue;
        }
        let line = document.root.span.line;
        push(to_json(&document.root), line, &mut objects)?;
    }
    Ok(objects)
}

fn push(object: Value, line: u32, objects: &mut Vec<Value>) -> Result<(), ManifestError> {
    let bad = |text| Err(ManifestError::Object { line, text });
    let Value::Object(mut map) = object else { return bad("an object of Kubernetes is a mapping") };
    if map.is_empty() {
        return Ok(());
    }
    let kind = match map.get("kind").and_then(Value::as_str) {
        Some(kind) if !kind.is_empty() => kind.to_owned(),
        _ => return bad("kind is missing"),
    };
    if !map.get("apiVersion").is_some_and(Value::is_string) {
        return bad("apiVersion is missing");
    }
    if kind.ends_with("List") && map.get("items").is_some_and(Value::is_array) {
        if let Some(Value::Array(items)) = map.remove("items") {
            for item in items {
                push(item, line, objects)?;
            }
        }
        return Ok(());
    }
    objects.push(Value::Object(map));
    Ok(())
}

/// A tree of YAML as JSON, as the tools of Kubernetes see it.
pub fn to_json(node: &Node) -> Value {
    match &node.value {
        Yaml::Seq(items) => Value::Array(items.iter().map(to_json).collect()),
        Yaml::Map(entries) => {
            let entries = entries
                .iter()
                .map(|(key, value)| (key.as_str().unwrap_or_default().to_owned(), to_json(value)));
            Value::Object(entries.collect::<Map<_, _>>())
        }
        Yaml::Scalar(scalar) => match scalar.resolve() {
            Resolved::Null => Value::Null,
            Resolved::Bool(value) => Value::Bool(value),
            Resolved::Int(value) => value.into(),
            Resolved::Uint(value) => value.into(),
            Resolved::Float(value) => Number::from_f64(value).map_or(Value::Null, Value::Number),
            Resolved::Timestamp | Resolved::Merge | Resolved::Str => Value::String(scalar.text.clone()),
        },
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Expect) {
        let shown = match parse(text) {
            Ok(objects) => objects.iter().map(|object| format!("{object}\n")).collect(),
            Err(error) => format!("error: {error}"),
        };
        expect.assert_eq(&shown);
    }

    #[test]
    fn documents_become_objects_and_lists_are_taken_apart() {
        check(
            "# nothing but words\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {n: 1, s: \"1\", b: true, z: ~}\n---\n---\n\
             apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Secret, metadata: {name: b}}\n- {apiVersion: v1, kind: ConfigMapList, items: []}\n",
            expect![[r#"
                {"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"n":1,"s":"1","b":true,"z":null}}
                {"apiVersion":"v1","kind":"Secret","metadata":{"name":"b"}}
            "#]],
        );
    }

    #[test]
    fn what_is_no_object_is_named() {
        check("apiVersion: v1\nkind: A\n---\nkind: Pod\n", expect!["error: line 4: apiVersion is missing"]);
        check("- a\n", expect!["error: line 1: an object of Kubernetes is a mapping"]);
    }
}
