//! Follows templates.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::super::{Content, Group, Value};
use super::{Operand, Pipe, Step, TemplateError, error};

/// The longest text a template may make.
const OUTPUT_MAX: usize = 64 * 1024;
/// The widest a verb may pad.
const WIDTH_MAX: usize = 1024;

/// A value in a template.
#[derive(Clone)]
enum Item<'a> {
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Value(Value),
    List(Rc<Vec<Item<'a>>>),
    Flat(Rc<BTreeMap<String, Value>>),
    Nested(Rc<BTreeMap<String, BTreeMap<String, Value>>>),
    /// A group; the outermost one knows its parent.
    Group(&'a Group, Option<Option<&'a Group>>),
}

/// The text of a template for a group.
pub(super) fn render(steps: &[Step], group: &Group, parent: Option<&Group>) -> Result<String, TemplateError> {
    let mut run = Run { out: String::new(), variables: Vec::new() };
    let dot = Item::Group(group, Some(parent));
    run.variables.push(("$".to_owned(), dot.clone()));
    run.steps(steps, &dot)?;
    Ok(run.out)
}

struct Run<'a> {
    out: String,
    variables: Vec<(String, Item<'a>)>,
}

impl<'a> Run<'a> {
    fn steps(&mut self, steps: &[Step], dot: &Item<'a>) -> Result<(), TemplateError> {
        let known = self.variables.len();
        for step in steps {
            self.step(step, dot)?;
            if self.out.len() > OUTPUT_MAX {
                return error("the template makes too much text");
            }
        }
        self.variables.truncate(known);
        Ok(())
    }

    fn step(&mut self, step: &Step, dot: &Item<'a>) -> Result<(), TemplateError> {
        match step {
            Step::Text(text) => self.out.push_str(text),
            Step::Print(name, pipe) => {
                let item = self.pipe(pipe, dot)?;
                match name {
                    Some(name) => self.variables.push((name.clone(), item)),
                    None => self.out.push_str(&shown(&item)),
                }
            }
            Step::If(condition, then, other) => {
                let branch = if truth(&self.pipe(condition, dot)?) { then } else { other };
                self.steps(branch, dot)?;
            }
            Step::With(pipe, then, other) => {
                let item = self.pipe(pipe, dot)?;
                if truth(&item) { self.steps(then, &item)? } else { self.steps(other, dot)? }
            }
            Step::Range(names, pipe, body, other) => {
                let entries = entries(&self.pipe(pipe, dot)?)?;
                if entries.is_empty() {
                    return self.steps(other, dot);
                }
                for (key, item) in entries {
                    let known = self.variables.len();
                    match names.as_slice() {
                        [value] => self.variables.push((value.clone(), item.clone())),
                        [first, second] => {
                            self.variables.push((first.clone(), key));
                            self.variables.push((second.clone(), item.clone()));
                        }
                        _ => {}
                    }
                    self.steps(body, &item)?;
                    self.variables.truncate(known);
                }
            }
        }
        Ok(())
    }

    fn pipe(&self, pipe: &Pipe, dot: &Item<'a>) -> Result<Item<'a>, TemplateError> {
        let mut last = None;
        for call in pipe {
            last = Some(self.call(call, dot, last)?);
        }
        Ok(last.unwrap_or(Item::Nil))
    }

    /// A call: the first word with the others, and the result of the call before, as arguments.
    fn call(
        &self,
        call: &[Operand],
        dot: &Item<'a>,
        last: Option<Item<'a>>,
    ) -> Result<Item<'a>, TemplateError> {
        let Some((first, rest)) = call.split_first() else { return Ok(Item::Nil) };
        let mut args = rest.iter().map(|word| self.word(word, dot, &[])).collect::<Result<Vec<_>, _>>()?;
        args.extend(last);
        match first {
            Operand::Function(name) => function(name, &args),
            word => self.word(word, dot, &args),
        }
    }

    /// A word's value; `args` belong to the method it may end with.
    fn word(&self, word: &Operand, dot: &Item<'a>, args: &[Item<'a>]) -> Result<Item<'a>, TemplateError> {
        let none: &[String] = &[];
        let (item, fields): (Item<'a>, &[String]) = match word {
            Operand::Dot(fields) => (dot.clone(), fields),
            Operand::Variable(name, fields) => {
                match self.variables.iter().rev().find(|(known, _)| known == name) {
                    Some((_, item)) => (item.clone(), fields),
                    None => return error(format!("undefined variable {name:?}")),
                }
            }
            Operand::Inner(pipe, fields) => (self.pipe(pipe, dot)?, fields),
            Operand::Function(name) => (function(name, &[])?, none),
            Operand::Text(text) => (Item::Text(text.clone()), none),
            Operand::Number(number) => (Item::Int(*number), none),
            Operand::Bool(value) => (Item::Bool(*value), none),
            Operand::Nil => (Item::Nil, none),
        };
        let mut item = item;
        for (index, name) in fields.iter().enumerate() {
            let args = if index + 1 == fields.len() { args } else { &[] };
            item = field(&item, name, args)?;
        }
        if fields.is_empty() && !args.is_empty() {
            return error("can't give arguments to a value");
        }
        Ok(item)
    }
}

fn field<'a>(item: &Item<'a>, name: &str, args: &[Item<'a>]) -> Result<Item<'a>, TemplateError> {
    let found = match (item, name) {
        (Item::Value(value), "HumanizeIBytes") => Item::Text(value.bytes()),
        (Item::Value(value), "UsecToDuration") => Item::Text(value.duration()),
        (Item::Value(value), "String") => Item::Text(value.to_string()),
        (Item::Value(value), "Float64") => Item::Float(value.float()),
        (Item::Value(value), "DivideBy") => match args {
            [Item::Value(other)] => return Ok(Item::Value(value.percent_of(*other))),
            _ => return error("DivideBy needs one value"),
        },
        (Item::Value(value), "IsSet") => Item::Bool(*value != Value::Unset),
        (Item::Value(value), "IsMax") => Item::Bool(*value == Value::Max),
        (Item::Flat(map), key) => Item::Value(map.get(key).copied().unwrap_or(Value::UNSET)),
        (Item::Nested(map), key) => Item::Flat(Rc::new(map.get(key).cloned().unwrap_or_default())),
        (Item::Group(_, Some(parent)), "Parent") => {
            parent.map_or(Item::Nil, |parent| Item::Group(parent, None))
        }
        (Item::Group(group, _), "CgroupProcsResolved") => {
            Item::List(Rc::new(group.processes.iter().cloned().map(Item::Text).collect()))
        }
        (Item::Group(group, _), name) => match group.field(name) {
            Some(Content::One(value)) => Item::Value(value),
            Some(Content::Many(values)) => Item::List(Rc::new(values.into_iter().map(Item::Value).collect())),
            Some(Content::Flat(map)) => Item::Flat(Rc::new(map)),
            Some(Content::Nested(map)) => Item::Nested(Rc::new(map)),
            Some(Content::Text(text)) => Item::Text(text),
            None => return error(format!("can't evaluate field {name}")),
        },
        (Item::Nil, name) => return error(format!("nil has no field {name}")),
        _ => return error(format!("can't evaluate field {name}")),
    };
    if args.is_empty() { Ok(found) } else { error(format!("{name} takes no arguments")) }
}

fn entries<'a>(item: &Item<'a>) -> Result<Vec<(Item<'a>, Item<'a>)>, TemplateError> {
    let text = |key: &String| Item::Text(key.clone());
    match item {
        Item::Nil => Ok(Vec::new()),
        Item::List(list) => {
            Ok(list.iter().cloned().zip(0_i64..).map(|(item, at)| (Item::Int(at), item)).collect())
        }
        Item::Flat(map) => Ok(map.iter().map(|(key, value)| (text(key), Item::Value(*value))).collect()),
        Item::Nested(map) => {
            Ok(map.iter().map(|(key, inner)| (text(key), Item::Flat(Rc::new(inner.clone())))).collect())
        }
        _ => error("range can't iterate over this"),
    }
}

fn truth(item: &Item<'_>) -> bool {
    match item {
        Item::Nil => false,
        Item::Bool(value) => *value,
        Item::Int(number) => *number != 0,
        Item::Float(number) => *number != 0.0,
        Item::Text(text) => !text.is_empty(),
        Item::List(list) => !list.is_empty(),
        Item::Flat(map) => !map.is_empty(),
        Item::Nested(map) => !map.is_empty(),
        Item::Value(_) | Item::Group(..) => true,
    }
}

fn function<'a>(name: &str, args: &[Item<'a>]) -> Result<Item<'a>, TemplateError> {
    let compare = |wanted: fn(Ordering) -> bool| match args {
        [left, right] => match order(left, right) {
            Some(ordering) => Ok(Item::Bool(wanted(ordering))),
            None => error("these cannot be compared"),
        },
        _ => error(format!("{name} needs two values")),
    };
    match (name, args) {
        ("printf", [Item::Text(format), rest @ ..]) => printf(format, rest).map(Item::Text),
        ("print", args) => Ok(Item::Text(args.iter().map(shown).collect())),
        ("println", args) => Ok(Item::Text(args.iter().map(shown).collect::<Vec<_>>().join(" ") + "\n")),
        ("len", [item]) => match item {
            Item::Text(text) => Ok(Item::Int(text.len() as i64)),
            Item::List(list) => Ok(Item::Int(list.len() as i64)),
            Item::Flat(map) => Ok(Item::Int(map.len() as i64)),
            Item::Nested(map) => Ok(Item::Int(map.len() as i64)),
            _ => error("len of what has no length"),
        },
        ("index", [Item::List(list), Item::Int(at)]) => {
            let found = usize::try_from(*at).ok().and_then(|at| list.get(at));
            found.cloned().map_or_else(|| error("index out of range"), Ok)
        }
        ("index", [item @ (Item::Flat(_) | Item::Nested(_)), Item::Text(key)]) => field(item, key, &[]),
        ("not", [item]) => Ok(Item::Bool(!truth(item))),
        ("and", [first, rest @ ..]) => {
            Ok(rest.iter().fold(first, |last, next| if truth(last) { next } else { last }).clone())
        }
        ("or", [first, rest @ ..]) => {
            Ok(rest.iter().fold(first, |last, next| if truth(last) { last } else { next }).clone())
        }
        ("eq", _) => compare(Ordering::is_eq),
        ("ne", _) => compare(Ordering::is_ne),
        ("lt", _) => compare(Ordering::is_lt),
        ("le", _) => compare(Ordering::is_le),
        ("gt", _) => compare(Ordering::is_gt),
        ("ge", _) => compare(Ordering::is_ge),
        _ => error(format!("wrong arguments for {name}")),
    }
}

fn order(left: &Item<'_>, right: &Item<'_>) -> Option<Ordering> {
    match (left, right) {
        (Item::Bool(left), Item::Bool(right)) => Some(left.cmp(right)),
        (Item::Int(left), Item::Int(right)) => Some(left.cmp(right)),
        (Item::Float(left), Item::Float(right)) => left.partial_cmp(right),
        (Item::Text(left), Item::Text(right)) => Some(left.cmp(right)),
        _ => None,
    }
}

/// A value as it is printed without a verb.
fn shown(item: &Item<'_>) -> String {
    match item {
        Item::Nil => "<no value>".to_owned(),
        Item::Bool(value) => value.to_string(),
        Item::Int(number) => number.to_string(),
        Item::Float(number) => number.to_string(),
        Item::Text(text) => text.clone(),
        Item::Value(value) => value.to_string(),
        Item::List(list) => format!("[{}]", list.iter().map(shown).collect::<Vec<_>>().join(" ")),
        Item::Flat(map) => {
            let pairs: Vec<String> = map.iter().map(|(key, value)| format!("{key}:{value}")).collect();
            format!("map[{}]", pairs.join(" "))
        }
        Item::Nested(map) => {
            let pair = |(key, inner): (&String, &BTreeMap<String, Value>)| {
                format!("{key}:{}", shown(&Item::Flat(Rc::new(inner.clone()))))
            };
            format!("map[{}]", map.iter().map(pair).collect::<Vec<_>>().join(" "))
        }
        Item::Group(..) => "{group}".to_owned(),
    }
}

/// Verbs `s v d f q` with flag `-` or `0`, width and precision.
fn printf(format: &str, args: &[Item<'_>]) -> Result<String, TemplateError> {
    let mut out = String::new();
    let mut args = args.iter();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let end = rest.find(|c: char| !matches!(c, '-' | '+' | ' ' | '#' | '.' | '0'..='9'));
        let Some(end) = end else { return error("a verb is missing after %") };
        let (spec, after) = rest.split_at(end);
        let verb = after.chars().next().unwrap_or('%');
        rest = &after[verb.len_utf8()..];
        if verb == '%' {
            out.push('%');
            continue;
        }
        match args.next() {
            Some(item) => out.push_str(&formatted(item, spec, verb)?),
            None => return error(format!("printf: a value for %{verb} is missing")),
        }
    }
    out.push_str(rest);
    Ok(out)
}

fn formatted(item: &Item<'_>, spec: &str, verb: char) -> Result<String, TemplateError> {
    if let Item::List(list) = item {
        let parts = list.iter().map(|item| formatted(item, spec, verb)).collect::<Result<Vec<_>, _>>()?;
        return Ok(format!("[{}]", parts.join(" ")));
    }
    let left = spec.contains('-');
    let numbers = spec.trim_start_matches(['-', '+', ' ', '#']);
    let zero = numbers.starts_with('0') && !left && verb == 'd';
    let (width, precision) =
        numbers.split_once('.').map_or((numbers, None), |(width, rest)| (width, Some(rest)));
    let width = width.parse::<usize>().unwrap_or(0);
    let precision = precision.map(|text| text.parse::<usize>().unwrap_or(0));
    if width > WIDTH_MAX || precision.is_some_and(|precision| precision > WIDTH_MAX) {
        return error("printf: the width is too large");
    }
    let text = match (verb, item) {
        ('d', Item::Int(number)) => number.to_string(),
        ('f', Item::Float(number)) => format!("{number:.*}", precision.unwrap_or(6)),
        ('q', item) => format!("{:?}", shown(item)),
        ('s' | 'v', item) => match precision {
            Some(precision) => shown(item).chars().take(precision).collect(),
            None => shown(item),
        },
        _ => return error(format!("printf: %{verb} does not fit the value")),
    };
    Ok(match (left, zero) {
        (true, _) => format!("{text:width$}"),
        (false, true) => format!("{text:0>width$}"),
        (false, false) => format!("{text:>width$}"),
    })
}
