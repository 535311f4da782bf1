//! The machine at rest: memory and CPU, before and after load.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ichor_live::Fleet;
use ichor_live::processes::{self, Process};
use ichor_live::table::{Row, Table};

use crate::api::Load;

/// The daemons of a node, and the original's share of memory (MiB) where it was measured for one of them.
const DAEMONS: [(&str, Option<f64>); 4] =
    [("init", Some(68.0)), ("machined", None), ("apid", Some(30.0)), ("trustd", Some(30.0))];
/// Buffers of a start are given back after this.
const SETTLED: Duration = Duration::from_secs(12);
/// How long a machine rests after load.
const REST: Duration = Duration::from_secs(600);
/// What a machine that has worked may need more than one that has not.
const GROWTH_MAX: f64 = 1.3;

fn daemons(fleet: &Fleet) -> Vec<Process> {
    DAEMONS.iter().flat_map(|(name, _)| fleet.daemons(name)).collect()
}

/// Memory of all daemons in MiB: proportional, and anonymous, which the kernel cannot take back.
fn memory(daemons: &[Process]) -> (f64, f64) {
    let sum = |of: fn(i32) -> Option<u64>| {
        daemons.iter().filter_map(|daemon| of(daemon.pid)).sum::<u64>() as f64 / 1024.0
    };
    (sum(processes::pss), sum(processes::anonymous))
}

pub(crate) fn idle(table: &mut Table, fleet: &Fleet) -> Result<()> {
    std::thread::sleep(SETTLED);
    let daemons = daemons(fleet);
    ensure!(daemons.len() == DAEMONS.len(), "{daemons:?}");
    for (daemon, (name, known)) in daemons.iter().zip(DAEMONS) {
        let mib = processes::pss(daemon.pid).unwrap_or_default() as f64 / 1024.0;
        let row = match name {
            "init" => Row::at_most("memory of init (PSS)", mib, "MiB", 2.0),
            name => Row::plain(format!("memory of {name} (PSS)"), mib, "MiB"),
        };
        table.add(match known {
            Some(known) => row.original(known),
            None => row,
        });
    }
    let (pss, anonymous) = memory(&daemons);
    table.add(Row::at_most("memory of all daemons (PSS)", pss, "MiB", 20.0).original(172.0));
    table.add(Row::at_most("memory of all daemons (anonymous)", anonymous, "MiB", 10.0));

    let spent = || daemons.iter().filter_map(|d| processes::run_nanos(d.pid)).sum::<u64>() as f64;
    let (before, start) = (spent(), Instant::now());
    std::thread::sleep(Duration::from_secs(20));
    let share = (spent() - before) / start.elapsed().as_nanos() as f64 * 100.0;
    table.add(Row::at_most("CPU at idle, all daemons", share, "% of a core", 0.1).original(0.4));
    Ok(())
}

/// What a machine keeps of a crowd of watches and a burst of calls, after a rest.
pub(crate) fn after_load(table: &mut Table, fleet: &Fleet) -> Result<()> {
    std::thread::sleep(SETTLED);
    let daemons = daemons(fleet);
    let before = memory(&daemons);
    let load = Load::new(fleet)?;
    load.fanout()?;
    load.burst()?;
    std::thread::sleep(REST);
    let after = memory(&daemons);
    for (what, before, after) in [("PSS", before.0, after.0), ("anonymous", before.1, after.1)] {
        let what = format!("memory after 1 000 watches, a burst, 10 min rest ({what})");
        let row = Row::at_most(what, after / before, "× before", GROWTH_MAX);
        table.add(row.note(&format!("{before:.1} → {after:.1} MiB")));
    }
    Ok(())
}
