//! The YAML of a resource as a JSON value.

use ichor_yaml::{Node, Resolved, Style, Value as Yaml, resolve};
use serde_json::{Map, Number, Value};

/// The value of a YAML text of one document; text that is none is null.
pub fn parse(text: &str) -> Value {
    let documents = ichor_yaml::parse(text).unwrap_or_default();
    documents.first().map_or(Value::Null, |document| value(&document.root))
}

/// The value of a node.
pub fn value(node: &Node) -> Value {
    match &node.value {
        Yaml::Seq(items) => Value::Array(items.iter().map(value).collect()),
        Yaml::Map(entries) => {
            let pairs =
                entries.iter().map(|(key, item)| (key.as_str().unwrap_or_default().to_owned(), value(item)));
            Value::Object(pairs.collect::<Map<_, _>>())
        }
        Yaml::Scalar(scalar) if scalar.style == Style::Plain && scalar.tag.is_none() => {
            match resolve(&scalar.text) {
                Resolved::Null => Value::Null,
                Resolved::Bool(known) => Value::Bool(known),
                Resolved::Int(number) => Value::Number(number.into()),
                Resolved::Uint(number) => Value::Number(number.into()),
                Resolved::Float(number) => Number::from_f64(number).map_or(Value::Null, Value::Number),
                Resolved::Timestamp | Resolved::Merge | Resolved::Str => Value::String(scalar.text.clone()),
            }
        }
        Yaml::Scalar(scalar) => Value::String(scalar.text.clone()),
    }
}
