//! Help texts and the reference page, read from the table.

use std::fmt::Write as _;

use crate::parse::path_text;
use crate::table::{Command, Flag, Group, Kind, connection_flags_of, flags_of};

/// The one usage line of a command.
pub fn usage_line(path: &[&'static Command]) -> String {
    let name = path_text(path);
    let Some(command) = path.last() else { return name };
    match (command.run.is_some(), command.subcommands.is_empty()) {
        (false, _) => format!("{name} [command]"),
        (true, _) if command.args.usage.is_empty() => format!("{name} [flags]"),
        (true, _) => format!("{name} {} [flags]", command.args.usage),
    }
}

/// The short help that follows an error about the call: usage and flags.
pub fn usage(path: &[&'static Command]) -> String {
    let mut out = format!("Usage:\n  {}\n", usage_line(path));
    push_commands(&mut out, path);
    push_flags(&mut out, path);
    let _ = write!(out, "\nUse \"{} --help\" for more.\n", path_text(path));
    out
}

/// The whole help of a command.
pub fn help(path: &[&'static Command]) -> String {
    let Some(command) = path.last() else { return String::new() };
    let about = if command.long.is_empty() { command.about } else { command.long };
    let mut out = format!("{about}\n\nUsage:\n  {}\n", usage_line(path));
    if !command.aliases.is_empty() {
        let _ = write!(out, "\nAliases:\n  {}, {}\n", command.name, command.aliases.join(", "));
    }
    if !command.examples.is_empty() {
        out.push_str("\nExamples:\n");
        for example in command.examples {
            let _ = writeln!(out, "  ichorctl {example}");
        }
    }
    push_commands(&mut out, path);
    push_flags(&mut out, path);
    if !command.subcommands.is_empty() {
        let _ = write!(out, "\nUse \"{} [command] --help\" for more about a command.\n", path_text(path));
    }
    out
}

fn push_commands(out: &mut String, path: &[&'static Command]) {
    let Some(command) = path.last() else { return };
    let listed: Vec<&Command> = command.subcommands.iter().copied().filter(|sub| !sub.hidden).collect();
    let width = listed.iter().map(|sub| sub.name.len()).max().unwrap_or_default() + 2;
    let grouped = path.len() == 1;
    for (group, heading) in Group::ALL {
        let members: Vec<_> = listed.iter().filter(|sub| !grouped || sub.group == group).collect();
        if members.is_empty() {
            continue;
        }
        let heading = if grouped { heading } else { "Available Commands" };
        let _ = write!(out, "\n{heading}:\n");
        for sub in members {
            let _ = writeln!(out, "  {:width$}{}", sub.name, sub.about);
        }
        if !grouped {
            break;
        }
    }
}

fn push_flags(out: &mut String, path: &[&'static Command]) {
    let connection = connection_flags_of(path);
    let is_connection = |flag: &Flag| connection.iter().any(|known| std::ptr::eq(known, flag));
    let own: Vec<&Flag> = flags_of(path).filter(|flag| !flag.hidden && !is_connection(flag)).collect();
    let common: Vec<&Flag> = connection.iter().collect();
    for (heading, flags) in [("Flags", own), ("Connection flags", common)] {
        if flags.is_empty() {
            continue;
        }
        let rows: Vec<(String, String)> =
            flags.iter().map(|flag| (flag_left(flag), flag_right(flag))).collect();
        let width = rows.iter().map(|(left, _)| left.chars().count()).max().unwrap_or_default() + 3;
        let _ = write!(out, "\n{heading}:\n");
        for (left, right) in rows {
            let _ = writeln!(out, "  {left:width$}{right}");
        }
    }
}

fn flag_left(flag: &Flag) -> String {
    let short = flag.short.map_or("    ".to_owned(), |letter| format!("-{letter}, "));
    let value = flag.kind.placeholder();
    let space = if value.is_empty() { "" } else { " " };
    format!("{short}--{}{space}{value}", flag.name)
}

fn flag_right(flag: &Flag) -> String {
    match shown_default(flag) {
        Some(default) => format!("{} (default {default})", flag.help),
        None => flag.help.to_owned(),
    }
}

fn shown_default(flag: &Flag) -> Option<String> {
    match (flag.kind, flag.default) {
        (_, "" | "false") | (Kind::Int | Kind::Int32, "0") | (Kind::Duration, "0s") => None,
        (Kind::Text, text) => Some(format!("\"{text}\"")),
        (Kind::List | Kind::Repeated, text) => Some(format!("[{text}]")),
        (Kind::Bool | Kind::Int | Kind::Int32 | Kind::Duration, text) => Some(text.to_owned()),
    }
}

/// The reference page: every command with its flags, in the order of the table.
pub fn reference(root: &'static Command) -> String {
    let mut out = String::from(
        "# Command line reference\n\n\
         Written by `ichorctl docs`; do not edit by hand. A test holds this page against the command table.\n\n\
         Flags under *connection* belong to every command for running clusters and may also stand before its name.\n",
    );
    out.push_str("\n## Connection flags\n\n| Flag | Meaning |\n| --- | --- |\n");
    for flag in crate::table::CONNECTION_FLAGS {
        push_flag_row(&mut out, flag);
    }
    for (group, heading) in Group::ALL {
        let _ = write!(out, "\n## {heading}\n");
        for command in root.subcommands.iter().filter(|command| command.group == group && !command.hidden) {
            push_reference(&mut out, &[root, command]);
        }
    }
    out
}

fn push_reference(out: &mut String, path: &[&'static Command]) {
    let Some(command) = path.last() else { return };
    let _ = write!(out, "\n### `{}`\n\n", path_text(path));
    let _ = writeln!(out, "{}", if command.long.is_empty() { command.about } else { command.long });
    if command.run.is_some() {
        let _ = write!(out, "\n    {}\n", usage_line(path));
    }
    if !command.aliases.is_empty() {
        let _ = write!(out, "\nAlso: `{}`.\n", command.aliases.join("`, `"));
    }
    if !command.examples.is_empty() {
        out.push_str("\nFor example:\n\n");
        for example in command.examples {
            let _ = writeln!(out, "    ichorctl {example}");
        }
    }
    let connection = connection_flags_of(path);
    let flags: Vec<&Flag> = flags_of(path)
        .filter(|flag| !flag.hidden && flag.name != "help")
        .filter(|flag| !connection.iter().any(|known| std::ptr::eq(known, *flag)))
        .collect();
    if command.run.is_some() && !flags.is_empty() {
        out.push_str("\n| Flag | Meaning |\n| --- | --- |\n");
        for flag in flags {
            push_flag_row(out, flag);
        }
    }
    for sub in command.subcommands.iter().filter(|sub| !sub.hidden) {
        let path: Vec<&'static Command> = path.iter().copied().chain([*sub]).collect();
        push_reference(out, &path);
    }
}

fn push_flag_row(out: &mut String, flag: &Flag) {
    let short = flag.short.map_or(String::new(), |letter| format!("`-{letter}`, "));
    let value = flag.kind.placeholder();
    let value = if value.is_empty() { String::new() } else { format!(" {value}") };
    let help = flag_right(flag).replace('|', "\\|");
    let _ = writeln!(out, "| {short}`--{}{value}` | {help} |", flag.name);
}
