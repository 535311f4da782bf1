//! The value of an expression.

use std::{cmp::Ordering, sync::Arc};

use ichor_types::{GoDuration, HardwareAddr};
use regex::Regex;

use crate::{
    STEPS_MAX,
    ast::{Binary, Comprehension, Expr, ExprKind, Macro, Unary},
    env::{Env, Function},
    functions,
    value::Value,
};

/// Something with fields.
pub trait Object: Send + Sync {
    /// The value of a field; nothing if there is no such field.
    fn field(&self, name: &str) -> Option<Value>;

    /// Whether a field is set to anything but its zero value.
    fn is_set(&self, name: &str) -> bool {
        match self.field(name) {
            None | Some(Value::Null | Value::Bool(false) | Value::Int(0) | Value::Uint(0)) => false,
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Bytes(bytes)) => !bytes.is_empty(),
            Some(Value::List(items)) => !items.is_empty(),
            Some(_) => true,
        }
    }
}

/// Where variables get their values.
pub trait Variables {
    /// The value of a variable.
    fn variable(&self, name: &str) -> Option<Value>;
}

impl<const N: usize> Variables for [(&str, Value); N] {
    fn variable(&self, name: &str) -> Option<Value> {
        self.iter().find(|(have, _)| *have == name).map(|(_, value)| value.clone())
    }
}

impl Variables for () {
    fn variable(&self, _name: &str) -> Option<Value> {
        None
    }
}

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// A variable has no value.
    #[error("no such attribute: {0}")]
    NoVariable(String),
    /// A field does not exist.
    #[error("no such field '{0}'")]
    NoField(String),
    /// A key or index does not exist.
    #[error("no such key: {0}")]
    NoKey(String),
    /// An operation does not take these values.
    #[error("no such overload: {0}")]
    NoOverload(String),
    /// A number got too large.
    #[error("integer overflow")]
    Overflow,
    /// A division by zero.
    #[error("division by zero")]
    DivisionByZero,
    /// A text that cannot be converted.
    #[error("type conversion error from '{from}' to '{to}'")]
    Conversion {
        /// What it was.
        from: String,
        /// What it was to be.
        to: &'static str,
    },
    /// A bad pattern.
    #[error("bad pattern: {0}")]
    Pattern(String),
    /// An optional value that is absent.
    #[error("optional.none() dereference")]
    NoValue,
    /// The evaluation takes too long.
    #[error("more than {STEPS_MAX} steps")]
    TooManySteps,
}

pub(crate) fn eval(root: &Expr, env: &Env, variables: &dyn Variables) -> Result<Value, EvalError> {
    Evaluator { env, variables, locals: Vec::new(), steps: 0 }.expr(root)
}

struct Evaluator<'a> {
    env: &'a Env,
    variables: &'a dyn Variables,
    locals: Vec<(String, Value)>,
    steps: usize,
}

type Evaluated = Result<Value, EvalError>;

impl Evaluator<'_> {
    fn expr(&mut self, expr: &Expr) -> Evaluated {
        self.steps += 1;
        if self.steps > STEPS_MAX {
            return Err(EvalError::TooManySteps);
        }
        match &expr.kind {
            ExprKind::Literal(value) => Ok(value.clone()),
            ExprKind::Ident(name) => self.ident(name),
            ExprKind::Select(operand, field) => select(&self.expr(operand)?, field),
            ExprKind::Has(operand, field) => match self.expr(operand)? {
                Value::Message(object) => Ok(Value::Bool(object.is_set(field))),
                Value::Map(entries) => {
                    Ok(Value::Bool(entries.iter().any(|(key, _)| *key == Value::string(field))))
                }
                other => Err(EvalError::NoOverload(format!("has on {}", other.type_name()))),
            },
            ExprKind::Call { target, function, args } => {
                let mut values = Vec::with_capacity(args.len() + 1);
                for arg in target.as_deref().into_iter().chain(args) {
                    values.push(self.expr(arg)?);
                }
                call(self.env, function, &values)
            }
            ExprKind::Unary(operator, operand) => match (operator, self.expr(operand)?) {
                (Unary::Not, Value::Bool(value)) => Ok(Value::Bool(!value)),
                (Unary::Negate, Value::Int(value)) => {
                    value.checked_neg().map(Value::Int).ok_or(EvalError::Overflow)
                }
                (Unary::Negate, Value::Double(value)) => Ok(Value::Double(-value)),
                (_, other) => Err(EvalError::NoOverload(format!("unary on {}", other.type_name()))),
            },
            ExprKind::Binary(operator @ (Binary::And | Binary::Or), left, right) => {
                self.logic(*operator == Binary::Or, left, right)
            }
            ExprKind::Binary(operator, left, right) => {
                let left = self.expr(left)?;
                let right = self.expr(right)?;
                binary(*operator, &left, &right)
            }
            ExprKind::Index(operand, index) => {
                let operand = self.expr(operand)?;
                let index = self.expr(index)?;
                lookup(&operand, &index)
            }
            ExprKind::Ternary(condition, yes, no) => match self.expr(condition)? {
                Value::Bool(true) => self.expr(yes),
                Value::Bool(false) => self.expr(no),
                other => Err(EvalError::NoOverload(format!("_?_:_ on {}", other.type_name()))),
            },
            ExprKind::List(items) => {
                Ok(Value::List(items.iter().map(|item| self.expr(item)).collect::<Result<_, _>>()?))
            }
            ExprKind::Map(entries) => {
                let mut out = Vec::with_capacity(entries.len());
                for (key, value) in entries {
                    out.push((self.expr(key)?, self.expr(value)?));
                }
                Ok(Value::Map(out.into()))
            }
            ExprKind::Comprehension(comprehension) => self.comprehension(comprehension),
        }
    }

    fn ident(&self, name: &str) -> Evaluated {
        if let Some((_, value)) = self.locals.iter().rev().find(|(have, _)| have == name) {
            return Ok(value.clone());
        }
        let found = self.variables.variable(name).or_else(|| self.env.constant(name).cloned());
        found.ok_or_else(|| EvalError::NoVariable(name.to_owned()))
    }

    /// And, or: a side that decides wins over an error on the other.
    fn logic(&mut self, decisive: bool, left: &Expr, right: &Expr) -> Evaluated {
        let side = |value: Evaluated| match value {
            Ok(Value::Bool(value)) => Ok(value),
            Ok(other) => Err(EvalError::NoOverload(format!("logic on {}", other.type_name()))),
            Err(error) => Err(error),
        };
        let left = side(self.expr(left));
        if left == Ok(decisive) {
            return Ok(Value::Bool(decisive));
        }
        let right = side(self.expr(right));
        if right == Ok(decisive) {
            return Ok(Value::Bool(decisive));
        }
        left.and(right).map(Value::Bool)
    }

    fn comprehension(&mut self, comprehension: &Comprehension) -> Evaluated {
        let range = match self.expr(&comprehension.range)? {
            Value::List(items) => items,
            Value::Map(entries) => entries.iter().map(|(key, _)| key.clone()).collect(),
            other => return Err(EvalError::NoOverload(format!("range over {}", other.type_name()))),
        };
        let mut results = Vec::new();
        let mut hits = 0;
        let mut failure = None;
        for item in range.iter() {
            self.locals.push((comprehension.variable.clone(), item.clone()));
            let wanted = match &comprehension.filter {
                Some(filter) => self.expr(filter),
                None => Ok(Value::Bool(true)),
            };
            let body = match wanted {
                Ok(Value::Bool(true)) => Some(self.expr(&comprehension.body)),
                Ok(_) => None,
                Err(error) => Some(Err(error)),
            };
            self.locals.pop();
            match (comprehension.kind, body) {
                (_, None) => {}
                (Macro::Map, Some(value)) => results.push(value?),
                (Macro::Filter, Some(value)) => {
                    if value? == Value::Bool(true) {
                        results.push(item.clone());
                    }
                }
                (Macro::All, Some(Ok(Value::Bool(false)))) => return Ok(Value::Bool(false)),
                (Macro::Exists, Some(Ok(Value::Bool(true)))) => return Ok(Value::Bool(true)),
                (Macro::ExistsOne, Some(value)) => hits += usize::from(value? == Value::Bool(true)),
                // An item that fails does not matter if another decides.
                (Macro::All | Macro::Exists, Some(Err(error))) => failure = Some(error),
                (Macro::All | Macro::Exists, Some(Ok(_))) => {}
            }
        }
        match (comprehension.kind, failure) {
            (_, Some(error)) => Err(error),
            (Macro::All, None) => Ok(Value::Bool(true)),
            (Macro::Exists, None) => Ok(Value::Bool(false)),
            (Macro::ExistsOne, None) => Ok(Value::Bool(hits == 1)),
            (Macro::Map | Macro::Filter, None) => Ok(Value::List(results.into())),
        }
    }
}

fn select(operand: &Value, field: &str) -> Evaluated {
    match operand {
        Value::Message(object) => object.field(field).ok_or_else(|| EvalError::NoField(field.to_owned())),
        Value::Map(_) => lookup(operand, &Value::string(field)),
        other => Err(EvalError::NoOverload(format!("select on {}", other.type_name()))),
    }
}

fn lookup(operand: &Value, index: &Value) -> Evaluated {
    let missing = || EvalError::NoKey(format!("{index:?}"));
    match (operand, index) {
        (Value::List(items), Value::Int(at)) => {
            usize::try_from(*at).ok().and_then(|at| items.get(at)).cloned().ok_or_else(missing)
        }
        (Value::Map(entries), key) => {
            entries.iter().find(|(have, _)| have == key).map(|(_, value)| value.clone()).ok_or_else(missing)
        }
        (other, _) => Err(EvalError::NoOverload(format!("_[_] on {}", other.type_name()))),
    }
}

fn compare(left: &Value, right: &Value) -> Option<Ordering> {
    match (left, right) {
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
        (Value::Uint(a), Value::Uint(b)) => Some(a.cmp(b)),
        (Value::Double(a), Value::Double(b)) => a.partial_cmp(b),
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (Value::Bytes(a), Value::Bytes(b)) => Some(a.cmp(b)),
        (Value::Duration(a), Value::Duration(b)) => Some(a.cmp(b)),
        _ => None,
    }
}

fn binary(operator: Binary, left: &Value, right: &Value) -> Evaluated {
    let no_overload = || {
        let (left, right) = (left.type_name(), right.type_name());
        EvalError::NoOverload(format!("{} on {left} and {right}", operator.name()))
    };
    let ordered = |test: fn(Ordering) -> bool| match (compare(left, right), left, right) {
        (Some(order), ..) => Ok(Value::Bool(test(order))),
        // Comparisons with not-a-number are all false.
        (None, Value::Double(_), Value::Double(_)) => Ok(Value::Bool(false)),
        (None, ..) => Err(no_overload()),
    };
    match operator {
        Binary::Equal => Ok(Value::Bool(left == right)),
        Binary::NotEqual => Ok(Value::Bool(left != right)),
        Binary::Less => ordered(Ordering::is_lt),
        Binary::LessEqual => ordered(Ordering::is_le),
        Binary::Greater => ordered(Ordering::is_gt),
        Binary::GreaterEqual => ordered(Ordering::is_ge),
        Binary::In => match right {
            Value::List(items) => Ok(Value::Bool(items.contains(left))),
            Value::Map(entries) => Ok(Value::Bool(entries.iter().any(|(key, _)| key == left))),
            _ => Err(no_overload()),
        },
        Binary::Add | Binary::Subtract | Binary::Multiply | Binary::Divide | Binary::Modulo => {
            arithmetic(operator, left, right).unwrap_or_else(|| Err(no_overload()))
        }
        Binary::And | Binary::Or => Err(no_overload()),
    }
}

/// Arithmetic on numbers, texts, lists and durations; nothing if the types do not fit.
fn arithmetic(operator: Binary, left: &Value, right: &Value) -> Option<Evaluated> {
    let whole = matches!(right, Value::Int(0) | Value::Uint(0));
    if whole && matches!(operator, Binary::Divide | Binary::Modulo) {
        return Some(Err(EvalError::DivisionByZero));
    }
    let result = match (left, right) {
        (Value::Int(a), Value::Int(b)) => {
            let value = match operator {
                Binary::Add => a.checked_add(*b),
                Binary::Subtract => a.checked_sub(*b),
                Binary::Multiply => a.checked_mul(*b),
                Binary::Divide => a.checked_div(*b),
                _ => a.checked_rem(*b),
            };
            value.map(Value::Int)
        }
        (Value::Uint(a), Value::Uint(b)) => {
            let value = match operator {
                Binary::Add => a.checked_add(*b),
                Binary::Subtract => a.checked_sub(*b),
                Binary::Multiply => a.checked_mul(*b),
                Binary::Divide => a.checked_div(*b),
                _ => a.checked_rem(*b),
            };
            value.map(Value::Uint)
        }
        (Value::Double(a), Value::Double(b)) => match operator {
            Binary::Add => Some(Value::Double(a + b)),
            Binary::Subtract => Some(Value::Double(a - b)),
            Binary::Multiply => Some(Value::Double(a * b)),
            Binary::Divide => Some(Value::Double(a / b)),
            _ => return None,
        },
        (Value::Duration(a), Value::Duration(b)) => {
            let nanos = match operator {
                Binary::Add => a.as_nanos().checked_add(b.as_nanos()),
                Binary::Subtract => a.as_nanos().checked_sub(b.as_nanos()),
                _ => return None,
            };
            nanos.map(|nanos| Value::Duration(GoDuration::from_nanos(nanos)))
        }
        (Value::String(a), Value::String(b)) if operator == Binary::Add => {
            Some(Value::string(format!("{a}{b}")))
        }
        (Value::Bytes(a), Value::Bytes(b)) if operator == Binary::Add => {
            Some(Value::bytes([a.as_ref(), b.as_ref()].concat()))
        }
        (Value::List(a), Value::List(b)) if operator == Binary::Add => {
            Some(Value::List(a.iter().chain(b.iter()).cloned().collect()))
        }
        _ => return None,
    };
    Some(result.ok_or(EvalError::Overflow))
}

fn call(env: &Env, function: &str, args: &[Value]) -> Evaluated {
    let no_overload = || {
        let types = args.iter().map(Value::type_name).collect::<Vec<_>>().join(", ");
        EvalError::NoOverload(format!("{function}({types})"))
    };
    let value = match (function, args) {
        ("size", [Value::String(text)]) => Value::Int(text.chars().count() as i64),
        ("size", [Value::Bytes(bytes)]) => Value::Int(bytes.len() as i64),
        ("size", [Value::List(items)]) => Value::Int(items.len() as i64),
        ("size", [Value::Map(entries)]) => Value::Int(entries.len() as i64),
        ("contains", [Value::String(text), Value::String(part)]) => Value::Bool(text.contains(&**part)),
        ("startsWith", [Value::String(text), Value::String(part)]) => Value::Bool(text.starts_with(&**part)),
        ("endsWith", [Value::String(text), Value::String(part)]) => Value::Bool(text.ends_with(&**part)),
        ("matches", [Value::String(text), Value::String(pattern)]) => {
            let regex = Regex::new(pattern).map_err(|error| EvalError::Pattern(error.to_string()))?;
            Value::Bool(regex.is_match(text))
        }
        ("dyn", [value]) => value.clone(),
        ("hasValue", [Value::Optional(value)]) => Value::Bool(value.is_some()),
        ("value", [Value::Optional(value)]) => value.as_deref().cloned().ok_or(EvalError::NoValue)?,
        ("orValue", [Value::Optional(value), other]) => value.as_deref().unwrap_or(other).clone(),
        ("getHours", [Value::Duration(span)]) => Value::Int(span.as_nanos() / 3_600_000_000_000),
        ("getMinutes", [Value::Duration(span)]) => Value::Int(span.as_nanos() / 60_000_000_000),
        ("getSeconds", [Value::Duration(span)]) => Value::Int(span.as_nanos() / 1_000_000_000),
        ("getMilliseconds", [Value::Duration(span)]) => Value::Int(span.as_nanos() / 1_000_000),
        ("glob", [Value::String(pattern), Value::String(text)]) if env.has(Function::Glob) => {
            Value::Bool(functions::glob(pattern, text))
        }
        ("mac", [Value::Bytes(bytes)]) if env.has(Function::Mac) => {
            Value::string(HardwareAddr(bytes.to_vec()).to_string())
        }
        (name, [value]) => convert(name, value).unwrap_or_else(|| Err(no_overload()))?,
        _ => return Err(no_overload()),
    };
    Ok(value)
}

/// Conversions between types; nothing if there is none.
fn convert(function: &str, value: &Value) -> Option<Evaluated> {
    let fail = |to| Err(EvalError::Conversion { from: format!("{value:?}"), to });
    let in_range = |number: f64, low: f64, high: f64| number.is_finite() && number >= low && number < high;
    let converted = match (function, value) {
        ("int", Value::Int(_)) | ("uint", Value::Uint(_)) | ("double", Value::Double(_)) => value.clone(),
        ("bool", Value::Bool(_)) | ("string", Value::String(_)) | ("bytes", Value::Bytes(_)) => value.clone(),
        ("duration", Value::Duration(_)) => value.clone(),
        ("int", Value::Uint(number)) => match i64::try_from(*number) {
            Ok(number) => Value::Int(number),
            Err(_) => return Some(Err(EvalError::Overflow)),
        },
        ("int", Value::Double(number)) if in_range(*number, -9.3e18, 9.223_372_036_854_775e18) => {
            Value::Int(*number as i64)
        }
        ("int" | "uint", Value::Double(_)) if function == "int" => return Some(Err(EvalError::Overflow)),
        ("int", Value::String(text)) => match text.parse() {
            Ok(number) => Value::Int(number),
            Err(_) => return Some(fail("int")),
        },
        ("uint", Value::Int(number)) => match u64::try_from(*number) {
            Ok(number) => Value::Uint(number),
            Err(_) => return Some(Err(EvalError::Overflow)),
        },
        ("uint", Value::Double(number)) if in_range(*number, 0.0, 1.844_674_407_370_955e19) => {
            Value::Uint(*number as u64)
        }
        ("uint", Value::Double(_)) => return Some(Err(EvalError::Overflow)),
        ("uint", Value::String(text)) => match text.parse() {
            Ok(number) => Value::Uint(number),
            Err(_) => return Some(fail("uint")),
        },
        ("double", Value::Int(number)) => Value::Double(*number as f64),
        ("double", Value::Uint(number)) => Value::Double(*number as f64),
        ("double", Value::String(text)) => match text.parse() {
            Ok(number) => Value::Double(number),
            Err(_) => return Some(fail("double")),
        },
        ("bool", Value::String(text)) => match &**text {
            "true" | "True" | "TRUE" | "t" | "1" => Value::Bool(true),
            "false" | "False" | "FALSE" | "f" | "0" => Value::Bool(false),
            _ => return Some(fail("bool")),
        },
        ("string", Value::Bool(flag)) => Value::string(flag.to_string()),
        ("string", Value::Int(number)) => Value::string(number.to_string()),
        ("string", Value::Uint(number)) => Value::string(number.to_string()),
        ("string", Value::Double(number)) => Value::string(number.to_string()),
        ("string", Value::Bytes(bytes)) => match std::str::from_utf8(bytes) {
            Ok(text) => Value::string(text),
            Err(_) => return Some(fail("string")),
        },
        ("string", Value::Duration(span)) => Value::string(format!("{}s", span.as_nanos() as f64 / 1e9)),
        ("bytes", Value::String(text)) => Value::Bytes(Arc::from(text.as_bytes())),
        ("duration", Value::String(text)) => match text.parse() {
            Ok(span) => Value::Duration(span),
            Err(_) => return Some(fail("duration")),
        },
        _ => return None,
    };
    Some(Ok(converted))
}
