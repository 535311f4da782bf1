//! Graphs of CPU, memory, load, network and disks, and the processes.

use super::super::model::{Model, Node};
use super::super::screen::{Area, Colour, Screen, Style};
use super::bytes;

pub(super) fn draw(screen: &mut Screen, area: Area, model: &Model) {
    let node = model.node();
    let history = &node.history;
    let last = |values: &[f64]| values.last().copied().unwrap_or(0.0);

    // Graphs take half of a small screen and less of a large one.
    let (graphs, processes) = area.top((area.height / 2).max(10).min(area.height));
    let (gauges, graphs) = graphs.top(if area.height >= 20 { 2 } else { 0 });
    for (half, (label, value, colour)) in gauges
        .columns(2)
        .into_iter()
        .zip([("CPU ", last(&history.cpu), Colour::Green), ("MEM ", last(&history.used), Colour::Blue)])
    {
        screen.gauge(
            Area { x: half.x + 1, width: half.width.saturating_sub(2), ..half },
            0,
            label,
            value,
            colour,
        );
    }
    let rows = graphs.rows(2);
    let upper = rows[0].columns(3);
    let percent = |value: f64| format!("{:.1}%", value * 100.0);
    chart(
        screen,
        upper[0],
        &format!("CPU {}", percent(last(&history.cpu))),
        &history.cpu,
        1.0,
        Colour::Green,
    );
    chart(
        screen,
        upper[1],
        &format!("Memory {}", percent(last(&history.used))),
        &history.used,
        1.0,
        Colour::Blue,
    );
    let [one, five, fifteen] = history.loads;
    let full = history.load.iter().copied().fold(history.cores.max(1) as f64, f64::max);
    chart(
        screen,
        upper[2],
        &format!("Load {one:.2} {five:.2} {fifteen:.2}"),
        &history.load,
        full,
        Colour::Yellow,
    );
    let lower = rows[1].columns(4);
    for (part, (name, values)) in lower.into_iter().zip([
        ("Net rx", &history.received),
        ("Net tx", &history.sent),
        ("Disk rd", &history.read),
        ("Disk wr", &history.written),
    ]) {
        let full = values.iter().copied().fold(1.0, f64::max);
        chart(screen, part, &format!("{name} {}/s", bytes(last(values) as u64)), values, full, Colour::Cyan);
    }
    draw_processes(screen, processes, node, model.scroll);
}

fn chart(screen: &mut Screen, area: Area, title: &str, values: &[f64], full: f64, colour: Colour) {
    let inside = screen.frame(area, title);
    screen.graph(inside, values, full, colour);
}

fn draw_processes(screen: &mut Screen, area: Area, node: &Node, scroll: usize) {
    let inside = screen.frame(area, &format!("Processes {}", node.processes.len()));
    screen.text(inside, 0, 0, "    PID S THR   CPU%       MEM  COMMAND", Style::of(Colour::Grey));
    let first = scroll.min(node.processes.len().saturating_sub(1));
    let shown = node.processes.iter().skip(first).take(usize::from(inside.height.saturating_sub(1)));
    for (line, process) in shown.enumerate() {
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
        screen.text(inside, 0, line as u16 + 1, &text, Style::PLAIN);
    }
}
