//! Power on to first answer, and `cluster create` to a cluster that is Ready.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use ichor_live::Fleet;
use ichor_live::programs::median;
use ichor_live::table::{Row, Table};

use crate::{ROUNDS, tool};

/// How often a cluster is made; one slow start is forgiven.
const STARTS: usize = 10;

/// A machine is asked every few milliseconds from before its start on, by the program that gave the original's figure.
pub(crate) fn boot(table: &mut Table, fleet: &Fleet) -> Result<()> {
    let known = first_answer(fleet, false)?;
    table.add(Row::plain("start of PID 1 → API answers, known machine", known, "ms"));
    // It finds its configuration where the platform has it, and makes its keys while one waits.
    let fresh = first_answer(fleet, true)?;
    let row = Row::at_most("start of PID 1 → API answers, fresh state", fresh, "ms", 150.0);
    table.add(row.original(1300.0));
    Ok(())
}

/// Milliseconds from the start of the first process to the first answer, the median of some starts.
fn first_answer(fleet: &Fleet, fresh: bool) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..2 * ROUNDS + 1 {
        fleet.ok(&["cluster", "stop", "--name", fleet.name()])?;
        if fresh {
            fleet.forget()?;
        }
        let mut waiter = Command::new(tool("loadgen"))
            .arg("-talosconfig")
            .arg(fleet.home().join(".talos/config"))
            .args(["-e", &fleet.loopback(0), "-op", "ready", "-d", "20s"])
            .stdout(std::process::Stdio::piped())
            .spawn()?;
        fleet.ok(&["cluster", "start", "--name", fleet.name()])?;
        let mut text = String::new();
        std::io::Read::read_to_string(
            waiter.stdout.as_mut().ok_or_else(|| anyhow!("no output"))?,
            &mut text,
        )?;
        waiter.wait()?;
        let answered: f64 = text.trim().parse().with_context(|| format!("answer time {text:?}"))?;
        let init = fleet.daemons("init").into_iter().next_back().ok_or_else(|| anyhow!("no init"))?;
        times.push((answered - started(init.started)?) * 1e3);
    }
    Ok(median(times))
}

/// Unix time of a process start that is given in clock ticks after boot.
fn started(ticks: u64) -> Result<f64> {
    let uptime = std::fs::read_to_string(Path::new("/proc/uptime"))?;
    let uptime: f64 = uptime.split(' ').next().unwrap_or_default().parse()?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs_f64();
    Ok(now - uptime + ticks as f64 / 100.0)
}

// ---- whole clusters ----

/// Seconds from `cluster create` to its end, when all nodes are Ready and every check is green; and to a worker more.
pub(crate) fn clusters(table: &mut Table) -> Result<()> {
    let (mut large, mut small, mut joins) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..STARTS {
        let (took, fleet) = created(3, 1)?;
        large.push(took);
        fleet.destroy()?;
        let (took, fleet) = created(1, 1)?;
        small.push(took);
        let start = Instant::now();
        fleet.ok(&["cluster", "add", "--name", fleet.name(), "--workers", "1"])?;
        joins.push(start.elapsed().as_secs_f64());
        fleet.destroy()?;
    }
    for (what, times, limit) in [
        ("3 control planes + 1 worker Ready, 9 of 10", large, 30.0),
        ("1 control plane + 1 worker Ready, 9 of 10", small, 20.0),
        ("one worker more until Ready, 9 of 10", joins, 8.0),
    ] {
        let note = format!("median {:.1} s", median(times.clone()));
        table.add(Row::at_most(what, all_but_one(times), "s", limit).note(&note));
    }
    Ok(())
}

fn created(controlplanes: u8, workers: u8) -> Result<(f64, Fleet)> {
    let start = Instant::now();
    let fleet = Fleet::kubernetes("bench-start", 81, controlplanes, workers, &[])?;
    Ok((start.elapsed().as_secs_f64(), fleet))
}

/// The largest but one.
fn all_but_one(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.pop();
    values.pop().unwrap_or(f64::NAN)
}
