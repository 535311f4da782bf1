//! Puts lines together again from chunks that were cut anywhere, machine by machine.

use std::collections::BTreeMap;

/// The longest line that is kept whole; longer ones are passed on in pieces of this size.
pub const LINE_MAX: usize = 1024 * 1024;

/// Unfinished lines of every machine.
#[derive(Debug, Default)]
pub struct Lines {
    partial: BTreeMap<String, Vec<u8>>,
}

impl Lines {
    /// Takes a chunk and hands every finished line to `emit`, without its line end.
    pub fn push(&mut self, node: &str, chunk: &[u8], mut emit: impl FnMut(&str, &[u8])) {
        let mut rest = chunk;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            match self.partial.get_mut(node) {
                Some(start) if !start.is_empty() => {
                    start.extend_from_slice(&rest[..end]);
                    emit(node, start);
                    start.clear();
                }
                _ => emit(node, &rest[..end]),
            }
            rest = &rest[end + 1..];
        }
        if rest.is_empty() {
            return;
        }
        let partial = self.partial.entry(node.to_owned()).or_default();
        partial.extend_from_slice(rest);
        if partial.len() >= LINE_MAX {
            emit(node, partial);
            partial.clear();
        }
    }

    /// Hands out what has no line end yet.
    pub fn finish(&mut self, mut emit: impl FnMut(&str, &[u8])) {
        for (node, partial) in std::mem::take(&mut self.partial) {
            if !partial.is_empty() {
                emit(&node, &partial);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_two_machines_do_not_mix() {
        let mut lines = Lines::default();
        let mut seen = Vec::new();
        let mut note =
            |node: &str, line: &[u8]| seen.push(format!("{node}: {}", String::from_utf8_lossy(line)));
        for (node, chunk) in [("a", "one\ntw"), ("b", "x"), ("a", "o\n"), ("b", "y\nrest")] {
            lines.push(node, chunk.as_bytes(), &mut note);
        }
        lines.finish(&mut note);
        assert_eq!(seen, ["a: one", "a: two", "b: xy", "b: rest"]);
    }

    #[test]
    fn a_line_without_end_stays_bounded() {
        let mut lines = Lines::default();
        let mut pieces = 0;
        for _ in 0..5 {
            lines.push("a", &vec![b'x'; LINE_MAX / 2], |_, _| pieces += 1);
        }
        assert_eq!(pieces, 2);
    }
}
