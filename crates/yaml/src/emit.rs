//! From trees to text, with the look of the Go encoder.

use crate::{
    fold::fold,
    look::{Look, is_printable, string_style},
    node::{Node, Scalar, Style, Value},
};

/// How the text is laid out.
#[derive(Clone, Copy, Debug)]
pub struct EmitOptions {
    /// Columns per level.
    pub indent: usize,
    /// Lists under a key start at the column of the key instead of one level deeper.
    pub flush_lists: bool,
    /// Strings are broken at the first space beyond this column.
    pub width: Option<usize>,
}

impl Default for EmitOptions {
    fn default() -> Self {
        Self { indent: 4, flush_lists: false, width: None }
    }
}

/// Keys longer than this are written in the `? key` form.
const SIMPLE_KEY_MAX: usize = 128;

/// Writes one document with a final line break.
pub fn emit(root: &Node) -> String {
    emit_with(root, EmitOptions::default())
}

/// Writes several documents with `---` between them.
pub fn emit_all<'a>(roots: impl IntoIterator<Item = &'a Node>) -> String {
    let mut out = String::new();
    for root in roots {
        if !out.is_empty() {
            out.push_str("---\n");
        }
        out.push_str(&emit(root));
    }
    out
}

/// Writes one document with a layout.
pub fn emit_with(root: &Node, options: EmitOptions) -> String {
    let mut emitter = Emitter { out: String::new(), options };
    if let Some(comments) = &root.comments {
        emitter.comment_lines(&comments.head, 0);
    }
    emitter.node(root, 0, Place::Root);
    emitter.end_line();
    if let Some(comments) = &root.comments {
        emitter.comment_lines(&comments.foot, 0);
    }
    emitter.out
}

/// Where a node stands; decides its indentation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Root,
    /// After `key:`.
    MapValue,
    /// After `- `.
    SeqItem,
}

struct Emitter {
    out: String,
    options: EmitOptions,
}

impl Emitter {
    /// Writes a node; `indent` is the column of the collection it is in.
    fn node(&mut self, node: &Node, indent: usize, place: Place) {
        match &node.value {
            Value::Scalar(scalar) => {
                if place == Place::MapValue {
                    self.out.push(' ');
                }
                let body = match place {
                    Place::Root => self.options.indent,
                    Place::MapValue => self.deeper(indent),
                    Place::SeqItem => indent + 2,
                };
                self.scalar(scalar, body, body - indent, false);
            }
            Value::Seq(items) if items.is_empty() => self.inline("[]", place),
            Value::Map(entries) if entries.is_empty() => self.inline("{}", place),
            Value::Seq(items) => {
                let column = match place {
                    Place::Root => 0,
                    Place::MapValue if self.options.flush_lists => indent,
                    Place::MapValue => self.deeper(indent),
                    Place::SeqItem => indent + 2,
                };
                for (i, item) in items.iter().enumerate() {
                    if let Some(comments) = &item.comments {
                        self.comment_lines(&comments.head, column);
                    }
                    if i > 0 || place != Place::SeqItem {
                        self.new_line(column);
                    }
                    self.out.push_str("- ");
                    self.node(item, column, Place::SeqItem);
                    self.trailing(item, column);
                }
            }
            Value::Map(entries) => {
                let column = match place {
                    Place::Root => 0,
                    Place::MapValue => self.deeper(indent),
                    Place::SeqItem => indent + 2,
                };
                for (i, (key, value)) in entries.iter().enumerate() {
                    let head = key.comments.as_ref().map_or("", |comments| comments.head.as_str());
                    if i > 0 || place != Place::SeqItem {
                        self.comment_lines(head, column);
                        self.new_line(column);
                    } else if !head.is_empty() {
                        // Right behind the dash; the key follows below it.
                        self.comment_body(head, column, 0);
                        self.pad(column);
                    }
                    self.key(key, column);
                    self.node(value, column, Place::MapValue);
                    self.trailing(key, column);
                }
            }
        }
    }

    /// Writes `key:` or, for keys that are too long, the two-line form.
    fn key(&mut self, key: &Node, column: usize) {
        let text = key.as_str().unwrap_or("");
        let complex = text.len() > SIMPLE_KEY_MAX || text.contains('\n');
        if complex {
            self.out.push_str("? ");
        }
        match &key.value {
            Value::Scalar(scalar) => self.scalar(scalar, column + 2, 2, !complex),
            // Collections as keys cannot come from configuration; keep the text valid all the same.
            Value::Seq(_) => self.out.push_str("[]"),
            Value::Map(_) => self.out.push_str("{}"),
        }
        if complex {
            self.new_line(column);
        }
        self.out.push(':');
    }

    fn inline(&mut self, text: &str, place: Place) {
        if place == Place::MapValue {
            self.out.push(' ');
        }
        self.out.push_str(text);
    }

    /// The next multiple of the indentation.
    fn deeper(&self, indent: usize) -> usize {
        let step = self.options.indent;
        step * ((indent + step) / step)
    }

    fn end_line(&mut self) {
        if !self.out.is_empty() && !self.out.ends_with('\n') {
            self.out.push('\n');
        }
    }

    fn new_line(&mut self, column: usize) {
        self.end_line();
        self.pad(column);
    }

    fn pad(&mut self, column: usize) {
        self.out.extend(std::iter::repeat_n(' ', column));
    }

    fn comment_lines(&mut self, text: &str, column: usize) {
        if text.is_empty() {
            return;
        }
        self.end_line();
        self.comment_body(text, column, column);
    }

    /// Writes comment lines; the first one starts at a column of its own.
    fn comment_body(&mut self, text: &str, column: usize, first: usize) {
        for (i, line) in text.lines().enumerate() {
            if line.is_empty() {
                self.out.push('\n');
                continue;
            }
            self.pad(if i == 0 { first } else { column });
            self.out.push_str("# ");
            self.out.push_str(line);
            self.out.push('\n');
        }
    }

    /// Comments that stand behind and below a node.
    fn trailing(&mut self, node: &Node, column: usize) {
        let Some(comments) = &node.comments else { return };
        if !comments.line.is_empty() && !self.out.ends_with('\n') {
            self.out.push_str(" # ");
            self.out.push_str(&comments.line);
        }
        // A blank line behind a block that keeps its line breaks would become part of it.
        let foot = comments.foot.as_str();
        let foot = if self.out.ends_with("\n\n") { foot.trim_start_matches('\n') } else { foot };
        self.comment_lines(foot, column);
    }

    fn scalar(&mut self, scalar: &Scalar, body: usize, hint: usize, is_key: bool) {
        let text = &scalar.text;
        let look = Look::of(text);
        let mut style = match scalar.style {
            Style::Auto => string_style(text),
            other => other,
        };
        if is_key && look.line_breaks {
            style = Style::DoubleQuoted;
        }
        if style == Style::Plain && (!look.plain || (text.is_empty() && is_key)) {
            style = Style::SingleQuoted;
        }
        if style == Style::SingleQuoted && (!look.single_quoted || look.line_breaks) {
            style = Style::DoubleQuoted;
        }
        if matches!(style, Style::Literal | Style::Folded) && (!look.block || is_key) {
            style = Style::DoubleQuoted;
        }
        let start = self.out.len();
        match style {
            Style::Plain | Style::Auto => self.out.push_str(text),
            Style::SingleQuoted => {
                self.out.push('\'');
                self.out.push_str(&text.replace('\'', "''"));
                self.out.push('\'');
            }
            Style::DoubleQuoted => self.double_quoted(text),
            // Folding is never chosen by us and a literal block says the same.
            Style::Literal | Style::Folded => return self.literal(text, body, hint),
        }
        if let Some(width) = self.options.width.filter(|_| !is_key) {
            fold(&mut self.out, start, body, width, style);
        }
    }

    fn double_quoted(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\0' => self.out.push_str("\\0"),
                '\x07' => self.out.push_str("\\a"),
                '\x08' => self.out.push_str("\\b"),
                '\t' => self.out.push_str("\\t"),
                '\n' => self.out.push_str("\\n"),
                '\x0b' => self.out.push_str("\\v"),
                '\x0c' => self.out.push_str("\\f"),
                '\r' => self.out.push_str("\\r"),
                '\x1b' => self.out.push_str("\\e"),
                '\u{85}' => self.out.push_str("\\N"),
                '\u{2028}' => self.out.push_str("\\L"),
                '\u{2029}' => self.out.push_str("\\P"),
                c if is_printable(c) => self.out.push(c),
                c if (c as u32) <= 0xff => self.out.push_str(&format!("\\x{:02X}", c as u32)),
                c if (c as u32) <= 0xffff => self.out.push_str(&format!("\\u{:04X}", c as u32)),
                c => self.out.push_str(&format!("\\U{:08X}", c as u32)),
            }
        }
        self.out.push('"');
    }

    /// The hint counts from the column of the collection around. The original always writes one whole level,
    /// which it cannot read itself in lists, where a block is two columns deeper.
    fn literal(&mut self, text: &str, body: usize, hint: usize) {
        self.out.push('|');
        if text.starts_with([' ', '\n']) {
            self.out.push_str(&hint.to_string());
        }
        if !text.ends_with('\n') {
            self.out.push('-');
        } else if text.ends_with("\n\n") || text == "\n" {
            self.out.push('+');
        }
        self.out.push('\n');
        for line in text.split_inclusive('\n') {
            if line != "\n" {
                self.pad(body);
            }
            self.out.push_str(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::parse;

    #[track_caller]
    fn check(root: Node, expect: Expect) {
        let text = emit(&root);
        expect.assert_eq(&text);
        let back = parse(&text).unwrap();
        assert_eq!(plain(&back[0].root), plain(&root), "reads back as the same tree");
    }

    /// The tree without places and styles.
    fn plain(node: &Node) -> String {
        match &node.value {
            Value::Scalar(s) => format!("{:?}", s.text),
            Value::Seq(items) => format!("{:?}", items.iter().map(plain).collect::<Vec<_>>()),
            Value::Map(entries) => {
                format!("{:?}", entries.iter().map(|(k, v)| (plain(k), plain(v))).collect::<Vec<_>>())
            }
        }
    }

    fn strings(texts: &[&str]) -> Node {
        Node::seq(texts.iter().map(|t| Node::string(*t)).collect())
    }

    fn map(entries: Vec<(&str, Node)>) -> Node {
        Node::map(entries.into_iter().map(|(k, v)| (Node::string(k), v)).collect())
    }

    #[test]
    fn strings_are_quoted_only_when_they_must_be() {
        let texts = [
            "plain",
            "",
            "true",
            "off",
            "12",
            "1.5",
            "0000:04:00.00",
            "!x",
            "a: b",
            "a:b",
            "a #b",
            "a#b",
            "-",
            "- x",
            "-x",
            "it's",
            "'q'",
            "tab\there",
            " lead",
            "trail ",
            "null",
            "~",
            "2024-01-01",
            "0x1F",
            "é",
            "😀",
            "<<",
            "a, b",
            "[x",
            "x]",
            "*",
            "%a",
            "@a",
            "?",
            "? a",
            "key:",
            "\u{7f}",
            "1_000",
            "---",
        ];
        check(
            strings(&texts),
            expect![[r##"
            - plain
            - ""
            - "true"
            - "off"
            - "12"
            - "1.5"
            - "0000:04:00.00"
            - '!x'
            - 'a: b'
            - a:b
            - 'a #b'
            - a#b
            - '-'
            - '- x'
            - -x
            - it's
            - '''q'''
            - "tab\there"
            - ' lead'
            - 'trail '
            - "null"
            - "~"
            - "2024-01-01"
            - "0x1F"
            - é
            - "\U0001F600"
            - "<<"
            - a, b
            - '[x'
            - x]
            - '*'
            - '%a'
            - '@a'
            - '?'
            - '? a'
            - 'key:'
            - "\x7F"
            - "1_000"
            - '---'
        "##]],
        );
    }

    #[test]
    fn blocks_align_to_the_next_step() {
        let inner = map(vec![("a", strings(&["x"])), ("b", map(vec![("c", Node::plain("1"))]))]);
        let root = map(vec![
            ("list", Node::seq(vec![inner.clone(), Node::seq(vec![Node::string("y"), Node::string("z")])])),
            ("map", inner),
            ("none", Node::null()),
            ("empty", Node::seq(vec![])),
            ("void", Node::map(vec![])),
        ]);
        check(
            root,
            expect![[r#"
            list:
                - a:
                    - x
                  b:
                    c: 1
                - - "y"
                  - z
            map:
                a:
                    - x
                b:
                    c: 1
            none: null
            empty: []
            void: {}
        "#]],
        );
    }

    #[test]
    fn line_breaks_make_literal_blocks() {
        let root = map(vec![
            ("clip", Node::string("a\nb\n")),
            ("strip", Node::string("a\n\n b")),
            ("keep", Node::string("a\n\n")),
            ("hint", Node::string("  a\nb\n")),
            ("tab", Node::string("a\n\tb\n")),
            ("space", Node::string("a \nb")),
            ("nothing", Node::string("\n")),
            ("items", strings(&["p\nq\n", " p\nq\n"])),
            ("below", Node::seq(vec![map(vec![("hint", Node::string("\np\nq"))])])),
        ]);
        check(
            root,
            expect![[r#"
                clip: |
                    a
                    b
                strip: |-
                    a

                     b
                keep: |+
                    a

                hint: |4
                      a
                    b
                tab: |
                    a
                    	b
                space: "a \nb"
                nothing: "\n"
                items:
                    - |
                      p
                      q
                    - |2
                       p
                      q
                below:
                    - hint: |2-

                        p
                        q
            "#]],
        );
    }
}
