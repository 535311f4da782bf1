//! From text to steps.

use serde_json::{Number, Value};

use crate::{Filter, Operator, Part, Slice, Step};

/// Filters inside filters go no deeper.
const DEPTH_MAX: usize = 16;

/// Why a template could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// A brace without its partner.
    #[error("unclosed action")]
    UnclosedAction,
    /// A bracket without its partner.
    #[error("unterminated array")]
    UnterminatedArray,
    /// A filter without its end.
    #[error("unterminated filter")]
    UnterminatedFilter,
    /// A quote without its partner.
    #[error("unterminated quoted string")]
    UnterminatedString,
    /// An escape that means nothing.
    #[error("unquote string {0}: invalid syntax")]
    BadEscape(String),
    /// A character that starts nothing.
    #[error("unrecognized character in action: {0:?}")]
    BadCharacter(char),
    /// A word other than `range`, `end`, `true` and `false`.
    #[error("unrecognized identifier {0}")]
    BadIdentifier(String),
    /// Digits that are no number.
    #[error("cannot parse number {0}")]
    BadNumber(String),
    /// Brackets around something else than an index, a key or a slice.
    #[error("invalid array index {0}")]
    BadIndex(String),
    /// A comparison other than the six there are.
    #[error("unrecognized filter operator {0}")]
    BadOperator(String),
    /// `....`
    #[error("invalid multiple recursive descent")]
    MultipleRecursive,
    /// `{end}` without `{range}`.
    #[error("not in range, nothing to end")]
    NothingToEnd,
    /// `{range}` without `{end}`.
    #[error("unclosed range")]
    UnclosedRange,
    /// Filters nested too deep.
    #[error("filters are nested more than {DEPTH_MAX} levels deep")]
    TooDeep,
}

/// What one pair of braces holds.
enum Action {
    Steps(Vec<Step>),
    Range(Vec<Step>),
    End,
}

/// Reads a whole template.
pub(crate) fn template(text: &str) -> Result<Vec<Part>, ParseError> {
    // The last level is the one being filled; below it are the ranges around it.
    let mut levels: Vec<(Vec<Step>, Vec<Part>)> = vec![(Vec::new(), Vec::new())];
    let mut rest = text;
    while !rest.is_empty() {
        let literal = rest.find('{').unwrap_or(rest.len());
        let part = if literal > 0 {
            let part = Part::Text(rest[..literal].to_owned());
            rest = &rest[literal..];
            part
        } else {
            let mut scanner = Scanner { rest: &rest[1..], depth: 0 };
            let action = scanner.action(true)?;
            rest = scanner.rest;
            match action {
                Action::Steps(steps) => Part::Action(steps),
                Action::Range(steps) => {
                    levels.push((steps, Vec::new()));
                    continue;
                }
                Action::End => {
                    let (steps, body) = levels.pop().ok_or(ParseError::NothingToEnd)?;
                    if levels.is_empty() {
                        return Err(ParseError::NothingToEnd);
                    }
                    Part::Range(steps, body)
                }
            }
        };
        if let Some((_, parts)) = levels.last_mut() {
            parts.push(part);
        }
    }
    match (levels.pop(), levels.is_empty()) {
        (Some((_, parts)), true) => Ok(parts),
        _ => Err(ParseError::UnclosedRange),
    }
}

struct Scanner<'a> {
    rest: &'a str,
    depth: usize,
}

impl<'a> Scanner<'a> {
    /// Reads steps until the closing brace, or until the end of the text when there is none to expect.
    fn action(&mut self, braced: bool) -> Result<Action, ParseError> {
        let mut steps = Vec::new();
        let mut range = false;
        loop {
            if self.rest.is_empty() && !braced {
                break;
            }
            if let Some(tail) = self.rest.strip_prefix("[?(") {
                self.rest = tail;
                steps.push(self.filter()?);
                continue;
            }
            if let Some(tail) = self.rest.strip_prefix("..") {
                if steps.last() == Some(&Step::Recursive) {
                    return Err(ParseError::MultipleRecursive);
                }
                self.rest = tail;
                steps.push(Step::Recursive);
                if tail.starts_with(|c: char| c == '_' || c.is_alphanumeric()) {
                    steps.push(self.field());
                }
                continue;
            }
            let c = self.rest.chars().next().ok_or(ParseError::UnclosedAction)?;
            match c {
                '}' if braced => {
                    self.bump(c);
                    break;
                }
                '\r' | '\n' => return Err(ParseError::UnclosedAction),
                ' ' | '@' | '$' => self.bump(c),
                '[' => {
                    self.bump(c);
                    self.brackets(&mut steps)?;
                }
                '"' | '\'' => steps.push(Step::Constant(self.quoted(c)?.into())),
                '.' => {
                    self.bump(c);
                    steps.push(self.field());
                }
                '+' | '-' | '0'..='9' => steps.push(Step::Constant(self.number()?)),
                c if c == '_' || c.is_alphanumeric() => match self.word() {
                    "true" => steps.push(Step::Constant(Value::Bool(true))),
                    "false" => steps.push(Step::Constant(Value::Bool(false))),
                    "range" if braced => range = true,
                    "end" if braced => {
                        self.close()?;
                        return Ok(Action::End);
                    }
                    other => return Err(ParseError::BadIdentifier(other.to_owned())),
                },
                c => return Err(ParseError::BadCharacter(c)),
            }
        }
        Ok(if range { Action::Range(steps) } else { Action::Steps(steps) })
    }

    fn close(&mut self) -> Result<(), ParseError> {
        let tail = self.rest.trim_start_matches(' ').strip_prefix('}').ok_or(ParseError::UnclosedAction)?;
        self.rest = tail;
        Ok(())
    }

    fn bump(&mut self, c: char) {
        self.rest = &self.rest[c.len_utf8()..];
    }

    fn word(&mut self) -> &'a str {
        let (word, tail) = self.rest.split_at(self.rest.find(terminates).unwrap_or(self.rest.len()));
        self.rest = tail;
        word
    }

    /// A field name; backslashes protect what would end it.
    fn field(&mut self) -> Step {
        let mut name = String::new();
        let mut chars = self.rest.chars();
        while let Some(c) = chars.clone().next() {
            if c == '\\' {
                chars.next();
                name.extend(chars.next());
            } else if terminates(c) {
                break;
            } else {
                name.push(c);
                chars.next();
            }
        }
        self.rest = chars.as_str();
        if name == "*" { Step::Wildcard } else { Step::Field(name) }
    }

    fn number(&mut self) -> Result<Value, ParseError> {
        let signed = usize::from(self.rest.starts_with(['+', '-']));
        let digits = self.rest[signed..].find(|c: char| c != '.' && !c.is_ascii_digit());
        let (text, tail) = self.rest.split_at(digits.map_or(self.rest.len(), |at| at + signed));
        self.rest = tail;
        let bad = || ParseError::BadNumber(text.to_owned());
        let plain = text.strip_prefix('+').unwrap_or(text);
        if let Ok(integer) = plain.parse::<i64>() {
            return Ok(integer.into());
        }
        plain.parse().ok().and_then(Number::from_f64).map(Value::Number).ok_or_else(bad)
    }

    fn quoted(&mut self, quote: char) -> Result<String, ParseError> {
        let start = self.rest;
        let mut chars = start.char_indices().skip(1);
        let mut out = String::new();
        while let Some((at, c)) = chars.next() {
            match c {
                '\n' => return Err(ParseError::UnterminatedString),
                c if c == quote => {
                    self.rest = &start[at + 1..];
                    return Ok(out);
                }
                '\\' => {
                    let (_, escaped) = chars.next().ok_or(ParseError::UnterminatedString)?;
                    out.push(match escaped {
                        'n' => '\n',
                        't' => '\t',
                        'r' => '\r',
                        'a' => '\x07',
                        'b' => '\x08',
                        'f' => '\x0c',
                        'v' => '\x0b',
                        '\\' => '\\',
                        'x' => hex(&mut chars, 2).ok_or_else(|| ParseError::BadEscape(start.to_owned()))?,
                        'u' => hex(&mut chars, 4).ok_or_else(|| ParseError::BadEscape(start.to_owned()))?,
                        'U' => hex(&mut chars, 8).ok_or_else(|| ParseError::BadEscape(start.to_owned()))?,
                        c if c == quote => c,
                        _ => return Err(ParseError::BadEscape(start.to_owned())),
                    });
                }
                c => out.push(c),
            }
        }
        Err(ParseError::UnterminatedString)
    }

    /// Index, slice, key or union, after the opening bracket.
    fn brackets(&mut self, steps: &mut Vec<Step>) -> Result<(), ParseError> {
        let end = self.rest.find([']', '\n']).ok_or(ParseError::UnterminatedArray)?;
        if self.rest[end..].starts_with('\n') {
            return Err(ParseError::UnterminatedArray);
        }
        let inside = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        if inside.contains(',') {
            let union = inside.split(',').map(|piece| bracket(piece.trim_matches(' ')));
            steps.push(Step::Union(union.collect::<Result<_, _>>()?));
        } else {
            steps.extend(bracket(inside)?);
        }
        Ok(())
    }

    /// A filter, after `[?(`.
    fn filter(&mut self) -> Result<Step, ParseError> {
        if self.depth == DEPTH_MAX {
            return Err(ParseError::TooDeep);
        }
        let end = filter_end(self.rest)?;
        let inside = &self.rest[..end];
        self.rest = &self.rest[end + 2..];
        let steps = |text: &str| {
            let mut scanner = Scanner { rest: text, depth: self.depth + 1 };
            match scanner.action(false)? {
                Action::Steps(steps) => Ok(steps),
                // Ranges are only known inside braces.
                Action::Range(_) | Action::End => Err(ParseError::UnterminatedFilter),
            }
        };
        let Some(at) = comparison(inside).filter(|at| *at > 0) else {
            return Ok(Step::Filter(Filter { left: steps(inside)?, compare: None }));
        };
        let (left, tail) = inside.split_at(at);
        let (sign, right) = tail.split_at(tail.find(|c| !is_operator(c)).unwrap_or(tail.len()));
        let operator = match sign {
            "==" => Operator::Equal,
            "!=" => Operator::NotEqual,
            "<" => Operator::Less,
            "<=" => Operator::LessOrEqual,
            ">" => Operator::Greater,
            ">=" => Operator::GreaterOrEqual,
            _ => return Err(ParseError::BadOperator(sign.to_owned())),
        };
        Ok(Step::Filter(Filter { left: steps(left)?, compare: Some((operator, steps(right)?)) }))
    }
}

fn is_operator(c: char) -> bool {
    matches!(c, '!' | '<' | '>' | '=')
}

/// Where the comparison of a filter stands: outside quotes and inner brackets.
fn comparison(text: &str) -> Option<usize> {
    let (mut quote, mut open) = (None, 0usize);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if q == c => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[') => open += 1,
            (None, ']') => open = open.saturating_sub(1),
            (None, c) if open == 0 && is_operator(c) => return Some(at),
            (None, _) => {}
        }
    }
    None
}

/// Where a filter ends: at `)]` outside quotes and inner brackets.
fn filter_end(text: &str) -> Result<usize, ParseError> {
    let mut quote = None;
    let mut escaped = false;
    let mut open = 0;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (_, '\n') => return Err(ParseError::UnterminatedFilter),
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(q), c) if q == c => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '(') => open += 1,
            (None, ')') if open > 0 => open -= 1,
            (None, ')') if text[at + 1..].starts_with(']') => return Ok(at),
            (None, ')') => return Err(ParseError::UnterminatedFilter),
            (None, _) => {}
        }
    }
    Err(ParseError::UnterminatedFilter)
}

/// What stands alone between brackets.
fn bracket(text: &str) -> Result<Vec<Step>, ParseError> {
    if text == "*" {
        return Ok(vec![Step::Slice(Slice { start: None, end: None, step: None, single: false })]);
    }
    if let Some(key) = text.strip_prefix('\'').and_then(|text| text.strip_suffix('\'')) {
        return Ok(key_steps(key));
    }
    let bad = || ParseError::BadIndex(text.to_owned());
    let mut pieces = text.split(':').map(|piece| match piece {
        "" => Ok(None),
        digits => digits.parse::<i64>().map(Some).map_err(|_| bad()),
    });
    let mut next = || pieces.next().unwrap_or(Ok(None));
    let slice = Slice { start: next()?, end: next()?, step: next()?, single: !text.contains(':') };
    if pieces.next().is_some() || text.is_empty() || text.starts_with('+') {
        return Err(bad());
    }
    Ok(vec![Step::Slice(slice)])
}

/// Dots split a quoted key too, unless a backslash stands before them.
fn key_steps(key: &str) -> Vec<Step> {
    let mut names = vec![String::new()];
    let mut chars = key.chars();
    while let Some(c) = chars.next() {
        match c {
            '.' => names.push(String::new()),
            '\\' => names.iter_mut().last().into_iter().for_each(|name| name.extend(chars.next())),
            c => names.iter_mut().last().into_iter().for_each(|name| name.push(c)),
        }
    }
    names.into_iter().map(|name| if name == "*" { Step::Wildcard } else { Step::Field(name) }).collect()
}

fn hex(chars: &mut impl Iterator<Item = (usize, char)>, len: usize) -> Option<char> {
    let value = (0..len).try_fold(0, |value, _| Some(value << 4 | chars.next()?.1.to_digit(16)?))?;
    char::from_u32(value)
}

fn terminates(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}')
}
