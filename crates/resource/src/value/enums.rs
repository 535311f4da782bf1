//! Enums and flag sets: a number on the wire, a text in YAML.

/// An enum whose values are all known. Unknown numbers from the wire are errors.
///
/// `as number` makes YAML show the number.
macro_rules! spec_enum {
    (
        $(#[$doc:meta])*
        pub enum $name:ident = $proto:literal $(as $form:ident)? {
            $($(#[$variant_doc:meta])* $variant:ident = $number:literal => $text:literal,)+
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant = $number,)+
        }

        impl $name {
            /// Every value, by number.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The number on the wire.
            pub const fn number(self) -> i32 {
                self as i32
            }

            /// The value with this number.
            pub const fn from_number(number: i32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// The text of the value.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }

            /// The value with this text.
            pub fn from_text(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.as_str() == text)
            }

            fn read(number: u64) -> Result<Self, $crate::value::WireError> {
                Self::from_number(number as i32).ok_or_else(|| {
                    $crate::value::WireError::Value(format!("{} is no {}", number as i32, stringify!($name)))
                })
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        $crate::value::enums::enum_value!($name, $proto $(as $form)?);
    };
}

/// An enum that may hold numbers nobody has named, as the kernel may answer any.
///
/// The text in parentheses is for those, with the number in place of `{}`.
macro_rules! open_enum {
    (
        $(#[$doc:meta])*
        pub struct $name:ident($unnamed:literal) = $proto:literal $(as $form:ident)? {
            $($(#[$variant_doc:meta])* $variant:ident = $number:literal => $text:literal,)+
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub i32);

        impl $name {
            $($(#[$variant_doc])* pub const $variant: Self = Self($number);)+

            /// Every named value.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The number on the wire.
            pub const fn number(self) -> i32 {
                self.0
            }

            /// The text of a named value.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($text),)+
                    _ => None,
                }
            }

            /// The value with this text.
            pub fn from_text(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.name() == Some(text))
            }

            fn read(number: u64) -> Result<Self, $crate::value::WireError> {
                Ok(Self(number as i32))
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                match self.name() {
                    Some(text) => f.write_str(text),
                    None => write!(f, $unnamed, self.0),
                }
            }
        }

        $crate::value::enums::enum_value!($name, $proto $(as $form)?);
    };
}

/// A set of flags: one bit each, the texts joined with commas.
macro_rules! flag_set {
    (
        $(#[$doc:meta])*
        pub struct $name:ident {
            $($(#[$flag_doc:meta])* $flag:ident = $number:literal => $text:literal,)+
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            $($(#[$flag_doc])* pub const $flag: Self = Self($number);)+

            /// True when every bit of `other` is set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// The union of both sets.
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let mut first = true;
                for (flag, text) in [$((Self::$flag, $text),)+] {
                    if self.contains(flag) {
                        f.write_str(if first { "" } else { "," })?;
                        f.write_str(text)?;
                        first = false;
                    }
                }
                Ok(())
            }
        }

        impl $crate::value::Value for $name {
            fn proto_type() -> String {
                "uint32".into()
            }

            fn is_zero(&self) -> bool {
                self.0 == 0
            }

            fn put(&self, tag: u32, out: &mut Vec<u8>) {
                self.0.put(tag, out);
            }

            fn merge(&mut self, field: $crate::value::Field<'_>) -> Result<(), $crate::value::WireError> {
                self.0.merge(field)
            }

            fn yaml(&self, yaml: &mut $crate::value::Yaml<'_>) {
                yaml.string(&self.to_string());
            }

            fn sample(_: &mut $crate::value::Sampler) -> Self {
                Self([$($number,)+].into_iter().take(3).fold(0, |set, flag| set | flag))
            }
        }
    };
}

/// The `Value` impl both kinds of enum share.
macro_rules! enum_value {
    (@yaml $self:ident, $yaml:ident) => {
        $yaml.string(&$self.to_string())
    };
    (@yaml $self:ident, $yaml:ident, number) => {
        $yaml.display($self.number())
    };
    ($name:ident, $proto:literal $(as $form:ident)?) => {
        impl $crate::value::Value for $name {
            fn proto_type() -> String {
                $proto.into()
            }

            fn is_zero(&self) -> bool {
                self.number() == 0
            }

            fn put(&self, tag: u32, out: &mut Vec<u8>) {
                $crate::value::wire::put_number(tag, i64::from(self.number()) as u64, out);
            }

            fn merge(&mut self, field: $crate::value::Field<'_>) -> Result<(), $crate::value::WireError> {
                *self = Self::read(field.varint()?)?;
                Ok(())
            }

            fn yaml(&self, yaml: &mut $crate::value::Yaml<'_>) {
                $crate::value::enums::enum_value!(@yaml self, yaml $(, $form)?);
            }

            fn sample(sampler: &mut $crate::value::Sampler) -> Self {
                let known: Vec<_> = Self::ALL.iter().copied().filter(|value| value.number() != 0).collect();
                known[usize::from(sampler.number()) % known.len()]
            }

            fn put_all(items: &[Self], tag: u32, out: &mut Vec<u8>) {
                $crate::value::wire::put_nested(tag, out, |out| {
                    for item in items {
                        $crate::value::wire::put_varint(i64::from(item.number()) as u64, out);
                    }
                });
            }

            fn merge_all(
                items: &mut Vec<Self>,
                field: $crate::value::Field<'_>,
            ) -> Result<(), $crate::value::WireError> {
                let mut numbers: Vec<u64> = Vec::new();
                u64::merge_all(&mut numbers, field)?;
                for number in numbers {
                    items.push(Self::read(number)?);
                }
                Ok(())
            }
        }
    };
}

pub(crate) use {enum_value, flag_set, open_enum, spec_enum};

use ichor_types::MachineType;

use super::wire::put_number;
use super::{Field, Sampler, Value, WireError, Yaml};

impl Value for MachineType {
    fn proto_type() -> String {
        "talos.resource.definitions.enums.MachineType".into()
    }

    fn is_zero(&self) -> bool {
        *self == Self::Unknown
    }

    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        put_number(tag, *self as u64, out);
    }

    fn merge(&mut self, field: Field<'_>) -> Result<(), WireError> {
        *self = match field.varint()? {
            0 => Self::Unknown,
            1 => Self::Init,
            2 => Self::ControlPlane,
            3 => Self::Worker,
            other => return Err(WireError::Value(format!("{other} is no MachineType"))),
        };
        Ok(())
    }

    fn yaml(&self, yaml: &mut Yaml<'_>) {
        yaml.plain(self.as_str());
    }

    fn sample(_: &mut Sampler) -> Self {
        Self::Worker
    }
}
