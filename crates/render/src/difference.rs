//! What differs between two renderings.

use std::collections::BTreeSet;

use ichor_config::diff::diff_text;

use crate::Rendering;

/// The first two lines of a difference, which name the two texts.
const HEADER: &str = "--- a\n+++ b\n";

/// A thing that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Its name.
    pub thing: String,
    /// Lines as `diff -u` writes them, without a header.
    pub text: String,
}

/// What is other in `new`, in the order of names.
pub fn differences(old: &Rendering, new: &Rendering) -> Vec<Difference> {
    let names: BTreeSet<&str> = old.names().chain(new.names()).collect();
    let differs = |name: &&str| old.get(name) != new.get(name);
    let difference = |name: &str| {
        let text = diff_text(old.get(name).unwrap_or_default(), new.get(name).unwrap_or_default());
        Difference { thing: name.to_owned(), text: text.strip_prefix(HEADER).unwrap_or(&text).to_owned() }
    };
    names.into_iter().filter(differs).map(difference).collect()
}

/// How much of differences is told.
#[derive(Debug, Clone, Copy)]
pub struct Told {
    /// Lines, the last of which says how many are left out.
    pub lines_max: usize,
    /// Characters of a line.
    pub line_max: usize,
    /// Whether lines that are equal on both sides are told, too.
    pub context: bool,
}

/// Differences as lines, each with the name of its thing.
pub fn tell(differences: &[Difference], told: Told) -> Vec<String> {
    let lines = differences.iter().flat_map(|difference| {
        let lines = difference.text.lines().filter(move |line| told.context || line.starts_with(['-', '+']));
        lines.map(move |line| cut(&format!("{}: {line}", difference.thing), told.line_max))
    });
    let mut lines: Vec<String> = lines.collect();
    if lines.len() > told.lines_max {
        let left = lines.len() - told.lines_max.saturating_sub(1);
        lines.truncate(told.lines_max.saturating_sub(1));
        lines.push(format!("and {left} more lines"));
    }
    lines
}

/// The text on one line of printable characters, its end replaced where it is longer than so many.
pub fn cut(line: &str, max: usize) -> String {
    let shown = |letter: char| if letter.is_control() { '\u{fffd}' } else { letter };
    if line.chars().count() <= max {
        return line.chars().map(shown).collect();
    }
    line.chars().take(max.saturating_sub(1)).map(shown).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use ichor_yaml::Node;

    use super::*;

    fn rendering(things: &[(&str, &[&str])]) -> Rendering {
        let list = |items: &[&str]| Node::seq(items.iter().map(|item| Node::string(*item)).collect());
        Rendering::of(things.iter().map(|(name, items)| ((*name).to_owned(), list(items))))
    }

    const ALL: Told = Told { lines_max: 100, line_max: 100, context: false };

    #[test]
    fn equal_renderings_have_no_difference() {
        let one = rendering(&[("etcd", &["a"])]);
        assert_eq!(differences(&one, &one.clone()), []);
    }

    #[test]
    fn what_changes_comes_and_goes_is_told_by_thing() {
        let old = rendering(&[("etcd", &["a", "b", "c"]), ("gone", &["x"]), ("same", &["y"])]);
        let new = rendering(&[("come", &["z"]), ("etcd", &["a", "B", "c"]), ("same", &["y"])]);
        let found = differences(&old, &new);
        assert_eq!(tell(&found, ALL), ["come: +- z", "etcd: -- b", "etcd: +- B", "gone: -- x"]);
        let with_context = tell(&found[1..2], Told { context: true, ..ALL });
        assert_eq!(
            with_context,
            ["etcd: @@ -1,3 +1,3 @@", "etcd:  - a", "etcd: -- b", "etcd: +- B", "etcd:  - c"]
        );
    }

    #[test]
    fn what_is_told_is_bounded_and_says_so() {
        let items: Vec<String> = (0..50).map(|number| format!("{number} {}", "x".repeat(200))).collect();
        let items: Vec<&str> = items.iter().map(String::as_str).collect();
        let found = differences(&Rendering::default(), &rendering(&[("etcd", &items)]));
        let lines = tell(&found, Told { lines_max: 10, line_max: 40, context: false });
        assert_eq!(lines.len(), 10);
        assert!(lines[..9].iter().all(|line| line.chars().count() == 40 && line.ends_with('…')), "{lines:?}");
        assert_eq!(lines[9], "and 41 more lines");
    }

    #[test]
    fn a_line_cannot_move_the_cursor_of_a_terminal() {
        let difference = Difference { thing: "x".to_owned(), text: "+\u{1b}[2J\n".to_owned() };
        assert_eq!(tell(&[difference], ALL), ["x: +\u{fffd}[2J"]);
    }
}
