//! JSON values as YAML.

use ichor_yaml::Node;
use serde_json::Value;

/// The YAML of a value.
pub fn to_yaml(value: &Value) -> Node {
    match value {
        Value::Null => Node::plain("null"),
        Value::Bool(known) => Node::plain(known.to_string()),
        Value::Number(number) => Node::plain(number.to_string()),
        Value::String(text) => Node::string(text),
        Value::Array(items) => Node::seq(items.iter().map(to_yaml).collect()),
        Value::Object(map) => {
            Node::map(map.iter().map(|(key, value)| (Node::string(key), to_yaml(value))).collect())
        }
    }
}

/// The value with the keys of every object in order.
pub fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<(String, Value)> =
                map.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            entries.sort_by(|(a, _), (b, _)| a.cmp(b));
            Value::Object(entries.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}
