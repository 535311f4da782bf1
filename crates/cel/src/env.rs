//! What an expression may refer to: variables, constants, messages, functions.

use std::fmt;

use crate::value::Value;

/// A type.
#[derive(Clone, Debug)]
pub enum Type {
    /// True or false.
    Bool,
    /// A whole number with a sign.
    Int,
    /// A whole number without.
    Uint,
    /// Another number.
    Double,
    /// Text.
    String,
    /// Bytes.
    Bytes,
    /// A span of time.
    Duration,
    /// Nothing.
    Null,
    /// Known only at run time.
    Dyn,
    /// A list.
    List(Box<Type>),
    /// A mapping.
    Map(Box<Type>, Box<Type>),
    /// A value that may be absent.
    Optional(Box<Type>),
    /// Something with fields.
    Message(&'static Message),
}

impl PartialEq for Type {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::List(a), Self::List(b)) | (Self::Optional(a), Self::Optional(b)) => a == b,
            (Self::Map(a, b), Self::Map(c, d)) => a == c && b == d,
            (Self::Message(a), Self::Message(b)) => std::ptr::eq(*a, *b),
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool => f.write_str("bool"),
            Self::Int => f.write_str("int"),
            Self::Uint => f.write_str("uint"),
            Self::Double => f.write_str("double"),
            Self::String => f.write_str("string"),
            Self::Bytes => f.write_str("bytes"),
            Self::Duration => f.write_str("google.protobuf.Duration"),
            Self::Null => f.write_str("null"),
            Self::Dyn => f.write_str("dyn"),
            Self::List(item) => write!(f, "list({item})"),
            Self::Map(key, value) => write!(f, "map({key}, {value})"),
            Self::Optional(value) => write!(f, "optional_type({value})"),
            Self::Message(message) => f.write_str(message.name),
        }
    }
}

/// The type of a field, in a form that tables can hold.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// True or false.
    Bool,
    /// A whole number with a sign; enumerations are these.
    Int,
    /// A whole number without.
    Uint,
    /// Text.
    String,
    /// Bytes.
    Bytes,
    /// A list.
    List(&'static Kind),
    /// Something with fields.
    Message(&'static Message),
}

impl Kind {
    /// The same as a type.
    pub fn to_type(self) -> Type {
        match self {
            Self::Bool => Type::Bool,
            Self::Int => Type::Int,
            Self::Uint => Type::Uint,
            Self::String => Type::String,
            Self::Bytes => Type::Bytes,
            Self::List(item) => Type::List(Box::new(item.to_type())),
            Self::Message(message) => Type::Message(message),
        }
    }
}

/// A kind of thing with fields.
#[derive(Debug)]
pub struct Message {
    /// Its full name.
    pub name: &'static str,
    /// Its fields.
    pub fields: &'static [(&'static str, Kind)],
}

/// A function beyond the standard ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `glob(pattern, text)`: the pattern may contain `*`.
    Glob,
    /// `mac(bytes)`: a hardware address as text.
    Mac,
}

/// What an expression may refer to.
#[derive(Clone, Debug, Default)]
pub struct Env {
    variables: Vec<(&'static str, Type)>,
    constants: Vec<(&'static str, Value)>,
    functions: Vec<Function>,
}

impl Env {
    /// An environment with nothing but the standard functions.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with a variable.
    pub fn variable(mut self, name: &'static str, kind: Type) -> Self {
        self.variables.push((name, kind));
        self
    }

    /// The same with constants.
    pub fn constants(mut self, more: impl IntoIterator<Item = (&'static str, Value)>) -> Self {
        self.constants.extend(more);
        self
    }

    /// The same with a function.
    pub fn function(mut self, function: Function) -> Self {
        self.functions.push(function);
        self
    }

    pub(crate) fn has(&self, function: Function) -> bool {
        self.functions.contains(&function)
    }

    pub(crate) fn constant(&self, name: &str) -> Option<&Value> {
        self.constants.iter().find(|(have, _)| *have == name).map(|(_, value)| value)
    }

    pub(crate) fn type_of(&self, name: &str) -> Option<Type> {
        if let Some((_, kind)) = self.variables.iter().find(|(have, _)| *have == name) {
            return Some(kind.clone());
        }
        self.constant(name).map(|value| match value {
            Value::Int(_) => Type::Int,
            Value::Uint(_) => Type::Uint,
            _ => Type::Dyn,
        })
    }

    /// Names of all variables and constants.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.variables.iter().map(|(name, _)| *name).chain(self.constants.iter().map(|(name, _)| *name))
    }
}
