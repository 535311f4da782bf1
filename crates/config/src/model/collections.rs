//! Lists and maps; whether they append, replace or match by key is part of their type.

use std::{collections::BTreeMap, ops::Deref};

use ichor_types::natural;
use ichor_yaml::Node;

use super::{Decoder, DeleteError, DeleteStep, Field, MergeError, Shape, shape::ListMerge};

/// A list to which a patch appends. Absent and empty are told apart, but equal in meaning.
#[derive(Clone, Debug)]
pub struct List<T>(pub Option<Vec<T>>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Deref for List<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl<T: PartialEq> PartialEq for List<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T> From<Vec<T>> for List<T> {
    fn from(items: Vec<T>) -> Self {
        Self(Some(items))
    }
}

impl<T> FromIterator<T> for List<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Self(Some(items.into_iter().collect()))
    }
}

impl<T> List<T> {
    /// The items, made present if absent.
    pub fn items_mut(&mut self) -> &mut Vec<T> {
        self.0.get_or_insert_default()
    }

    /// True if the key was written at all.
    pub fn is_present(&self) -> bool {
        self.0.is_some()
    }
}

impl<T: Field> Field for List<T> {
    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        if node.is_null() {
            return Self::default();
        }
        let Some(items) = node.as_seq() else {
            decoder.mismatch(node, "a list");
            return Self::default();
        };
        let mut out = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            decoder.at_index(index, |decoder| {
                if T::IS_OBJECT && item.is_null() {
                    let message = format!("{} is null", decoder.path());
                    decoder.problem(item.span, message, None);
                } else {
                    out.push(T::decode(item, decoder));
                }
            });
        }
        Self(Some(out))
    }

    fn encode(&self) -> Node {
        Node::seq(self.iter().map(Field::encode).collect())
    }

    fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(Vec::is_empty)
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        if let Some(more) = &right.0 {
            self.items_mut().extend(more.iter().cloned());
        }
        Ok(())
    }

    fn take_present(&mut self, right: &Self) {
        if right.0.is_some() {
            self.clone_from(right);
        }
    }

    fn delete(&mut self, path: &[DeleteStep]) -> Result<(), DeleteError> {
        let [DeleteStep::Item { key, value }, rest @ ..] = path else {
            return Err(if path.len() > 1 { DeleteError::ComplexPath } else { DeleteError::NotAnItem });
        };
        if !rest.is_empty() {
            return Err(DeleteError::ComplexPath);
        }
        let items = self.0.as_mut().ok_or(DeleteError::LookupFailed)?;
        let found = items.iter().position(|item| item.member_text(key) == Some(value));
        items.remove(found.ok_or(DeleteError::LookupFailed)?);
        Ok(())
    }

    fn shape() -> Shape {
        Shape::List(Box::new(T::shape()), ListMerge::Append)
    }
}

/// A value that a patch replaces as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replace<T>(pub T);

impl<T> Deref for Replace<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> From<T> for Replace<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

impl<T: Field> Field for Replace<T> {
    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        Self(T::decode(node, decoder))
    }

    fn encode(&self) -> Node {
        self.0.encode()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        self.0.take_present(&right.0);
        Ok(())
    }

    fn delete(&mut self, path: &[DeleteStep]) -> Result<(), DeleteError> {
        self.0.delete(path)
    }

    fn shape() -> Shape {
        match T::shape() {
            Shape::List(item, _) => Shape::List(item, ListMerge::Replace),
            other => other,
        }
    }
}

/// An item of a list that a patch matches by key.
pub trait Keyed {
    /// Names of the members that make the key, for documentation.
    const KEY: &'static str;

    /// True if both are the same item.
    fn same_item(&self, other: &Self) -> bool;
}

/// A list whose items a patch matches by key; unmatched ones are appended.
#[derive(Clone, Debug)]
pub struct KeyedList<T>(pub List<T>);

impl<T> Default for KeyedList<T> {
    fn default() -> Self {
        Self(List::default())
    }
}

impl<T> Deref for KeyedList<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: PartialEq> PartialEq for KeyedList<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T> From<Vec<T>> for KeyedList<T> {
    fn from(items: Vec<T>) -> Self {
        Self(items.into())
    }
}

impl<T: Field + Keyed> Field for KeyedList<T> {
    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        Self(List::decode(node, decoder))
    }

    fn encode(&self) -> Node {
        self.0.encode()
    }

    fn is_empty(&self) -> bool {
        Field::is_empty(&self.0)
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        let Some(more) = &right.0.0 else { return Ok(()) };
        let items = self.0.items_mut();
        for item in more {
            match items.iter_mut().find(|have| have.same_item(item)) {
                Some(have) => have.merge(item)?,
                None => items.push(item.clone()),
            }
        }
        Ok(())
    }

    fn delete(&mut self, path: &[DeleteStep]) -> Result<(), DeleteError> {
        self.0.delete(path)
    }

    fn shape() -> Shape {
        Shape::List(Box::new(T::shape()), ListMerge::ByKey(T::KEY))
    }
}

/// A mapping with free keys, written in natural order.
#[derive(Clone, Debug)]
pub struct Map<V>(pub Option<BTreeMap<String, V>>);

impl<V> Default for Map<V> {
    fn default() -> Self {
        Self(None)
    }
}

impl<V: PartialEq> PartialEq for Map<V> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<V> Map<V> {
    /// The value under a key.
    pub fn get(&self, key: &str) -> Option<&V> {
        self.0.as_ref()?.get(key)
    }

    /// All entries, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &V)> {
        self.0.iter().flatten()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, BTreeMap::len)
    }

    /// True if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entries, made present if absent.
    pub fn entries_mut(&mut self) -> &mut BTreeMap<String, V> {
        self.0.get_or_insert_default()
    }
}

impl<V> FromIterator<(String, V)> for Map<V> {
    fn from_iter<I: IntoIterator<Item = (String, V)>>(entries: I) -> Self {
        Self(Some(entries.into_iter().collect()))
    }
}

impl<V: Field> Field for Map<V> {
    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        if node.is_null() {
            return Self::default();
        }
        let Some(entries) = decoder.mapping(node) else { return Self::default() };
        let mut out = BTreeMap::new();
        for (key, value) in entries {
            let Some(name) = decoder.text(key, "string") else { continue };
            decoder.at_key(name, |decoder| {
                if V::IS_OBJECT && value.is_null() {
                    let message = match decoder.path().0.split_last() {
                        Some((_, above)) => {
                            format!("{}[{name:?}] is null", super::Path(above.to_vec()))
                        }
                        None => format!("{name:?} is null"),
                    };
                    let message = message
                        .strip_prefix("machine.registries")
                        .map_or(message.clone(), |rest| format!("registries{rest}"));
                    decoder.problem(key.span, message, None);
                } else {
                    out.insert(name.to_owned(), V::decode(value, decoder));
                }
            });
        }
        Self(Some(out))
    }

    fn encode(&self) -> Node {
        let mut entries: Vec<(&String, &V)> = self.iter().collect();
        entries.sort_by(|(a, _), (b, _)| natural::compare(a, b));
        Node::map(
            entries.into_iter().map(|(key, value)| (Node::string(key.as_str()), value.encode())).collect(),
        )
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        let Some(more) = &right.0 else { return Ok(()) };
        let entries = self.entries_mut();
        for (key, value) in more {
            match entries.get_mut(key) {
                Some(have) => have.merge(value).map_err(|error| error.below(key))?,
                None => {
                    entries.insert(key.clone(), value.clone());
                }
            }
        }
        Ok(())
    }

    fn delete(&mut self, path: &[DeleteStep]) -> Result<(), DeleteError> {
        let [DeleteStep::Key(key), rest @ ..] = path else { return Err(DeleteError::LookupFailed) };
        let entries = self.0.as_mut().ok_or(DeleteError::LookupFailed)?;
        if rest.is_empty() {
            return entries.remove(key).map(|_| ()).ok_or(DeleteError::LookupFailed);
        }
        entries.get_mut(key).ok_or(DeleteError::LookupFailed)?.delete(rest)
    }

    fn shape() -> Shape {
        Shape::Map(Box::new(V::shape()))
    }
}
