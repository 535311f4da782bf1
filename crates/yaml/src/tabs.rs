//! Tabs where blanks belong. The parser below lets some of them pass that the original refuses; a file that works
//! here must work there.

use crate::{
    error::{Error, ErrorKind},
    node::Span,
};

/// Looks at the tabs of a text while it is parsed.
pub(crate) struct Tabs<'t> {
    text: &'t str,
    /// Where tabs are content or allowed, in order: scalars, and collections in brackets.
    covered: Vec<(u32, u32)>,
    /// Collections that are open: whether they are in brackets.
    open: Vec<bool>,
    /// Brackets among them, and where the outermost began.
    brackets: usize,
    outermost: u32,
}

impl<'t> Tabs<'t> {
    /// For texts that have any.
    pub(crate) fn of(text: &'t str) -> Option<Self> {
        let (covered, open) = (Vec::new(), Vec::new());
        text.contains('\t').then_some(Self { text, covered, open, brackets: 0, outermost: 0 })
    }

    pub(crate) fn scalar(&mut self, span: Span) {
        if self.brackets == 0 {
            self.covered.push((span.offset, span.end));
        }
    }

    /// A collection begins.
    pub(crate) fn open(&mut self, in_brackets: bool, span: Span) {
        if self.brackets == 0 {
            self.outermost = span.offset;
        }
        self.brackets += usize::from(in_brackets);
        self.open.push(in_brackets);
    }

    /// A collection ends.
    pub(crate) fn close(&mut self, span: Span) {
        if self.open.pop() == Some(true) {
            self.brackets -= 1;
            if self.brackets == 0 {
                self.covered.push((self.outermost, span.end));
            }
        }
    }

    /// The first tab that stands for indentation, or behind a mark that wants a blank.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let mut covered = self.covered.iter().peekable();
        let mut start = 0;
        for (number, line) in self.text.split_inclusive('\n').enumerate() {
            let here = start;
            start += line.len();
            // What follows the first one is content, or has been refused with it.
            let Some(column) = line.find('\t') else { continue };
            let at = here + column;
            while covered.next_if(|(_, end)| *end as usize <= at).is_some() {}
            if covered.peek().is_some_and(|(start, _)| *start as usize <= at) {
                continue;
            }
            let before = &line[..column];
            let only_marks = before.bytes().all(|byte| matches!(byte, b' ' | b'-' | b'?' | b':'));
            if !only_marks || is_document_mark(before) {
                continue;
            }
            let message = match before.trim_start_matches(' ').is_empty() {
                true => "found a tab character that violates indentation",
                false => "found character that cannot start any token",
            };
            let (line, column, offset) = (number as u32 + 1, column as u32 + 1, at as u32);
            let span = Span { line, column, offset, end: offset + 1 };
            return Err(Error::new(ErrorKind::Syntax(message.to_owned()), span));
        }
        Ok(())
    }
}

/// `---` begins a document and may be followed by anything.
fn is_document_mark(before: &str) -> bool {
    before.trim_end_matches(' ') == "---"
}

#[cfg(test)]
mod tests {
    use crate::parse;

    /// What the reader of the original says about each was looked up with it.
    #[test]
    fn tabs_are_refused_where_the_original_refuses_them() {
        let indentation = "found a tab character that violates indentation";
        let token = "found character that cannot start any token";
        for (text, place, message) in [
            ("a:\n  b: c\n\t\nd: {}\n", "3:1", indentation),
            ("a:\n  b: c\n\t# comment\n", "3:1", indentation),
            ("a:\n  b: c\n  \t# comment\n", "3:3", indentation),
            ("\ta: {}\n", "1:1", indentation),
            ("a: {}\n\t", "2:1", indentation),
            ("a:\n  -\tb\n", "2:4", token),
            ("a:\n  - \tb\n", "2:5", token),
            ("a:\n  - -\tb\n", "2:6", token),
            ("a:\n  ?\tb\n  : c\n", "2:4", token),
            ("a:\n  ? b\n  :\tc\n", "3:4", token),
        ] {
            let error = parse(text).expect_err(text);
            assert_eq!(format!("{:?} {}", error.span, error.kind), format!("{place} {message}"), "{text:?}");
        }
    }

    #[test]
    fn other_tabs_are_harmless() {
        for text in [
            "a:\tb\n",
            "a: b\t\n",
            "a: b \t# c\td\n",
            "a: [\tb,\tc\t]\n",
            "{\n\t\"a\": {\n\t\t\"b\": [\n\t\t\t1\n\t\t]\n\t}\n}\n",
            "a: |\n  b\n  \tc\n",
            "a: |\n  -\tb\nd: '-\te'\n",
            "a:\n  - b\tc\n  - d: \"\te\"\n",
            "---\ta\n",
            "- [\t]\n- x\ty\n",
            "[a: b,\n\tc: d,\n\t{e: f}]\n",
        ] {
            parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        }
    }
}
