//! Which quotes a YAML string needs, decided as Go's YAML library decides it.

/// How a string is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// As it is.
    Plain,
    /// In `'…'`.
    Single,
    /// In `"…"` with escapes.
    Double,
    /// As a block after `|`.
    Literal,
}

/// The style for a string value, or for a mapping key when `key` is set.
pub fn style(text: &str, key: bool) -> Style {
    if text.is_empty() {
        return Style::Double;
    }
    let shape = Shape::of(text);
    if text.contains('\n') {
        let literal = !key && text.len() > 1 && !text.chars().all(char::is_whitespace) && shape.block;
        return if literal { Style::Literal } else { Style::Double };
    }
    if !is_string(text) {
        return Style::Double;
    }
    match (shape.plain, shape.single) {
        (true, _) => Style::Plain,
        (false, true) => Style::Single,
        (false, false) => Style::Double,
    }
}

/// True for characters that stand for themselves between double quotes.
pub fn printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}') && c != '\u{feff}'
}

/// What the characters of a text allow.
struct Shape {
    plain: bool,
    single: bool,
    block: bool,
}

impl Shape {
    fn of(text: &str) -> Self {
        let mut indicator = text.starts_with("---") || text.starts_with("...");
        let (mut breaks, mut special, mut tab, mut break_space, mut space_break) =
            (false, false, false, false, false);
        let mut before = ' ';
        let mut chars = text.chars().peekable();
        let mut first = true;
        while let Some(c) = chars.next() {
            let blank_next = matches!(chars.peek(), None | Some(' ' | '\t'));
            indicator |= match c {
                '#' if !first => matches!(before, ' ' | '\t' | '\0'),
                '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@'
                | '`' => first,
                '?' | '-' => first && blank_next,
                ':' => blank_next,
                _ => false,
            };
            tab |= c == '\t';
            special |= c != '\t' && !printable(c);
            let line_break = matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}');
            break_space |= c == ' ' && is_break(before) && !first;
            space_break |= line_break && before == ' ' && !first;
            breaks |= line_break;
            before = c;
            first = false;
        }
        let space_ends = text.starts_with(' ') || text.ends_with(' ');
        let plain = !(indicator || breaks || special || tab || space_ends || break_space || space_break);
        Self {
            plain,
            single: !(break_space || space_break || tab || special || breaks),
            block: !(text.ends_with(' ') || space_break || special),
        }
    }
}

fn is_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// False for text that a YAML reader takes for something else than a string when it has no quotes.
fn is_string(text: &str) -> bool {
    match text {
        "<<" | "~" => return false,
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => return false,
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => return false,
        "true" | "True" | "TRUE" | "false" | "False" | "FALSE" | "null" | "Null" | "NULL" => return false,
        _ => {}
    }
    let Some(first) = text.bytes().next() else { return false };
    match first {
        b'.' => !(special_float(text) || float(text)),
        b'+' | b'-' | b'0'..=b'9' => {
            let number = special_float(text) || integer(text) || float_without_underscores(text);
            !(number || timestamp(text) || base60(text))
        }
        _ => true,
    }
}

fn special_float(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN")
}

fn float_without_underscores(text: &str) -> bool {
    if text.contains('_') { float(&text.replace('_', "")) } else { float(text) }
}

/// Digits, an optional fraction and an optional exponent, small enough for a double.
fn float(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.find(['e', 'E']) {
        Some(at) => (&unsigned[..at], Some(&unsigned[at + 1..])),
        None => (unsigned, None),
    };
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let mantissa_good = match mantissa.split_once('.') {
        Some((whole, fraction)) => {
            digits(whole) && digits(fraction) && !(whole.is_empty() && fraction.is_empty())
        }
        None => !mantissa.is_empty() && digits(mantissa),
    };
    let exponent_good = exponent.is_none_or(|text| {
        let text = text.strip_prefix(['+', '-']).unwrap_or(text);
        !text.is_empty() && digits(text)
    });
    mantissa_good && exponent_good && text.parse::<f64>().is_ok_and(f64::is_finite)
}

/// An integer in any base Go knows, with or without underscores.
fn integer(text: &str) -> bool {
    let plain = text.replace('_', "");
    let (signed, unsigned) = match plain.strip_prefix(['+', '-']) {
        Some(rest) => (true, rest),
        None => (false, plain.as_str()),
    };
    let (digits, radix) = match unsigned.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&unsigned[2..], 16),
        [b'0', b'o' | b'O', ..] => (&unsigned[2..], 8),
        [b'0', b'b' | b'B', ..] => (&unsigned[2..], 2),
        [b'0', _, ..] => (&unsigned[1..], 8),
        _ => (unsigned, 10),
    };
    // from_str_radix would take a second sign.
    if !digits.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return false;
    }
    let limit = match (signed, plain.starts_with('-')) {
        (false, _) => u64::MAX,
        (true, true) => 1 << 63,
        (true, false) => i64::MAX as u64,
    };
    u64::from_str_radix(digits, radix).is_ok_and(|value| value <= limit)
}

/// `1:30` and the like, which older readers take for a number in base 60.
fn base60(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (body, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let digits_or_underscores = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    let mut parts = body.split(':');
    let head = parts.next().unwrap_or("");
    let head_good = head.starts_with(|c: char| c.is_ascii_digit()) && digits_or_underscores(head);
    let sexagesimal = |part: &str| matches!(part.as_bytes(), [b'0'..=b'9'] | [b'0'..=b'5', b'0'..=b'9']);
    head_good && body.contains(':') && parts.all(sexagesimal) && digits_or_underscores(fraction)
}

/// A date, or a date with a time, in the few forms that count as a time.
fn timestamp(text: &str) -> bool {
    let bytes = text.as_bytes();
    if bytes.len() < 8 || bytes[4] != b'-' || !bytes[..4].iter().all(u8::is_ascii_digit) {
        return false;
    }
    let year: i16 = text[..4].parse().unwrap_or(0);
    let mut rest = &text[5..];
    let Some(month) = number(&mut rest, 12).filter(|m| *m > 0) else { return false };
    let Some(tail) = rest.strip_prefix('-') else { return false };
    rest = tail;
    let Some(day) = number(&mut rest, 31) else { return false };
    if jiff::civil::Date::new(year, month as i8, day as i8).is_err() {
        return false;
    }
    let Some(separator) = rest.chars().next() else { return true };
    if !matches!(separator, 'T' | 't' | ' ') {
        return false;
    }
    rest = &rest[1..];
    for (i, limit) in [23, 59, 59].into_iter().enumerate() {
        if i > 0 {
            let Some(tail) = rest.strip_prefix(':') else { return false };
            rest = tail;
        }
        if number(&mut rest, limit).is_none() {
            return false;
        }
    }
    if let Some(tail) = rest.strip_prefix(['.', ',']) {
        let digits = tail.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            return false;
        }
        rest = &tail[digits..];
    }
    if separator == ' ' { rest.is_empty() } else { zone(rest) }
}

fn zone(text: &str) -> bool {
    match text.as_bytes() {
        [b'Z'] => true,
        [b'+' | b'-', a, b, b':', c, d] => {
            [a, b, c, d].iter().all(|d| d.is_ascii_digit()) && (a - b'0') * 10 + b - b'0' <= 24 && *c <= b'5'
        }
        _ => false,
    }
}

/// Takes one or two digits of at most `limit` from the front.
fn number(text: &mut &str, limit: u8) -> Option<u8> {
    let len = text.bytes().take(2).take_while(u8::is_ascii_digit).count();
    let value = text[..len].parse().ok().filter(|value| *value <= limit)?;
    *text = &text[len..];
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(texts: &[&str], want: Style) {
        for text in texts {
            assert_eq!(style(text, false), want, "{text:?}");
        }
    }

    #[test]
    fn words_and_addresses_are_plain() {
        check(
            &[
                "a",
                "a b",
                "10.5.0.2/24",
                "fe80::1",
                "a:b",
                "-x",
                "?x",
                ":x",
                "a#b",
                "talos.dev/x",
                "1.2.3",
                "é",
            ],
            Style::Plain,
        );
        check(
            &["08:00:27:6b:a1:f2", "a: b".split(':').next().unwrap(), "1e999", "0x", "<", "2024-13-01"],
            Style::Plain,
        );
    }

    #[test]
    fn what_reads_as_something_else_is_double_quoted() {
        check(
            &[
                "", "yes", "No", "true", "null", "~", "1", "-5", "+7", "0x10", "0o7", "017", "08", "1_000",
                "1.5", ".5",
            ],
            Style::Double,
        );
        check(
            &[
                "1e3",
                ".inf",
                "-.INF",
                ".nan",
                "2024-01-02",
                "2024-1-2T3:4:5Z",
                "12:30",
                "00:11:22:33:44:55",
                "<<",
            ],
            Style::Double,
        );
        check(&["a\tb", "\u{1f600}", "a\rb", "\u{7f}"], Style::Double);
    }

    #[test]
    fn indicators_are_single_quoted() {
        check(
            &[
                "a: b", "a:", "#x", "a #b", "- x", "-", "? x", "*x", "&x", "[x", "{x", "'x", "\"x", "@x",
                "%x", " x", "x ", "---",
            ],
            Style::Single,
        );
    }

    #[test]
    fn lines_are_blocks_where_they_can_be() {
        check(&["a\nb", "a\n", "  a\nb\n", "\ta\nb"], Style::Literal);
        check(&["\n", " \n ", "a \nb", "a\nb ", "a\u{7}\nb"], Style::Double);
        assert_eq!(style("a\nb", true), Style::Double);
    }
}
