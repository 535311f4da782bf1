//! Numbers, booleans and strings.

use super::wire::{put_bytes, put_key, put_nested, put_number, put_varint};
use super::{Field, Reader, Sampler, Value, WireError, Yaml};

macro_rules! integer {
    ($($type:ty => $proto:literal),* $(,)?) => {$(
        impl Value for $type {
            fn proto_type() -> String {
                $proto.into()
            }

            fn is_zero(&self) -> bool {
                *self == 0
            }

            fn put(&self, tag: u32, out: &mut Vec<u8>) {
                put_number(tag, *self as i64 as u64, out);
            }

            fn merge(&mut self, field: Field<'_>) -> Result<(), WireError> {
                // Protobuf cuts numbers that are too wide.
                *self = field.varint()? as $type;
                Ok(())
            }

            fn yaml(&self, yaml: &mut Yaml<'_>) {
                yaml.display(self);
            }

            fn sample(sampler: &mut Sampler) -> Self {
                sampler.number() as $type
            }

            fn put_all(items: &[Self], tag: u32, out: &mut Vec<u8>) {
                put_nested(tag, out, |out| {
                    for item in items {
                        put_varint(*item as i64 as u64, out);
                    }
                });
            }

            fn merge_all(items: &mut Vec<Self>, field: Field<'_>) -> Result<(), WireError> {
                match field {
                    Field::Bytes(bytes) => {
                        let mut reader = Reader::new(bytes);
                        while let Some(value) = reader.next_varint()? {
                            items.push(value as $type);
                        }
                        Ok(())
                    }
                    single => single.varint().map(|value| items.push(value as $type)),
                }
            }
        }
    )*};
}

integer!(i64 => "int64", i32 => "int32", u64 => "uint64", u32 => "uint32", u16 => "uint32", u8 => "uint32");

impl Value for bool {
    fn proto_type() -> String {
        "bool".into()
    }

    fn is_zero(&self) -> bool {
        !*self
    }

    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        put_number(tag, u64::from(*self), out);
    }

    fn merge(&mut self, field: Field<'_>) -> Result<(), WireError> {
        *self = field.varint()? != 0;
        Ok(())
    }

    fn yaml(&self, yaml: &mut Yaml<'_>) {
        yaml.plain(if *self { "true" } else { "false" });
    }

    fn sample(_: &mut Sampler) -> Self {
        true
    }
}

impl Value for f64 {
    fn proto_type() -> String {
        "double".into()
    }

    fn is_zero(&self) -> bool {
        *self == 0.0
    }

    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        put_key(tag, 1, out);
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn merge(&mut self, field: Field<'_>) -> Result<(), WireError> {
        match field {
            Field::Fixed64(bits) => {
                *self = f64::from_bits(bits);
                Ok(())
            }
            Field::Varint(_) | Field::Bytes(_) | Field::Fixed32(_) => {
                Err(WireError::Mismatch { expected: "a double" })
            }
        }
    }

    fn yaml(&self, yaml: &mut Yaml<'_>) {
        yaml.plain(&float_text(*self));
    }

    fn sample(sampler: &mut Sampler) -> Self {
        sampler.number() as f64 + 0.25
    }
}

/// A float in the shortest form, with an exponent from a million on and below a ten thousandth.
pub fn float_text(value: f64) -> String {
    if value.is_nan() {
        return ".nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { ".inf" } else { "-.inf" }.into();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        -4..6 => format!("{value}"),
        exponent => format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
    }
}

impl Value for String {
    fn proto_type() -> String {
        "string".into()
    }

    fn is_zero(&self) -> bool {
        self.is_empty()
    }

    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        put_bytes(tag, self.as_bytes(), out);
    }

    fn merge(&mut self, field: Field<'_>) -> Result<(), WireError> {
        field.text()?.clone_into(self);
        Ok(())
    }

    fn yaml(&self, yaml: &mut Yaml<'_>) {
        yaml.string(self);
    }

    fn sample(sampler: &mut Sampler) -> Self {
        sampler.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_go_prints_them() {
        for (value, want) in [
            (0.0, "0"),
            (1.5, "1.5"),
            (100_000.0, "100000"),
            (1_000_000.0, "1e+06"),
            (123_456_789.0, "1.23456789e+08"),
            (0.0001, "0.0001"),
            (0.000_01, "1e-05"),
            (-2.25, "-2.25"),
            (f64::INFINITY, ".inf"),
            (f64::NAN, ".nan"),
        ] {
            assert_eq!(float_text(value), want);
        }
    }

    #[test]
    fn packed_and_single_numbers_are_both_read() {
        let mut items = vec![];
        i64::merge_all(&mut items, Field::Bytes(&[1, 2])).unwrap();
        i64::merge_all(&mut items, Field::Varint(u64::MAX)).unwrap();
        assert_eq!(items, [1, 2, -1]);
    }
}
