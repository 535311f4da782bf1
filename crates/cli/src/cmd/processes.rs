//! `processes`: what runs on machines, once or refreshed every second.

use std::io::{IsTerminal as _, Read as _, stdin, stdout};
use std::time::Duration;

use ichor_wire::machine::{Process, ProcessInfo};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

use crate::failure::Failure;
use crate::parse::Call;
use crate::print;
use crate::session::{Session, block_on};
use crate::table::{Command, Complete, Flag, Group};
use crate::text;

/// The command.
pub static PROCESSES: Command = Command {
    name: "processes",
    aliases: &["p", "ps"],
    group: Group::Machines,
    about: "List running processes",
    flags: &[
        Flag::text("sort", "order by rss or cpu")
            .short('s')
            .default("rss")
            .complete(Complete::Words(&["rss", "cpu"])),
        Flag::switch("watch", "refresh every second; q quits, r and m order by memory, c by CPU time")
            .short('w'),
    ],
    run: Some(run),
    ..Command::EMPTY
};

/// What a process list is ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Resident memory, largest first.
    Memory,
    /// CPU time, largest first.
    Cpu,
}

fn run(call: &Call) -> Result<(), Failure> {
    let order = match call.text("sort") {
        "rss" => Order::Memory,
        "cpu" => Order::Cpu,
        other => {
            return Err(Failure::new(format!("invalid sort method: \"{other}\"")).hint("use rss or cpu"));
        }
    };
    let (connection, watched) = (call.connection(), call.on("watch"));
    block_on(async {
        let session = Session::open(&connection).await?;
        if watched {
            return watch(&session, order).await;
        }
        let replies = fetch(&session).await?;
        print(&table_text(&replies, order))
    })
}

async fn fetch(session: &Session) -> Result<Vec<(String, Process)>, Failure> {
    let reply = session.ask(session.all().machine().processes(())).await;
    session.gather("error getting processes", reply.map(|reply| reply.into_inner().messages))
}

async fn watch(session: &Session, mut order: Order) -> Result<(), Failure> {
    let _raw = RawTerminal::enter();
    let mut keys = keys();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut replies = Vec::new();
    loop {
        tokio::select! {
            _ = ticks.tick() => replies = fetch(session).await?,
            key = keys.recv() => match key {
                Some(b'q' | 3) => return Ok(()),
                Some(b'r' | b'm') => order = Order::Memory,
                Some(b'c') => order = Order::Cpu,
                Some(_) => {}
                None => keys = mpsc::channel(1).1,
            },
        }
        let height = terminal_height();
        let table = table_text(&replies, order);
        let shown: String = table.lines().take(height).collect::<Vec<_>>().join("\r\n");
        print(&format!("\x1b[H\x1b[2J{shown}\r\n"))?;
    }
}

fn terminal_height() -> usize {
    let rows = rustix::termios::tcgetwinsize(stdout()).map_or(0, |size| usize::from(size.ws_row));
    if rows > 2 { rows - 1 } else { usize::MAX }
}

/// Keys pressed, from a thread of their own because reading the terminal blocks.
fn keys() -> mpsc::Receiver<u8> {
    let (sender, receiver) = mpsc::channel(8);
    if stdin().is_terminal() {
        std::thread::spawn(move || {
            for byte in stdin().lock().bytes() {
                let Ok(byte) = byte else { return };
                if sender.blocking_send(byte).is_err() {
                    return;
                }
            }
        });
    } else {
        // Without a terminal there are no keys; the channel stays open so that nobody waits for its end.
        std::mem::forget(sender);
    }
    receiver
}

/// A terminal that hands over keys at once and shows none; as before when dropped.
struct RawTerminal(Option<Termios>);

impl RawTerminal {
    fn enter() -> Self {
        let Ok(before) = tcgetattr(stdin()) else { return Self(None) };
        let mut raw = before.clone();
        raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        let _ = tcsetattr(stdin(), OptionalActions::Now, &raw);
        Self(Some(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = tcsetattr(stdin(), OptionalActions::Now, before);
        }
    }
}

/// The columns, two spaces apart.
pub fn table_text(replies: &[(String, Process)], order: Order) -> String {
    let header = ["NODE", "PID", "STATE", "THREADS", "CPU-TIME", "VIRTMEM", "RESMEM", "LABEL", "COMMAND"];
    let mut rows = vec![header.map(str::to_owned)];
    for (node, list) in replies {
        let mut processes: Vec<&ProcessInfo> = list.processes.iter().collect();
        match order {
            Order::Memory => processes.sort_by_key(|process| std::cmp::Reverse(process.resident_memory)),
            Order::Cpu => processes.sort_by(|a, b| b.cpu_time.total_cmp(&a.cpu_time)),
        }
        rows.extend(processes.into_iter().map(|process| {
            [
                node.clone(),
                process.pid.to_string(),
                process.state.clone(),
                process.threads.to_string(),
                format!("{:.2}", process.cpu_time),
                text::bytes(process.virtual_memory),
                text::bytes(process.resident_memory),
                process.label.clone(),
                command_line(process),
            ]
        }));
    }
    let widths: Vec<usize> = (0..header.len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default())
        .collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:width$}  "));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// The command line with the whole path of its program where it is known.
pub fn command_line(process: &ProcessInfo) -> String {
    let text = if process.executable.is_empty() {
        process.command.clone()
    } else {
        let base = process.executable.rsplit('/').next().unwrap_or_default();
        match process.args.split_whitespace().next() {
            Some(first) if first == base => process.args.replacen(first, &process.executable, 1),
            _ => process.args.clone(),
        }
    };
    text.replace(['\n', '\t'], " ")
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn process(pid: i32, rss: u64, cpu: f64, command: &str, executable: &str, args: &str) -> ProcessInfo {
        ProcessInfo {
            pid,
            state: "S".into(),
            threads: 2,
            cpu_time: cpu,
            virtual_memory: 1_234_567_890,
            resident_memory: rss,
            command: command.into(),
            executable: executable.into(),
            args: args.into(),
            ..ProcessInfo::default()
        }
    }

    #[test]
    fn processes_are_ordered_and_shown_with_their_whole_path() {
        let processes = vec![
            process(1, 1_400_000, 9.5, "init", "/sbin/init", "/sbin/init"),
            process(2, 16_000_000, 1.25, "machined", "/usr/bin/ichor", "ichor machined"),
            process(9, 0, 0.0, "kworker/0:1", "", ""),
        ];
        let replies = vec![("10.5.0.2".to_owned(), Process { metadata: None, processes })];
        expect![[r#"
            NODE      PID  STATE  THREADS  CPU-TIME  VIRTMEM  RESMEM  LABEL  COMMAND
            10.5.0.2  2    S      2        1.25      1.2 GB   16 MB          /usr/bin/ichor machined
            10.5.0.2  1    S      2        9.50      1.2 GB   1.4 MB         /sbin/init
            10.5.0.2  9    S      2        0.00      1.2 GB   0 B            kworker/0:1
        "#]]
        .assert_eq(&table_text(&replies, Order::Memory));
        let by_cpu = table_text(&replies, Order::Cpu);
        assert!(by_cpu.lines().nth(1).unwrap().ends_with("/sbin/init"), "{by_cpu}");
    }
}
