//! Two small resource types for tests that are not about any real one.

use std::any::Any;

use ichor_resource::{DecodeError, Definition, Spec, TypedSpec};

macro_rules! sample {
    ($(#[$doc:meta])* $name:ident, $type_name:literal, $namespace:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct $name {
            /// Some text.
            pub text: String,
            /// Some number.
            pub number: i64,
            /// Some more texts.
            pub list: Vec<String>,
        }

        impl $name {
            /// One with this number.
            pub fn new(number: i64) -> Self {
                Self {
                    text: "a string of about forty characters, yes".to_owned(),
                    number,
                    list: vec!["10.5.0.2/24".to_owned(), "fd00::2/64".to_owned()],
                }
            }
        }

        impl Spec for $name {
            fn encode_proto(&self, out: &mut Vec<u8>) {
                encode(&self.text, self.number, &self.list, out);
            }

            fn encode_yaml(&self, out: &mut String) {
                out.push_str(&format!("text: {:?}\nnumber: {}\n", self.text, self.number));
                for item in &self.list {
                    out.push_str(&format!("    - {item:?}\n"));
                }
            }

            fn same(&self, other: &dyn Spec) -> bool {
                other.as_any().downcast_ref::<Self>() == Some(self)
            }

            fn as_any(&self) -> &dyn Any {
                self
            }
        }

        impl TypedSpec for $name {
            fn definition() -> &'static Definition {
                static DEFINITION: Definition = Definition {
                    type_name: $type_name,
                    default_namespace: $namespace,
                    aliases: &[],
                    columns: &[],
                    sensitive: false,
                    skip_automatic_aliases: false,
                    proto: "",
                };
                &DEFINITION
            }

            fn decode_proto(bytes: &[u8]) -> Result<Self, DecodeError> {
                let (text, number, list) = decode(bytes).ok_or_else(|| DecodeError {
                    message: $type_name,
                    reason: "truncated".to_owned(),
                })?;
                Ok(Self { text, number, list })
            }
        }
    };
}

sample!(
    /// A resource that things are made from.
    A, "As.test.ichor.dev", "ns-a"
);
sample!(
    /// A resource that is made from others.
    B, "Bs.test.ichor.dev", "ns-b"
);

/// Not protobuf, only something that reads back: the number, then each text with its length.
fn encode(text: &str, number: i64, list: &[String], out: &mut Vec<u8>) {
    out.extend_from_slice(&number.to_be_bytes());
    for item in std::iter::once(text).chain(list.iter().map(String::as_str)) {
        out.extend_from_slice(&(item.len() as u32).to_be_bytes());
        out.extend_from_slice(item.as_bytes());
    }
}

fn decode(bytes: &[u8]) -> Option<(String, i64, Vec<String>)> {
    let (number, mut rest) = bytes.split_first_chunk()?;
    let mut list = Vec::new();
    while !rest.is_empty() {
        let (len, tail) = rest.split_first_chunk()?;
        let (item, tail) = tail.split_at_checked(u32::from_be_bytes(*len) as usize)?;
        list.push(String::from_utf8(item.to_vec()).ok()?);
        rest = tail;
    }
    let text = if list.is_empty() { String::new() } else { list.remove(0) };
    Some((text, i64::from_be_bytes(*number), list))
}
