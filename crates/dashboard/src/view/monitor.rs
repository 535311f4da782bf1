//! Graphs of CPU, memory, load, network and disks, and the processes.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::symbols::bar;
use ratatui::text::Line;
use ratatui::widgets::{LineGauge, RenderDirection, Sparkline, Widget as _};

use super::{FAINT, PLAIN, bytes, frame, framed};
use crate::model::{Model, Node};

/// Graphs are drawn in thousandths of what fills them.
const FULL: f64 = 1000.0;

pub(super) fn draw(model: &Model, area: Rect, buffer: &mut Buffer) {
    let node = model.node();
    let history = &node.history;
    let last = |values: &[f64]| values.last().copied().unwrap_or(0.0);
    // Graphs take half of a small screen and less of a large one.
    let graphs = (area.height / 2).max(10).min(area.height);
    let [graphs, processes] = Layout::vertical([Constraint::Length(graphs), Constraint::Fill(1)]).areas(area);
    let gauges = if area.height >= 20 { 2 } else { 0 };
    let rows = [Constraint::Length(gauges), Constraint::Fill(1), Constraint::Fill(1)];
    let [gauges, upper, lower] = Layout::vertical(rows).areas(graphs);

    let (cpu, used) = (last(&history.cpu), last(&history.used));
    let halves: [Rect; 2] = Layout::horizontal([Constraint::Fill(1); 2]).spacing(2).areas(gauges);
    gauge("CPU", cpu, Color::Green, halves[0], buffer);
    gauge("MEM", used, Color::Blue, halves[1], buffer);

    let upper: [Rect; 3] = Layout::horizontal([Constraint::Fill(1); 3]).areas(upper);
    // The font of a console has no bars but half and whole ones.
    let bars = if model.console { bar::THREE_LEVELS } else { bar::NINE_LEVELS };
    let chart = |title: &str, values: &[f64], full: f64, colour, area, buffer: &mut Buffer| {
        chart(title, values, full, (colour, &bars), area, buffer);
    };
    let percent = |value: f64| format!("{:.1}%", value * 100.0);
    let title = format!("CPU {}", percent(cpu));
    chart(&title, &history.cpu, 1.0, Color::Green, upper[0], buffer);
    let title = format!("Memory {}", percent(used));
    chart(&title, &history.used, 1.0, Color::Blue, upper[1], buffer);
    let [one, five, fifteen] = history.loads;
    let full = history.load.iter().copied().fold(history.cores.max(1) as f64, f64::max);
    let title = format!("Load {one:.2} {five:.2} {fifteen:.2}");
    chart(&title, &history.load, full, Color::Yellow, upper[2], buffer);

    let lower: [Rect; 4] = Layout::horizontal([Constraint::Fill(1); 4]).areas(lower);
    for (part, (name, values)) in lower.into_iter().zip([
        ("Net rx", &history.received),
        ("Net tx", &history.sent),
        ("Disk rd", &history.read),
        ("Disk wr", &history.written),
    ]) {
        let full = values.iter().copied().fold(1.0, f64::max);
        let title = format!("{name} {}/s", bytes(last(values) as u64));
        chart(&title, values, full, Color::Cyan, part, buffer);
    }
    draw_processes(node, model.scroll, processes, buffer);
}

/// What part of `full` a value is; what is not a number is nothing.
fn share(value: f64, full: f64) -> f64 {
    let share = value / full;
    if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
}

fn gauge(name: &str, value: f64, colour: Color, area: Rect, buffer: &mut Buffer) {
    let value = share(value, 1.0);
    LineGauge::default()
        .label(format!(" {name} {:>5.1}%", value * 100.0))
        .filled_symbol("█")
        .unfilled_symbol("░")
        .filled_style(Style::new().fg(colour))
        .unfilled_style(FAINT)
        .ratio(value)
        .render(area, buffer);
}

/// The newest values as bars, the last at the right.
fn chart(
    title: &str,
    values: &[f64],
    full: f64,
    (colour, set): (Color, &bar::Set<'static>),
    area: Rect,
    buffer: &mut Buffer,
) {
    let bars = values.iter().rev().map(|value| (share(*value, full) * FULL).round() as u64);
    Sparkline::default()
        .block(frame(title))
        .data(bars)
        .max(FULL as u64)
        .bar_set(set.clone())
        .direction(RenderDirection::RightToLeft)
        .style(Style::new().fg(colour))
        .render(area, buffer);
}

fn draw_processes(node: &Node, scroll: usize, area: Rect, buffer: &mut Buffer) {
    let first = scroll.min(node.processes.len().saturating_sub(1));
    let header = Line::styled("    PID S THR   CPU%       MEM  COMMAND", FAINT);
    let processes = node.processes.iter().skip(first).take(usize::from(area.height)).map(|process| {
        let command = match (process.args.as_str(), process.executable.as_str()) {
            ("", "") => &process.command,
            ("", executable) => executable,
            (args, _) => args,
        };
        let text = format!(
            "{:>7} {:<1} {:>3} {:>6.1} {:>9}  {command}",
            process.pid,
            process.state,
            process.threads,
            node.cpu_of(process.pid) * 100.0,
            bytes(process.resident_memory),
        );
        Line::styled(text, PLAIN)
    });
    let lines = [header].into_iter().chain(processes).collect();
    framed(&format!("Processes {}", node.processes.len()), lines, area, buffer);
}
