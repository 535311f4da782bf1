//! One log over the whole page.

use super::super::model::Model;
use super::super::screen::{Area, Screen};
use super::draw_log;

pub(super) fn draw(screen: &mut Screen, area: Area, model: &Model) {
    let name = if model.log.is_empty() { "kernel" } else { &model.log };
    let back = match model.scroll {
        0 => String::new(),
        lines => format!(", {lines} lines back"),
    };
    let inside = screen.frame(area, &format!("Log of {name}{back} (Tab: next log)"));
    draw_log(screen, inside, model.node(), &model.log, model.scroll);
}
