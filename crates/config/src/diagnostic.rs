//! Errors and warnings that point: what is wrong, where, and what to do.

use std::fmt;

use ichor_yaml::{Node, Span, Value};
use serde_json::{Value as Json, json};

use crate::model::{FreeValue, Path, Step, UnknownKey};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// The configuration can be used.
    Warning,
}

/// Which part of reading a configuration noticed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The text is not YAML.
    Syntax,
    /// The stream as a whole: duplicate documents, unknown kinds, missing documents.
    Stream,
    /// A value has the wrong type or form.
    Decode,
    /// A key that does not exist.
    UnknownKey,
    /// The values break a rule.
    Validate,
}

/// One thing to say about a configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Which part noticed it.
    pub stage: Stage,
    /// The document, as `Kind/name`; `v1alpha1.Config` for the root document.
    pub document: String,
    /// Where in the document.
    pub path: Path,
    /// Where in the text; unknown for configurations that no text had.
    pub span: Span,
    /// What is wrong.
    pub message: String,
    /// What is allowed or what to do.
    pub help: Option<String>,
}

impl Diagnostic {
    /// An error without a place yet.
    pub fn error(stage: Stage, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            stage,
            document: String::new(),
            path: Path::root(),
            span: Span::NONE,
            message: message.into(),
            help: None,
        }
    }

    /// A warning without a place yet.
    pub fn warning(message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(Stage::Validate, message) }
    }

    /// The message behind the name of its document, as it is printed in lists; warnings go without a name.
    pub fn titled(&self) -> String {
        match (self.stage, self.severity) {
            (Stage::Validate, Severity::Error) if !self.document.is_empty() => {
                format!("{}: {}", self.document, self.message)
            }
            _ => self.message.clone(),
        }
    }

    /// The message behind its line and column, for where the text is not at hand.
    pub fn placed(&self) -> String {
        let help = self.help.as_ref().map(|help| format!(" ({help})")).unwrap_or_default();
        match self.span.is_known() {
            true => format!("line {}, column {}: {}{help}", self.span.line, self.span.column, self.titled()),
            false => format!("{}{help}", self.titled()),
        }
    }

    /// The message with its place in a file, an excerpt and a caret.
    pub fn render(&self, file: &str, text: &str) -> String {
        let level = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let mut out = format!("{level}: {}\n", self.titled());
        if self.span.is_known() {
            out.push_str(&format!("  --> {file}:{}:{}\n", self.span.line, self.span.column));
            if let Some(line) = line_at(text, &self.span) {
                let number = self.span.line.to_string();
                let margin = " ".repeat(number.len());
                let (line, lead, width) = excerpt(line, &self.span);
                out.push_str(&format!(" {margin} |\n {number} | {line}\n {margin} | "));
                out.push_str(&format!("{}{}\n", " ".repeat(lead), "^".repeat(width)));
            }
        } else if !self.path.0.is_empty() {
            out.push_str(&format!("  --> {file}: {}\n", self.path));
        }
        if let Some(help) = &self.help {
            out.push_str(&format!("  = {help}\n"));
        }
        out
    }

    /// The same for programs.
    pub fn to_json(&self) -> Json {
        json!({
            "severity": match self.severity { Severity::Error => "error", Severity::Warning => "warning" },
            "stage": match self.stage {
                Stage::Syntax => "syntax",
                Stage::Stream => "stream",
                Stage::Decode => "decode",
                Stage::UnknownKey => "unknown-key",
                Stage::Validate => "validate",
            },
            "document": self.document,
            "path": self.path.to_string(),
            "line": self.span.line,
            "column": self.span.column,
            "message": self.message,
            "help": self.help,
        })
    }
}

/// A problem that a node told of in a text it was sent, as [`Diagnostic::placed`] writes it: the place is looked up
/// in the text.
pub fn told_of(line: &str, text: &str) -> Option<Diagnostic> {
    let (number, rest) = line.strip_prefix("line ")?.split_once(", column ")?;
    let (column, message) = rest.split_once(": ").unwrap_or((rest, ""));
    let (line, column): (u32, u32) = (number.parse().ok()?, column.parse().ok()?);
    let start: usize = text.split_inclusive('\n').take((line as usize).checked_sub(1)?).map(str::len).sum();
    let before: usize =
        text.get(start..)?.chars().take((column as usize).checked_sub(1)?).map(char::len_utf8).sum();
    let offset = u32::try_from(start + before).ok()?;
    // The word at the place is what the caret goes under.
    let word = text.get(start + before..)?.find([' ', ':', ',', '\n', ']', '}']).unwrap_or(0).max(1);
    let span = Span { line, column, offset, end: offset + word as u32 };
    Some(Diagnostic { span, ..Diagnostic::error(Stage::Validate, message) })
}

/// The line of a text that a place is in.
fn line_at<'t>(text: &'t str, span: &Span) -> Option<&'t str> {
    let offset = (span.offset as usize).min(text.len());
    if !text.is_char_boundary(offset) {
        return None;
    }
    let start = text[..offset].rfind('\n').map_or(0, |at| at + 1);
    Some(text[start..].lines().next().unwrap_or_default())
}

/// Characters of a line that an excerpt shows at most.
const EXCERPT_MAX: usize = 100;

/// The part of a line around a place, with the column and width of the caret in it.
fn excerpt(line: &str, span: &Span) -> (String, usize, usize) {
    let chars: Vec<char> = line.chars().map(|c| if c == '\t' { ' ' } else { c }).collect();
    let column = (span.column as usize).saturating_sub(1).min(chars.len());
    let start = if column > EXCERPT_MAX - 20 { column - 20 } else { 0 };
    let end = chars.len().min(start + EXCERPT_MAX);
    let bytes = (span.end.saturating_sub(span.offset) as usize).max(1);
    let width = bytes.min(end.saturating_sub(column)).max(1);
    (chars[start..end].iter().collect(), column - start, width)
}

/// All errors of a configuration at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Diagnostics {
    /// The errors, in the order of the text.
    pub items: Vec<Diagnostic>,
    /// Unknown keys with their values, for the combined message.
    pub(crate) unknown: Vec<UnknownKey>,
}

impl std::error::Error for Diagnostics {}

impl Diagnostics {
    /// A single error.
    pub fn single(diagnostic: Diagnostic) -> Self {
        Self { items: vec![diagnostic], unknown: Vec::new() }
    }

    /// True if there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// All messages with excerpts of the text.
    pub fn render(&self, file: &str, text: &str) -> String {
        self.items.iter().map(|item| item.render(file, text)).collect::<Vec<_>>().join("\n")
    }

    /// The same for programs.
    pub fn to_json(&self) -> Json {
        Json::Array(self.items.iter().map(Diagnostic::to_json).collect())
    }

    /// One line per problem with its place, for messages that leave the machine without the text.
    pub fn positions(&self) -> String {
        let known = self.items.iter().filter(|item| item.span.is_known());
        known.map(|item| format!("{}\n", item.placed())).collect()
    }

    /// What a node answers: the words of the original, then every problem with its place. Both are cut where
    /// they would not fit into the trailer of a call.
    pub fn answer(&self) -> String {
        let (words, places) = (self.to_string(), self.positions());
        let words = bounded(words.trim_end());
        // A text that does not parse has one problem, which has just been told.
        if let [Diagnostic { stage: Stage::Syntax | Stage::Stream, span, help: None, .. }] = &self.items[..] {
            return format!("{words}\n\nline {}, column {}", span.line, span.column);
        }
        if places.is_empty() { words } else { format!("{words}\n\n{}", bounded(places.trim_end())) }
    }
}

/// Bytes of a trailer that one part of an answer may fill: clients take 16 KiB of headers, and there are two parts.
const ANSWER_PART_MAX: usize = 6000;

/// A text that fits into its part of an answer, cut at the end of a line if need be.
fn bounded(text: &str) -> String {
    // In trailers everything but printable ASCII is written as three signs.
    let cost = |byte: u8| if (0x20..0x7f).contains(&byte) && byte != b'%' { 1 } else { 3 };
    let mut spent = 0;
    let over = text.bytes().position(|byte| {
        spent += cost(byte);
        spent > ANSWER_PART_MAX
    });
    let Some(over) = over else { return text.to_owned() };
    let start = (0..=over).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let end = text[..start].rfind('\n').unwrap_or(start);
    format!("{}\n... and more that is not shown", &text[..end])
}

impl fmt::Display for Diagnostics {
    /// The wording of the original: one message per stage, the earliest stage that failed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |stage: Stage| self.items.iter().filter(move |item| item.stage == stage);
        if let Some(first) = of(Stage::Syntax).next() {
            return write!(f, "decode error: {}", first.message);
        }
        if let Some(first) = of(Stage::Stream).next() {
            return f.write_str(&first.message);
        }
        let mut decode = of(Stage::Decode).peekable();
        if let Some(first) = decode.peek() {
            let kind =
                first.document.split('/').next().filter(|kind| *kind != "v1alpha1.Config").unwrap_or("");
            let go_type = crate::document::go_type(kind);
            write!(f, "error decoding {kind} to *{go_type}: yaml: unmarshal errors:")?;
            for item in decode {
                write!(f, "\n  line {}: {}", item.span.line, item.message)?;
            }
            return Ok(());
        }
        if !self.unknown.is_empty() {
            let tree = ichor_yaml::emit(&unknown_tree(&self.unknown));
            return write!(f, "unknown keys found during decoding:\n{tree}");
        }
        f.write_str(&error_list(grouped(&self.items).into_iter()))
    }
}

/// One message per document: the root document as a list inside the list, others line by line.
fn grouped(items: &[Diagnostic]) -> Vec<String> {
    let mut groups: Vec<(&str, Vec<String>)> = Vec::new();
    for item in items {
        let known = groups.iter_mut().find(|(title, _)| !title.is_empty() && *title == item.document);
        match known {
            Some((_, messages)) => messages.push(item.message.clone()),
            None => groups.push((&item.document, vec![item.message.clone()])),
        }
    }
    let join = |(title, messages): (&str, Vec<String>)| match title {
        "" => messages.concat(),
        "v1alpha1.Config" => format!("{title}: {}", error_list(messages.into_iter())),
        title => format!("{title}: {}", messages.join("\n")),
    };
    groups.into_iter().map(join).collect()
}

/// A list of errors as the original prints it.
pub fn error_list(messages: impl Iterator<Item = String>) -> String {
    let messages: Vec<String> = messages.map(|message| format!("\t* {message}\n")).collect();
    let title = match messages.len() {
        1 => "1 error occurred:".to_owned(),
        count => format!("{count} errors occurred:"),
    };
    format!("{title}\n{}\n", messages.concat())
}

/// The unknown keys as one tree, so that they can be shown where they were.
fn unknown_tree(keys: &[UnknownKey]) -> Node {
    let mut root = Node::map(Vec::new());
    for key in keys {
        let steps = &key.path.0;
        let is_list = |i: usize| matches!(steps.get(i + 1), Some(Step::Index(_)));
        let place =
            steps.iter().enumerate().try_fold(&mut root, |node, (i, step)| descend(node, step, is_list(i)));
        if let Some(Node { value: Value::Map(entries), .. }) = place {
            let value = FreeValue::from_node(&key.value).to_node();
            entries.push((Node::string(key.key.as_str()), value));
        }
    }
    root
}

/// The node below a step, made if it is not there; nothing if the tree has another form there.
fn descend<'n>(node: &'n mut Node, step: &Step, next_is_list: bool) -> Option<&'n mut Node> {
    let fresh = || if next_is_list { Node::seq(Vec::new()) } else { Node::map(Vec::new()) };
    match (&mut node.value, step) {
        (Value::Map(entries), Step::Key(key)) => {
            let found = entries.iter().position(|(name, _)| name.as_str() == Some(key));
            let at = found.unwrap_or_else(|| {
                entries.push((Node::string(key.as_str()), fresh()));
                entries.len() - 1
            });
            Some(&mut entries[at].1)
        }
        (Value::Seq(items), Step::Index(index)) => {
            // Remember which item this was by its place, so that two keys of one item stay together.
            let mark = *index as u32 + 1;
            let found = items.iter().position(|item| item.span.end == mark);
            let at = found.unwrap_or_else(|| {
                let mut item = fresh();
                item.span.end = mark;
                items.push(item);
                items.len() - 1
            });
            Some(&mut items[at])
        }
        _ => None,
    }
}
