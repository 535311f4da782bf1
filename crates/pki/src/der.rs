//! The little of DER that certificates need: a writer by nesting, a reader for one level at a time.

pub(crate) const BOOLEAN: u8 = 0x01;
pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const BIT_STRING: u8 = 0x03;
pub(crate) const OCTET_STRING: u8 = 0x04;
pub(crate) const NULL: u8 = 0x05;
pub(crate) const OID: u8 = 0x06;
pub(crate) const UTF8_STRING: u8 = 0x0c;
pub(crate) const PRINTABLE_STRING: u8 = 0x13;
pub(crate) const UTC_TIME: u8 = 0x17;
pub(crate) const GENERALIZED_TIME: u8 = 0x18;
pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;

/// The tag of a constructed, context-specific element.
pub(crate) const fn context(number: u8) -> u8 {
    0xa0 | number
}

/// One element: tag, length, content.
pub(crate) fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(content.len() + 6);
    out.push(tag);
    let length = content.len();
    if length < 0x80 {
        out.push(length as u8);
    } else {
        let bytes = length.to_be_bytes();
        let skip = bytes.iter().take_while(|byte| **byte == 0).count();
        out.push(0x80 | (bytes.len() - skip) as u8);
        out.extend_from_slice(&bytes[skip..]);
    }
    out.extend_from_slice(content);
    out
}

/// A constructed element around its parts.
pub(crate) fn nest(tag: u8, parts: &[Vec<u8>]) -> Vec<u8> {
    element(tag, &parts.concat())
}

/// SET OF: the parts in the order of their encodings, as DER wants it.
pub(crate) fn set_of(mut parts: Vec<Vec<u8>>) -> Vec<u8> {
    parts.sort();
    nest(SET, &parts)
}

/// A non-negative integer from big-endian bytes.
pub(crate) fn unsigned(bytes: &[u8]) -> Vec<u8> {
    let skip = bytes.iter().take_while(|byte| **byte == 0).count();
    let digits = &bytes[skip..];
    let mut content = Vec::with_capacity(digits.len() + 1);
    if digits.first().is_none_or(|first| first & 0x80 != 0) {
        content.push(0);
    }
    content.extend_from_slice(digits);
    element(INTEGER, &content)
}

/// A bit string of whole bytes.
pub(crate) fn bits(bytes: &[u8]) -> Vec<u8> {
    let mut content = Vec::with_capacity(bytes.len() + 1);
    content.push(0);
    content.extend_from_slice(bytes);
    element(BIT_STRING, &content)
}

/// A string as Go writes it: PrintableString where the text allows it, UTF8String otherwise.
pub(crate) fn text(value: &str) -> Vec<u8> {
    let printable = value.bytes().all(|b| b.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(&b));
    element(if printable { PRINTABLE_STRING } else { UTF8_STRING }, value.as_bytes())
}

/// Splits the first element off `input`: tag, content, rest.
pub(crate) fn split(input: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = input.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let count = usize::from(first & 0x7f);
        if count == 0 || count > 4 || rest.len() < count {
            return None;
        }
        let length = rest[..count].iter().fold(0usize, |sum, byte| sum << 8 | usize::from(*byte));
        (length, &rest[count..])
    };
    (rest.len() >= length).then(|| (tag, &rest[..length], &rest[length..]))
}

/// The private key inside a PKCS#8 document.
pub(crate) fn pkcs8_inner(document: &[u8]) -> Option<&[u8]> {
    let (SEQUENCE, body, _) = split(document)? else { return None };
    let (INTEGER, _, rest) = split(body)? else { return None };
    let (SEQUENCE, _, rest) = split(rest)? else { return None };
    let (OCTET_STRING, key, _) = split(rest)? else { return None };
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_take_the_short_form_then_the_long() {
        assert_eq!(element(4, &[7; 3]), [4, 3, 7, 7, 7]);
        assert_eq!(element(4, &[0; 0x80])[..3], [4, 0x81, 0x80]);
        assert_eq!(element(4, &[0; 0x1234])[..4], [4, 0x82, 0x12, 0x34]);
    }

    #[test]
    fn integers_stay_positive_and_minimal() {
        assert_eq!(unsigned(&[0, 0, 0x7f]), [2, 1, 0x7f]);
        assert_eq!(unsigned(&[0x80]), [2, 2, 0, 0x80]);
        assert_eq!(unsigned(&[0, 0]), [2, 1, 0]);
    }

    #[test]
    fn strings_are_printable_where_they_can_be() {
        assert_eq!(text("os:admin")[0], PRINTABLE_STRING);
        assert_eq!(text("a_b")[0], UTF8_STRING);
        assert_eq!(text("*")[0], UTF8_STRING);
    }

    #[test]
    fn truncated_input_is_refused_at_every_length() {
        let whole = nest(SEQUENCE, &[unsigned(&[1]), element(OCTET_STRING, &[9; 300])]);
        for cut in 0..whole.len() {
            assert!(split(&whole[..cut]).is_none(), "cut at {cut}");
        }
        assert!(split(&whole).is_some());
        assert!(split(&[0x30, 0x85, 1, 1, 1, 1, 1]).is_none());
        assert!(split(&[0x30, 0x80]).is_none());
    }
}
