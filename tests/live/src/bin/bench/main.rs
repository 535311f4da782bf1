//! `make bench`: the numbers that matter, in one table.
//!
//! Rates move with the machine, since client and server share its cores; CPU per call and ratios against the original
//! are the steady figures. A part with a missed limit is measured again; a limit that is missed every time fails the run.

mod api;
mod idle;
mod programs;
mod start;
mod store;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, anyhow, ensure};
use ichor_live::table::Table;
use ichor_live::{Fleet, root};

/// Rounds of a figure; the median counts.
const ROUNDS: usize = 3;

/// One part of the table: its name on the command line and what measures it.
type Part = (&'static str, fn(&mut Table) -> Result<()>);

const PARTS: &[Part] = &[
    ("store", store::store),
    ("config", programs::config),
    ("cli", |table| on_machine(table, programs::cli)),
    ("idle", |table| on_machine(table, idle::idle)),
    ("api", |table| on_machine(table, api::api)),
    ("rest", |table| on_machine(table, idle::after_load)),
    ("boot", |table| on_machine(table, start::boot)),
    ("start", start::clusters),
];

fn main() -> Result<ExitCode> {
    let only: Vec<String> = std::env::args().skip(1).collect();
    let names: Vec<&str> = PARTS.iter().map(|(name, _)| *name).collect();
    for name in &only {
        ensure!(names.contains(&name.as_str()), "there is no part {name:?}; there are: {}", names.join(" "));
    }
    let mut table = Table::default();
    for (name, measure) in PARTS {
        if only.is_empty() || only.iter().any(|wanted| wanted == name) {
            table.measure(measure).with_context(|| (*name).to_owned())?;
        }
    }
    println!("\n{table}");
    Ok(match table.missed() {
        0 => {
            println!("every limit holds");
            ExitCode::SUCCESS
        }
        missed => {
            println!("{missed} limit(s) missed {} times in a row", Table::ATTEMPTS);
            ExitCode::FAILURE
        }
    })
}

/// Measures on a new machine without containers, so that parts and attempts do not see each other's traces.
fn on_machine(table: &mut Table, measure: fn(&mut Table, &Fleet) -> Result<()>) -> Result<()> {
    let fleet = Fleet::create("bench", 80, 1, 0, &[])?;
    measure(table, &fleet)?;
    fleet.destroy()
}

/// A program that `scripts/bench` built.
fn tool(name: &str) -> PathBuf {
    root().join("build/bench").join(name)
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("run {:?}", command.get_program()))?;
    if !output.status.success() {
        return Err(anyhow!("{:?}: {}", command.get_program(), String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A line `name value unit` of our program.
fn our_figure(text: &str, name: &str) -> Result<f64> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(known, _)| *known == name)
        .and_then(|(_, rest)| rest.split(' ').next()?.parse().ok())
        .ok_or_else(|| anyhow!("no figure {name} in {text}"))
}

/// `key=value` of a line; durations as Go prints them become seconds.
fn field(text: &str, key: &str) -> Option<f64> {
    let key = format!("{key}=");
    let word = text.split_whitespace().find_map(|word| word.strip_prefix(&key))?;
    let word = word.trim_end_matches(';');
    if let Ok(number) = word.parse() {
        return Some(number);
    }
    let cut = word.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(word.len());
    let number: f64 = word[..cut].parse().ok()?;
    Some(match &word[cut..] {
        "ms" => number / 1e3,
        "µs" => number / 1e6,
        "ns" => number / 1e9,
        _ => number,
    })
}
