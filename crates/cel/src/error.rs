//! What is wrong with an expression, and where.

use std::fmt;

/// An expression that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What is wrong.
    pub message: String,
    /// Byte offset in the text; nothing if it is about the whole.
    pub offset: Option<usize>,
    text: String,
}

impl std::error::Error for Error {}

impl Error {
    /// An error at a place.
    pub(crate) fn at(text: &str, offset: usize, message: impl Into<String>) -> Self {
        Self { message: message.into(), offset: Some(offset), text: text.to_owned() }
    }

    /// An error about the whole expression.
    pub(crate) fn whole(text: &str, message: impl Into<String>) -> Self {
        Self { message: message.into(), offset: None, text: text.to_owned() }
    }

    /// Line and column, counted from one; columns are characters.
    pub fn position(&self) -> Option<(usize, usize)> {
        let before = self.text.get(..self.offset?)?;
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        Some((line, before[start..].chars().count() + 1))
    }
}

impl fmt::Display for Error {
    /// The message with its place and the line it is in, a caret below.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((line, column)) = self.position() else { return f.write_str(&self.message) };
        let excerpt = self.text.lines().nth(line - 1).unwrap_or_default();
        let dots = ".".repeat(column - 1);
        write!(f, "ERROR: <input>:{line}:{column}: {}\n | {excerpt}\n | {dots}^", self.message)
    }
}
