//! YAML of resources as JSON values.

use ichor_yaml::{Node, Resolved, Style, Value as Yaml, resolve};
use serde_json::{Map, Number, Value};

/// The JSON value of a YAML node.
pub fn from_yaml(node: &Node) -> Value {
    match &node.value {
        Yaml::Seq(items) => Value::Array(items.iter().map(from_yaml).collect()),
        Yaml::Map(entries) => {
            let mut map = Map::with_capacity(entries.len());
            for (key, value) in entries {
                map.insert(key.as_str().unwrap_or_default().to_owned(), from_yaml(value));
            }
            Value::Object(map)
        }
        Yaml::Scalar(scalar) if scalar.style == Style::Plain && scalar.tag.is_none() => {
            match resolve(&scalar.text) {
                Resolved::Null => Value::Null,
                Resolved::Bool(value) => Value::Bool(value),
                Resolved::Int(value) => Value::Number(value.into()),
                Resolved::Uint(value) => Value::Number(value.into()),
                Resolved::Float(value) => Number::from_f64(value).map_or(Value::Null, Value::Number),
                Resolved::Timestamp | Resolved::Merge | Resolved::Str => Value::String(scalar.text.clone()),
            }
        }
        Yaml::Scalar(scalar) => Value::String(scalar.text.clone()),
    }
}

/// The JSON value of a YAML text of one document; empty text is null.
pub fn from_yaml_text(text: &str) -> Result<Value, ichor_yaml::Error> {
    let documents = ichor_yaml::parse(text)?;
    Ok(documents.first().map_or(Value::Null, |document| from_yaml(&document.root)))
}
