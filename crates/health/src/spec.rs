//! The YAML of a resource as a JSON value.

use serde_json::Value;

/// The value of a YAML text of one document; text that is none is null.
pub fn parse(text: &str) -> Value {
    let documents = ichor_yaml::parse(text).unwrap_or_default();
    documents.first().map_or(Value::Null, |document| ichor_kube::manifest::to_json(&document.root))
}
