//! From values to text: scalars bare, everything else as compact JSON.

use std::fmt::Write;

use serde_json::{Number, Value};

/// Appends a value as a template shows it.
pub(crate) fn print(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Number(number) => push_number(number, out),
        Value::String(text) => out.push_str(text),
        Value::Array(_) | Value::Object(_) => push_json(value, out),
    }
}

/// Floats take an exponent from 21 digits on in JSON, but from a million on when bare.
fn push_number(number: &Number, out: &mut String) {
    let value = number.as_f64().filter(|_| number.is_f64());
    // Writing to a String cannot fail.
    let _ = match value {
        None => write!(out, "{number}"),
        Some(value) => {
            let scientific = format!("{value:e}");
            let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
            match exponent.parse().unwrap_or(0) {
                -4..6 => write!(out, "{value}"),
                exponent @ ..0 => write!(out, "{mantissa}e-{:02}", -exponent),
                exponent => write!(out, "{mantissa}e+{exponent:02}"),
            }
        }
    };
}

/// Compact JSON, keys sorted, the characters that HTML minds escaped.
fn push_json(value: &Value, out: &mut String) {
    match value {
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                push_json(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by(|a, b| a.0.cmp(b.0));
            out.push('{');
            for (i, (key, value)) in entries.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                push_string(key, out);
                out.push(':');
                push_json(value, out);
            }
            out.push('}');
        }
        Value::String(text) => push_string(text, out),
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            let _ = write!(out, "{value}");
        }
    }
}

fn push_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            c if c < ' ' || matches!(c, '<' | '>' | '&' | '\u{2028}' | '\u{2029}') => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
