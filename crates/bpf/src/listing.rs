//! Programs as text: the listings of `tcpdump -dd` (C) and `-ddd` (decimal).

use std::fmt::Write;

use crate::{Instruction, LEN_MAX};

/// A listing that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListingError {
    /// A line that is not an instruction.
    #[error("line {line}: {text:?} is not an instruction such as `{{ 0x30, 0, 0, 0x00000000 }},`")]
    Line {
        /// Which, counted from one.
        line: usize,
        /// What it says.
        text: String,
    },
    /// A decimal listing begins with the number of its instructions.
    #[error("the listing announces {announced} instructions and has {found}")]
    Count {
        /// As it begins.
        announced: usize,
        /// As it is.
        found: usize,
    },
    /// More than the kernel takes.
    #[error("more than {LEN_MAX} instructions")]
    TooLong,
}

/// Reads a listing. An empty text is an empty program.
pub fn parse(text: &str) -> Result<Vec<Instruction>, ListingError> {
    let mut program = Vec::new();
    let mut announced = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        if program.is_empty()
            && announced.is_none()
            && let Ok(count) = line.parse::<usize>()
        {
            announced = Some(count);
            continue;
        }
        let instruction = match announced {
            Some(_) => fields(line.split_ascii_whitespace()),
            None => line
                .trim_end_matches(',')
                .strip_prefix('{')
                .and_then(|rest| rest.strip_suffix('}'))
                .and_then(|inner| fields(inner.split(','))),
        };
        let bad = || ListingError::Line { line: number + 1, text: line.chars().take(80).collect() };
        program.push(instruction.ok_or_else(bad)?);
        if program.len() > LEN_MAX {
            return Err(ListingError::TooLong);
        }
    }
    match announced {
        Some(count) if count != program.len() => {
            Err(ListingError::Count { announced: count, found: program.len() })
        }
        _ => Ok(program),
    }
}

fn fields<'a>(mut parts: impl Iterator<Item = &'a str>) -> Option<Instruction> {
    let mut next = || number(parts.next()?.trim());
    let (op, jt, jf, k) = (next()?, next()?, next()?, next()?);
    if parts.next().is_some() {
        return None;
    }
    Some(Instruction { op: op.try_into().ok()?, jt: jt.try_into().ok()?, jf: jf.try_into().ok()?, k })
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Prints a program as `tcpdump -dd` does.
pub fn format(program: &[Instruction]) -> String {
    let mut text = String::new();
    for Instruction { op, jt, jf, k } in program {
        let _ = writeln!(text, "{{ {op:#x}, {jt}, {jf}, {k:#010x} }},");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARP: &str = "{ 0x28, 0, 0, 0x0000000c },\n{ 0x15, 0, 1, 0x00000806 },\n{ 0x6, 0, 0, 0x00040000 },\n{ 0x6, 0, 0, 0x00000000 },\n";

    #[test]
    fn a_listing_survives_the_round_trip() {
        let program = parse(ARP).unwrap();
        assert_eq!(program.len(), 4);
        assert_eq!(program[1], Instruction { op: 0x15, jt: 0, jf: 1, k: 0x0806 });
        assert_eq!(format(&program), ARP);
        let decimal = "4\n40 0 0 12\n21 0 1 2054\n6 0 0 262144\n6 0 0 0\n";
        assert_eq!(parse(decimal).unwrap(), program);
        assert_eq!(parse("").unwrap(), []);
    }

    #[test]
    fn bad_lines_are_named() {
        for text in
            ["{ 0x28, 0, 0 },", "hello", "{ 0x28, 0, 256, 1 },", "{ 0x12345, 0, 0, 1 }", "{ 1, 2, 3, 4, 5 }"]
        {
            let error = parse(&format!("{{ 0x6, 0, 0, 0x0 }},\n{text}")).unwrap_err();
            assert_eq!(error, ListingError::Line { line: 2, text: text.into() });
        }
        assert_eq!(parse("2\n6 0 0 0\n").unwrap_err(), ListingError::Count { announced: 2, found: 1 });
    }
}
