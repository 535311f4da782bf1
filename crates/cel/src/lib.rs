//! Expressions in the common expression language, as far as selectors use it.
//!
//! [`Expression::parse`] reads the text, [`Expression::check`] says which type it has in an environment or
//! what is wrong and where, [`Expression::eval`] computes its value. Everything is bounded: the length of the
//! text, the depth of the tree, the steps of an evaluation.

mod ast;
mod check;
mod env;
pub mod environments;
mod error;
mod eval;
mod functions;
mod lex;
mod parse;
mod value;

pub use env::{Env, Function, Kind, Message, Type};
pub use error::Error;
pub use eval::{EvalError, Object, Variables};
pub use value::Value;

/// Bytes of text that are read at most.
pub const TEXT_MAX: usize = 16 << 10;
/// Levels of nesting at most.
pub const DEPTH_MAX: usize = 64;
/// Operators, selections and calls at most.
pub const LINKS_MAX: usize = 400;
/// Steps of one evaluation at most.
pub const STEPS_MAX: usize = 100_000;

/// A parsed expression.
#[derive(Clone, Debug)]
pub struct Expression {
    text: String,
    root: ast::Expr,
}

impl Expression {
    /// Reads an expression.
    pub fn parse(text: &str) -> Result<Self, Error> {
        Ok(Self { text: text.to_owned(), root: parse::parse(text)? })
    }

    /// The text it was read from.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The type it has in an environment.
    pub fn check(&self, env: &Env) -> Result<Type, Error> {
        check::check(&self.root, env, &self.text)
    }

    /// Checks that it has a type in an environment.
    pub fn check_type(&self, env: &Env, wanted: &Type) -> Result<(), Error> {
        let found = self.check(env)?;
        if found == *wanted || found == Type::Dyn {
            return Ok(());
        }
        let message = format!("expression output type is {found}, expected {wanted}");
        Err(Error::whole(&self.text, message))
    }

    /// Computes its value; constants come from the environment, the rest from `variables`.
    pub fn eval(&self, env: &Env, variables: &dyn Variables) -> Result<Value, EvalError> {
        eval::eval(&self.root, env, variables)
    }
}
