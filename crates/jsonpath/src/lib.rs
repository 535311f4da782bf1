//! The kubectl dialect of JSONPath: templates of text and `{actions}` over JSON values.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = ichor_jsonpath::Path::parse("{range .items[*]}{.name}={.port}{\"\\n\"}{end}")?;
//! let data = serde_json::json!({ "items": [{ "name": "a", "port": 1 }, { "name": "b", "port": 2 }] });
//! assert_eq!(path.text(&data)?, "a=1\nb=2\n");
//! # Ok(())
//! # }
//! ```
//!
//! Inside braces: `.field`, `.*`, `['key']`, `[0]`, `[-1]`, `[1:3]`, `[::2]`, `[*]`, `[0,2]`, `..field`,
//! `[?(@.a=="b")]`, `[?(@.a)]`, `"text"`, numbers, booleans, `range` and `end`. `$` and `@` are the value at
//! hand. A backslash takes the meaning from a dot inside a field name.

mod eval;
mod parse;
mod print;

use serde_json::Value;

pub use eval::EvalError;
pub use parse::ParseError;

/// A parsed template.
#[derive(Debug, Clone, PartialEq)]
pub struct Path {
    parts: Vec<Part>,
    allow_missing_keys: bool,
}

/// A piece of a template.
#[derive(Debug, Clone, PartialEq)]
enum Part {
    /// Text outside braces.
    Text(String),
    /// A path to print.
    Action(Vec<Step>),
    /// A path and what to print for each value it finds.
    Range(Vec<Step>, Vec<Part>),
}

/// One step of a path; each turns a list of values into another.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    Wildcard,
    Recursive,
    Slice(Slice),
    Union(Vec<Vec<Step>>),
    Filter(Filter),
    Constant(Value),
}

/// `[start:end:step]`, or `[start]` when `single`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slice {
    start: Option<i64>,
    end: Option<i64>,
    step: Option<i64>,
    single: bool,
}

/// `[?(left operator right)]`, or `[?(left)]` when there is nothing to compare with.
#[derive(Debug, Clone, PartialEq)]
struct Filter {
    left: Vec<Step>,
    compare: Option<(Operator, Vec<Step>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Path {
    /// Reads a template.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        Ok(Self { parts: parse::template(text)?, allow_missing_keys: false })
    }

    /// Makes a key that is not there an empty result instead of an error.
    #[must_use]
    pub fn allow_missing_keys(mut self) -> Self {
        self.allow_missing_keys = true;
        self
    }

    /// The text the template gives for a value.
    pub fn text(&self, data: &Value) -> Result<String, EvalError> {
        let mut out = String::new();
        eval::render(&self.parts, data, self.allow_missing_keys, &mut out)?;
        Ok(out)
    }

    /// Everything the template finds in a value, one by one; text between actions counts as found.
    pub fn results(&self, data: &Value) -> Result<Vec<Value>, EvalError> {
        let mut found = Vec::new();
        eval::collect(&self.parts, data, self.allow_missing_keys, &mut found)?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests;
