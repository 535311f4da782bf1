//! Resource ids: short ones live inside the value, long ones are shared.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Ids up to this many bytes need no allocation.
const INLINE_MAX: usize = 22;

/// The id of a resource within its namespace and type.
///
/// Ordered by bytes, as the original orders its lists.
#[derive(Clone)]
pub struct Id(Form);

#[derive(Clone)]
enum Form {
    // Bytes past `len` are zero, so two inline ids compare as whole arrays.
    Inline { len: u8, buf: [u8; INLINE_MAX] },
    Heap(Arc<str>),
}

impl Id {
    /// Makes an id from text.
    #[inline]
    pub fn new(text: &str) -> Self {
        let bytes = text.as_bytes();
        if bytes.len() <= INLINE_MAX {
            let mut buf = [0; INLINE_MAX];
            buf[..bytes.len()].copy_from_slice(bytes);
            Self(Form::Inline { len: bytes.len() as u8, buf })
        } else {
            Self(Form::Heap(Arc::from(text)))
        }
    }

    /// The text of the id.
    #[inline]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            // The bytes came from a &str, so this check never fails.
            Form::Inline { len, buf } => std::str::from_utf8(&buf[..usize::from(*len)]).unwrap_or_default(),
            Form::Heap(text) => text,
        }
    }

    /// The bytes of the id.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Form::Inline { len, buf } => &buf[..usize::from(*len)],
            Form::Heap(text) => text.as_bytes(),
        }
    }

    /// True for the empty id, which only tombstones of a whole kind carry.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.as_bytes().is_empty()
    }
}

impl Default for Id {
    fn default() -> Self {
        Self::new("")
    }
}

impl From<&str> for Id {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<&String> for Id {
    fn from(text: &String) -> Self {
        Self::new(text)
    }
}

impl From<String> for Id {
    fn from(text: String) -> Self {
        Self::new(&text)
    }
}

impl From<&Id> for Id {
    fn from(id: &Id) -> Self {
        id.clone()
    }
}

impl AsRef<str> for Id {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl std::ops::Deref for Id {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq for Id {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Form::Inline { len: a, buf: x }, Form::Inline { len: b, buf: y }) => a == b && x == y,
            (Form::Heap(x), Form::Heap(y)) => x == y,
            // The length decides the form, so mixed forms never match.
            (Form::Inline { .. }, Form::Heap(_)) | (Form::Heap(_), Form::Inline { .. }) => false,
        }
    }
}

impl Eq for Id {}

impl PartialEq<str> for Id {
    fn eq(&self, other: &str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl PartialEq<&str> for Id {
    fn eq(&self, other: &&str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl PartialOrd for Id {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Id {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        match (&self.0, &other.0) {
            (Form::Inline { len: a, buf: x }, Form::Inline { len: b, buf: y }) => x.cmp(y).then(a.cmp(b)),
            _ => self.as_bytes().cmp(other.as_bytes()),
        }
    }
}

impl Hash for Id {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self.as_bytes());
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_takes_three_words() {
        assert_eq!(std::mem::size_of::<Id>(), 24);
    }

    #[test]
    fn text_survives_both_forms() {
        for text in ["", "a", "exactly-22-bytes-long!", "one more than 22 bytes.", "ümläut"] {
            assert_eq!(Id::new(text).as_str(), text);
            assert_eq!(Id::new(text), Id::new(text));
        }
    }

    #[test]
    fn order_is_that_of_the_bytes() {
        let texts = [
            "",
            "\0",
            "\0\0",
            "a",
            "a\0",
            "aa",
            "exactly-22-bytes-long!",
            "exactly-22-bytes-long!!",
            "exactly-22-bytes-long\"",
            "z",
            "ä",
        ];
        for a in texts {
            for b in texts {
                assert_eq!(Id::new(a).cmp(&Id::new(b)), a.as_bytes().cmp(b.as_bytes()), "{a:?} {b:?}");
                assert_eq!(Id::new(a) == Id::new(b), a == b, "{a:?} {b:?}");
            }
        }
    }
}
