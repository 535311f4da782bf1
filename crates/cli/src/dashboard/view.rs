//! What the dashboard looks like: a model becomes a screen. Pure.

mod logs;
mod monitor;
mod network;
mod summary;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde_json::Value;

use super::history::available;
use super::model::{Model, Node, Page};
use super::screen::{Area, Colour, Screen, Style};

/// Draws the model; `now` is in seconds since 1970.
pub fn draw(model: &Model, width: u16, height: u16, now: u64) -> Screen {
    let mut screen = Screen::new(width, height);
    let (header, rest) = screen.area().top(2);
    let (footer, body) = rest.bottom(1);
    draw_header(&mut screen, header, model, now);
    match model.page {
        Page::Summary => summary::draw(&mut screen, body, model),
        Page::Monitor => monitor::draw(&mut screen, body, model),
        Page::Network => network::draw(&mut screen, body, model),
        Page::Logs => logs::draw(&mut screen, body, model),
    }
    draw_footer(&mut screen, footer, model);
    screen
}

fn draw_header(screen: &mut Screen, area: Area, model: &Model, now: u64) {
    let node = model.node();
    let hostname = text(node.get("HostnameStatuses", "hostname"), "hostname");
    let name = if hostname.is_empty() { node.name.clone() } else { format!("{hostname} ({})", node.name) };
    let at = screen.text(area, 1, 0, &name, Style { bold: true, ..Style::PLAIN });
    if let Some(trouble) = &node.trouble {
        screen.text(area, at + 2, 0, trouble, Style::of(Colour::Red));
    } else {
        screen.text(area, at + 2, 0, &node.version, Style::PLAIN);
    }
    let history = &node.history;
    let mut parts = Vec::new();
    if history.boot_time > 0 {
        parts.push(format!("up {}", span(now.saturating_sub(history.boot_time))));
    }
    if let Some(cpu) = history.cpu.last() {
        parts.push(format!("CPU {:.1}% of {}", cpu * 100.0, plural(history.cores, "core")));
    }
    let memory = node.memory();
    if memory.memtotal > 0 {
        let used = memory.memtotal.saturating_sub(available(memory));
        parts.push(format!("RAM {} of {}", bytes(used * 1024), bytes(memory.memtotal * 1024)));
    }
    if !node.processes.is_empty() {
        parts.push(format!("PROCS {}", node.processes.len()));
    }
    if model.paused {
        parts.push("PAUSED".to_owned());
    }
    screen.text(area, 1, 1, &parts.join(", "), Style::of(Colour::Grey));
}

fn draw_footer(screen: &mut Screen, area: Area, model: &Model) {
    let names: usize = model.nodes.iter().map(|node| node.name.len() + 1).sum();
    let long: Vec<String> =
        Page::ALL.iter().enumerate().map(|(index, (_, name))| format!("[F{}: {name}]", index + 1)).collect();
    let short: Vec<String> = (1..=Page::ALL.len()).map(|number| format!("[F{number}]")).collect();
    let width = |tabs: &[String]| tabs.iter().map(|tab| tab.len() + 1).sum::<usize>();
    let tabs = if names + width(&long) < usize::from(area.width) { long } else { short };
    let room = area.width.saturating_sub(width(&tabs) as u16);
    let left = Area { width: room, ..area };
    // Machines before the one that is shown make room for it where there are too many.
    let skip = if names + 1 < usize::from(room) { 0 } else { model.current };
    let mut at = 1;
    for (index, node) in model.nodes.iter().enumerate().skip(skip) {
        let style = match (&node.trouble, index == model.current) {
            (_, true) => Style::CHOSEN,
            (Some(_), false) => Style::of(Colour::Red),
            (None, false) => Style::PLAIN,
        };
        at = screen.text(left, at, 0, &node.name, style) + 1;
    }
    let mut column = room;
    for (tab, (page, _)) in tabs.iter().zip(Page::ALL) {
        let style = if page == model.page { Style::CHOSEN } else { Style::PLAIN };
        column = screen.text(area, column, 0, tab, style) + 1;
    }
}

/// A column of names and values.
fn pairs(screen: &mut Screen, area: Area, pairs: &[(&str, String, Style)]) {
    let width = pairs.iter().map(|(name, ..)| name.len()).max().unwrap_or(0) as u16;
    for (line, (name, value, style)) in pairs.iter().enumerate() {
        screen.text(area, 0, line as u16, name, Style::of(Colour::Grey));
        let value = if value.is_empty() { "n/a" } else { value };
        screen.text(area, width + 2, line as u16, value, *style);
    }
}

/// Lines at the end of a log, scrolled back by `scroll`.
fn tail<'a>(node: &'a Node, log: &str, lines: u16, scroll: usize) -> impl Iterator<Item = &'a str> + use<'a> {
    let (held, lines) = (node.log(log), usize::from(lines));
    let count = held.map_or(0, |held| held.len());
    let first = count.saturating_sub(lines).saturating_sub(scroll);
    held.into_iter().flat_map(move |held| held.iter().skip(first).take(lines)).map(String::as_str)
}

/// A log in an area.
fn draw_log(screen: &mut Screen, area: Area, node: &Node, log: &str, scroll: usize) {
    for (line, text) in tail(node, log, area.height, scroll).enumerate() {
        let lower = text.to_lowercase();
        let style = if ["error", "fail", "panic"].iter().any(|word| lower.contains(word)) {
            Style::of(Colour::Red)
        } else if lower.contains("warn") {
            Style::of(Colour::Yellow)
        } else {
            Style::PLAIN
        };
        screen.text(area, 0, line as u16, &kernel_line(text), style);
    }
}

/// `facility: level: [date and time]: text` as the time of day and the text; other lines as they are.
fn kernel_line(line: &str) -> Cow<'_, str> {
    let parts = line.split_once(": [").and_then(|(_, rest)| rest.split_once("]: "));
    match parts {
        Some((date, text)) if date.len() > 19 && date.as_bytes()[10] == b'T' && date.is_char_boundary(19) => {
            Cow::Owned(format!("{} {text}", &date[11..19]))
        }
        _ => Cow::Borrowed(line),
    }
}

/// The text at a key of a spec; lists are joined.
fn text(spec: &Value, key: &str) -> String {
    show(&spec[key])
}

fn show(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(show).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// Green where it is so, red where it is not.
fn verdict(good: bool) -> Style {
    Style::of(if good { Colour::Green } else { Colour::Red })
}

fn plural(count: usize, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}

fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

fn bytes(count: u64) -> String {
    let mut value = count as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{value:.0} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}
