//! The address of the configuration, and the code in it.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::{CHOSEN, FAINT, PLAIN, WARNING, framed, pairs, text};
use crate::code;
use crate::model::Model;

pub(super) fn draw(model: &Model, area: Rect, buffer: &mut Buffer) {
    let template = model.template.as_deref().unwrap_or_default();
    let kept = text(model.node().get("MetaKeys", code::META_ID), "value");
    let url = if kept.is_empty() { String::new() } else { code::fill(template, &kept) };
    let mut lines = pairs(vec![
        ("TEMPLATE", template.to_owned(), PLAIN),
        ("CODE", kept, PLAIN),
        ("CONFIG URL", url, PLAIN),
    ]);
    lines.push(Line::default());
    match &model.code {
        None => lines.push(Line::styled("e: enter a code", FAINT)),
        Some(form) => {
            let value = Span::styled(format!("{}_", form.text()), CHOSEN);
            lines.push(Line::from(vec![Span::styled("NEW CODE  ", FAINT), value]));
            lines.push(Line::styled("Enter: save (nothing deletes the code), Esc: leave", FAINT));
            lines.push(Line::styled(form.message.clone(), WARNING));
        }
    }
    framed("Config URL", lines, area, buffer);
}
