//! Numbers and texts in a buffer; what lies beyond its end is nothing.

/// Little-endian, 16 bits.
pub(crate) fn le16(bytes: &[u8], at: usize) -> Option<u16> {
    take(bytes, at).map(u16::from_le_bytes)
}

/// Little-endian, 32 bits.
pub(crate) fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    take(bytes, at).map(u32::from_le_bytes)
}

/// Little-endian, 64 bits.
pub(crate) fn le64(bytes: &[u8], at: usize) -> Option<u64> {
    take(bytes, at).map(u64::from_le_bytes)
}

/// Big-endian, 16 bits.
pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    take(bytes, at).map(u16::from_be_bytes)
}

/// Big-endian, 32 bits.
pub(crate) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    take(bytes, at).map(u32::from_be_bytes)
}

/// Big-endian, 64 bits.
pub(crate) fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    take(bytes, at).map(u64::from_be_bytes)
}

/// An array.
pub(crate) fn take<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// A text that ends at its first zero byte or with the field; `None` when it is empty.
pub(crate) fn text(bytes: &[u8], at: usize, len: usize) -> Option<String> {
    let field = bytes.get(at..at.checked_add(len)?)?;
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(len);
    let text = String::from_utf8_lossy(&field[..end]).into_owned();
    (!text.is_empty()).then_some(text)
}
