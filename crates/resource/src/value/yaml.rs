//! YAML on the way out: block style, four spaces a level, the look of Go's YAML library.
//!
//! Only what specs need: mappings, lists and scalars, written straight into a string.

use super::scalar::{Style, style};

/// Where the next value stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The document itself.
    Root,
    /// After `key:`.
    Value,
    /// After `- `.
    Item,
}

/// Writes one YAML document.
#[derive(Debug)]
pub struct Yaml<'a> {
    out: &'a mut String,
    indent: usize,
    place: Place,
}

/// An open mapping or list; hand it back to the writer that made it.
#[derive(Debug)]
pub struct Frame {
    outer: usize,
    place: Place,
    empty: bool,
}

const STEP: usize = 4;

impl<'a> Yaml<'a> {
    /// A writer of one document that appends to `out`.
    pub fn new(out: &'a mut String) -> Self {
        Self { out, indent: 0, place: Place::Root }
    }

    /// Writes text that is known to need no quotes: numbers, booleans, `null`.
    pub fn plain(&mut self, text: &str) {
        if self.place == Place::Value {
            self.out.push(' ');
        }
        self.out.push_str(text);
        self.out.push('\n');
    }

    /// Writes something that prints without quotes.
    pub fn display(&mut self, value: impl std::fmt::Display) {
        use std::fmt::Write;
        if self.place == Place::Value {
            self.out.push(' ');
        }
        // Writing to a String cannot fail.
        let _ = writeln!(self.out, "{value}");
    }

    /// Writes a string with the quotes it needs.
    pub fn string(&mut self, text: &str) {
        if self.place == Place::Value {
            self.out.push(' ');
        }
        match style(text, false) {
            Style::Plain => self.out.push_str(text),
            Style::Single => push_single(text, self.out),
            Style::Double => push_double(text, self.out),
            Style::Literal => return self.literal(text),
        }
        self.out.push('\n');
    }

    /// Opens a mapping or a list.
    pub fn begin(&mut self) -> Frame {
        let frame = Frame { outer: self.indent, place: self.place, empty: true };
        self.indent = match self.place {
            Place::Root => 0,
            Place::Value => STEP * ((self.indent + STEP) / STEP),
            Place::Item => self.indent + 2,
        };
        frame
    }

    /// Starts an entry with a key that needs no quotes; the value follows.
    pub fn key(&mut self, frame: &mut Frame, key: &str) {
        self.lead(frame);
        self.out.push_str(key);
        self.out.push(':');
        self.place = Place::Value;
    }

    /// Starts an entry with any key; the value follows.
    pub fn string_key(&mut self, frame: &mut Frame, key: &str) {
        self.lead(frame);
        match style(key, true) {
            Style::Plain => self.out.push_str(key),
            Style::Single => push_single(key, self.out),
            Style::Double | Style::Literal => push_double(key, self.out),
        }
        self.out.push(':');
        self.place = Place::Value;
    }

    /// Starts an item of a list; the value follows.
    pub fn item(&mut self, frame: &mut Frame) {
        self.lead(frame);
        self.out.push_str("- ");
        self.place = Place::Item;
    }

    /// Closes a mapping; without entries it is `{}`.
    pub fn end_map(&mut self, frame: Frame) {
        self.end(frame, "{}");
    }

    /// Closes a list; without items it is `[]`.
    pub fn end_list(&mut self, frame: Frame) {
        self.end(frame, "[]");
    }

    /// Places lines that are YAML already as the value; they must be in block style and not empty.
    pub fn raw_block(&mut self, text: &str) {
        let frame = self.begin();
        if frame.place == Place::Value {
            self.out.push('\n');
        }
        let mut first = frame.place != Place::Value;
        for line in text.lines() {
            if !line.is_empty() && !first {
                self.pad();
            }
            first = false;
            self.out.push_str(line);
            self.out.push('\n');
        }
        self.indent = frame.outer;
    }

    fn end(&mut self, frame: Frame, empty: &str) {
        self.indent = frame.outer;
        self.place = frame.place;
        if frame.empty {
            self.plain(empty);
        }
    }

    fn lead(&mut self, frame: &mut Frame) {
        match (frame.empty, frame.place) {
            // The first entry of an item stands right after its dash.
            (true, Place::Root | Place::Item) => {}
            (true, Place::Value) => {
                self.out.push('\n');
                self.pad();
            }
            (false, _) => self.pad(),
        }
        frame.empty = false;
    }

    fn literal(&mut self, text: &str) {
        self.out.push('|');
        if text.starts_with([' ', '\n']) {
            self.out.push('4');
        }
        match text.strip_suffix('\n') {
            None => self.out.push('-'),
            Some(rest) if rest.ends_with('\n') || rest.is_empty() => self.out.push('+'),
            Some(_) => {}
        }
        self.out.push('\n');
        let indent = match self.place {
            Place::Root => STEP,
            Place::Value => STEP * ((self.indent + STEP) / STEP),
            Place::Item => self.indent + 2,
        };
        for line in text.split_inclusive('\n') {
            if line != "\n" {
                self.out.extend(std::iter::repeat_n(' ', indent));
            }
            self.out.push_str(line);
        }
        if !text.ends_with('\n') {
            self.out.push('\n');
        }
    }

    fn pad(&mut self) {
        self.out.extend(std::iter::repeat_n(' ', self.indent));
    }
}

fn push_single(text: &str, out: &mut String) {
    out.push('\'');
    for c in text.chars() {
        if c == '\'' {
            out.push('\'');
        }
        out.push(c);
    }
    out.push('\'');
}

fn push_double(text: &str, out: &mut String) {
    use std::fmt::Write;
    out.push('"');
    for c in text.chars() {
        let short = match c {
            '\0' => '0',
            '\x07' => 'a',
            '\x08' => 'b',
            '\t' => 't',
            '\n' => 'n',
            '\x0b' => 'v',
            '\x0c' => 'f',
            '\r' => 'r',
            '\x1b' => 'e',
            '"' => '"',
            '\\' => '\\',
            '\u{85}' => 'N',
            '\u{2028}' => 'L',
            '\u{2029}' => 'P',
            c if super::scalar::printable(c) => {
                out.push(c);
                continue;
            }
            c => {
                // Writing to a String cannot fail.
                let _ = match u32::from(c) {
                    v @ ..=0xff => write!(out, "\\x{v:02X}"),
                    v @ ..=0xffff => write!(out, "\\u{v:04X}"),
                    v => write!(out, "\\U{v:08X}"),
                };
                continue;
            }
        };
        out.push('\\');
        out.push(short);
    }
    out.push('"');
}
