//! The tree of an expression.

use crate::value::Value;

/// A node with its place in the text.
#[derive(Clone, Debug)]
pub(crate) struct Expr {
    pub(crate) kind: ExprKind,
    pub(crate) offset: usize,
}

#[derive(Clone, Debug)]
pub(crate) enum ExprKind {
    Literal(Value),
    Ident(String),
    /// `operand.field`.
    Select(Box<Expr>, String),
    /// `has(operand.field)`.
    Has(Box<Expr>, String),
    /// `function(args)` or `target.function(args)`.
    Call {
        target: Option<Box<Expr>>,
        function: String,
        args: Vec<Expr>,
    },
    Unary(Unary, Box<Expr>),
    Binary(Binary, Box<Expr>, Box<Expr>),
    Index(Box<Expr>, Box<Expr>),
    Ternary(Box<Expr>, Box<Expr>, Box<Expr>),
    List(Vec<Expr>),
    Map(Vec<(Expr, Expr)>),
    /// `range.macro(variable, …)`.
    Comprehension(Box<Comprehension>),
}

#[derive(Clone, Debug)]
pub(crate) struct Comprehension {
    pub(crate) kind: Macro,
    pub(crate) range: Expr,
    pub(crate) variable: String,
    pub(crate) filter: Option<Expr>,
    pub(crate) body: Expr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Macro {
    All,
    Exists,
    ExistsOne,
    Filter,
    Map,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    Not,
    Negate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    Or,
    And,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
}

impl Binary {
    /// The name of the operator in messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Or => "_||_",
            Self::And => "_&&_",
            Self::Equal => "_==_",
            Self::NotEqual => "_!=_",
            Self::Less => "_<_",
            Self::LessEqual => "_<=_",
            Self::Greater => "_>_",
            Self::GreaterEqual => "_>=_",
            Self::In => "@in",
            Self::Add => "_+_",
            Self::Subtract => "_-_",
            Self::Multiply => "_*_",
            Self::Divide => "_/_",
            Self::Modulo => "_%_",
        }
    }
}
