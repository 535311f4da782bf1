//! The description language: `section!` for mappings, `choices!` for enumerations.

/// Describes a mapping with a fixed set of keys.
///
/// Every entry is `"key" => field: Type`, preceded by its documentation and flags: `@always` (written even
/// when empty), `@deprecated("what to use instead")`, `@shared` (not reachable for deletion), `@default("text")`,
/// `@example("yaml")`. `empty_if method` after the name says when the whole section counts as absent.
macro_rules! section {
    (
        $(#[doc = $doc:literal])*
        pub struct $name:ident $(empty_if $absent:ident)? {
            $(
                $(#[doc = $field_doc:literal])*
                $(@$flag:ident $(($flag_value:literal))?)*
                $key:literal => $field:ident : $ty:ty
            ),* $(,)?
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $name {
            $( $(#[doc = $field_doc])* pub $field: $ty, )*
        }

        impl $name {
            /// Keys, types and documentation.
            pub const INFO: $crate::model::ObjectInfo = $crate::model::ObjectInfo {
                name: stringify!($name),
                module: module_path!(),
                doc: concat!($($doc, "\n"),*),
                fields: &[ $( $crate::model::FieldInfo {
                    key: $key,
                    field: stringify!($field),
                    doc: concat!($($field_doc, "\n"),*),
                    flags: &[ $( (stringify!($flag), concat!($($flag_value)?)) ),* ],
                    shape: <$ty as $crate::model::Field>::shape,
                } ),* ],
            };
        }

        impl $crate::model::Field for $name {
            const IS_OBJECT: bool = true;

            #[allow(unused_variables, unused_mut)]
            fn decode(node: &ichor_yaml::Node, decoder: &mut $crate::model::Decoder) -> Self {
                let mut out = Self::default();
                let Some(entries) = decoder.mapping(node) else { return out };
                for (key, value) in entries {
                    match key.as_str().unwrap_or_default() {
                        $( $key => {
                            if !value.is_null() {
                                out.$field = decoder.at_key($key, |decoder| {
                                    <$ty as $crate::model::Field>::decode(value, decoder)
                                });
                            }
                        } )*
                        _ => decoder.unknown(key, value, &[$($key),*]),
                    }
                }
                out
            }

            #[allow(unused_mut)]
            fn encode(&self) -> ichor_yaml::Node {
                let mut entries = Vec::new();
                $( {
                    const ALWAYS: bool = $crate::model::has_flag(&[$(stringify!($flag)),*], "always");
                    if ALWAYS || !$crate::model::Field::is_empty(&self.$field) {
                        let value = $crate::model::Field::encode(&self.$field);
                        entries.push((ichor_yaml::Node::string($key), value));
                    }
                } )*
                ichor_yaml::Node::map(entries)
            }

            fn is_empty(&self) -> bool {
                $( if self.$absent() {
                    return true;
                } )?
                true $( && $crate::model::Field::is_empty(&self.$field) )*
            }

            #[allow(unused_variables)]
            fn merge(&mut self, right: &Self) -> Result<(), $crate::model::MergeError> {
                $( $crate::model::Field::merge(&mut self.$field, &right.$field)
                    .map_err(|error| error.below($key))?; )*
                Ok(())
            }

            #[allow(unused_variables)]
            fn delete(&mut self, path: &[$crate::model::DeleteStep]) -> Result<(), $crate::model::DeleteError> {
                let [$crate::model::DeleteStep::Key(key), rest @ ..] = path else {
                    return Err($crate::model::DeleteError::LookupFailed);
                };
                match key.as_str() {
                    $( $key if !$crate::model::has_flag(&[$(stringify!($flag)),*], "shared") => {
                        if rest.is_empty() {
                            self.$field = Default::default();
                            return Ok(());
                        }
                        $crate::model::Field::delete(&mut self.$field, rest)
                    } )*
                    _ => Err($crate::model::DeleteError::LookupFailed),
                }
            }

            #[allow(unused_variables)]
            fn member_text(&self, key: &str) -> Option<&str> {
                match key {
                    $( $key => $crate::model::Field::member_text(&self.$field, ""), )*
                    _ => None,
                }
            }

            fn shape() -> $crate::model::Shape {
                $crate::model::Shape::Object(&Self::INFO)
            }
        }
    };
}

/// Describes an enumeration by the texts of its values; the first one is the zero value.
macro_rules! choices {
    (
        $(#[doc = $doc:literal])*
        pub enum $name:ident { $( $(#[doc = $variant_doc:literal])* $variant:ident = $text:literal ),* $(,)? }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name {
            $( $(#[doc = $variant_doc])* #[doc = concat!("`", $text, "`")] $variant ),*
        }

        impl $name {
            /// The texts of all values.
            pub const TEXTS: &'static [&'static str] = &[$($text),*];
            const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The text of this value.
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$variant => $text ),* }
            }

            /// Reads a text: as written first, then in lower case.
            pub fn parse(text: &str) -> Option<Self> {
                let lower = text.to_lowercase();
                let find = |wanted: &str| Self::ALL.iter().copied().find(|value| value.as_str() == wanted);
                find(text).or_else(|| Self::ALL.iter().copied().find(|v| v.as_str().to_lowercase() == lower))
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::ALL[0]
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl $crate::model::Field for $name {
            fn decode(node: &ichor_yaml::Node, decoder: &mut $crate::model::Decoder) -> Self {
                decoder.choice(node, stringify!($name), Self::TEXTS, Self::parse)
            }

            fn encode(&self) -> ichor_yaml::Node {
                ichor_yaml::Node::string(self.as_str())
            }

            fn is_empty(&self) -> bool {
                *self == Self::default()
            }

            fn merge(&mut self, right: &Self) -> Result<(), $crate::model::MergeError> {
                if *right != Self::default() {
                    *self = *right;
                }
                Ok(())
            }

            fn merge_present(&mut self, right: &Self) -> Result<(), $crate::model::MergeError> {
                *self = *right;
                Ok(())
            }

            fn shape() -> $crate::model::Shape {
                $crate::model::Shape::Choice(Self::TEXTS)
            }
        }
    };
}

pub(crate) use {choices, section};
