//! From steps to values.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde_json::Value;

use crate::print::print;
use crate::{Filter, Operator, Part, Slice, Step};

/// Why a template has no result for a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// A key that no value has.
    #[error("{0} is not found")]
    NotFound(String),
    /// An index into something that is no list.
    #[error("{0} is not array or slice")]
    NotAList(&'static str),
    /// An index past the end.
    #[error("array index out of bounds: index {index}, length {length}")]
    OutOfBounds {
        /// The index.
        index: i64,
        /// How many items there are.
        length: i64,
    },
    /// A slice that ends before it starts.
    #[error("starting index {start} is greater than ending index {end}")]
    Backwards {
        /// The first index.
        start: i64,
        /// The index after the last.
        end: i64,
    },
    /// A step that goes nowhere.
    #[error("step must be > 0")]
    BadStep,
    /// A comparison with more than one value on a side.
    #[error("can only compare one element at a time")]
    ManyValues,
    /// Values that have no order between them.
    #[error("incompatible types for comparison")]
    Incomparable,
}

type Values<'a> = Vec<Cow<'a, Value>>;

/// Appends what the parts give for `data`.
pub(crate) fn render(
    parts: &[Part],
    data: &Value,
    allow_missing: bool,
    out: &mut String,
) -> Result<(), EvalError> {
    for part in parts {
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Action(steps) => {
                for (i, value) in walk(steps, vec![Cow::Borrowed(data)], allow_missing)?.iter().enumerate() {
                    if i > 0 {
                        out.push(' ');
                    }
                    print(value, out);
                }
            }
            Part::Range(steps, body) => {
                for value in walk(steps, vec![Cow::Borrowed(data)], allow_missing)? {
                    render(body, &value, allow_missing, out)?;
                }
            }
        }
    }
    Ok(())
}

/// Appends the values the parts find in `data`.
pub(crate) fn collect(
    parts: &[Part],
    data: &Value,
    allow_missing: bool,
    found: &mut Vec<Value>,
) -> Result<(), EvalError> {
    for part in parts {
        match part {
            Part::Text(text) => found.push(Value::String(text.clone())),
            Part::Action(steps) => {
                let values = walk(steps, vec![Cow::Borrowed(data)], allow_missing)?;
                found.extend(values.into_iter().map(Cow::into_owned));
            }
            Part::Range(steps, body) => {
                for value in walk(steps, vec![Cow::Borrowed(data)], allow_missing)? {
                    collect(body, &value, allow_missing, found)?;
                }
            }
        }
    }
    Ok(())
}

fn walk<'a>(steps: &[Step], mut values: Values<'a>, allow_missing: bool) -> Result<Values<'a>, EvalError> {
    for step in steps {
        values = match step {
            Step::Field(name) => field(values, name, allow_missing)?,
            Step::Wildcard => values.into_iter().flat_map(children).collect(),
            Step::Recursive => {
                let mut found = Vec::new();
                values.into_iter().for_each(|value| descend(value, &mut found));
                found
            }
            Step::Slice(slice) => {
                let mut found = Vec::new();
                for value in values {
                    found.extend(cut(value, *slice)?);
                }
                found
            }
            Step::Union(branches) => {
                let mut found = Vec::new();
                for branch in branches {
                    found.extend(walk(branch, values.clone(), allow_missing)?);
                }
                found
            }
            Step::Filter(filter) => keep(values, filter, allow_missing)?,
            Step::Constant(constant) => values.into_iter().map(|_| Cow::Owned(constant.clone())).collect(),
        };
    }
    Ok(values)
}

fn field<'a>(values: Values<'a>, name: &str, allow_missing: bool) -> Result<Values<'a>, EvalError> {
    if values.is_empty() {
        return Ok(values);
    }
    let found: Values<'a> = values
        .into_iter()
        .filter_map(|value| match value {
            Cow::Borrowed(value) => value.as_object()?.get(name).map(Cow::Borrowed),
            Cow::Owned(Value::Object(mut map)) => map.remove(name).map(Cow::Owned),
            Cow::Owned(_) => None,
        })
        .collect();
    if found.is_empty() && !allow_missing {
        return Err(EvalError::NotFound(name.to_owned()));
    }
    Ok(found)
}

/// The items of a list or the values of an object.
fn children(value: Cow<'_, Value>) -> Values<'_> {
    match value {
        Cow::Borrowed(Value::Array(items)) => items.iter().map(Cow::Borrowed).collect(),
        Cow::Borrowed(Value::Object(map)) => map.values().map(Cow::Borrowed).collect(),
        Cow::Owned(Value::Array(items)) => items.into_iter().map(Cow::Owned).collect(),
        Cow::Owned(Value::Object(map)) => map.into_iter().map(|(_, value)| Cow::Owned(value)).collect(),
        _ => Vec::new(),
    }
}

/// The value and everything below it that has something below it.
fn descend<'a>(value: Cow<'a, Value>, found: &mut Values<'a>) {
    let below = children(value.clone());
    if !below.is_empty() {
        found.push(value);
        below.into_iter().for_each(|child| descend(child, found));
    }
}

fn cut(value: Cow<'_, Value>, slice: Slice) -> Result<Values<'_>, EvalError> {
    if value.is_null() {
        return Ok(Vec::new());
    }
    if !value.is_array() {
        return Err(EvalError::NotAList(kind(&value)));
    }
    let items = children(value);
    let length = items.len() as i64;
    let from_end = |index: i64| if index < 0 { index.saturating_add(length) } else { index };
    let start = from_end(slice.start.unwrap_or(0));
    let end = match slice.end {
        _ if slice.single => start.saturating_add(1),
        Some(end) => from_end(end),
        None => length,
    };
    if start == end {
        return Ok(Vec::new());
    }
    if start >= length || start < 0 {
        return Err(EvalError::OutOfBounds { index: start, length });
    }
    if end > length || end < 0 {
        return Err(EvalError::OutOfBounds { index: end - 1, length });
    }
    if start > end {
        return Err(EvalError::Backwards { start, end });
    }
    let step =
        usize::try_from(slice.step.unwrap_or(1)).ok().filter(|step| *step > 0).ok_or(EvalError::BadStep)?;
    Ok(items.into_iter().take(end as usize).skip(start as usize).step_by(step).collect())
}

fn keep<'a>(values: Values<'a>, filter: &Filter, allow_missing: bool) -> Result<Values<'a>, EvalError> {
    let mut found = Vec::new();
    for value in values {
        if !value.is_array() {
            return Err(EvalError::NotAList(kind(&value)));
        }
        for item in children(value) {
            if matches(&item, filter, allow_missing)? {
                found.push(item);
            }
        }
    }
    Ok(found)
}

fn matches(item: &Value, filter: &Filter, allow_missing: bool) -> Result<bool, EvalError> {
    let left = walk(&filter.left, vec![Cow::Borrowed(item)], allow_missing);
    let Some((operator, right)) = &filter.compare else {
        return Ok(left.is_ok_and(|found| !found.is_empty()));
    };
    let right = walk(right, vec![Cow::Borrowed(item)], allow_missing)?;
    match (left?.as_slice(), right.as_slice()) {
        ([], _) | (_, []) => Ok(false),
        ([left], [right]) => compare(left, *operator, right),
        _ => Err(EvalError::ManyValues),
    }
}

fn compare(left: &Value, operator: Operator, right: &Value) -> Result<bool, EvalError> {
    let order = match (left, right) {
        (Value::String(left), Value::String(right)) => left.cmp(right),
        (Value::Number(left), Value::Number(right)) => match (left.as_i64(), right.as_i64()) {
            (Some(left), Some(right)) => left.cmp(&right),
            _ => left.as_f64().partial_cmp(&right.as_f64()).ok_or(EvalError::Incomparable)?,
        },
        (Value::Bool(left), Value::Bool(right)) => match operator {
            Operator::Equal | Operator::NotEqual => left.cmp(right),
            Operator::Less | Operator::LessOrEqual | Operator::Greater | Operator::GreaterOrEqual => {
                return Err(EvalError::Incomparable);
            }
        },
        _ => return Err(EvalError::Incomparable),
    };
    Ok(match operator {
        Operator::Equal => order == Ordering::Equal,
        Operator::NotEqual => order != Ordering::Equal,
        Operator::Less => order == Ordering::Less,
        Operator::LessOrEqual => order != Ordering::Greater,
        Operator::Greater => order == Ordering::Greater,
        Operator::GreaterOrEqual => order != Ordering::Less,
    })
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    }
}
