//! One log over the whole page.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::{framed, log_lines};
use crate::model::Model;

pub(super) fn draw(model: &Model, area: Rect, buffer: &mut Buffer) {
    let name = if model.log.is_empty() { "kernel" } else { &model.log };
    let back = match model.scroll {
        0 => String::new(),
        lines => format!(", {lines} lines back"),
    };
    let lines = log_lines(model.node(), &model.log, area, model.scroll);
    framed(&format!("Log of {name}{back} (Tab: next log)"), lines, area, buffer);
}
