//! `ichorctl`: commands, their table, and what they print.

pub mod age;
pub mod bars;
pub mod cgroups;
pub mod cmd;
pub mod complete;
pub mod connection;
pub mod credentials;
pub mod dashboard;
pub mod explain;
pub mod failure;
pub mod files;
mod flags;
pub mod fleet;
pub mod follow;
pub mod help;
pub mod identity;
pub mod machineconfig;
pub mod output;
pub mod packets;
pub mod parse;
pub mod profile;
pub mod pull;
pub mod s3;
pub mod session;
pub mod support;
pub mod table;
pub mod tabs;
pub mod term;
pub mod text;
pub mod why;

use std::io::{Write as _, stdout};
use std::process::ExitCode;

use crate::failure::Failure;
use crate::parse::Parsed;

/// Prints to standard output.
pub fn print(text: &str) -> Result<(), Failure> {
    if text.is_empty() {
        return Ok(());
    }
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Prints a line of progress. A reader that went away does not stop what is being done.
pub fn say(line: &str) {
    let _ = print(&format!("{line}\n"));
}

/// Runs the command line `words`, without the program's name. Exit status is 0 or 1; only commands that
/// answer by it, such as `config diff`, have another one for trouble.
pub fn run(words: &[String]) -> ExitCode {
    match words {
        [entry, rest @ ..] if entry == complete::ENTRY => {
            return exit(print(&cmd::completion::answer(rest)), &[]);
        }
        [help, rest @ ..] if help == "help" => return exit(help_of(rest), &[]),
        _ => {}
    }
    match parse::parse(&cmd::ROOT, words) {
        Ok(Parsed::Help(path)) => exit(print(&help::help(&path)), &path),
        Ok(Parsed::Run(call)) => match call.command().run {
            Some(run) => exit(run(&call), &call.path),
            None => exit(print(&help::help(&call.path)), &call.path),
        },
        Err(misuse) => exit(Err(misuse.failure), &misuse.path),
    }
}

fn help_of(words: &[String]) -> Result<(), Failure> {
    let mut path = vec![&cmd::ROOT];
    for word in words {
        match path[path.len() - 1].subcommand(word) {
            Some(command) => path.push(command),
            None => return Err(Failure::new(format!("unknown help topic \"{}\"", words.join(" ")))),
        }
    }
    print(&help::help(&path))
}

fn exit(result: Result<(), Failure>, path: &[&'static table::Command]) -> ExitCode {
    let Err(failure) = result else { return ExitCode::SUCCESS };
    let mut status = 1;
    if !failure.is_told() {
        status = path.last().map_or(1, |command| command.trouble);
        eprintln!("{failure}");
        if failure.wants_usage() && !path.is_empty() {
            eprint!("\n{}", help::usage(path));
        }
    }
    ExitCode::from(status)
}
