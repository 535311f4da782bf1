//! Differences between configurations as a unified diff.

mod lines;

use crate::documents::{CommentMode, Documents};

/// Lines of context around a change.
const CONTEXT: usize = 3;

/// The difference between two configurations; empty if there is none. Comments do not count.
pub fn diff(old: &Documents, new: &Documents) -> String {
    diff_text(&old.encode(CommentMode::None), &new.encode(CommentMode::None))
}

/// The difference between two texts; empty if there is none.
pub fn diff_text(old: &str, new: &str) -> String {
    if old == new {
        return String::new();
    }
    let (old, new): (Vec<&str>, Vec<&str>) =
        (old.split_inclusive('\n').collect(), new.split_inclusive('\n').collect());
    let changes = lines::changes(&old, &new);
    let mut out = "--- a\n+++ b\n".to_owned();
    let mut rest = changes.as_slice();
    while let Some(first) = rest.first() {
        // Changes whose context would touch belong together.
        let near = |pair: &[lines::Change]| pair[1].old.start - pair[0].old.end <= 2 * CONTEXT;
        let count = 1 + rest.windows(2).take_while(|pair| near(pair)).count();
        let (hunk, later) = rest.split_at(count);
        rest = later;
        let before = CONTEXT.min(first.old.start).min(first.new.start);
        let last = hunk.last().unwrap_or(first);
        let after = CONTEXT.min(old.len() - last.old.end).min(new.len() - last.new.end);
        let old_range = first.old.start - before..last.old.end + after;
        let new_range = first.new.start - before..last.new.end + after;
        out.push_str(&format!("@@ -{} +{} @@\n", hunk_side(&old_range), hunk_side(&new_range)));
        let mut at = old_range.start;
        for change in hunk {
            push(&mut out, ' ', &old[at..change.old.start]);
            push(&mut out, '-', &old[change.old.clone()]);
            push(&mut out, '+', &new[change.new.clone()]);
            at = change.old.end;
        }
        push(&mut out, ' ', &old[at..old_range.end]);
    }
    out
}

fn push(out: &mut String, mark: char, lines: &[&str]) {
    for line in lines {
        out.push(mark);
        out.push_str(line);
        if !line.ends_with('\n') {
            out.push_str("\n\\ No newline at end of file\n");
        }
    }
}

/// `start,count`, without the count when it is one or nothing.
fn hunk_side(range: &std::ops::Range<usize>) -> String {
    let start = if range.is_empty() { range.start } else { range.start + 1 };
    if range.len() > 1 { format!("{start},{}", range.len()) } else { start.to_string() }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn hunks_have_three_lines_of_context() {
        let old = "a\nb\nc\nd\ne\nf\ng\n";
        let new = "a\nb\nc\nD\nD2\ne\nf\ng\n";
        expect![[r#"
            --- a
            +++ b
            @@ -1,7 +1,8 @@
             a
             b
             c
            -d
            +D
            +D2
             e
             f
             g
        "#]]
        .assert_eq(&diff_text(old, new));
        assert_eq!(diff_text("x\n", "y\n"), "--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y\n");
        assert_eq!(diff_text("x\n", "x\n"), "");
    }
}
