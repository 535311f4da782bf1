//! JSON schema (draft 2020-12) of every document, for editors.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use super::all_kinds;
use crate::{
    document::{API_VERSION, ROOT_KIND},
    model::{ObjectInfo, Shape},
};

/// The schema of one document: the root document or any other kind.
pub fn schema() -> Json {
    let mut definitions: BTreeMap<String, Json> = BTreeMap::new();
    let mut alternatives = Vec::new();
    for (kind, object, named) in all_kinds() {
        let name = if kind == ROOT_KIND { "v1alpha1.Config".to_owned() } else { kind.to_owned() };
        let mut definition = object_schema(object, &mut definitions);
        if kind != ROOT_KIND {
            let head = [
                ("apiVersion", json!({ "enum": [API_VERSION], "title": "apiVersion" })),
                ("kind", json!({ "enum": [kind], "title": "kind" })),
            ];
            let properties = definition["properties"].as_object().cloned().unwrap_or_default();
            let head = head.into_iter().map(|(key, value)| (key.to_owned(), value));
            definition["properties"] = Json::Object(head.chain(properties).collect());
            let mut required = vec!["apiVersion", "kind"];
            if named {
                required.push("name");
            }
            definition["required"] = json!(required);
        }
        alternatives.push(json!({ "$ref": format!("#/$defs/{name}") }));
        definitions.insert(name, definition);
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": definitions,
        "oneOf": alternatives,
    })
}

/// Types are named with their module, since two may share a name.
fn definition_name(object: &'static ObjectInfo) -> String {
    let module = object.module.split("::").skip(1).collect::<Vec<_>>().join(".");
    format!("{module}.{}", object.name)
}

fn object_schema(object: &'static ObjectInfo, definitions: &mut BTreeMap<String, Json>) -> Json {
    let mut properties = Map::new();
    for field in object.fields {
        let mut value = shape_schema(&(field.shape)(), definitions);
        if let Some(entries) = value.as_object_mut() {
            entries.insert("title".to_owned(), json!(field.key));
            entries.insert("description".to_owned(), json!(field.doc.trim()));
            if let Some(instead) = field.deprecated() {
                entries.insert("deprecated".to_owned(), json!(true));
                let text = format!("{}\nDeprecated: {instead}.", field.doc.trim());
                entries.insert("description".to_owned(), json!(text));
            }
        }
        properties.insert(field.key.to_owned(), value);
    }
    json!({
        "type": "object",
        "description": object.doc.trim(),
        "properties": properties,
        "additionalProperties": false,
    })
}

fn shape_schema(shape: &Shape, definitions: &mut BTreeMap<String, Json>) -> Json {
    match shape {
        // Any scalar is text where text is wanted.
        Shape::String => json!({ "type": ["string", "number", "boolean", "null"] }),
        Shape::Bool => json!({ "type": ["boolean", "null"] }),
        Shape::Integer { min, max } => json!({ "type": ["integer", "null"], "minimum": min, "maximum": max }),
        Shape::Format(_) => json!({ "type": ["string", "number", "null"] }),
        Shape::Choice(texts) => {
            let texts: Vec<&str> = texts.iter().copied().filter(|text| !text.is_empty()).collect();
            json!({ "enum": texts })
        }
        Shape::Size => json!({ "type": ["string", "integer", "null"] }),
        Shape::Free => json!({ "type": ["object", "null"] }),
        Shape::List(item, _) => {
            let items = shape_schema(item, definitions);
            json!({ "type": ["array", "null"], "items": items })
        }
        Shape::Map(value) => {
            let values = shape_schema(value, definitions);
            json!({ "type": ["object", "null"], "additionalProperties": values })
        }
        Shape::Object(object) => {
            let name = definition_name(object);
            if !definitions.contains_key(&name) {
                let definition = object_schema(object, definitions);
                definitions.insert(name.clone(), definition);
            }
            json!({ "anyOf": [{ "$ref": format!("#/$defs/{name}") }, { "type": "null" }] })
        }
    }
}
