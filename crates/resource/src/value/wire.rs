//! Protobuf on the byte level: just what proto3 messages of resource specs need.

/// Why bytes are not the message they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes end inside a field.
    #[error("field {tag} is cut short")]
    Truncated {
        /// The field, 0 when its number itself is cut.
        tag: u32,
    },
    /// A number of more than ten bytes.
    #[error("a number is longer than ten bytes")]
    LongVarint,
    /// A wire type that proto3 does not use, or field number 0.
    #[error("field {tag} has wire type {wire_type}")]
    BadKey {
        /// The field number.
        tag: u32,
        /// The wire type.
        wire_type: u8,
    },
    /// The field has another wire type than the message says.
    #[error("expected {expected}")]
    Mismatch {
        /// What the message says.
        expected: &'static str,
    },
    /// The value has the right wire type and no meaning.
    #[error("{0}")]
    Value(String),
    /// An error inside a field.
    #[error("{message} field {tag}: {source}")]
    Field {
        /// The message.
        message: &'static str,
        /// The field number.
        tag: u32,
        /// What is wrong with it.
        #[source]
        source: Box<WireError>,
    },
}

/// One field as it stands on the wire.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Field<'a> {
    /// Integers, booleans and enums.
    Varint(u64),
    /// Doubles.
    Fixed64(u64),
    /// Strings, bytes, messages and packed numbers.
    Bytes(&'a [u8]),
    /// Floats.
    Fixed32(u32),
}

impl<'a> Field<'a> {
    /// The number, or an error naming what was expected.
    pub fn varint(self) -> Result<u64, WireError> {
        match self {
            Self::Varint(value) => Ok(value),
            Self::Fixed64(_) | Self::Bytes(_) | Self::Fixed32(_) => {
                Err(WireError::Mismatch { expected: "a number" })
            }
        }
    }

    /// The bytes, or an error naming what was expected.
    pub fn bytes(self) -> Result<&'a [u8], WireError> {
        match self {
            Self::Bytes(value) => Ok(value),
            Self::Varint(_) | Self::Fixed64(_) | Self::Fixed32(_) => {
                Err(WireError::Mismatch { expected: "bytes" })
            }
        }
    }

    /// The text, or an error.
    pub fn text(self) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| WireError::Value("text is not UTF-8".into()))
    }
}

/// Reads the fields of one message.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// A reader over a whole message.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next field with its number, `None` at the end.
    pub fn next_field(&mut self) -> Result<Option<(u32, Field<'a>)>, WireError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.varint(0)?;
        let (tag, wire_type) = ((key >> 3) as u32, (key & 7) as u8);
        if tag == 0 || key >> 32 != 0 {
            return Err(WireError::BadKey { tag, wire_type });
        }
        let field = match wire_type {
            0 => Field::Varint(self.varint(tag)?),
            1 => Field::Fixed64(u64::from_le_bytes(self.array(tag)?)),
            2 => {
                let len = self.varint(tag)?;
                Field::Bytes(self.take(usize::try_from(len).unwrap_or(usize::MAX), tag)?)
            }
            5 => Field::Fixed32(u32::from_le_bytes(self.array(tag)?)),
            _ => return Err(WireError::BadKey { tag, wire_type }),
        };
        Ok(Some((tag, field)))
    }

    /// The next bare number of a packed list, `None` at the end.
    pub fn next_varint(&mut self) -> Result<Option<u64>, WireError> {
        if self.0.is_empty() { Ok(None) } else { self.varint(0).map(Some) }
    }

    /// The next bare eight bytes of a packed list, `None` at the end.
    pub fn next_fixed64(&mut self) -> Result<Option<u64>, WireError> {
        if self.0.is_empty() { Ok(None) } else { Ok(Some(u64::from_le_bytes(self.array(0)?))) }
    }

    fn varint(&mut self, tag: u32) -> Result<u64, WireError> {
        let mut value = 0u64;
        for (i, byte) in self.0.iter().enumerate() {
            if i == 10 {
                return Err(WireError::LongVarint);
            }
            value |= u64::from(byte & 0x7f) << (7 * i as u32).min(63);
            if byte & 0x80 == 0 {
                self.0 = &self.0[i + 1..];
                return Ok(value);
            }
        }
        Err(WireError::Truncated { tag })
    }

    fn take(&mut self, len: usize, tag: u32) -> Result<&'a [u8], WireError> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(WireError::Truncated { tag })?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, tag: u32) -> Result<[u8; N], WireError> {
        let (head, rest) = self.0.split_first_chunk().ok_or(WireError::Truncated { tag })?;
        self.0 = rest;
        Ok(*head)
    }
}

/// Hands all fields of a message on. Not a generic: there are hundreds of messages.
pub fn each_field<'a>(
    bytes: &'a [u8],
    message: &'static str,
    take: &mut dyn FnMut(u32, Field<'a>) -> Result<(), WireError>,
) -> Result<(), WireError> {
    let mut reader = Reader::new(bytes);
    while let Some((tag, field)) = reader.next_field()? {
        take(tag, field).map_err(|source| WireError::Field { message, tag, source: Box::new(source) })?;
    }
    Ok(())
}

/// Appends a number in base 128.
pub fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends the key of a field.
pub fn put_key(tag: u32, wire_type: u8, out: &mut Vec<u8>) {
    put_varint(u64::from(tag) << 3 | u64::from(wire_type), out);
}

/// Appends a field of bytes.
pub fn put_bytes(tag: u32, bytes: &[u8], out: &mut Vec<u8>) {
    put_key(tag, 2, out);
    put_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Appends a number field.
pub fn put_number(tag: u32, value: u64, out: &mut Vec<u8>) {
    put_key(tag, 0, out);
    put_varint(value, out);
}

/// Appends a field whose bytes `body` writes; the length goes in front afterwards.
pub fn put_nested(tag: u32, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    put_key(tag, 2, out);
    let start = out.len();
    // Most messages are shorter than 128 bytes, so one byte of room is usually right.
    out.push(0);
    body(out);
    let len = out.len() - start - 1;
    if len < 0x80 {
        out[start] = len as u8;
    } else {
        let mut prefix = Vec::with_capacity(5);
        put_varint(len as u64, &mut prefix);
        out.splice(start..=start, prefix);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_length_survive() {
        for shift in 0..64 {
            let value = 1u64 << shift;
            let mut out = Vec::new();
            put_number(7, value, &mut out);
            let mut reader = Reader::new(&out);
            assert_eq!(reader.next_field(), Ok(Some((7, Field::Varint(value)))));
            assert_eq!(reader.next_field(), Ok(None));
        }
    }

    #[test]
    fn long_bodies_get_a_long_prefix() {
        for len in [0, 1, 127, 128, 20_000] {
            let mut out = Vec::new();
            put_nested(1, &mut out, |out| out.resize(out.len() + len, b'x'));
            let (tag, field) = Reader::new(&out).next_field().unwrap().unwrap();
            assert_eq!((tag, field.bytes().unwrap().len()), (1, len));
        }
    }

    #[test]
    fn broken_bytes_are_errors() {
        for bytes in
            [&[0x0a, 5, 1][..], &[0x08], &[0x00, 1], &[0x0b], &[0x0d, 1, 2], &[0xff; 12], &[0x0a, 0xff, 0xff]]
        {
            assert!(Reader::new(bytes).next_field().is_err(), "{bytes:?}");
        }
    }
}
