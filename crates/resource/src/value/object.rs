//! Free-form objects: `google.protobuf.Struct` on the wire, any YAML mapping for people.

use serde_json::{Map, Number, Value as Json};

use super::numbers::float_text;
use super::wire::{put_bytes, put_key, put_nested, put_number};
use super::{Field, Reader, Sampler, Value, WireError, Yaml};

/// Deeper objects are refused, so that nobody can exhaust the stack.
const DEPTH_MAX: usize = 100;

/// An object of any shape.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Object(pub Map<String, Json>);

impl From<Map<String, Json>> for Object {
    fn from(map: Map<String, Json>) -> Self {
        Self(map)
    }
}

impl Value for Object {
    fn proto_type() -> String {
        "google.protobuf.Struct".into()
    }

    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        put_nested(tag, out, |out| put_struct(&self.0, out));
    }

    fn merge(&mut self, field: Field<'_>) -> Result<(), WireError> {
        read_struct(field.bytes()?, &mut self.0, 0)
    }

    fn yaml(&self, yaml: &mut Yaml<'_>) {
        yaml_object(&self.0, yaml);
    }

    fn sample(sampler: &mut Sampler) -> Self {
        let text = sampler.text();
        let number = sampler.number();
        Self(Map::from_iter([
            ("kind".to_owned(), Json::from(text)),
            ("count".to_owned(), Json::from(number)),
            ("ratio".to_owned(), Json::from(f64::from(number) + 0.5)),
            ("on".to_owned(), Json::from(true)),
            ("nothing".to_owned(), Json::Null),
            ("list".to_owned(), Json::from(vec!["a", "b"])),
            ("empty".to_owned(), Json::Object(Map::new())),
            (
                "nested".to_owned(),
                Json::from(vec![Json::Object(Map::from_iter([(
                    "x".to_owned(),
                    Json::from(sampler.text()),
                )]))]),
            ),
        ]))
    }
}

/// Writes a JSON object as a YAML mapping, keys in natural order.
pub fn yaml_object(map: &Map<String, Json>, yaml: &mut Yaml<'_>) {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by(|a, b| ichor_types::natural::compare(a.0, b.0));
    let mut frame = yaml.begin();
    for (key, value) in entries {
        yaml.string_key(&mut frame, key);
        yaml_json(value, yaml);
    }
    yaml.end_map(frame);
}

fn yaml_json(value: &Json, yaml: &mut Yaml<'_>) {
    match value {
        Json::Null => yaml.plain("null"),
        Json::Bool(value) => value.yaml(yaml),
        Json::Number(number) => yaml.plain(&number_text(number)),
        Json::String(text) => yaml.string(text),
        Json::Array(items) => {
            let mut frame = yaml.begin();
            for item in items {
                yaml.item(&mut frame);
                yaml_json(item, yaml);
            }
            yaml.end_list(frame);
        }
        Json::Object(map) => yaml_object(map, yaml),
    }
}

fn number_text(number: &Number) -> String {
    match number.as_f64() {
        Some(value) if number.is_f64() => float_text(value),
        _ => number.to_string(),
    }
}

fn put_struct(map: &Map<String, Json>, out: &mut Vec<u8>) {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by(|a, b| a.0.cmp(b.0));
    for (key, value) in entries {
        put_nested(1, out, |out| {
            put_bytes(1, key.as_bytes(), out);
            put_nested(2, out, |out| put_json(value, out));
        });
    }
}

fn put_json(value: &Json, out: &mut Vec<u8>) {
    match value {
        Json::Null => put_number(1, 0, out),
        Json::Number(number) => {
            put_key(2, 1, out);
            out.extend_from_slice(&number.as_f64().unwrap_or(0.0).to_le_bytes());
        }
        Json::String(text) => put_bytes(3, text.as_bytes(), out),
        Json::Bool(value) => put_number(4, u64::from(*value), out),
        Json::Object(map) => put_nested(5, out, |out| put_struct(map, out)),
        Json::Array(items) => put_nested(6, out, |out| {
            for item in items {
                put_nested(1, out, |out| put_json(item, out));
            }
        }),
    }
}

fn read_struct(bytes: &[u8], map: &mut Map<String, Json>, depth: usize) -> Result<(), WireError> {
    if depth > DEPTH_MAX {
        return Err(WireError::Value(format!("an object is nested more than {DEPTH_MAX} levels deep")));
    }
    let mut reader = Reader::new(bytes);
    while let Some((tag, field)) = reader.next_field()? {
        if tag != 1 {
            continue;
        }
        let (mut key, mut value) = (String::new(), Json::Null);
        let mut entry = Reader::new(field.bytes()?);
        while let Some((tag, field)) = entry.next_field()? {
            match tag {
                1 => field.text()?.clone_into(&mut key),
                2 => value = read_json(field.bytes()?, depth + 1)?,
                _ => {}
            }
        }
        map.insert(key, value);
    }
    Ok(())
}

fn read_json(bytes: &[u8], depth: usize) -> Result<Json, WireError> {
    if depth > DEPTH_MAX {
        return Err(WireError::Value(format!("an object is nested more than {DEPTH_MAX} levels deep")));
    }
    let mut value = Json::Null;
    let mut reader = Reader::new(bytes);
    while let Some((tag, field)) = reader.next_field()? {
        value = match (tag, field) {
            (1, _) => Json::Null,
            (2, Field::Fixed64(bits)) => number(f64::from_bits(bits)),
            (3, _) => Json::String(field.text()?.to_owned()),
            (4, _) => Json::Bool(field.varint()? != 0),
            (5, _) => {
                let mut map = Map::new();
                read_struct(field.bytes()?, &mut map, depth + 1)?;
                Json::Object(map)
            }
            (6, _) => {
                let mut items = Vec::new();
                let mut reader = Reader::new(field.bytes()?);
                while let Some((tag, field)) = reader.next_field()? {
                    if tag == 1 {
                        items.push(read_json(field.bytes()?, depth + 1)?);
                    }
                }
                Json::Array(items)
            }
            _ => value,
        };
    }
    Ok(value)
}

/// The wire knows doubles only; whole ones were integers.
fn number(value: f64) -> Json {
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() <= EXACT_MAX {
        Json::from(value as i64)
    } else {
        Number::from_f64(value).map_or(Json::Null, Json::Number)
    }
}
