//! Plain values: text, booleans, numbers, durations, and what may be absent.

use base64::{Engine, engine::general_purpose::STANDARD};
use ichor_types::GoDuration;
use ichor_yaml::{Node, Resolved, resolve};

use super::{Decoder, DeleteError, DeleteStep, Field, MergeError, Shape};

impl Field for String {
    /// Any scalar is text as it was written, so that `1` and `true` survive in arguments and sysctls.
    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        if node.is_null() {
            return String::new();
        }
        let text = decoder.text(node, "string").unwrap_or_default();
        if node.tag() == "!!binary" {
            let bytes = STANDARD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            return bytes.unwrap_or_else(|| {
                decoder.problem(node.span, "!!binary value contains invalid base64 data".to_owned(), None);
                String::new()
            });
        }
        text.to_owned()
    }

    fn encode(&self) -> Node {
        Node::string(self.as_str())
    }

    fn is_empty(&self) -> bool {
        self.as_str().is_empty()
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        if !right.as_str().is_empty() {
            self.clone_from(right);
        }
        Ok(())
    }

    fn merge_present(&mut self, right: &Self) -> Result<(), MergeError> {
        self.clone_from(right);
        Ok(())
    }

    fn member_text(&self, _key: &str) -> Option<&str> {
        Some(self)
    }

    fn shape() -> Shape {
        Shape::String
    }
}

impl Field for bool {
    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        if node.is_null() {
            return false;
        }
        let scalar = node.as_scalar();
        if let Some(Resolved::Bool(value)) = scalar.map(|scalar| scalar.resolve()) {
            return value;
        }
        // A typed target also takes the words of YAML 1.1, as long as they are bare.
        if let Some(value) =
            scalar.filter(|_| !Decoder::is_quoted(node)).and_then(|s| resolve::old_bool(&s.text))
        {
            return value;
        }
        decoder.mismatch(node, "bool");
        false
    }

    fn encode(&self) -> Node {
        Node::bool(*self)
    }

    fn is_empty(&self) -> bool {
        !*self
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        *self = *right;
        Ok(())
    }

    fn shape() -> Shape {
        Shape::Bool
    }
}

/// The whole number a scalar stands for.
fn whole(node: &Node) -> Option<i128> {
    match node.as_scalar()?.resolve() {
        Resolved::Int(value) => Some(i128::from(value)),
        Resolved::Uint(value) => Some(i128::from(value)),
        Resolved::Float(value) if value.is_finite() && value.abs() < 1e18 => Some(value as i128),
        _ => None,
    }
}

macro_rules! integer {
    ($($ty:ident as $name:literal),*) => { $(
        impl Field for $ty {
            fn decode(node: &Node, decoder: &mut Decoder) -> Self {
                if node.is_null() {
                    return 0;
                }
                match whole(node).map($ty::try_from) {
                    Some(Ok(value)) => value,
                    _ => {
                        decoder.mismatch(node, $name);
                        0
                    }
                }
            }

            fn encode(&self) -> Node {
                Node::plain(self.to_string())
            }

            fn is_empty(&self) -> bool {
                *self == 0
            }

            fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
                if *right != 0 {
                    *self = *right;
                }
                Ok(())
            }

            fn merge_present(&mut self, right: &Self) -> Result<(), MergeError> {
                *self = *right;
                Ok(())
            }

            #[allow(clippy::unnecessary_cast)]
            fn shape() -> Shape {
                Shape::Integer { min: $ty::MIN as i64, max: $ty::MAX as u64 }
            }
        }
    )* };
}

integer!(i64 as "int", u8 as "uint8", u16 as "uint16", u32 as "uint32", u64 as "uint64");

impl Field for GoDuration {
    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        if node.is_null() {
            return Self::ZERO;
        }
        let parsed = node.as_str().and_then(|text| text.parse().ok());
        match parsed {
            // A bare number is refused, even zero: it has no unit.
            Some(value) if whole(node).is_none() => value,
            _ => {
                decoder.mismatch(node, "time.Duration");
                if let Some(last) = decoder.problems.last_mut() {
                    last.help = Some("write a duration such as 90s, 1h30m or 100ms".to_owned());
                }
                Self::ZERO
            }
        }
    }

    fn encode(&self) -> Node {
        Node::string(self.to_string())
    }

    fn is_empty(&self) -> bool {
        self.is_zero()
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        if !right.is_zero() {
            *self = *right;
        }
        Ok(())
    }

    fn merge_present(&mut self, right: &Self) -> Result<(), MergeError> {
        *self = *right;
        Ok(())
    }

    fn shape() -> Shape {
        Shape::Format("duration")
    }
}

impl<T: Field> Field for Option<T> {
    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        if node.is_null() { None } else { Some(T::decode(node, decoder)) }
    }

    fn encode(&self) -> Node {
        self.as_ref().map_or_else(Node::null, Field::encode)
    }

    fn is_empty(&self) -> bool {
        self.is_none()
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        match (self, right) {
            (_, None) => Ok(()),
            (Some(left), Some(right)) => left.merge_present(right),
            (slot @ None, Some(right)) => {
                *slot = Some(right.clone());
                Ok(())
            }
        }
    }

    fn delete(&mut self, path: &[DeleteStep]) -> Result<(), DeleteError> {
        self.as_mut().ok_or(DeleteError::LookupFailed)?.delete(path)
    }

    fn member_text(&self, key: &str) -> Option<&str> {
        self.as_ref()?.member_text(key)
    }

    fn shape() -> Shape {
        T::shape()
    }
}

impl<T: Field> Field for Box<T> {
    const IS_OBJECT: bool = T::IS_OBJECT;

    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        Box::new(T::decode(node, decoder))
    }

    fn encode(&self) -> Node {
        (**self).encode()
    }

    fn is_empty(&self) -> bool {
        (**self).is_empty()
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        (**self).merge(right)
    }

    fn delete(&mut self, path: &[DeleteStep]) -> Result<(), DeleteError> {
        (**self).delete(path)
    }

    fn shape() -> Shape {
        T::shape()
    }
}
