//! Bytes, in the three ways YAML shows them.

use bytes::Bytes;

use super::wire::put_bytes;
use super::{Field, Sampler, Value, WireError, Yaml};

macro_rules! bytes_value {
    ($(#[$doc:meta])* $name:ident, |$self:ident, $yaml:ident| $body:block) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub Bytes);

        impl $name {
            /// The bytes.
            pub fn as_slice(&self) -> &[u8] {
                &self.0
            }
        }

        impl<T: Into<Bytes>> From<T> for $name {
            fn from(bytes: T) -> Self {
                Self(bytes.into())
            }
        }

        impl Value for $name {
            fn proto_type() -> String {
                "bytes".into()
            }

            fn is_zero(&self) -> bool {
                self.0.is_empty()
            }

            fn put(&self, tag: u32, out: &mut Vec<u8>) {
                put_bytes(tag, &self.0, out);
            }

            fn merge(&mut self, field: Field<'_>) -> Result<(), WireError> {
                self.0 = Bytes::copy_from_slice(field.bytes()?);
                Ok(())
            }

            fn yaml(&$self, $yaml: &mut Yaml<'_>) $body

            fn sample(sampler: &mut Sampler) -> Self {
                Self(sampler.text().into())
            }
        }
    };
}

bytes_value! {
    /// Bytes that YAML shows as a list of numbers.
    IntBytes, |self, yaml| {
        yaml_numbers(&self.0, yaml);
    }
}

bytes_value! {
    /// Bytes that YAML shows as text when they are, and as a list of numbers when not.
    TextBytes, |self, yaml| {
        match std::str::from_utf8(&self.0) {
            Ok(text) => yaml.string(text),
            Err(_) => yaml_numbers(&self.0, yaml),
        }
    }
}

bytes_value! {
    /// Bytes that YAML shows in base64.
    Base64Bytes, |self, yaml| {
        yaml.string(&base64(&self.0));
    }
}

fn yaml_numbers(bytes: &[u8], yaml: &mut Yaml<'_>) {
    let mut frame = yaml.begin();
    for byte in bytes {
        yaml.item(&mut frame);
        yaml.display(byte);
    }
    yaml.end_list(frame);
}

/// Standard base64 with padding.
pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().enumerate().fold(0u32, |word, (i, byte)| word | u32::from(*byte) << (16 - 8 * i));
        for i in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * i) & 63) as usize];
            out.push(if i <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_padded() {
        for (bytes, want) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(bytes.as_bytes()), want);
        }
    }
}
