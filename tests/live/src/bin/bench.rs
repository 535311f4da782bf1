//! `make bench`: the numbers that matter, in one table.
//!
//! Rates move with the machine, since client and server share its cores; CPU per call and ratios
//! against the original, measured in the same run, are the steady figures.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use ichor_live::programs::{measured, median};
use ichor_live::table::{Row, Table};
use ichor_live::{Fleet, hostile, processes, root};

/// Rounds of a figure; the median counts.
const ROUNDS: usize = 3;

fn main() -> Result<()> {
    let mut table = Table::default();
    let only: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |part: &str| only.is_empty() || only.iter().any(|name| name == part);

    if wanted("store") {
        store(&mut table).context("store")?;
    }
    if wanted("config") {
        config(&mut table).context("configurations")?;
    }
    if wanted("cli") || wanted("boot") || wanted("api") || wanted("idle") {
        let fleet = Fleet::create("bench", 80, 1, 0, &[])?;
        if wanted("cli") {
            cli(&mut table, &fleet).context("command line")?;
        }
        if wanted("idle") {
            idle(&mut table, &fleet).context("idle")?;
        }
        if wanted("api") {
            api(&mut table, &fleet).context("API")?;
        }
        if wanted("boot") {
            boot(&mut table, &fleet).context("boot")?;
        }
        fleet.destroy()?;
    }

    println!("\n{table}");
    match table.missed() {
        0 => println!("every limit holds"),
        missed => println!("{missed} limit(s) missed"),
    }
    Ok(())
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

// ---- the resource store, beside the original's ----

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

fn store(table: &mut Table) -> Result<()> {
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
        table.add(row.original(format!("{:.3e}", their_figure(&theirs, pair.theirs)?)));
    }
    for (name, what, limit, known) in [
        ("controller-median-us", "controller A → B, median", 8.0, "22 µs"),
        ("controller-p99-us", "controller A → B, p99", 40.0, "66 µs"),
    ] {
        table.add(Row::at_most(what, our_median(name)?, "µs", limit).original(known));
    }
    Ok(())
}

/// A line `name value unit` of our program.
fn our_figure(text: &str, name: &str) -> Result<f64> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(known, _)| *known == name)
        .and_then(|(_, rest)| rest.split(' ').next()?.parse().ok())
        .ok_or_else(|| anyhow!("no figure {name} in {text}"))
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

// ---- the command line ----

fn cli(table: &mut Table, fleet: &Fleet) -> Result<()> {
    let size = std::fs::metadata(root().join("bin/ichorctl"))?.len() as f64 / 1e6;
    table.add(Row::at_most("ichorctl, size", size, "MB", 20.0).original("98.9 MB"));
    let size = std::fs::metadata(root().join("build/ichor"))?.len() as f64 / 1e6;
    table.add(Row::at_most("node program, size", size, "MB", 16.0).original("108 MB"));

    let runs: &[(&str, &[&str], f64, &str)] = &[
        ("ichorctl version --client", &["version", "--client"], 6.0, "30 ms"),
        ("ichorctl version, one node", &["version"], 12.0, "43 ms"),
        ("ichorctl get rd", &["get", "rd"], 20.0, "89 ms"),
        ("ichorctl services", &["services"], 12.0, "47 ms"),
        ("ichorctl get machineconfig", &["get", "machineconfig"], 15.0, "75 ms"),
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
    table.add(
        Row::at_most("ichorctl version --client, memory", peak / 1024.0, "MiB", 12.0).original("60 MiB"),
    );
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

// ---- configurations ----

/// Commands that need no machine, each in a directory with secrets and configurations.
fn config(table: &mut Table) -> Result<()> {
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
        ("gen secrets, median of 20", secrets, 20, 600.0, "740 ms"),
        ("gen config --with-secrets", generate, 21, 10.0, "54–64 ms"),
        ("validate", validate, 21, 6.0, "34–39 ms"),
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
    table.add(Row::at_most("validate, memory", peak / 1024.0, "MiB", 12.0).original("61 MiB"));

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
    table.add(Row::at_most(format!("hostile text, slowest ({})", slowest.1), slowest.0, "ms", 100.0));
    let mib = largest.0 as f64 / 1024.0;
    table.add(Row::at_most(format!("hostile text, largest ({})", largest.1), mib, "MiB", 64.0));
    Ok(())
}

// ---- the machine at rest ----

fn idle(table: &mut Table, fleet: &Fleet) -> Result<()> {
    std::thread::sleep(Duration::from_secs(12));
    let known = [("init", "68 MiB"), ("machined", ""), ("apid", "30 MiB"), ("trustd", "30 MiB")];
    let daemons: Vec<_> = known.iter().flat_map(|(name, _)| fleet.daemons(name)).collect();
    let mut total = 0.0;
    for daemon in &daemons {
        let mib = processes::pss(daemon.pid).unwrap_or_default() as f64 / 1024.0;
        total += mib;
        let known = known.iter().find(|(name, _)| *name == daemon.name).map_or("", |(_, known)| known);
        let row = match daemon.name.as_str() {
            "init" => Row::at_most("memory of init (PSS)", mib, "MiB", 2.0),
            name => Row::plain(format!("memory of {name} (PSS)"), mib, "MiB"),
        };
        table.add(row.original(known));
    }
    table.add(Row::at_most("memory of all daemons (PSS)", total, "MiB", 24.0).original("172 MiB"));

    let spent = || daemons.iter().filter_map(|d| processes::run_nanos(d.pid)).sum::<u64>() as f64;
    let (before, start) = (spent(), Instant::now());
    std::thread::sleep(Duration::from_secs(20));
    let share = (spent() - before) / start.elapsed().as_nanos() as f64 * 100.0;
    table.add(Row::at_most("CPU at idle, all daemons", share, "% of a core", 0.1).original("0.4 %"));
    Ok(())
}

// ---- the API ----

fn api(table: &mut Table, fleet: &Fleet) -> Result<()> {
    let load = Load::new(fleet)?;
    let rd = "list:meta/ResourceDefinitions.meta.cosi.dev";

    let one = load.run(&["-op", "version", "-c", "1"])?;
    table.add(Row::at_most("unary call, 1 caller, p50", one.p50, "ms", 0.25).original("0.53 ms"));
    table.add(Row::at_most("unary call, 1 caller, p99", one.p99, "ms", 0.6).original("1.28 ms"));
    let sixteen = load.run(&["-op", "version", "-c", "16"])?;
    table.add(Row::plain("unary call, 16 callers, rate", sixteen.rate, "/s"));
    table.add(Row::plain("unary call, 16 callers, CPU", sixteen.cpu, "µs").original("172 µs"));
    let many = load.run(&["-op", "version", "-c", "64"])?;
    table.add(Row::plain("unary call, 64 callers, p50", many.p50, "ms"));
    table.add(Row::plain("unary call, 64 callers, p99", many.p99, "ms"));
    table.add(Row::plain("unary call, 64 callers, rate", many.rate, "/s").original("10300 /s"));
    table.add(Row::at_most("unary call, 64 callers, CPU", many.cpu, "µs", 30.0).original("127 µs"));
    let proxied = load.run(&["-op", "version", "-c", "16", "-n", &load.address])?;
    table
        .add(Row::at_most("with node metadata, 16 callers, CPU", proxied.cpu, "µs", 70.0).original("293 µs"));
    let definitions = load.run(&["-op", rd, "-c", "16"])?;
    table.add(Row::at_most("get rd, 16 callers, CPU", definitions.cpu / 1e3, "ms", 0.8).original("7.6 ms"));
    let (connect, cpu) = load.connect()?;
    table.add(Row::at_most("new connection and one call, p50", connect, "ms", 2.0).original("2.3 ms"));
    table.add(Row::at_most("new connection and one call, server CPU", cpu, "ms", 0.7));
    let last = load.fanout()?;
    table.add(Row::at_most("1 000 watches, apply → last delivery", last, "ms", 30.0).original("71 ms"));
    for (name, limit, known) in [("machined", 30.0, "163 MiB"), ("apid", 24.0, "128 MiB")] {
        let pid = fleet.daemons(name).first().ok_or_else(|| anyhow!("no {name}"))?.pid;
        let rss = processes::rss(pid).unwrap_or_default() as f64 / 1024.0;
        table
            .add(Row::at_most(format!("memory of {name} after it (RSS)"), rss, "MiB", limit).original(known));
    }
    Ok(())
}

/// The load generator, inside the cluster's network.
struct Load {
    netns: String,
    talosconfig: PathBuf,
    address: String,
    pids: String,
    machined: i32,
    apid: i32,
}

/// One run: medians over the rounds.
struct Figures {
    p50: f64,
    p99: f64,
    rate: f64,
    cpu: f64,
}

impl Load {
    fn new(fleet: &Fleet) -> Result<Self> {
        let pid = |name: &str| {
            Ok::<_, anyhow::Error>(fleet.daemons(name).first().ok_or_else(|| anyhow!("no {name}"))?.pid)
        };
        let (machined, apid) = (pid("machined")?, pid("apid")?);
        Ok(Self {
            netns: format!("--net=/proc/{apid}/ns/net"),
            talosconfig: fleet.home().join(".talos/config"),
            address: fleet.address(0),
            pids: format!("machined={machined},apid={apid}"),
            machined,
            apid,
        })
    }

    fn command(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new("nsenter");
        command.arg(&self.netns).arg(tool("loadgen")).arg("-talosconfig").arg(&self.talosconfig);
        output(command.args(["-e", &self.address, "-pids", &self.pids, "-d", "3s"]).args(args))
    }

    fn run(&self, args: &[&str]) -> Result<Figures> {
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            rounds.push(self.command(args)?);
        }
        let of = |key: &str| median(rounds.iter().filter_map(|text| field(text, key)).collect());
        Ok(Figures {
            p50: of("p50") * 1e3,
            p99: of("p99") * 1e3,
            rate: of("rate"),
            cpu: of("cpu_machined") + of("cpu_apid"),
        })
    }

    fn connect(&self) -> Result<(f64, f64)> {
        let spent =
            || [self.machined, self.apid].iter().filter_map(|p| processes::run_nanos(*p)).sum::<u64>() as f64;
        let (mut times, mut costs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let before = spent();
            let text = self.command(&["-op", "connect"])?;
            let count = field(&text, "n").ok_or_else(|| anyhow!("no count in {text}"))?;
            times.push(field(&text, "p50").ok_or_else(|| anyhow!("no p50 in {text}"))? * 1e3);
            costs.push((spent() - before) / count / 1e6);
        }
        Ok((median(times), median(costs)))
    }

    fn fanout(&self) -> Result<f64> {
        let text = self.command(&["-op", "fanout", "-conns", "10"])?;
        let line = text
            .lines()
            .find(|line| line.contains("last min="))
            .ok_or_else(|| anyhow!("no result in {text}"))?;
        let last = line.split("last ").nth(1).and_then(|rest| field(rest, "med"));
        last.map(|seconds| seconds * 1e3).ok_or_else(|| anyhow!("no median in {line}"))
    }
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

// ---- power on to first answer ----

/// A machine is asked every few milliseconds from before its start on, by the program that gave the original's figure.
fn boot(table: &mut Table, fleet: &Fleet) -> Result<()> {
    let known = first_answer(fleet, false)?;
    table.add(Row::plain("start of PID 1 → API answers, known machine", known, "ms"));
    // It finds its configuration where the platform has it, and makes its keys while one waits.
    let fresh = first_answer(fleet, true)?;
    let row = Row::at_most("start of PID 1 → API answers, fresh state", fresh, "ms", 150.0);
    table.add(row.original("1300 ms"));
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
