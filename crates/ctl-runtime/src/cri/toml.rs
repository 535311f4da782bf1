//! As much TOML as the files of a container runtime need: read, merge, write.
//!
//! Numbers, dates and booleans are kept as they are written; text, lists and tables are understood. Tables merge key
//! by key, lists are joined, anything else is replaced by what comes later.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Deeper nesting is refused, so that no input can exhaust the stack.
const DEPTH_MAX: usize = 32;

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number, date or boolean as it is written.
    Bare(String),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Value>),
    /// A table.
    Table(Table),
}

/// A table, sorted by key.
pub type Table = BTreeMap<String, Value>;

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bare(value.to_string())
    }
}

/// What is wrong with a text, and on which line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct TomlError {
    line: usize,
    what: &'static str,
}

/// Reads a document.
pub fn parse(text: &str) -> Result<Table, TomlError> {
    let mut reader = Reader { rest: text, line: 1 };
    reader.document().map_err(|what| TomlError { line: reader.line, what })
}

/// Puts `later` over `table`.
pub fn merge(table: &mut Table, later: Table) {
    for (key, value) in later {
        match (table.get_mut(&key), value) {
            (Some(Value::Table(held)), Value::Table(more)) => merge(held, more),
            (Some(Value::List(held)), Value::List(more)) => held.extend(more),
            (_, value) => drop(table.insert(key, value)),
        }
    }
}

struct Reader<'a> {
    rest: &'a str,
    line: usize,
}

type Read<T> = Result<T, &'static str>;

impl Reader<'_> {
    fn document(&mut self) -> Read<Table> {
        let mut root = Table::new();
        let mut at: Vec<String> = Vec::new();
        loop {
            self.blank(true);
            if self.rest.is_empty() {
                return Ok(root);
            }
            if self.eat("[[") {
                at = self.path()?;
                self.expect("]]")?;
                let (last, above) = at.split_last().ok_or("a table has no name")?;
                let list =
                    place(&mut root, above)?.entry(last.clone()).or_insert_with(|| Value::List(Vec::new()));
                let Value::List(list) = list else { return Err("a value is used as a list of tables") };
                list.push(Value::Table(Table::new()));
            } else if self.eat("[") {
                at = self.path()?;
                self.expect("]")?;
                place(&mut root, &at)?;
            } else {
                self.pair(place(&mut root, &at)?, 0)?;
            }
            self.blank(false);
            if !self.rest.is_empty() && !self.rest.starts_with(['\n', '\r']) {
                return Err("something follows the end of an entry");
            }
        }
    }

    /// Skips spaces and comments; with `lines`, line ends too.
    fn blank(&mut self, lines: bool) {
        loop {
            let trimmed = self.rest.trim_start_matches([' ', '\t']);
            self.rest = trimmed;
            if trimmed.starts_with('#') {
                self.rest = &trimmed[trimmed.find('\n').unwrap_or(trimmed.len())..];
            } else if lines && trimmed.starts_with(['\n', '\r']) {
                self.line += usize::from(trimmed.starts_with('\n'));
                self.rest = &trimmed[1..];
            } else {
                return;
            }
        }
    }

    fn eat(&mut self, word: &str) -> bool {
        let found = self.rest.strip_prefix(word);
        self.rest = found.unwrap_or(self.rest);
        found.is_some()
    }

    fn expect(&mut self, word: &'static str) -> Read<()> {
        self.blank(false);
        match self.eat(word) {
            true => Ok(()),
            false => Err(match word {
                "=" => "a key is not followed by =",
                "]" | "]]" => "the name of a table does not end",
                _ => "a list or a table does not end",
            }),
        }
    }

    fn path(&mut self) -> Read<Vec<String>> {
        let mut keys = Vec::new();
        loop {
            self.blank(false);
            let key = match self.rest.chars().next() {
                Some('"' | '\'') => self.text()?,
                _ => {
                    let end = self
                        .rest
                        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-'))
                        .unwrap_or(self.rest.len());
                    let (key, rest) = self.rest.split_at(end);
                    self.rest = rest;
                    key.to_owned()
                }
            };
            if key.is_empty() {
                return Err("a key is empty");
            }
            keys.push(key);
            if keys.len() > DEPTH_MAX {
                return Err("tables are nested too deep");
            }
            self.blank(false);
            if !self.eat(".") {
                return Ok(keys);
            }
        }
    }

    fn pair(&mut self, table: &mut Table, depth: usize) -> Read<()> {
        let keys = self.path()?;
        self.expect("=")?;
        self.blank(false);
        let value = self.value(depth)?;
        let (last, above) = keys.split_last().ok_or("a key is empty")?;
        match place(table, above)?.insert(last.clone(), value) {
            None => Ok(()),
            Some(_) => Err("a key is there twice"),
        }
    }

    fn value(&mut self, depth: usize) -> Read<Value> {
        if depth > DEPTH_MAX {
            return Err("values are nested too deep");
        }
        if self.rest.starts_with(['"', '\'']) {
            return self.text().map(Value::Text);
        }
        if self.eat("[") {
            let mut list = Vec::new();
            loop {
                self.blank(true);
                if self.eat("]") {
                    return Ok(Value::List(list));
                }
                list.push(self.value(depth + 1)?);
                self.blank(true);
                if !self.eat(",") {
                    self.expect("]")?;
                    return Ok(Value::List(list));
                }
            }
        }
        if self.eat("{") {
            let mut table = Table::new();
            loop {
                self.blank(true);
                if self.eat("}") {
                    return Ok(Value::Table(table));
                }
                self.pair(&mut table, depth + 1)?;
                self.blank(true);
                if !self.eat(",") {
                    self.expect("}")?;
                    return Ok(Value::Table(table));
                }
            }
        }
        let end = self.rest.find([',', ']', '}', '#', '\n', '\r']).unwrap_or(self.rest.len());
        let (bare, rest) = self.rest.split_at(end);
        self.rest = rest;
        let bare = bare.trim();
        let good = |c: char| c.is_ascii_alphanumeric() || "+-_.: ".contains(c);
        match bare.is_empty() || !bare.chars().all(good) {
            true => Err("a value is missing or is not one"),
            false => Ok(Value::Bare(bare.to_owned())),
        }
    }

    /// Any of the four kinds of text.
    fn text(&mut self) -> Read<String> {
        for (quote, plain) in [("\"\"\"", false), ("'''", true), ("\"", false), ("'", true)] {
            if !self.eat(quote) {
                continue;
            }
            let many = quote.len() == 3;
            if many {
                // The line end right behind the quotes does not count.
                let _ = self.eat("\r");
                if self.eat("\n") {
                    self.line += 1;
                }
            }
            let mut text = String::new();
            loop {
                if self.eat(quote) {
                    return Ok(text);
                }
                let next = self.rest.chars().next().ok_or("a text does not end")?;
                self.rest = &self.rest[next.len_utf8()..];
                match next {
                    '\n' if !many => return Err("a text does not end"),
                    '\\' if !plain => self.escape(&mut text)?,
                    next => {
                        self.line += usize::from(next == '\n');
                        text.push(next);
                    }
                }
            }
        }
        Err("a text is missing")
    }

    fn escape(&mut self, text: &mut String) -> Read<()> {
        const BAD: &str = "an escape is not one";
        let kind = self.rest.chars().next().ok_or(BAD)?;
        self.rest = &self.rest[kind.len_utf8()..];
        let digits = match kind {
            'u' => 4,
            'U' => 8,
            // A line that goes on: what is between does not count.
            '\n' | ' ' | '\t' | '\r' => {
                let rest = self.rest.trim_start();
                let skipped = &self.rest[..self.rest.len() - rest.len()];
                self.line += skipped.matches('\n').count() + usize::from(kind == '\n');
                self.rest = rest;
                return Ok(());
            }
            _ => {
                let plain = ('b', 't', 'n', 'f', 'r', '"', '\\');
                let known = [plain.0, plain.1, plain.2, plain.3, plain.4, plain.5, plain.6];
                let meant = ['\u{8}', '\t', '\n', '\u{c}', '\r', '"', '\\'];
                let at = known.iter().position(|known| *known == kind).ok_or(BAD)?;
                text.push(meant[at]);
                return Ok(());
            }
        };
        let number = self.rest.get(..digits).and_then(|digits| u32::from_str_radix(digits, 16).ok());
        text.push(number.and_then(char::from_u32).ok_or(BAD)?);
        self.rest = &self.rest[digits..];
        Ok(())
    }
}

/// The table at a path, made where it is missing; of a list of tables, its last.
fn place<'t>(table: &'t mut Table, path: &[String]) -> Read<&'t mut Table> {
    let Some((first, rest)) = path.split_first() else { return Ok(table) };
    let next = table.entry(first.clone()).or_insert_with(|| Value::Table(Table::new()));
    let next = match next {
        Value::List(list) => list.last_mut().ok_or("a value is used as a table")?,
        other => other,
    };
    match next {
        Value::Table(table) => place(table, rest),
        _ => Err("a value is used as a table"),
    }
}

/// Writes a document: keys sorted, values before tables, each level two spaces deeper.
pub fn render(table: &Table) -> String {
    let mut out = String::new();
    write_table(&mut out, table, &mut Vec::new());
    out
}

fn is_table(value: &Value) -> bool {
    match value {
        Value::Table(_) => true,
        Value::List(list) => !list.is_empty() && list.iter().all(|item| matches!(item, Value::Table(_))),
        _ => false,
    }
}

fn write_table(out: &mut String, table: &Table, path: &mut Vec<String>) {
    let indent = "  ".repeat(path.len());
    let (tables, values): (Vec<_>, Vec<_>) = table.iter().partition(|(_, value)| is_table(value));
    for (key, value) in &values {
        let _ = write!(out, "{indent}{} = ", key_text(key));
        write_value(out, value);
        out.push('\n');
    }
    let mut first = values.is_empty();
    for (key, value) in tables {
        path.push(key_text(key));
        let name = path.join(".");
        let (tables, open, close) = match value {
            Value::Table(table) => (vec![table], "[", "]"),
            Value::List(list) => {
                let tables = list.iter().filter_map(|item| match item {
                    Value::Table(table) => Some(table),
                    _ => None,
                });
                (tables.collect(), "[[", "]]")
            }
            _ => (Vec::new(), "", ""),
        };
        for table in tables {
            if !std::mem::take(&mut first) {
                out.push('\n');
            }
            let _ = writeln!(out, "{indent}{open}{name}{close}");
            write_table(out, table, path);
        }
        path.pop();
    }
}

fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::Bare(bare) => out.push_str(bare),
        Value::Text(text) => out.push_str(&quoted(text)),
        Value::List(list) => {
            out.push('[');
            for (at, item) in list.iter().enumerate() {
                out.push_str(if at == 0 { "" } else { ", " });
                write_value(out, item);
            }
            out.push(']');
        }
        Value::Table(table) => {
            out.push('{');
            for (at, (key, item)) in table.iter().enumerate() {
                let _ = write!(out, "{}{} = ", if at == 0 { "" } else { ", " }, key_text(key));
                write_value(out, item);
            }
            out.push('}');
        }
    }
}

fn key_text(key: &str) -> String {
    let bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if bare { key.to_owned() } else { quoted(key) }
}

fn quoted(text: &str) -> String {
    if !text.contains('\'') && !text.chars().any(char::is_control) {
        return format!("'{text}'");
    }
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() => drop(write!(out, "\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn parts_become_one_document() {
        let mut all = Table::new();
        for part in [
            "version = 2\ndisabled_plugins = ['a']\n[plugins.\"io.x.cri\".containerd.runtimes.runc]\n    runtime_type = \"io.containerd.runc.v2\"\n    discard = true # a word\n",
            "[plugins]\n  [plugins.\"io.x.cri\"]\n    [plugins.\"io.x.cri\".registry]\n      config_path = '/etc/hosts'\n      [plugins.\"io.x.cri\".registry.configs]\n",
            "disabled_plugins = [\n  'b',\n]\n[metrics]\n  address = \"0.0.0.0:11234\"\n[plugins]\n   [plugins.'io.x.cri']\n    image = \"it's\"\n",
        ] {
            merge(&mut all, parse(part).unwrap());
        }
        let text = render(&all);
        expect![[r#"
            disabled_plugins = ['a', 'b']
            version = 2

            [metrics]
              address = '0.0.0.0:11234'

            [plugins]
              [plugins.'io.x.cri']
                image = "it's"

                [plugins.'io.x.cri'.containerd]
                  [plugins.'io.x.cri'.containerd.runtimes]
                    [plugins.'io.x.cri'.containerd.runtimes.runc]
                      discard = true
                      runtime_type = 'io.containerd.runc.v2'

                [plugins.'io.x.cri'.registry]
                  config_path = '/etc/hosts'

                  [plugins.'io.x.cri'.registry.configs]
        "#]]
        .assert_eq(&text);
        assert_eq!(parse(&text).unwrap(), all);
    }

    #[test]
    fn all_kinds_of_values_are_read() {
        let text = "a.b = 1.5\nc = \"x\\u0041\\n\"\nd = '''\nraw\\\n'''\ne = { f = [1, 2], 'g h' = -1 }\n[[t]]\nx = 1\n[[t]]\nx = 2979-05-27 07:32:00Z\n";
        expect![[r#"
            c = "xA\n"
            d = "raw\\\n"

            [a]
              b = 1.5

            [e]
              f = [1, 2]
              'g h' = -1

            [[t]]
              x = 1

            [[t]]
              x = 2979-05-27 07:32:00Z
        "#]]
        .assert_eq(&render(&parse(text).unwrap()));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let error = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(error("a = 1\nb"), "line 2: a key is not followed by =");
        assert_eq!(error("a = 1\na = 2"), "line 2: a key is there twice");
        assert_eq!(error("a = 1 2 # x\n[b\n"), "line 2: the name of a table does not end");
        assert_eq!(error("a = 'x\n'"), "line 1: a text does not end");
        assert_eq!(error("a = 1\n[a.b]\n"), "line 2: a value is used as a table");
        assert_eq!(error("a = \"\\q\""), "line 1: an escape is not one");
        assert_eq!(error("a = @"), "line 1: a value is missing or is not one");
        assert_eq!(error("a = '' b"), "line 1: something follows the end of an entry");
        assert!(parse(&"[".repeat(100_000)).is_err());
        assert!(parse(&format!("a = {}", "[".repeat(100_000))).is_err());
    }
}
