//! What a bare scalar means: null, boolean, number, timestamp or string, by the Go library's rules.

/// The meaning of a bare scalar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Resolved {
    /// `null`, `~` or nothing.
    Null,
    /// `true` or `false` in three casings.
    Bool(bool),
    /// A whole number that fits 64 bits with sign.
    Int(i64),
    /// A whole number above that.
    Uint(u64),
    /// A number with a fraction or exponent, infinities, not-a-number.
    Float(f64),
    /// A date, perhaps with a time.
    Timestamp,
    /// The merge key `<<`.
    Merge,
    /// Anything else.
    Str,
}

/// Resolves the text of a bare scalar.
pub fn resolve(text: &str) -> Resolved {
    let Some(first) = text.bytes().next() else { return Resolved::Null };
    match first {
        b'~' | b'n' | b'N' | b't' | b'T' | b'f' | b'F' => word(text),
        b'<' if text == "<<" => Resolved::Merge,
        b'.' => special_float(text).or_else(|| float(text)).map_or(Resolved::Str, Resolved::Float),
        b'+' | b'-' | b'0'..=b'9' => number(text),
        _ => Resolved::Str,
    }
}

fn word(text: &str) -> Resolved {
    match text {
        "~" | "null" | "Null" | "NULL" => Resolved::Null,
        "true" | "True" | "TRUE" => Resolved::Bool(true),
        "false" | "False" | "FALSE" => Resolved::Bool(false),
        _ => Resolved::Str,
    }
}

fn special_float(text: &str) -> Option<f64> {
    match text {
        ".nan" | ".NaN" | ".NAN" => Some(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Some(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Some(f64::NEG_INFINITY),
        "-0" | "-0.0" => Some(-0.0),
        _ => None,
    }
}

fn number(text: &str) -> Resolved {
    if let Some(value) = special_float(text) {
        return Resolved::Float(value);
    }
    if is_timestamp(text) {
        return Resolved::Timestamp;
    }
    let plain = text.replace('_', "");
    if let Some(value) = integer(&plain) {
        return value;
    }
    float(&plain).map_or(Resolved::Str, Resolved::Float)
}

/// Whole numbers with the prefixes `0x`, `0o`, `0b` and the old leading zero for octal.
fn integer(text: &str) -> Option<Resolved> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => (-1i128, &text[1..]),
        b'+' => (1, &text[1..]),
        _ => (1, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, body) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, &lower[..]),
    };
    if body.is_empty() || !body.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return None;
    }
    let magnitude = i128::from(u64::from_str_radix(body, radix).ok()?);
    let value = sign * magnitude;
    match (i64::try_from(value), u64::try_from(value)) {
        (Ok(value), _) => Some(Resolved::Int(value)),
        // An explicit plus is not accepted for numbers that need the unsigned range.
        (Err(_), Ok(value)) if !text.starts_with('+') => Some(Resolved::Uint(value)),
        _ => None,
    }
}

/// Decimal floats: `1.5`, `.5`, `1.`, `1e3`.
fn float(text: &str) -> Option<f64> {
    let body = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match body.find(['e', 'E']) {
        Some(at) => (&body[..at], Some(&body[at + 1..])),
        None => (body, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let mantissa_ok = digits(whole) && digits(fraction) && !(whole.is_empty() && fraction.is_empty());
    let exponent_ok = exponent.is_none_or(|part| {
        let part = part.strip_prefix(['+', '-']).unwrap_or(part);
        !part.is_empty() && digits(part)
    });
    if mantissa_ok && exponent_ok { text.parse().ok().filter(|v: &f64| v.is_finite()) } else { None }
}

/// True for `2024-01-31` and the date-time forms the Go library reads as a time.
pub fn is_timestamp(text: &str) -> bool {
    timestamp(text).is_some()
}

fn timestamp(text: &str) -> Option<()> {
    let bytes = text.as_bytes();
    if bytes.len() < 8 || bytes[4] != b'-' || !bytes[..4].iter().all(u8::is_ascii_digit) {
        return None;
    }
    let year: u32 = text[..4].parse().ok()?;
    let (month, rest) = short_number(&text[5..])?;
    let (day, rest) = short_number(rest.strip_prefix('-')?)?;
    let leap = (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 => 28 + u32::from(leap),
        _ => return None,
    };
    if !(1..=days).contains(&day) {
        return None;
    }
    let mut chars = rest.chars();
    match chars.next() {
        None => Some(()),
        Some('T' | 't') => {
            let zone = clock(chars.as_str())?;
            is_zone(zone).then_some(())
        }
        Some(' ') => clock(chars.as_str())?.is_empty().then_some(()),
        Some(_) => None,
    }
}

/// One or two digits.
fn short_number(text: &str) -> Option<(u32, &str)> {
    let len = text.bytes().take(2).take_while(u8::is_ascii_digit).count();
    let (digits, rest) = text.split_at(len);
    Some((digits.parse().ok()?, rest))
}

/// Reads `h:m:s[.fraction]` and returns what follows.
fn clock(text: &str) -> Option<&str> {
    let (hour, rest) = short_number(text)?;
    let (minute, rest) = short_number(rest.strip_prefix(':')?)?;
    let (second, rest) = short_number(rest.strip_prefix(':')?)?;
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    match rest.strip_prefix('.') {
        Some(fraction) => {
            let len = fraction.bytes().take_while(u8::is_ascii_digit).count();
            (len > 0).then(|| &fraction[len..])
        }
        None => Some(rest),
    }
}

fn is_zone(text: &str) -> bool {
    match text.as_bytes() {
        b"Z" => true,
        [b'+' | b'-', a, b, b':', c, d] => [a, b, c, d].iter().all(|digit| digit.is_ascii_digit()),
        _ => false,
    }
}

/// True for words that YAML 1.1 readers take for booleans.
pub fn is_old_bool(text: &str) -> bool {
    old_bool(text).is_some()
}

/// The value of a YAML 1.1 boolean word.
pub fn old_bool(text: &str) -> Option<bool> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some(true),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

/// True for texts that YAML 1.1 readers take for base-60 numbers (`12:30`, `0000:04:00.00`).
pub fn is_base60(text: &str) -> bool {
    let body = text.strip_prefix(['+', '-']).unwrap_or(text);
    let mut parts = body.split(':');
    let head = parts.next().unwrap_or("");
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    if !head.as_bytes().first().is_some_and(u8::is_ascii_digit) || !digits(head) {
        return false;
    }
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return false };
    let last = match last.split_once('.') {
        Some((last, fraction)) if digits(fraction) => last,
        Some(_) => return false,
        None => last,
    };
    let sixty = |part: &str| matches!(part.as_bytes(), [b'0'..=b'9'] | [b'0'..=b'5', b'0'..=b'9']);
    middle.iter().chain([&last]).all(|part| sixty(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_words_resolve_by_their_look() {
        for (text, want) in [
            ("", Resolved::Null),
            ("~", Resolved::Null),
            ("True", Resolved::Bool(true)),
            ("yes", Resolved::Str),
            ("12", Resolved::Int(12)),
            ("-12", Resolved::Int(-12)),
            ("0644", Resolved::Int(0o644)),
            ("0o644", Resolved::Int(0o644)),
            ("0x10", Resolved::Int(16)),
            ("1_000", Resolved::Int(1000)),
            ("18446744073709551615", Resolved::Uint(u64::MAX)),
            ("18446744073709551616", Resolved::Float(18_446_744_073_709_551_616.0)),
            ("1.5", Resolved::Float(1.5)),
            (".5", Resolved::Float(0.5)),
            ("1e3", Resolved::Float(1000.0)),
            ("08", Resolved::Float(8.0)),
            ("-.inf", Resolved::Float(f64::NEG_INFINITY)),
            ("1.2.3", Resolved::Str),
            ("10GiB", Resolved::Str),
            ("2024-02-29", Resolved::Timestamp),
            ("2023-02-29", Resolved::Str),
            ("2024-1-2T03:04:05Z", Resolved::Timestamp),
            ("2024-1-2 03:04:05.5", Resolved::Timestamp),
            ("<<", Resolved::Merge),
            ("-", Resolved::Str),
        ] {
            assert_eq!(resolve(text), want, "{text:?}");
        }
    }

    #[test]
    fn old_numbers_with_colons_are_known() {
        for text in ["0000:04:00.00", "12:30", "1:2:3", "-1:59"] {
            assert!(is_base60(text), "{text}");
        }
        for text in ["1:60", "a:1", "12", "1:2:", ":1", "10.0.0.1:3333"] {
            assert!(!is_base60(text), "{text}");
        }
    }
}
