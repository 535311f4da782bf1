//! What the dashboard looks like: a model drawn into a buffer. Pure.

mod code;
mod logs;
mod monitor;
mod network;
mod summary;
#[cfg(test)]
mod tests;

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Widget as _};
use serde_json::Value;

use crate::history::available;
use crate::model::{Model, Node, Page};

const PLAIN: Style = Style::new();
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const TITLE: Style = Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD);
const CHOSEN: Style = Style::new().add_modifier(Modifier::BOLD.union(Modifier::REVERSED));
const FAINT: Style = Style::new().fg(Color::DarkGray);
const GOOD: Style = Style::new().fg(Color::Green);
const WARNING: Style = Style::new().fg(Color::Yellow);
const BAD: Style = Style::new().fg(Color::Red);

/// Draws the model; `now` is in seconds since 1970.
pub fn draw(model: &Model, area: Rect, buffer: &mut Buffer, now: u64) {
    let parts = [Constraint::Length(2), Constraint::Fill(1), Constraint::Length(1)];
    let [top, body, bottom] = Layout::vertical(parts).areas(area);
    header(model, now).render(top, buffer);
    match model.page {
        Page::Summary => summary::draw(model, body, buffer),
        Page::Monitor => monitor::draw(model, body, buffer),
        Page::Network => network::draw(model, body, buffer),
        Page::Logs => logs::draw(model, body, buffer),
        Page::ConfigUrl => code::draw(model, body, buffer),
    }
    draw_footer(model, bottom, buffer);
}

fn header(model: &Model, now: u64) -> Paragraph<'static> {
    let node = model.node();
    let hostname = text(node.get("HostnameStatuses", "hostname"), "hostname");
    let name = match (hostname.is_empty(), model.console) {
        (true, _) => node.name.clone(),
        // A console shows the machine it belongs to.
        (false, true) => hostname,
        (false, false) => format!("{hostname} ({})", node.name),
    };
    let state = match &node.trouble {
        Some(trouble) => Span::styled(trouble.clone(), BAD),
        None => Span::raw(node.version.clone()),
    };
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
    Paragraph::new(vec![
        Line::from(vec![Span::raw(" "), Span::styled(name, BOLD), Span::raw("  "), state]),
        Line::styled(format!(" {}", parts.join(", ")), FAINT),
    ])
}

fn draw_footer(model: &Model, area: Rect, buffer: &mut Buffer) {
    let machines = if model.console { &[][..] } else { &model.nodes[..] };
    let names: usize = machines.iter().map(|node| node.name.len() + 1).sum();
    let pages = model.pages();
    let long = pages.iter().enumerate().map(|(index, (_, name))| format!("[F{}: {name}] ", index + 1));
    let short = (1..=pages.len()).map(|number| format!("[F{number}] "));
    let width = |tabs: &[String]| tabs.iter().map(String::len).sum::<usize>();
    let (long, short): (Vec<String>, Vec<String>) = (long.collect(), short.collect());
    let tabs = if names + width(&long) < usize::from(area.width) { long } else { short };
    let parts = [Constraint::Fill(1), Constraint::Length(width(&tabs) as u16)];
    let [left, right] = Layout::horizontal(parts).areas(area);
    // Machines before the one that is shown make room for it where there are too many.
    let skip = if names + 1 < usize::from(left.width) { 0 } else { model.current };
    let machine = |(index, node): (usize, &Node)| {
        let style = match (&node.trouble, index == model.current) {
            (_, true) => CHOSEN,
            (Some(_), false) => BAD,
            (None, false) => PLAIN,
        };
        [Span::raw(" "), Span::styled(node.name.clone(), style)]
    };
    Line::from_iter(machines.iter().enumerate().skip(skip).flat_map(machine)).render(left, buffer);
    let tab = |(tab, (page, _)): (&String, &(Page, _))| {
        let style = if *page == model.page { CHOSEN } else { PLAIN };
        [Span::styled(tab.trim_end().to_owned(), style), Span::raw(" ")]
    };
    Line::from_iter(tabs.iter().zip(pages).flat_map(tab)).render(right, buffer);
}

fn frame(title: &str) -> Block<'static> {
    let title = [Span::styled("─", FAINT), Span::styled(format!(" {title} "), TITLE)];
    Block::bordered().border_style(FAINT).title(Line::from_iter(title))
}

/// Lines in a frame, cut at its right and lower edge.
fn framed(title: &str, lines: Vec<Line<'_>>, area: Rect, buffer: &mut Buffer) {
    Paragraph::new(lines).block(frame(title)).render(area, buffer);
}

/// A name, its value and how that looks.
type Pair = (&'static str, String, Style);

/// A column of names and values.
fn pairs(pairs: Vec<Pair>) -> Vec<Line<'static>> {
    let width = pairs.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    let line = |(name, value, style): Pair| {
        let value = if value.is_empty() { "n/a".to_owned() } else { value };
        Line::from(vec![Span::styled(format!("{name:width$}  "), FAINT), Span::styled(value, style)])
    };
    pairs.into_iter().map(line).collect()
}

/// As many lines of a log as there is room for in a frame, scrolled back by `scroll`.
fn log_lines(node: &Node, log: &str, frame: Rect, scroll: usize) -> Vec<Line<'static>> {
    let Some(held) = node.log(log) else { return Vec::new() };
    let room = usize::from(frame.height.saturating_sub(2));
    let first = held.len().saturating_sub(room).saturating_sub(scroll);
    let line = |text: &String| {
        let lower = text.to_lowercase();
        let style = if ["error", "fail", "panic"].iter().any(|word| lower.contains(word)) {
            BAD
        } else if lower.contains("warn") {
            WARNING
        } else {
            PLAIN
        };
        Line::styled(kernel_line(text).replace('\t', " "), style)
    };
    held.iter().skip(first).take(room).map(line).collect()
}

/// `facility: level: [date and time]: text` as the time of day and the text; other lines as they are.
fn kernel_line(line: &str) -> String {
    let parts = line.split_once(": [").and_then(|(_, rest)| rest.split_once("]: "));
    match parts {
        Some((date, text)) if date.len() > 19 && date.as_bytes()[10] == b'T' && date.is_char_boundary(19) => {
            format!("{} {text}", &date[11..19])
        }
        _ => line.to_owned(),
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
    if good { GOOD } else { BAD }
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
