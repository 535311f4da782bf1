//! The state of a decoding run: where we are, what is wrong so far.

use std::fmt;

use ichor_yaml::{Node, Span, Style, Value};

use crate::diagnostic::{Diagnostic, Stage};

/// Problems that are reported at most; more would only cost time, also the reader's.
pub(crate) const PROBLEMS_MAX: usize = 100;

/// One step of a path into a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A key of a mapping.
    Key(String),
    /// An item of a list.
    Index(usize),
}

/// Where in a document something is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(pub Vec<Step>);

impl Path {
    /// The root of a document.
    pub const fn root() -> Self {
        Self(Vec::new())
    }

    /// The path of a key below this one.
    pub fn key(&self, key: &str) -> Self {
        let mut steps = self.0.clone();
        steps.push(Step::Key(key.to_owned()));
        Self(steps)
    }

    /// The path of a list item below this one.
    pub fn index(&self, index: usize) -> Self {
        let mut steps = self.0.clone();
        steps.push(Step::Index(index));
        Self(steps)
    }

    /// A path from dotted keys.
    pub fn of(dotted: &str) -> Self {
        let keys = dotted.split('.').filter(|key| !key.is_empty());
        Self(keys.map(|key| Step::Key(key.to_owned())).collect())
    }

    /// The node this path leads to.
    pub fn find<'n>(&self, root: &'n Node) -> Option<&'n Node> {
        self.0.iter().try_fold(root, |node, step| match step {
            Step::Key(key) => node.get(key),
            Step::Index(index) => node.as_seq()?.get(*index),
        })
    }

    /// The place of the deepest part of this path that the tree has.
    pub fn locate(&self, root: &Node) -> Span {
        let mut node = root;
        let mut span = root.span;
        for step in &self.0 {
            match step {
                Step::Key(key) => match node.entry(key) {
                    Some((name, value)) => {
                        // The value is where the trouble is; an empty one has no place of its own.
                        span = if value.as_scalar().is_some() && !value.is_null() {
                            value.span
                        } else {
                            name.span
                        };
                        node = value;
                    }
                    None => return span,
                },
                Step::Index(index) => match node.as_seq().and_then(|items| items.get(*index)) {
                    Some(item) => {
                        span = item.span;
                        node = item;
                    }
                    None => return span,
                },
            }
        }
        span
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if key.contains(['.', '/', ' ']) => write!(f, "[{key:?}]")?,
                Step::Key(key) if i == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// A key that no type has, with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct UnknownKey {
    /// The mapping it is in.
    pub path: Path,
    /// The key.
    pub key: String,
    /// Its value.
    pub value: Node,
}

/// Collects the problems of one document while it is read.
#[derive(Debug, Default)]
pub struct Decoder {
    path: Path,
    /// Problems so far.
    pub problems: Vec<Diagnostic>,
    /// Unknown keys so far.
    pub unknown: Vec<UnknownKey>,
}

impl Decoder {
    /// Runs a step below a key.
    pub fn at_key<R>(&mut self, key: &str, run: impl FnOnce(&mut Self) -> R) -> R {
        self.path.0.push(Step::Key(key.to_owned()));
        let result = run(self);
        self.path.0.pop();
        result
    }

    /// Runs a step below a list item.
    pub fn at_index<R>(&mut self, index: usize, run: impl FnOnce(&mut Self) -> R) -> R {
        self.path.0.push(Step::Index(index));
        let result = run(self);
        self.path.0.pop();
        result
    }

    /// Where the decoder is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The entries of a mapping, or a problem.
    pub fn mapping<'n>(&mut self, node: &'n Node) -> Option<&'n [(Node, Node)]> {
        match &node.value {
            Value::Map(entries) => Some(entries),
            Value::Scalar(_) | Value::Seq(_) => {
                self.mismatch(node, "a mapping");
                None
            }
        }
    }

    /// The text of a scalar, or a problem.
    pub fn text<'n>(&mut self, node: &'n Node, into: &str) -> Option<&'n str> {
        let text = node.as_str();
        if text.is_none() {
            self.mismatch(node, into);
        }
        text
    }

    /// Notes that a value has the wrong type.
    pub fn mismatch(&mut self, node: &Node, into: &str) {
        let value = match node.as_scalar() {
            Some(scalar) => {
                let text = &scalar.text;
                let short: String = text.chars().take(7).collect();
                if text.chars().count() > 10 { format!(" `{short}...`") } else { format!(" `{text}`") }
            }
            None => String::new(),
        };
        let message = format!("cannot unmarshal {}{value} into {into}", node.tag());
        self.problem(node.span, message, None);
    }

    /// Notes a problem at a place.
    pub fn problem(&mut self, span: Span, message: String, help: Option<String>) {
        if self.is_full(span) {
            return;
        }
        self.problems.push(Diagnostic {
            path: self.path.clone(),
            span,
            help,
            ..Diagnostic::error(Stage::Decode, message)
        });
    }

    /// True once there is enough to fix; the last problem says so.
    fn is_full(&mut self, span: Span) -> bool {
        if self.problems.len() == PROBLEMS_MAX {
            let message = format!("more than {PROBLEMS_MAX} problems, the rest is not shown");
            self.problems.push(Diagnostic { span, ..Diagnostic::error(Stage::Decode, message) });
        }
        self.problems.len() > PROBLEMS_MAX
    }

    /// Notes a key that no type has.
    pub fn unknown(&mut self, key: &Node, value: &Node, known: &[&str]) {
        if self.is_full(key.span) {
            return;
        }
        let name = key.as_str().unwrap_or("?").to_owned();
        let path = self.path.key(&name);
        let help = crate::suggest::did_you_mean(&name, known.iter().copied());
        let message = match self.path.0.is_empty() {
            true => format!("unknown key {name:?}"),
            false => format!("unknown key {name:?} in {}", self.path),
        };
        let base = Diagnostic::error(Stage::UnknownKey, message);
        self.problems.push(Diagnostic { path, span: key.span, help, ..base });
        self.unknown.push(UnknownKey { path: self.path.clone(), key: name, value: value.clone() });
    }

    /// Reads one of a few texts.
    pub fn choice<T: Default>(
        &mut self,
        node: &Node,
        what: &str,
        texts: &[&str],
        parse: impl Fn(&str) -> Option<T>,
    ) -> T {
        let Some(text) = self.text(node, what) else { return T::default() };
        match parse(text) {
            Some(value) => value,
            None => {
                let guess = crate::suggest::did_you_mean(text, texts.iter().copied());
                let allowed = format!("allowed: {}", texts.join(", "));
                let help = guess.map_or(allowed.clone(), |guess| format!("{guess}; {allowed}"));
                self.problem(node.span, format!("{text} does not belong to {what} values"), Some(help));
                T::default()
            }
        }
    }

    /// Reads text of a certain form.
    pub fn parsed<T: Default, E: fmt::Display>(
        &mut self,
        node: &Node,
        into: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> T {
        let Some(text) = self.text(node, into) else { return T::default() };
        match parse(text) {
            Ok(value) => value,
            Err(error) => {
                self.problem(node.span, error.to_string(), Some(format!("expected {into}")));
                T::default()
            }
        }
    }

    /// True if a scalar was written with quotes or as a block, so that it can only be text.
    pub fn is_quoted(node: &Node) -> bool {
        node.as_scalar().is_some_and(|scalar| scalar.style != Style::Plain)
    }
}
