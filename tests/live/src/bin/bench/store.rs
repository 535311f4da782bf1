//! The resource store and the controller runtime, beside the original's in the same run.

use std::process::Command;

use anyhow::{Result, anyhow};
use ichor_live::programs::median;
use ichor_live::table::{Row, Table};

use crate::{ROUNDS, field, our_figure, output, tool};

/// A figure of both programs.
struct Pair {
    /// Our name of it.
    ours: &'static str,
    /// How the original's line begins.
    theirs: &'static str,
    /// What it is.
    what: &'static str,
    /// Ours divided by theirs: at least this when `gain`, else at most this.
    limit: f64,
    /// Whether more is better.
    gain: bool,
}

const STORE: &[Pair] = &[
    Pair { ours: "get", theirs: "get (", what: "store get, times the original", limit: 6.0, gain: true },
    Pair {
        ours: "create",
        theirs: "create (",
        what: "store create, times the original",
        limit: 3.0,
        gain: true,
    },
    Pair {
        ours: "update",
        theirs: "update (",
        what: "store update, times the original",
        limit: 2.5,
        gain: true,
    },
    Pair {
        ours: "list-10000",
        theirs: "list of 10k",
        what: "store list of 10 000, share of the original",
        limit: 1.0 / 80.0,
        gain: false,
    },
    Pair {
        ours: "fanout-1000-last",
        theirs: "fan-out WatchKind 1000 watchers: last",
        what: "update → last of 1 000 watchers, share",
        limit: 1.0 / 3.0,
        gain: false,
    },
    Pair {
        ours: "watcher-bytes",
        theirs: "memory per watcher",
        what: "bytes per watcher, share",
        limit: 1.0 / 20.0,
        gain: false,
    },
];

pub(crate) fn store(table: &mut Table) -> Result<()> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push(output(&mut Command::new(tool("cosi-bench-ours")))?);
    }
    let our_median = |name: &str| {
        rounds.iter().map(|text| our_figure(text, name)).collect::<Result<Vec<f64>>>().map(median)
    };
    // The original's controllers give up when a burst overruns their watch; that is no fault of the measurement.
    let mut theirs = output(&mut Command::new(tool("cosi-bench")));
    for _ in 1..ROUNDS {
        if theirs.is_err() {
            theirs = output(&mut Command::new(tool("cosi-bench")));
        }
    }
    let theirs = theirs?;
    for pair in STORE {
        let ratio = our_median(pair.ours)? / their_figure(&theirs, pair.theirs)?;
        let row = match pair.gain {
            true => Row::at_least(pair.what, ratio, "×", pair.limit),
            false => Row::at_most(pair.what, ratio, "×", pair.limit),
        };
        table.add(row);
    }
    for (name, what, limit, known) in [
        ("controller-median-us", "controller A → B, median", 8.0, 22.0),
        ("controller-p99-us", "controller A → B, p99", 40.0, 66.0),
    ] {
        table.add(Row::at_most(what, our_median(name)?, "µs", limit).original(known));
    }
    Ok(())
}

/// The median of the original's line that begins with `start`, or the number after its colon.
fn their_figure(text: &str, start: &str) -> Result<f64> {
    let line = text
        .lines()
        .find(|line| line.trim_start().starts_with(start))
        .ok_or_else(|| anyhow!("no line {start:?} in {text}"))?;
    field(line, "median")
        .or_else(|| line.split(": ").nth(1)?.split(' ').next()?.parse().ok())
        .ok_or_else(|| anyhow!("no figure in {line:?}"))
}
