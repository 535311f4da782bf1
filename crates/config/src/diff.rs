//! Differences between configurations as a unified diff.

use similar::{ChangeTag, TextDiff};

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
    let diff = TextDiff::from_lines(old, new);
    let mut out = "--- a\n+++ b\n".to_owned();
    for group in diff.grouped_ops(CONTEXT) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let old_range = first.old_range().start..last.old_range().end;
        let new_range = first.new_range().start..last.new_range().end;
        out.push_str(&format!("@@ -{} +{} @@\n", hunk_side(old_range), hunk_side(new_range)));
        for op in &group {
            for change in diff.iter_changes(op) {
                out.push(match change.tag() {
                    ChangeTag::Equal => ' ',
                    ChangeTag::Delete => '-',
                    ChangeTag::Insert => '+',
                });
                out.push_str(change.value());
                if change.missing_newline() {
                    out.push_str("\n\\ No newline at end of file\n");
                }
            }
        }
    }
    out
}

/// `start,count`, without the count when it is one or nothing.
fn hunk_side(range: std::ops::Range<usize>) -> String {
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
