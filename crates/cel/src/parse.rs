//! From words to a tree.

use crate::{
    DEPTH_MAX, LINKS_MAX, TEXT_MAX,
    ast::{Binary, Comprehension, Expr, ExprKind, Macro, Unary},
    error::Error,
    lex::{Token, lex},
    value::Value,
};

/// Words that cannot be names.
const RESERVED: &[&str] = &[
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

pub(crate) fn parse(text: &str) -> Result<Expr, Error> {
    if text.len() > TEXT_MAX {
        return Err(Error::whole(text, format!("expression is longer than {TEXT_MAX} bytes")));
    }
    let mut parser = Parser { text, tokens: lex(text)?, at: 0, depth: 0, links: 0 };
    let root = parser.ternary()?;
    match parser.peek() {
        Token::End => Ok(root),
        _ => Err(parser.unexpected("<EOF>")),
    }
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<(Token, usize)>,
    at: usize,
    depth: usize,
    /// Operators and suffixes so far; each can make the tree one level higher.
    links: usize,
}

impl Parser<'_> {
    fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    fn offset(&self) -> usize {
        self.tokens[self.at].1
    }

    fn advance(&mut self) {
        // The end stays in place, so that looking ahead is always possible.
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
    }

    fn take(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Token::Sign(have) if *have == sign);
        if found {
            self.advance();
        }
        found
    }

    fn expect(&mut self, sign: &str) -> Result<(), Error> {
        if self.take(sign) {
            return Ok(());
        }
        let message = format!("Syntax error: missing '{sign}' at '{}'", self.shown());
        Err(Error::at(self.text, self.offset(), message))
    }

    fn shown(&self) -> String {
        match self.peek() {
            Token::End => "<EOF>".to_owned(),
            Token::Ident(name) => name.clone(),
            Token::Sign(sign) => (*sign).to_owned(),
            _ => {
                let end = self.tokens.get(self.at + 1).map_or(self.text.len(), |(_, offset)| *offset);
                self.text[self.offset()..end].trim_end().to_owned()
            }
        }
    }

    fn unexpected(&self, wanted: &str) -> Error {
        let message = format!("Syntax error: mismatched input '{}' expecting {wanted}", self.shown());
        Error::at(self.text, self.offset(), message)
    }

    fn deeper<T>(&mut self, run: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Error::at(
                self.text,
                self.offset(),
                format!("nested deeper than {DEPTH_MAX} levels"),
            ));
        }
        let result = run(self);
        self.depth -= 1;
        result
    }

    fn link(&mut self) -> Result<(), Error> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Error::at(self.text, self.offset(), format!("more than {LINKS_MAX} operators")));
        }
        Ok(())
    }

    fn ternary(&mut self) -> Result<Expr, Error> {
        self.deeper(|parser| {
            let condition = parser.binary(0)?;
            let offset = parser.offset();
            if !parser.take("?") {
                return Ok(condition);
            }
            let yes = parser.binary(0)?;
            parser.expect(":")?;
            let no = parser.ternary()?;
            let kind = ExprKind::Ternary(Box::new(condition), Box::new(yes), Box::new(no));
            Ok(Expr { kind, offset })
        })
    }

    fn operator(&self) -> Option<(Binary, u8)> {
        let found = match self.peek() {
            Token::Ident(name) if name == "in" => (Binary::In, 3),
            Token::Sign(sign) => match *sign {
                "||" => (Binary::Or, 1),
                "&&" => (Binary::And, 2),
                "==" => (Binary::Equal, 3),
                "!=" => (Binary::NotEqual, 3),
                "<" => (Binary::Less, 3),
                "<=" => (Binary::LessEqual, 3),
                ">" => (Binary::Greater, 3),
                ">=" => (Binary::GreaterEqual, 3),
                "+" => (Binary::Add, 4),
                "-" => (Binary::Subtract, 4),
                "*" => (Binary::Multiply, 5),
                "/" => (Binary::Divide, 5),
                "%" => (Binary::Modulo, 5),
                _ => return None,
            },
            _ => return None,
        };
        Some(found)
    }

    /// Operators that bind at least as tightly as `level`.
    fn binary(&mut self, level: u8) -> Result<Expr, Error> {
        let mut left = self.unary()?;
        while let Some((operator, binding)) = self.operator().filter(|(_, binding)| *binding > level) {
            let offset = self.offset();
            self.link()?;
            self.advance();
            let right = self.binary(binding)?;
            left = Expr { kind: ExprKind::Binary(operator, Box::new(left), Box::new(right)), offset };
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Expr, Error> {
        let offset = self.offset();
        let operator = match self.peek() {
            Token::Sign("!") => Unary::Not,
            Token::Sign("-") => Unary::Negate,
            _ => {
                let primary = self.primary()?;
                return self.suffixes(primary);
            }
        };
        self.advance();
        // A minus before a number is part of it, so that the smallest number can be written.
        if operator == Unary::Negate {
            let literal = match self.peek() {
                Token::Int(value) => Some(Value::Int(-value)),
                Token::IntMin => Some(Value::Int(i64::MIN)),
                Token::Double(value) => Some(Value::Double(-value)),
                _ => None,
            };
            if let Some(value) = literal {
                self.advance();
                return self.suffixes(Expr { kind: ExprKind::Literal(value), offset });
            }
        }
        self.deeper(|parser| {
            let operand = parser.unary()?;
            Ok(Expr { kind: ExprKind::Unary(operator, Box::new(operand)), offset })
        })
    }

    fn primary(&mut self) -> Result<Expr, Error> {
        let offset = self.offset();
        let literal = |value| Ok(Expr { kind: ExprKind::Literal(value), offset });
        let token = self.peek().clone();
        match token {
            Token::Int(value) => {
                self.advance();
                literal(Value::Int(value))
            }
            Token::Uint(value) => {
                self.advance();
                literal(Value::Uint(value))
            }
            Token::Double(value) => {
                self.advance();
                literal(Value::Double(value))
            }
            Token::String(value) => {
                self.advance();
                literal(Value::string(value))
            }
            Token::Bytes(value) => {
                self.advance();
                literal(Value::bytes(value))
            }
            Token::Ident(name) => {
                self.advance();
                match name.as_str() {
                    "true" => literal(Value::Bool(true)),
                    "false" => literal(Value::Bool(false)),
                    "null" => literal(Value::Null),
                    "in" => Err(Error::at(self.text, offset, "Syntax error: mismatched input 'in'")),
                    name if RESERVED.contains(&name) => {
                        Err(Error::at(self.text, offset, format!("reserved identifier: {name}")))
                    }
                    name => self.name(name, offset),
                }
            }
            Token::Sign("(") => {
                self.advance();
                let inner = self.ternary()?;
                self.expect(")")?;
                Ok(inner)
            }
            Token::Sign("[") => {
                self.advance();
                let items = self.list("]")?;
                Ok(Expr { kind: ExprKind::List(items), offset })
            }
            Token::Sign("{") => {
                self.advance();
                let entries = self.entries()?;
                Ok(Expr { kind: ExprKind::Map(entries), offset })
            }
            Token::Sign(".") => {
                self.advance();
                match self.peek().clone() {
                    Token::Ident(name) => {
                        let offset = self.offset();
                        self.advance();
                        self.name(&name, offset)
                    }
                    _ => Err(self.unexpected("IDENTIFIER")),
                }
            }
            Token::IntMin => Err(Error::at(self.text, offset, "invalid int literal")),
            Token::Sign(_) | Token::End => Err(self.unexpected(
                "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, \
                 IDENTIFIER}",
            )),
        }
    }

    /// A name, or a call of a function with that name.
    fn name(&mut self, name: &str, offset: usize) -> Result<Expr, Error> {
        let call_offset = self.offset();
        if !self.take("(") {
            return Ok(Expr { kind: ExprKind::Ident(name.to_owned()), offset });
        }
        let mut args = self.list(")")?;
        if name == "has" && args.len() == 1 {
            let Some(Expr { kind: ExprKind::Select(operand, field), .. }) = args.pop() else {
                return Err(Error::at(self.text, call_offset, "invalid argument to has() macro"));
            };
            return Ok(Expr { kind: ExprKind::Has(operand, field), offset: call_offset });
        }
        let kind = ExprKind::Call { target: None, function: name.to_owned(), args };
        Ok(Expr { kind, offset: call_offset })
    }

    fn suffixes(&mut self, mut operand: Expr) -> Result<Expr, Error> {
        loop {
            let offset = self.offset();
            if self.take(".") {
                self.link()?;
                let Token::Ident(name) = self.peek().clone() else {
                    return Err(self.unexpected("IDENTIFIER"));
                };
                self.advance();
                let call_offset = self.offset();
                operand = match self.take("(") {
                    true => {
                        let args = self.list(")")?;
                        self.method(operand, name, args, call_offset)?
                    }
                    false => Expr { kind: ExprKind::Select(Box::new(operand), name), offset },
                };
            } else if self.take("[") {
                self.link()?;
                let index = self.ternary()?;
                self.expect("]")?;
                operand = Expr { kind: ExprKind::Index(Box::new(operand), Box::new(index)), offset };
            } else {
                return Ok(operand);
            }
        }
    }

    /// A method, or one of the macros that run over a list.
    fn method(&self, target: Expr, function: String, args: Vec<Expr>, offset: usize) -> Result<Expr, Error> {
        let kind = match (function.as_str(), args.len()) {
            ("all", 2) => Some(Macro::All),
            ("exists", 2) => Some(Macro::Exists),
            ("exists_one", 2) => Some(Macro::ExistsOne),
            ("filter", 2) => Some(Macro::Filter),
            ("map", 2 | 3) => Some(Macro::Map),
            _ => None,
        };
        let Some(kind) = kind else {
            let kind = ExprKind::Call { target: Some(Box::new(target)), function, args };
            return Ok(Expr { kind, offset });
        };
        let mut args = args.into_iter();
        let Some(Expr { kind: ExprKind::Ident(variable), .. }) = args.next() else {
            return Err(Error::at(self.text, offset, "argument must be a simple name"));
        };
        let (filter, body) = match (args.next(), args.next()) {
            (Some(filter), Some(body)) => (Some(filter), body),
            (Some(body), None) => (None, body),
            _ => return Err(Error::at(self.text, offset, "macro needs an expression")),
        };
        let comprehension = Comprehension { kind, range: target, variable, filter, body };
        Ok(Expr { kind: ExprKind::Comprehension(Box::new(comprehension)), offset })
    }

    /// Expressions with commas between them, up to a closing sign; a comma may come last.
    fn list(&mut self, close: &str) -> Result<Vec<Expr>, Error> {
        let mut items = Vec::new();
        while !self.take(close) {
            items.push(self.ternary()?);
            if !self.take(",") {
                self.expect(close)?;
                break;
            }
        }
        Ok(items)
    }

    fn entries(&mut self) -> Result<Vec<(Expr, Expr)>, Error> {
        let mut entries = Vec::new();
        while !self.take("}") {
            let key = self.ternary()?;
            self.expect(":")?;
            entries.push((key, self.ternary()?));
            if !self.take(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(entries)
    }
}
