//! The type of an expression, or what is wrong with it and where.

use crate::{
    ast::{Binary, Comprehension, Expr, ExprKind, Macro, Unary},
    env::{Env, Message, Type},
    error::Error,
    functions::{self, Found},
    value::Value,
};

pub(crate) fn check(root: &Expr, env: &Env, text: &str) -> Result<Type, Error> {
    Checker { env, text, locals: Vec::new() }.expr(root)
}

struct Checker<'a> {
    env: &'a Env,
    text: &'a str,
    /// Variables of the macros around, innermost last.
    locals: Vec<(String, Type)>,
}

impl Checker<'_> {
    fn fail<T>(&self, at: &Expr, message: String) -> Result<T, Error> {
        Err(Error::at(self.text, at.offset, message))
    }

    fn no_overload<T>(&self, at: &Expr, name: &str, args: &[Type]) -> Result<T, Error> {
        let list = args.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        self.fail(at, format!("found no matching overload for '{name}' applied to '({list})'"))
    }

    fn expr(&mut self, expr: &Expr) -> Result<Type, Error> {
        match &expr.kind {
            ExprKind::Literal(value) => Ok(literal(value)),
            ExprKind::Ident(name) => self.ident(expr, name),
            ExprKind::Select(operand, field) => {
                let operand = self.expr(operand)?;
                self.field(expr, &operand, field)
            }
            ExprKind::Has(operand, field) => {
                let operand = self.expr(operand)?;
                self.field(expr, &operand, field).map(|_| Type::Bool)
            }
            ExprKind::Call { target, function, args } => self.call(expr, target.as_deref(), function, args),
            ExprKind::Unary(operator, operand) => {
                let operand = self.expr(operand)?;
                match (operator, &operand) {
                    (Unary::Not, Type::Bool | Type::Dyn) => Ok(Type::Bool),
                    (Unary::Negate, Type::Int | Type::Double | Type::Dyn) => Ok(operand),
                    (Unary::Not, _) => self.no_overload(expr, "!_", &[operand]),
                    (Unary::Negate, _) => self.no_overload(expr, "-_", &[operand]),
                }
            }
            ExprKind::Binary(operator, left, right) => {
                let left = self.expr(left)?;
                let right = self.expr(right)?;
                match binary(*operator, &left, &right) {
                    Some(found) => Ok(found),
                    None => self.no_overload(expr, operator.name(), &[left, right]),
                }
            }
            ExprKind::Index(operand, index) => {
                let operand = self.expr(operand)?;
                let index = self.expr(index)?;
                match (&operand, &index) {
                    (Type::List(item), Type::Int | Type::Dyn) => Ok((**item).clone()),
                    (Type::Map(key, value), index) if agree(key, index).is_some() => Ok((**value).clone()),
                    (Type::Dyn, _) => Ok(Type::Dyn),
                    _ => self.no_overload(expr, "_[_]", &[operand, index]),
                }
            }
            ExprKind::Ternary(condition, yes, no) => {
                let condition = self.expr(condition)?;
                let yes = self.expr(yes)?;
                let no = self.expr(no)?;
                let result = agree(&yes, &no).filter(|_| matches!(condition, Type::Bool | Type::Dyn));
                match result {
                    Some(found) => Ok(found),
                    None => self.no_overload(expr, "_?_:_", &[condition, yes, no]),
                }
            }
            ExprKind::List(items) => {
                let types = items.iter().map(|item| self.expr(item)).collect::<Result<Vec<_>, _>>()?;
                Ok(Type::List(Box::new(common(types))))
            }
            ExprKind::Map(entries) => {
                let mut keys = Vec::new();
                let mut values = Vec::new();
                for (key, value) in entries {
                    keys.push(self.expr(key)?);
                    values.push(self.expr(value)?);
                }
                Ok(Type::Map(Box::new(common(keys)), Box::new(common(values))))
            }
            ExprKind::Comprehension(comprehension) => self.comprehension(comprehension),
        }
    }

    fn ident(&self, expr: &Expr, name: &str) -> Result<Type, Error> {
        let local = self.locals.iter().rev().find(|(have, _)| have == name).map(|(_, kind)| kind.clone());
        match local.or_else(|| self.env.type_of(name)) {
            Some(found) => Ok(found),
            None => self.fail(expr, format!("undeclared reference to '{name}' (in container '')")),
        }
    }

    fn field(&self, expr: &Expr, operand: &Type, field: &str) -> Result<Type, Error> {
        match operand {
            Type::Message(message) => match find_field(message, field) {
                Some(found) => Ok(found),
                None => self.fail(expr, format!("undefined field '{field}'")),
            },
            Type::Map(key, value) if agree(key, &Type::String).is_some() => Ok((**value).clone()),
            Type::Dyn => Ok(Type::Dyn),
            other => self.fail(expr, format!("type '{other}' does not support field selection")),
        }
    }

    fn call(
        &mut self,
        expr: &Expr,
        target: Option<&Expr>,
        function: &str,
        args: &[Expr],
    ) -> Result<Type, Error> {
        let mut types = Vec::new();
        for arg in target.into_iter().chain(args) {
            types.push(self.expr(arg)?);
        }
        match functions::result(self.env, function, target.is_some(), &types) {
            Found::Type(found) => Ok(found),
            Found::NoFunction => {
                self.fail(expr, format!("undeclared reference to '{function}' (in container '')"))
            }
            Found::NoOverload if target.is_some() => {
                let shown = types.split_first().map(|(target, rest)| {
                    let rest = rest.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                    format!("found no matching overload for '{function}' applied to '{target}.({rest})'")
                });
                self.fail(expr, shown.unwrap_or_default())
            }
            Found::NoOverload => self.no_overload(expr, function, &types),
        }
    }

    fn comprehension(&mut self, comprehension: &Comprehension) -> Result<Type, Error> {
        let range = self.expr(&comprehension.range)?;
        let item = match &range {
            Type::List(item) => (**item).clone(),
            Type::Map(key, _) => (**key).clone(),
            Type::Dyn => Type::Dyn,
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                return self.fail(&comprehension.range, message);
            }
        };
        self.locals.push((comprehension.variable.clone(), item.clone()));
        let filter = comprehension.filter.as_ref().map(|filter| self.expr(filter)).transpose();
        let body = self.expr(&comprehension.body);
        self.locals.pop();
        let (filter, body) = (filter?, body?);
        let is_bool = |kind: &Type| matches!(kind, Type::Bool | Type::Dyn);
        let condition = filter.as_ref().or((comprehension.kind != Macro::Map).then_some(&body));
        if let Some(condition) = condition.filter(|condition| !is_bool(condition)) {
            let at = comprehension.filter.as_ref().unwrap_or(&comprehension.body);
            return self.fail(at, format!("expected type 'bool' but found '{condition}'"));
        }
        Ok(match comprehension.kind {
            Macro::All | Macro::Exists | Macro::ExistsOne => Type::Bool,
            Macro::Filter => Type::List(Box::new(item)),
            Macro::Map => Type::List(Box::new(body)),
        })
    }
}

fn literal(value: &Value) -> Type {
    match value {
        Value::Null => Type::Null,
        Value::Bool(_) => Type::Bool,
        Value::Int(_) => Type::Int,
        Value::Uint(_) => Type::Uint,
        Value::Double(_) => Type::Double,
        Value::String(_) => Type::String,
        Value::Bytes(_) => Type::Bytes,
        Value::Duration(_) => Type::Duration,
        Value::List(_) | Value::Map(_) | Value::Optional(_) | Value::Message(_) => Type::Dyn,
    }
}

/// The type of a field of a message.
pub(crate) fn find_field(message: &Message, field: &str) -> Option<Type> {
    message.fields.iter().find(|(name, _)| *name == field).map(|(_, kind)| kind.to_type())
}

/// The type two values have together, if any.
fn agree(left: &Type, right: &Type) -> Option<Type> {
    match (left, right) {
        (Type::Dyn, _) | (_, Type::Dyn) => Some(Type::Dyn),
        (Type::List(a), Type::List(b)) => Some(Type::List(Box::new(agree(a, b)?))),
        (Type::Map(a, b), Type::Map(c, d)) => Some(Type::Map(Box::new(agree(a, c)?), Box::new(agree(b, d)?))),
        (Type::Null, Type::Message(_)) => Some(right.clone()),
        (Type::Message(_), Type::Null) => Some(left.clone()),
        _ => (left == right).then(|| left.clone()),
    }
}

/// The type of the items of a list: one if they agree, else known only at run time.
fn common(types: Vec<Type>) -> Type {
    let mut types = types.into_iter();
    let Some(first) = types.next() else { return Type::Dyn };
    types.try_fold(first, |found, next| agree(&found, &next)).unwrap_or(Type::Dyn)
}

/// The result of an operator, if it takes these types.
fn binary(operator: Binary, left: &Type, right: &Type) -> Option<Type> {
    use Type::{Bool, Bytes, Double, Duration, Dyn, Int, String, Uint};
    let both = agree(left, right);
    match operator {
        Binary::And | Binary::Or => match (left, right) {
            (Bool | Dyn, Bool | Dyn) => Some(Bool),
            _ => None,
        },
        Binary::Equal | Binary::NotEqual => both.map(|_| Bool),
        Binary::Less | Binary::LessEqual | Binary::Greater | Binary::GreaterEqual => match both? {
            Bool | Int | Uint | Double | String | Bytes | Duration | Dyn => Some(Bool),
            _ => None,
        },
        Binary::In => match right {
            Type::List(item) => agree(left, item).map(|_| Bool),
            Type::Map(key, _) => agree(left, key).map(|_| Bool),
            Dyn => Some(Bool),
            _ => None,
        },
        Binary::Add => match both? {
            found @ (Int | Uint | Double | String | Bytes | Duration | Type::List(_) | Dyn) => Some(found),
            _ => None,
        },
        Binary::Subtract => match both? {
            found @ (Int | Uint | Double | Duration | Dyn) => Some(found),
            _ => None,
        },
        Binary::Multiply | Binary::Divide => match both? {
            found @ (Int | Uint | Double | Dyn) => Some(found),
            _ => None,
        },
        Binary::Modulo => match both? {
            found @ (Int | Uint | Dyn) => Some(found),
            _ => None,
        },
    }
}
