//! Byte sizes as people write them (`10GiB`, `2.5TiB`, `100 MB`) and as they are printed back.

/// A text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSize {
    /// The part before the unit is not a number.
    #[error("strconv.ParseFloat: parsing {0:?}: invalid syntax")]
    Number(String),
    /// The unit is unknown.
    #[error("unhandled size name: {0}")]
    Unit(String),
    /// The value does not fit 64 bits.
    #[error("too large: {0}")]
    TooLarge(String),
}

/// Parses a size; units are decimal (`MB`) or binary (`MiB`), any case, none means bytes.
pub fn parse(text: &str) -> Result<u64, BadSize> {
    let number_len = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.' || *b == b',').count();
    let (number, unit) = text.split_at(number_len);
    let number: String = number.chars().filter(|c| *c != ',').collect();
    let value: f64 = number.parse().map_err(|_| BadSize::Number(number.clone()))?;
    let unit = unit.trim().to_lowercase();
    let scale = scale(&unit).ok_or_else(|| BadSize::Unit(unit.clone()))?;
    let bytes = value * scale as f64;
    if bytes >= u64::MAX as f64 {
        return Err(BadSize::TooLarge(text.to_owned()));
    }
    Ok(bytes as u64)
}

fn scale(unit: &str) -> Option<u64> {
    let unit = unit.strip_suffix('b').unwrap_or(unit);
    let (power, base): (u32, u64) = match unit {
        "" => return Some(1),
        "ki" => (1, 1024),
        "mi" => (2, 1024),
        "gi" => (3, 1024),
        "ti" => (4, 1024),
        "pi" => (5, 1024),
        "ei" => (6, 1024),
        "k" => (1, 1000),
        "m" => (2, 1000),
        "g" => (3, 1000),
        "t" => (4, 1000),
        "p" => (5, 1000),
        "e" => (6, 1000),
        _ => return None,
    };
    Some(base.pow(power))
}

/// Prints with decimal units: `83 MB`.
pub fn decimal(bytes: u64) -> String {
    human(bytes, 1000.0, &["B", "kB", "MB", "GB", "TB", "PB", "EB"])
}

/// Prints with binary units: `79 MiB`.
pub fn binary(bytes: u64) -> String {
    human(bytes, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"])
}

fn human(bytes: u64, base: f64, units: &[&str; 7]) -> String {
    if bytes < 10 {
        return format!("{bytes} B");
    }
    let exponent = ((bytes as f64).ln() / base.ln()).floor();
    let value = ((bytes as f64 / base.powf(exponent)) * 10.0 + 0.5).floor() / 10.0;
    let unit = units[(exponent as usize).min(units.len() - 1)];
    if value < 10.0 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_in_both_families() {
        for (text, want) in [
            ("42", 42),
            ("42 MB", 42_000_000),
            ("42 mib", 44_040_192),
            ("10GiB", 10 << 30),
            ("2.5TiB", 5 << 39),
            ("1,024", 1024),
            ("4k", 4000),
            ("4Ki", 4096),
        ] {
            assert_eq!(parse(text), Ok(want), "{text}");
        }
    }

    #[test]
    fn bad_sizes_name_the_part() {
        assert_eq!(parse("GiB").unwrap_err().to_string(), "strconv.ParseFloat: parsing \"\": invalid syntax");
        assert_eq!(parse("1 parsec").unwrap_err().to_string(), "unhandled size name: parsec");
        assert_eq!(parse("99999EiB").unwrap_err().to_string(), "too large: 99999EiB");
    }

    #[test]
    fn printing_keeps_one_decimal_below_ten() {
        assert_eq!(decimal(82_854_982), "83 MB");
        assert_eq!(binary(82_854_982), "79 MiB");
        assert_eq!(decimal(1_500), "1.5 kB");
        assert_eq!(decimal(7), "7 B");
        assert_eq!(decimal(1_000_000_000), "1.0 GB");
    }
}
