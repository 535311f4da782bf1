//! From text to words.

use crate::error::Error;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    Int(i64),
    /// A whole number too large for a sign, which is only right behind a minus.
    IntMin,
    Uint(u64),
    Double(f64),
    String(String),
    Bytes(Vec<u8>),
    Ident(String),
    /// An operator or bracket.
    Sign(&'static str),
    End,
}

/// Longest first, so that `<=` is not read as `<`.
const SIGNS: &[&str] = &[
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "!", "+", "-", "*", "/", "%", "?", ":", "(", ")", "[", "]",
    "{", "}", ",", ".",
];

/// All words of a text, each with its place; the last one is the end.
pub(crate) fn lex(text: &str) -> Result<Vec<(Token, usize)>, Error> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let Some(first) = rest.chars().next() else { break };
        if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        }
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
            continue;
        }
        let (token, length) = if let Some((prefix, raw, bytes)) = quoted_prefix(rest) {
            quoted(text, at, prefix, raw, bytes)?
        } else if first.is_ascii_digit()
            || (first == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit()))
        {
            number(text, at)?
        } else if first.is_alphabetic() && first.is_ascii() || first == '_' {
            let length = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
            (Token::Ident(rest[..length].to_owned()), length)
        } else {
            let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign));
            let sign = sign.ok_or_else(|| {
                Error::at(text, at, format!("Syntax error: token recognition error at: '{first}'"))
            })?;
            (Token::Sign(sign), sign.len())
        };
        tokens.push((token, at));
        at += length;
    }
    tokens.push((Token::End, text.len()));
    Ok(tokens)
}

/// The letters before a quoted text: `r` keeps backslashes, `b` makes bytes.
fn quoted_prefix(rest: &str) -> Option<(usize, bool, bool)> {
    // At most two letters stand before a quote; looking further would cost a scan per word.
    let letters = rest.bytes().take(3).position(|b| matches!(b, b'"' | b'\''))?;
    let prefix = rest[..letters].to_ascii_lowercase();
    match prefix.as_str() {
        "" => Some((0, false, false)),
        "r" => Some((1, true, false)),
        "b" => Some((1, false, true)),
        "rb" | "br" => Some((2, true, true)),
        _ => None,
    }
}

fn quoted(text: &str, at: usize, prefix: usize, raw: bool, bytes: bool) -> Result<(Token, usize), Error> {
    let body = &text[at + prefix..];
    let quote =
        ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quote| body.starts_with(quote)).unwrap_or("\"");
    let unclosed = || {
        let shown: String = text[at..].chars().take(20).collect();
        Error::at(text, at, format!("Syntax error: token recognition error at: '{shown}'"))
    };
    let mut out: Vec<u8> = Vec::new();
    let mut rest = &body[quote.len()..];
    loop {
        if rest.starts_with(quote) {
            break;
        }
        let c = rest.chars().next().ok_or_else(unclosed)?;
        if c == '\n' && quote.len() == 1 {
            return Err(unclosed());
        }
        if c == '\\' && !raw {
            let (value, length) = escape(rest, bytes).ok_or_else(unclosed)?;
            out.extend(value);
            rest = &rest[length..];
        } else {
            out.extend(c.encode_utf8(&mut [0; 4]).as_bytes());
            rest = &rest[c.len_utf8()..];
        }
    }
    let length = text.len() - at - rest.len() + quote.len();
    let token = match bytes {
        true => Token::Bytes(out),
        false => Token::String(String::from_utf8(out).map_err(|_| unclosed())?),
    };
    Ok((token, length))
}

/// The bytes of an escape and its length in the text.
fn escape(rest: &str, bytes: bool) -> Option<(Vec<u8>, usize)> {
    let code = rest.chars().nth(1)?;
    let simple = match code {
        'a' => Some(7),
        'b' => Some(8),
        'f' => Some(12),
        'n' => Some(10),
        'r' => Some(13),
        't' => Some(9),
        'v' => Some(11),
        '\\' | '\'' | '"' | '`' | '?' => Some(code as u8),
        _ => None,
    };
    if let Some(byte) = simple {
        return Some((vec![byte], 2));
    }
    let (digits, radix) = match code {
        'x' | 'X' => (rest.get(2..4)?, 16),
        'u' => (rest.get(2..6)?, 16),
        'U' => (rest.get(2..10)?, 16),
        '0'..='3' => (rest.get(1..4)?, 8),
        _ => return None,
    };
    let number = u32::from_str_radix(digits, radix).ok()?;
    let length = if radix == 8 { 4 } else { 2 + digits.len() };
    if bytes && number < 256 && !matches!(code, 'u' | 'U') {
        return Some((vec![number as u8], length));
    }
    let c = char::from_u32(number)?;
    Some((c.encode_utf8(&mut [0; 4]).as_bytes().to_vec(), length))
}

fn number(text: &str, at: usize) -> Result<(Token, usize), Error> {
    let rest = &text[at..];
    let bad = |shown: &str| Error::at(text, at, format!("invalid number literal '{shown}'"));
    if let Some(hex) = rest.strip_prefix("0x") {
        let length = hex.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hex.len());
        let digits = &hex[..length];
        if hex[length..].starts_with(['u', 'U']) {
            let value = u64::from_str_radix(digits, 16).map_err(|_| bad(digits))?;
            return Ok((Token::Uint(value), length + 3));
        }
        let value = i64::from_str_radix(digits, 16).map_err(|_| bad(digits))?;
        return Ok((Token::Int(value), length + 2));
    }
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let mut length = digits(rest);
    let mut float = false;
    if rest[length..].starts_with('.') && rest[length + 1..].starts_with(|c: char| c.is_ascii_digit()) {
        float = true;
        length += 1 + digits(&rest[length + 1..]);
    }
    if let Some(exponent) = rest[length..].strip_prefix(['e', 'E']) {
        let signed = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        let count = digits(signed);
        if count > 0 {
            float = true;
            length += 1 + (exponent.len() - signed.len()) + count;
        }
    }
    let shown = &rest[..length];
    if float {
        return Ok((Token::Double(shown.parse().map_err(|_| bad(shown))?), length));
    }
    if rest[length..].starts_with(['u', 'U']) {
        return Ok((Token::Uint(shown.parse().map_err(|_| bad(shown))?), length + 1));
    }
    match shown.parse::<u64>() {
        Ok(value) if value == 1 << 63 => Ok((Token::IntMin, length)),
        Ok(value) => Ok((Token::Int(i64::try_from(value).map_err(|_| bad(shown))?), length)),
        Err(_) => Err(bad(shown)),
    }
}
