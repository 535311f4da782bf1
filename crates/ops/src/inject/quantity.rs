//! Amounts of resources as Kubernetes writes them: `0.5` is `500m`, `1024Mi` is `1Gi`.

/// Amounts of more digits, or of exponents beyond this, are left as they are.
const DIGITS_MAX: usize = 18;
const EXPONENT_MAX: u32 = 18;
/// The finest there is.
const NANO: i32 = -9;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Binary,
    Decimal,
    Exponent,
}

/// The canonical text of an amount, or nothing when it is none.
pub(super) fn canonical(text: &str) -> Option<String> {
    let negative = text.starts_with('-');
    let body = text.strip_prefix(['+', '-']).unwrap_or(text);
    let split = body.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(body.len());
    let (number, suffix) = body.split_at(split);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || whole.len() + fraction.len() == 0 {
        return None;
    }
    let (form, power) = unit(suffix)?;
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.len() > DIGITS_MAX || power.unsigned_abs() > EXPONENT_MAX {
        return Some(text.to_owned());
    }
    let mut amount: i128 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    let mut exponent = -i32::try_from(fraction.len()).ok()?;
    match form {
        Form::Binary => amount <<= 10 * power,
        Form::Decimal | Form::Exponent => exponent += power,
    }
    if amount == 0 {
        return Some("0".to_owned());
    }
    while amount % 10 == 0 {
        amount /= 10;
        exponent += 1;
    }
    // What is finer than there is counts as one more.
    if exponent < NANO {
        let divisor = 10_i128.checked_pow(NANO.abs_diff(exponent)).unwrap_or(i128::MAX);
        amount = (amount / divisor) + i128::from(amount % divisor != 0);
        exponent = NANO;
        while amount % 10 == 0 {
            amount /= 10;
            exponent += 1;
        }
    }
    let sign = if negative { "-" } else { "" };
    let bytes = whole_number(amount, exponent).filter(|bytes| form == Form::Binary && *bytes >= 1024);
    Some(format!("{sign}{}", bytes.map_or_else(|| decimal(amount, exponent, form), binary)))
}

/// What a suffix stands for: a power of 1024 for the binary ones, of ten for the others.
fn unit(suffix: &str) -> Option<(Form, i32)> {
    const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    let place =
        |list: &[&str]| list.iter().position(|known| *known == suffix).and_then(|at| i32::try_from(at).ok());
    if let Some(at) = place(&BINARY) {
        return Some((Form::Binary, at + 1));
    }
    if let Some(at) = place(&DECIMAL) {
        return Some((Form::Decimal, 3 * at + NANO));
    }
    let power: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    Some((Form::Exponent, power))
}

fn whole_number(amount: i128, exponent: i32) -> Option<i128> {
    let factor = 10_i128.checked_pow(u32::try_from(exponent).ok()?)?;
    amount.checked_mul(factor)
}

fn binary(mut bytes: i128) -> String {
    let mut power = 0;
    while bytes % 1024 == 0 && power < 6 {
        bytes /= 1024;
        power += 1;
    }
    format!("{bytes}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][power])
}

fn decimal(mut amount: i128, mut exponent: i32, form: Form) -> String {
    while exponent.rem_euclid(3) != 0 {
        amount *= 10;
        exponent -= 1;
    }
    let suffix = match (exponent, form) {
        (0, _) => String::new(),
        (_, Form::Exponent) | (21.., _) => format!("e{exponent}"),
        (-9, _) => "n".to_owned(),
        (-6, _) => "u".to_owned(),
        (-3, _) => "m".to_owned(),
        (3, _) => "k".to_owned(),
        (6, _) => "M".to_owned(),
        (9, _) => "G".to_owned(),
        (12, _) => "T".to_owned(),
        (15, _) => "P".to_owned(),
        (_, _) => "E".to_owned(),
    };
    format!("{amount}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_get_the_largest_unit_that_keeps_them_whole() {
        for (text, expected) in [
            ("1", "1"),
            ("0.5", "500m"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("1000", "1k"),
            ("1e3", "1e3"),
            ("12e2", "1200"),
            ("1024Mi", "1Gi"),
            ("2048Ki", "2Mi"),
            ("1.5Gi", "1536Mi"),
            ("100M", "100M"),
            ("1000M", "1G"),
            ("0.5Ki", "512"),
            ("0.1Ki", "102400m"),
            ("1Ki", "1Ki"),
            ("0", "0"),
            ("0Gi", "0"),
            ("00.50", "500m"),
            ("-1", "-1"),
            (".5", "500m"),
            ("0.0000000001", "1n"),
            ("100u", "100u"),
            ("1E", "1E"),
            ("1e99", "1e99"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
        ] {
            assert_eq!(canonical(text).as_deref(), Some(expected), "{text}");
        }
        for text in ["", "-", ".", "1.2.3", "1Xi", "1 Gi", "abc", "1e"] {
            assert_eq!(canonical(text), None, "{text}");
        }
    }
}
