//! The schema accepts what the decoder accepts, and refuses what it can see is wrong.

use std::{fs, path::PathBuf};

use ichor_config::{describe, model::FreeValue};
use serde_json::{Value as Json, json};

/// Checks a value against the part of the schema language that our schema uses.
fn accepts(schema: &Json, root: &Json, value: &Json) -> bool {
    let keyword = |name: &str| schema.get(name);
    if let Some(reference) = keyword("$ref").and_then(Json::as_str) {
        let target = root.pointer(reference.trim_start_matches('#')).expect("a definition");
        return accepts(target, root, value);
    }
    let is = |name: &str| match name {
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("type {other}"),
    };
    let type_fits = match keyword("type") {
        None => true,
        Some(Json::String(name)) => is(name),
        Some(Json::Array(names)) => names.iter().filter_map(Json::as_str).any(is),
        Some(other) => panic!("type {other}"),
    };
    let bound =
        |name: &str, test: fn(f64, f64) -> bool| match (keyword(name).and_then(Json::as_f64), value.as_f64())
        {
            (Some(bound), Some(number)) => test(number, bound),
            _ => true,
        };
    let listed = keyword("enum").and_then(Json::as_array).is_none_or(|values| values.contains(value));
    let items = match (keyword("items"), value.as_array()) {
        (Some(schema), Some(items)) => items.iter().all(|item| accepts(schema, root, item)),
        _ => true,
    };
    let entries = value.as_object().is_none_or(|object| {
        let required = keyword("required").and_then(Json::as_array);
        let present = required
            .is_none_or(|names| names.iter().filter_map(Json::as_str).all(|n| object.contains_key(n)));
        let properties = keyword("properties").and_then(Json::as_object);
        present
            && object.iter().all(|(key, value)| match properties.and_then(|all| all.get(key)) {
                Some(schema) => accepts(schema, root, value),
                None => match keyword("additionalProperties") {
                    None | Some(Json::Bool(true)) => true,
                    Some(Json::Bool(false)) => false,
                    Some(schema) => accepts(schema, root, value),
                },
            })
    });
    let any = keyword("anyOf")
        .and_then(Json::as_array)
        .is_none_or(|all| all.iter().any(|s| accepts(s, root, value)));
    let one = keyword("oneOf")
        .and_then(Json::as_array)
        .is_none_or(|all| all.iter().filter(|s| accepts(s, root, value)).count() == 1);
    type_fits
        && listed
        && bound("minimum", |number, bound| number >= bound)
        && bound("maximum", |number, bound| number <= bound)
        && items
        && entries
        && any
        && one
}

fn documents(text: &str) -> Vec<Json> {
    let documents = ichor_yaml::parse(text).unwrap();
    documents.iter().map(|document| FreeValue::from_node(&document.root).to_json()).collect()
}

fn fixtures(directory: &str) -> Vec<(String, String)> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(directory);
    let mut files = Vec::new();
    let mut open = vec![root];
    while let Some(path) = open.pop() {
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                files.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    files
}

#[test]
fn every_fixture_fits_the_schema() {
    let schema = describe::schema();
    let mut count = 0;
    for directory in ["types", "decode", "generate/v1.12", "strategic-merge", "patch"] {
        for (name, text) in fixtures(directory) {
            // Patches are not whole configurations, and operations are none at all.
            if directory == "patch" && !name.ends_with("config.yaml") && !name.ends_with("expected.yaml") {
                continue;
            }
            // What is left out of a document altogether has no kind of its own.
            for document in documents(&text) {
                assert!(accepts(&schema, &schema, &document), "{name}");
                count += 1;
            }
        }
    }
    assert!(count > 60, "{count} documents");
}

#[test]
fn wrong_documents_do_not_fit() {
    let schema = describe::schema();
    for document in [
        json!({ "machine": { "typo": 1 } }),
        json!({ "machine": { "certSANs": "a" } }),
        json!({ "debug": "yes" }),
        json!({ "apiVersion": "v1alpha1", "kind": "Nothing" }),
        json!({ "apiVersion": "v1alpha1", "kind": "HostnameConfig", "auto": "perhaps" }),
        json!({ "apiVersion": "v1alpha1", "kind": "LinkConfig" }),
        json!({ "apiVersion": "v1alpha1", "kind": "VLANConfig", "name": "a", "vlanID": 70000 }),
        json!(["a"]),
    ] {
        assert!(!accepts(&schema, &schema, &document), "{document}");
    }
}
