//! Lists, maps and values that may be missing.

use std::collections::BTreeMap;

use super::wire::put_nested;
use super::{Field, Reader, Sampler, Value, WireError, Yaml};

impl<T: Value> Value for Vec<T> {
    fn proto_type() -> String {
        format!("[]{}", T::proto_type())
    }

    fn is_zero(&self) -> bool {
        self.is_empty()
    }

    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        if !self.is_empty() {
            T::put_all(self, tag, out);
        }
    }

    fn merge(&mut self, field: Field<'_>) -> Result<(), WireError> {
        T::merge_all(self, field)
    }

    fn yaml(&self, yaml: &mut Yaml<'_>) {
        let mut frame = yaml.begin();
        for item in self {
            yaml.item(&mut frame);
            item.yaml(yaml);
        }
        yaml.end_list(frame);
    }

    fn sample(sampler: &mut Sampler) -> Self {
        vec![T::sample(sampler), T::sample(sampler)]
    }
}

/// A value that may be missing: `null` in YAML, and on the wire even when it is zero.
impl<T: Value> Value for Option<T> {
    fn proto_type() -> String {
        T::proto_type()
    }

    fn is_zero(&self) -> bool {
        self.is_none()
    }

    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        if let Some(value) = self {
            value.put(tag, out);
        }
    }

    fn merge(&mut self, field: Field<'_>) -> Result<(), WireError> {
        self.get_or_insert_default().merge(field)
    }

    fn yaml(&self, yaml: &mut Yaml<'_>) {
        match self {
            Some(value) => value.yaml(yaml),
            None => yaml.plain("null"),
        }
    }

    fn sample(sampler: &mut Sampler) -> Self {
        Some(T::sample(sampler))
    }
}

impl<T: Value> Value for BTreeMap<String, T> {
    fn proto_type() -> String {
        format!("map<string,{}>", T::proto_type())
    }

    fn is_zero(&self) -> bool {
        self.is_empty()
    }

    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        for (key, value) in self {
            put_nested(tag, out, |out| {
                key.put(1, out);
                value.put(2, out);
            });
        }
    }

    fn merge(&mut self, field: Field<'_>) -> Result<(), WireError> {
        let (mut key, mut value) = (String::new(), T::default());
        let mut reader = Reader::new(field.bytes()?);
        while let Some((tag, field)) = reader.next_field()? {
            match tag {
                1 => key.merge(field)?,
                2 => value.merge(field)?,
                _ => {}
            }
        }
        self.insert(key, value);
        Ok(())
    }

    fn yaml(&self, yaml: &mut Yaml<'_>) {
        let mut entries: Vec<_> = self.iter().collect();
        entries.sort_by(|a, b| ichor_types::natural::compare(a.0, b.0));
        let mut frame = yaml.begin();
        for (key, value) in entries {
            yaml.string_key(&mut frame, key);
            value.yaml(yaml);
        }
        yaml.end_map(frame);
    }

    fn sample(sampler: &mut Sampler) -> Self {
        BTreeMap::from([(sampler.key(), T::sample(sampler)), (sampler.key(), T::sample(sampler))])
    }
}
