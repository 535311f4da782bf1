//! Reads templates.

use super::{Operand, Pipe, Step, TemplateError, error};

/// Functions that may be called.
const FUNCTIONS: [&str; 14] =
    ["printf", "print", "println", "len", "index", "not", "and", "or", "eq", "ne", "lt", "le", "gt", "ge"];
/// How deep blocks and parentheses may nest.
const DEPTH_MAX: usize = 32;

/// Text, or what stands between braces.
enum Piece<'a> {
    Text(&'a str),
    Action(&'a str),
}

/// Reads a whole template.
pub(super) fn template(text: &str) -> Result<Vec<Step>, TemplateError> {
    let pieces = pieces(text)?;
    let mut reader = Blocks { pieces: &pieces, at: 0 };
    let (steps, end) = reader.steps(0)?;
    match end {
        Stop::Text => Ok(steps),
        Stop::End | Stop::Else(_) => error("unexpected {{end}} or {{else}}"),
    }
}

fn pieces(text: &str) -> Result<Vec<Piece<'_>>, TemplateError> {
    let mut pieces = Vec::new();
    let mut rest = text;
    let mut trim_next = false;
    while let Some(start) = rest.find("{{") {
        let (before, after) = rest.split_at(start);
        let Some(end) = after.find("}}") else { return error("unclosed action") };
        let (mut inner, mut before) = (&after[2..end], before);
        if trim_next {
            before = before.trim_start();
        }
        if let Some(trimmed) = inner.strip_prefix("- ") {
            inner = trimmed;
            before = before.trim_end();
        }
        trim_next = inner.ends_with(" -");
        if trim_next {
            inner = &inner[..inner.len() - 2];
        }
        pieces.push(Piece::Text(before));
        let inner = inner.trim();
        if !(inner.starts_with("/*") && inner.ends_with("*/")) {
            pieces.push(Piece::Action(inner));
        }
        rest = &after[end + 2..];
    }
    pieces.push(Piece::Text(if trim_next { rest.trim_start() } else { rest }));
    Ok(pieces)
}

/// What ended a row of steps.
enum Stop {
    Text,
    End,
    /// With the condition of an `else if`.
    Else(Option<Pipe>),
}

struct Blocks<'a> {
    pieces: &'a [Piece<'a>],
    at: usize,
}

impl Blocks<'_> {
    fn steps(&mut self, depth: usize) -> Result<(Vec<Step>, Stop), TemplateError> {
        if depth > DEPTH_MAX {
            return error("blocks are nested too deep");
        }
        let mut steps = Vec::new();
        while let Some(piece) = self.pieces.get(self.at) {
            self.at += 1;
            let action = match piece {
                Piece::Text("") => continue,
                Piece::Text(text) => {
                    steps.push(Step::Text((*text).to_owned()));
                    continue;
                }
                Piece::Action(action) => *action,
            };
            let (word, rest) = action.split_once(char::is_whitespace).unwrap_or((action, ""));
            match word {
                "end" => return Ok((steps, Stop::End)),
                "else" => {
                    let condition = match rest.trim().strip_prefix("if ") {
                        Some(condition) => Some(pipe(condition)?),
                        None if rest.trim().is_empty() => None,
                        None => return error(format!("unexpected {rest:?} after else")),
                    };
                    return Ok((steps, Stop::Else(condition)));
                }
                "if" => steps.push(self.condition(pipe(rest)?, depth)?),
                "with" => {
                    let (then, other) = self.branches(depth)?;
                    steps.push(Step::With(pipe(rest)?, then, other));
                }
                "range" => {
                    let (names, rest) = variables(rest)?;
                    let (body, other) = self.branches(depth)?;
                    steps.push(Step::Range(names, pipe(rest)?, body, other));
                }
                _ => {
                    let (names, rest) = variables(action)?;
                    if names.len() > 1 {
                        return error("only range sets two variables");
                    }
                    steps.push(Step::Print(names.into_iter().next(), pipe(rest)?));
                }
            }
        }
        Ok((steps, Stop::Text))
    }

    fn condition(&mut self, condition: Pipe, depth: usize) -> Result<Step, TemplateError> {
        let (then, end) = self.steps(depth + 1)?;
        let other = match end {
            Stop::End => Vec::new(),
            Stop::Else(Some(next)) => vec![self.condition(next, depth + 1)?],
            Stop::Else(None) => match self.steps(depth + 1)? {
                (other, Stop::End) => other,
                _ => return error("{{else}} without {{end}}"),
            },
            Stop::Text => return error("{{if}} without {{end}}"),
        };
        Ok(Step::If(condition, then, other))
    }

    fn branches(&mut self, depth: usize) -> Result<(Vec<Step>, Vec<Step>), TemplateError> {
        let (then, end) = self.steps(depth + 1)?;
        match end {
            Stop::End => Ok((then, Vec::new())),
            Stop::Else(None) => match self.steps(depth + 1)? {
                (other, Stop::End) => Ok((then, other)),
                _ => error("{{else}} without {{end}}"),
            },
            Stop::Else(Some(_)) => error("{{else if}} belongs to {{if}}"),
            Stop::Text => error("a block without {{end}}"),
        }
    }
}

/// `$a, $b :=` in front, if it is there.
fn variables(text: &str) -> Result<(Vec<String>, &str), TemplateError> {
    let Some((left, right)) = text.split_once(":=") else { return Ok((Vec::new(), text)) };
    if left.contains('"') {
        return Ok((Vec::new(), text));
    }
    let names: Vec<String> = left.split(',').map(|name| name.trim().to_owned()).collect();
    let good = |name: &String| name.len() > 1 && name.starts_with('$') && name[1..].chars().all(is_name);
    if names.len() > 2 || !names.iter().all(good) {
        return error(format!("cannot set {:?}", left.trim()));
    }
    Ok((names, right))
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn pipe(text: &str) -> Result<Pipe, TemplateError> {
    let mut words = Words { rest: text, depth: 0 };
    let pipe = words.pipe()?;
    match words.rest.trim() {
        "" => Ok(pipe),
        rest => error(format!("unexpected {rest:?}")),
    }
}

struct Words<'a> {
    rest: &'a str,
    depth: usize,
}

impl Words<'_> {
    /// Calls up to the end or to a closing parenthesis.
    fn pipe(&mut self) -> Result<Pipe, TemplateError> {
        if self.depth > DEPTH_MAX {
            return error("parentheses are nested too deep");
        }
        let mut calls = vec![Vec::new()];
        loop {
            self.rest = self.rest.trim_start();
            match self.rest.chars().next() {
                None | Some(')') => break,
                Some('|') => {
                    self.rest = &self.rest[1..];
                    calls.push(Vec::new());
                }
                Some(first) => {
                    let operand = self.operand(first)?;
                    if let Some(call) = calls.last_mut() {
                        call.push(operand);
                    }
                }
            }
        }
        if calls.iter().any(Vec::is_empty) {
            return error("missing value for command");
        }
        Ok(calls)
    }

    fn operand(&mut self, first: char) -> Result<Operand, TemplateError> {
        match first {
            '"' => self.quoted(),
            '`' => {
                let rest = &self.rest[1..];
                let Some((text, after)) = rest.split_once('`') else { return error("unterminated string") };
                self.rest = after;
                Ok(Operand::Text(text.to_owned()))
            }
            '(' => {
                self.rest = &self.rest[1..];
                self.depth += 1;
                let inner = self.pipe()?;
                self.depth -= 1;
                let Some(after) = self.rest.strip_prefix(')') else { return error("unclosed parenthesis") };
                self.rest = after;
                Ok(Operand::Inner(inner, self.fields()))
            }
            '.' => Ok(Operand::Dot(self.fields())),
            '$' => {
                self.rest = &self.rest[1..];
                let name = format!("${}", self.word());
                Ok(Operand::Variable(name, self.fields()))
            }
            '-' | '0'..='9' => {
                let end =
                    self.rest[1..].find(|c: char| !c.is_ascii_digit()).map_or(self.rest.len(), |end| end + 1);
                let (digits, after) = self.rest.split_at(end);
                self.rest = after;
                digits.parse().map(Operand::Number).or_else(|_| error(format!("bad number {digits:?}")))
            }
            _ => match self.word().as_str() {
                "" => error(format!("unexpected {first:?}")),
                "true" => Ok(Operand::Bool(true)),
                "false" => Ok(Operand::Bool(false)),
                "nil" => Ok(Operand::Nil),
                name if FUNCTIONS.contains(&name) => Ok(Operand::Function(name.to_owned())),
                name => error(format!("function {name:?} not defined")),
            },
        }
    }

    fn word(&mut self) -> String {
        let end = self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len());
        let (word, after) = self.rest.split_at(end);
        self.rest = after;
        word.to_owned()
    }

    /// `.a.b` from here on; a lone dot is no field.
    fn fields(&mut self) -> Vec<String> {
        let mut fields = Vec::new();
        while let Some(after) = self.rest.strip_prefix('.') {
            self.rest = after;
            let word = self.word();
            if !word.is_empty() {
                fields.push(word);
            }
        }
        fields
    }

    fn quoted(&mut self) -> Result<Operand, TemplateError> {
        let mut text = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.rest = &self.rest[at + 1..];
                    return Ok(Operand::Text(text));
                }
                '\\' => match chars.next() {
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, 't')) => text.push('\t'),
                    Some((_, escaped)) => text.push(escaped),
                    None => break,
                },
                c => text.push(c),
            }
        }
        error("unterminated quoted string")
    }
}
