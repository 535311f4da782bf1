//! Splits a source file into code, strings and comments, and finds the items that only tests see.

use std::ops::Range;

/// One line of code, without comments and strings.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// Counted from one.
    pub(super) number: usize,
    /// The code; comments, strings and characters are spaces.
    pub(super) text: String,
    /// Whether an item with `#[cfg(test)]` holds it.
    pub(super) is_test: bool,
}

/// Every line of a file, to its end.
pub(super) fn lines(text: &str) -> Vec<Line> {
    let kinds = kinds(text.as_bytes());
    let tests = test_items(text, &kinds);
    let mut lines = Vec::new();
    let mut start = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let end = start + line.len();
        let code = line.char_indices().map(|(at, c)| if kinds[start + at] == Kind::Code { c } else { ' ' });
        lines.push(Line {
            number: index + 1,
            text: code.collect::<String>().trim_end().to_owned(),
            is_test: tests.iter().any(|range| range.contains(&start)),
        });
        start = end;
    }
    lines
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    /// Strings and characters, with their quotes.
    Text,
    Comment,
}

/// What each byte belongs to.
fn kinds(bytes: &[u8]) -> Vec<Kind> {
    let mut kinds = vec![Kind::Code; bytes.len()];
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let (kind, len) = if rest.starts_with(b"//") {
            (Kind::Comment, rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()))
        } else if rest.starts_with(b"/*") {
            (Kind::Comment, block_comment(rest))
        } else if let Some(len) = raw_string(bytes, at) {
            (Kind::Text, len)
        } else if rest[0] == b'"' {
            (Kind::Text, quoted(rest, b'"'))
        } else if rest[0] == b'\'' && is_character(rest) {
            (Kind::Text, quoted(rest, b'\''))
        } else {
            (Kind::Code, 1)
        };
        kinds[at..at + len].fill(kind);
        at += len;
    }
    kinds
}

/// Length of a comment, which may hold others.
fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest[at..].starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// Length of a raw string that starts here, from its `r`.
fn raw_string(bytes: &[u8], at: usize) -> Option<usize> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let mut before = bytes[..at].iter().rev().copied();
    // `br` and `cr`, but not the end of some name.
    let prefix = before.next().filter(|byte| is_name(*byte));
    let starts = prefix.is_none_or(|byte| matches!(byte, b'b' | b'c') && !before.next().is_some_and(is_name));
    let rest = bytes[at..].strip_prefix(b"r").filter(|_| starts)?;
    let hashes = rest.iter().take_while(|byte| **byte == b'#').count();
    let body = rest[hashes..].strip_prefix(b"\"")?;
    let mut end = vec![b'"'];
    end.resize(1 + hashes, b'#');
    let len = body.windows(end.len()).position(|window| window == end);
    Some(len.map_or(bytes.len() - at, |len| 1 + hashes + 1 + len + end.len()))
}

/// Length of a string or character with escapes, with both quotes.
fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Whether a single quote begins a character and not a lifetime.
fn is_character(rest: &[u8]) -> bool {
    let len = match rest.get(1) {
        None => return false,
        Some(b'\\') => return true,
        Some(0..0x80) => 1,
        Some(0x80..0xe0) => 2,
        Some(0xe0..0xf0) => 3,
        Some(0xf0..) => 4,
    };
    rest.get(1 + len) == Some(&b'\'')
}

/// Where the items are that are compiled for tests only.
fn test_items(text: &str, kinds: &[Kind]) -> Vec<Range<usize>> {
    const MARKS: [&str; 3] = ["#[cfg(test)]", "#[cfg(all(test,", "#![cfg(test)]"];
    let is_code = |at: &usize| kinds[*at] == Kind::Code;
    let mut found = Vec::new();
    for mark in MARKS {
        for (at, _) in text.match_indices(mark).filter(|(at, _)| is_code(at)) {
            // Lines are judged by where they begin, and the mark may be indented.
            let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
            let end = if mark.starts_with("#!") { text.len() } else { item_end(text, kinds, at) };
            found.push(start..end);
        }
    }
    found
}

/// The end of the item whose first attribute is at `start`.
fn item_end(text: &str, kinds: &[Kind], start: usize) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in text.bytes().enumerate().skip(start).filter(|(at, _)| kinds[*at] == Kind::Code) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => match depth.checked_sub(1) {
                // A field or a statement: what holds it ends.
                None => return at,
                Some(0) if byte == b'}' => return at + 1,
                Some(less) => depth = less,
            },
            b';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the lines that are not of tests.
    fn product(text: &str) -> Vec<usize> {
        lines(text).iter().filter(|line| !line.is_test).map(|line| line.number).collect()
    }

    #[test]
    fn code_after_a_test_item_is_code_again() {
        let text =
            "a();\n#[cfg(test)]\nuse x::{Y, Z};\nb();\n#[cfg(test)]\nmod tests {\n    fn f() {}\n}\nc();\n";
        assert_eq!(product(text), [1, 4, 9]);
        let nested = "fn a() {\n    #[cfg(test)]\n    {\n        b();\n    }\n    c();\n}\n";
        assert_eq!(product(nested), [1, 6, 7]);
        let attributes = "#[cfg(test)]\n#[allow(x)]\nfn f(a: [u8; 3]) -> u8 {\n    0\n}\nb();\n";
        assert_eq!(product(attributes), [6]);
    }

    #[test]
    fn a_file_can_be_for_tests_as_a_whole() {
        assert!(product("#![cfg(test)]\na();\n").is_empty());
    }

    #[test]
    fn braces_in_strings_and_characters_end_nothing() {
        let text =
            "#[cfg(test)]\nfn f<'a>() {\n    x(\"}\", r#\"}\"\n}\"#, '}', '\\'', b'{'); // }\n}\na();\n";
        assert_eq!(product(text), [6]);
        let mentioned = "let a = \"#[cfg(test)]\";\nb();\n// #[cfg(test)]\nc();\n";
        assert_eq!(product(mentioned), [1, 2, 3, 4]);
    }

    #[test]
    fn comments_and_strings_are_blanked() {
        let found: Vec<String> =
            lines("a(\"// x\"); // y\n/* b\n/* c */ d */ e\n").into_iter().map(|line| line.text).collect();
        assert_eq!(found, ["a(      );", "", "             e"]);
    }
}
