//! How a text looks: which styles it can be written in and which one suits it.

use crate::{
    node::Style,
    resolve::{Resolved, is_base60, is_old_bool, resolve},
};

/// The style of a string whose author did not choose one.
pub(crate) fn string_style(text: &str) -> Style {
    if text.contains('\n') {
        let worth_a_block = text.len() >= 2 && text.chars().any(|c| !c.is_whitespace());
        return if worth_a_block { Style::Literal } else { Style::DoubleQuoted };
    }
    let stays_string = resolve(text) == Resolved::Str && !is_base60(text) && !is_old_bool(text);
    if stays_string { Style::Plain } else { Style::DoubleQuoted }
}

/// Which styles a text can be written in.
pub(crate) struct Look {
    pub(crate) plain: bool,
    pub(crate) single_quoted: bool,
    pub(crate) block: bool,
    pub(crate) line_breaks: bool,
}

impl Look {
    pub(crate) fn of(text: &str) -> Self {
        if text.is_empty() {
            return Self { plain: true, single_quoted: true, block: false, line_breaks: false };
        }
        let mut indicators = text.starts_with("---") || text.starts_with("...");
        let (mut breaks, mut special, mut tabs) = (false, false, false);
        let (mut break_space, mut space_break) = (false, false);
        let mut previous: Option<char> = None;
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            let blank_next = chars.peek().is_none_or(|next| matches!(next, ' ' | '\t'));
            indicators |= match (previous, c) {
                (None, '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>') => true,
                (None, '\'' | '"' | '%' | '@' | '`') => true,
                (None, '?' | ':' | '-') => blank_next,
                (Some(_), ':') => blank_next,
                (Some(before), '#') => matches!(before, ' ' | '\t') || is_break(before),
                _ => false,
            };
            tabs |= c == '\t';
            special |= c != '\t' && !is_printable(c) && c != '\n';
            if c == ' ' && previous.is_some_and(is_break) {
                break_space = true;
            }
            if is_break(c) {
                breaks = true;
                space_break |= previous == Some(' ');
            }
            previous = Some(c);
        }
        let edge = |c: Option<char>| c.is_some_and(|c| c == ' ' || is_break(c));
        let loose = edge(text.chars().next()) || edge(text.chars().next_back());
        Self {
            plain: !(loose || break_space || space_break || tabs || special || breaks || indicators),
            single_quoted: !(break_space || space_break || tabs || special),
            block: !(text.ends_with(' ') || space_break || special),
            line_breaks: breaks,
        }
    }
}

fn is_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// What may stand in a text without an escape; characters beyond the first plane may not.
pub(crate) fn is_printable(c: char) -> bool {
    matches!(c, ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}' | '\u{ff00}'..='\u{fffd}')
}
