//! `ichorctl` and what it does with configurations.

use std::process::Command;
use std::time::Instant;

use anyhow::{Result, anyhow};
use ichor_live::programs::{measured, median};
use ichor_live::table::{Row, Table};
use ichor_live::{Fleet, hostile, root};

use crate::{ROUNDS, our_figure, output, tool};

/// Both programs with everything that is still to come, in MB.
const SIZE_MAX: f64 = 24.0;

pub(crate) fn cli(table: &mut Table, fleet: &Fleet) -> Result<()> {
    let size = std::fs::metadata(root().join("bin/ichorctl"))?.len() as f64 / 1e6;
    table.add(Row::at_most("ichorctl, size", size, "MB", SIZE_MAX).original(98.9));
    let size = std::fs::metadata(root().join("build/ichor"))?.len() as f64 / 1e6;
    table.add(Row::at_most("node program, size", size, "MB", SIZE_MAX).original(108.0));

    let runs: &[(&str, &[&str], f64, f64)] = &[
        ("ichorctl version --client", &["version", "--client"], 6.0, 30.0),
        ("ichorctl version, one node", &["version"], 12.0, 43.0),
        ("ichorctl get rd", &["get", "rd"], 20.0, 89.0),
        ("ichorctl services", &["services"], 12.0, 47.0),
        ("ichorctl get machineconfig", &["get", "machineconfig"], 15.0, 75.0),
    ];
    for (what, args, limit, known) in runs {
        let mut times = Vec::new();
        for _ in 0..21 {
            let start = Instant::now();
            output(&mut fleet.command(args))?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        table.add(Row::at_most(*what, median(times), "ms", *limit).original(*known));
    }
    let peak = peak_kib(|| fleet.command(&["version", "--client"]))?;
    table.add(Row::at_most("ichorctl version --client, memory", peak / 1024.0, "MiB", 12.0).original(60.0));
    Ok(())
}

/// Peak resident memory of a short run. Some runs end before the first look, so there are many.
fn peak_kib(run: impl Fn() -> Command) -> Result<f64> {
    let mut peak = 0.0_f64;
    for _ in 0..100 {
        let mut child = run().stdout(std::process::Stdio::null()).spawn()?;
        let path = format!("/proc/{}/status", child.id());
        while child.try_wait()?.is_none() {
            let status = std::fs::read_to_string(&path).unwrap_or_default();
            let line = status.lines().find(|line| line.starts_with("VmHWM:"));
            let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
            peak = peak.max(kib.unwrap_or(0.0));
        }
    }
    match peak {
        0.0 => Err(anyhow!("no look at a running ichorctl in 100 runs")),
        peak => Ok(peak),
    }
}

/// Commands that need no machine, each in a directory with secrets and configurations.
pub(crate) fn config(table: &mut Table) -> Result<()> {
    let home = tempfile::tempdir()?;
    let command = |args: &[&str]| {
        let mut command = Command::new(root().join("bin/ichorctl"));
        command.args(args).env("HOME", home.path()).env_remove("TALOSCONFIG").current_dir(home.path());
        command
    };
    let secrets: &[&str] = &["gen", "secrets", "--force"];
    let generate: &[&str] =
        &["gen", "config", "a", "https://10.0.0.1:6443", "--with-secrets", "secrets.yaml", "--force"];
    let validate: &[&str] = &["validate", "-c", "controlplane.yaml", "-m", "metal"];
    for (what, args, rounds, limit, known) in [
        ("gen secrets, median of 20", secrets, 20, 600.0, 740.0),
        ("gen config --with-secrets", generate, 21, 10.0, 59.0),
        ("validate", validate, 21, 6.0, 36.5),
    ] {
        let mut times = Vec::new();
        for _ in 0..rounds {
            let run = measured(&mut command(args), false)?;
            if !run.output.status.success() {
                return Err(anyhow!("{what}: {}", String::from_utf8_lossy(&run.output.stderr)));
            }
            times.push(run.millis);
        }
        table.add(Row::at_most(what, median(times), "ms", limit).original(known));
    }
    let peak = peak_kib(|| command(validate))?;
    table.add(Row::at_most("validate, memory", peak / 1024.0, "MiB", 12.0).original(61.0));

    let figures = output(&mut Command::new(tool("config-bench-ours")))?;
    let micros = our_figure(&figures, "typical-all-us")?;
    table.add(Row::at_most("read, check, write 30 KB in process", micros / 1e3, "ms", 1.0));
    let micros = our_figure(&figures, "dense-all-us")?;
    table.add(Row::plain("the same with nothing but short values", micros / 1e3, "ms"));

    let (mut slowest, mut largest) = ((0.0, ""), (0, ""));
    for case in hostile::cases() {
        std::fs::write(home.path().join("x.yaml"), &case.text)?;
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let run = measured(&mut command(&["validate", "-c", "x.yaml", "-m", "metal"]), true)?;
            times.push(run.millis);
            if run.peak_kib > largest.0 {
                largest = (run.peak_kib, case.name);
            }
        }
        let time = median(times);
        if time > slowest.0 {
            slowest = (time, case.name);
        }
    }
    table.add(Row::at_most("hostile text, slowest", slowest.0, "ms", 100.0).note(slowest.1));
    let mib = largest.0 as f64 / 1024.0;
    table.add(Row::at_most("hostile text, largest", mib, "MiB", 64.0).note(largest.1));
    Ok(())
}
