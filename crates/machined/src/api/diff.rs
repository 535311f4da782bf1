//! Differences between configurations, as people read them.

use ichor_config::{CommentMode, Documents};
use similar::TextDiff;

/// Lines of context around a change.
const CONTEXT: usize = 3;

/// A unified diff of two configurations without their comments; empty when they are equal.
pub fn configurations(current: Option<&Documents>, new: &Documents) -> String {
    let text = |documents: &Documents| documents.encode(CommentMode::None);
    unified(&current.map(text).unwrap_or_default(), &text(new))
}

/// A unified diff with the labels `a` and `b`; empty when the texts are equal.
pub fn unified(old: &str, new: &str) -> String {
    let diff = TextDiff::from_lines(old, new);
    let mut unified = diff.unified_diff();
    let text = unified.context_radius(CONTEXT).header("a", "b").missing_newline_hint(false).to_string();
    text.lines().map(|line| format!("{}\n", without_zero_counts(line))).collect()
}

/// Hunk headers leave a count of zero out, as they do a count of one.
fn without_zero_counts(line: &str) -> String {
    match line.starts_with("@@ -") {
        true => line.replace(",0 ", " "),
        false => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn equal_texts_have_no_difference() {
        assert_eq!(unified("a\n", "a\n"), "");
    }

    #[test]
    fn a_change_has_context_and_short_headers() {
        expect![[r#"
            --- a
            +++ b
            @@ -1,4 +1,4 @@
             1
             2
             3
            -4
            +five
        "#]]
        .assert_eq(&unified("1\n2\n3\n4\n", "1\n2\n3\nfive\n"));
        expect![[r#"
            --- a
            +++ b
            @@ -1 +1 @@
            -a
            +b
        "#]]
        .assert_eq(&unified("a\n", "b\n"));
    }
}
