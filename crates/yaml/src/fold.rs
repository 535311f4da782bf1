//! Long strings on several lines, where emitters of YAML 1.1 break them.

use crate::node::Style;

/// Breaks the scalar that begins at `start` of the text: each first space beyond `width` columns becomes a new line
/// with `indent` spaces. Readers make one space of it again.
pub(crate) fn fold(out: &mut String, start: usize, indent: usize, width: usize, style: Style) {
    let line = out[..start].rfind('\n').map_or(0, |end| end + 1);
    let before = out[line..start].chars().count();
    let written: Vec<char> = out[start..].chars().collect();
    if before + written.len() <= width {
        return;
    }
    out.truncate(start);
    // Spaces at the edges of quoted text have to stay where they are.
    let inner = match style {
        Style::SingleQuoted | Style::DoubleQuoted => 2..written.len().saturating_sub(2),
        Style::Plain | Style::Auto | Style::Literal | Style::Folded => 0..written.len(),
    };
    let (mut column, mut after_space) = (before, false);
    for (at, letter) in written.iter().enumerate() {
        let space_next = written.get(at + 1) == Some(&' ');
        let breaks = *letter == ' ' && !after_space && column > width && inner.contains(&at);
        // Only double quotes can say that spaces at the beginning of a line count.
        if breaks && (style == Style::DoubleQuoted || !space_next) {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            out.push_str(if space_next { "\\" } else { "" });
            column = indent + usize::from(space_next);
        } else {
            out.push(*letter);
            column += 1;
        }
        after_space = *letter == ' ';
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use crate::{EmitOptions, Node, emit_with, parse};

    #[test]
    fn long_strings_are_broken_at_spaces_and_read_back_the_same() {
        let texts = [
            "short enough",
            "plain words that go on beyond the width",
            "# words with a sign that needs quotes here",
            "tabs\tneed double quotes, which know of  two spaces",
            "oneverylongwordwithoutanyspacesatallinit",
            " ends and begins with a space in it ",
        ];
        let entries = texts.iter().enumerate();
        let entries = entries.map(|(i, text)| (Node::string(format!("k{i}")), Node::string(*text))).collect();
        let options = EmitOptions { indent: 2, flush_lists: true, width: Some(20) };
        let text = emit_with(&Node::map(vec![(Node::string("all"), Node::map(entries))]), options);
        expect![[r#"
            all:
              k0: short enough
              k1: plain words that
                go on beyond the width
              k2: '# words with a
                sign that needs quotes
                here'
              k3: "tabs\tneed double
                quotes, which know
                of  two spaces"
              k4: oneverylongwordwithoutanyspacesatallinit
              k5: ' ends and begins
                with a space in it '
        "#]]
        .assert_eq(&text);
        let back = parse(&text).unwrap();
        let all = back[0].root.get("all").unwrap();
        for (i, text) in texts.iter().enumerate() {
            assert_eq!(all.get(&format!("k{i}")).unwrap().as_str(), Some(*text));
        }
    }
}
