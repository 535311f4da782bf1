//! Calls over the network, as clients make them.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, anyhow};
use ichor_live::programs::median;
use ichor_live::table::{Row, Table};
use ichor_live::{Fleet, processes};

use crate::{ROUNDS, field, output, tool};

pub(crate) fn api(table: &mut Table, fleet: &Fleet) -> Result<()> {
    let load = Load::new(fleet)?;
    let rd = "list:meta/ResourceDefinitions.meta.cosi.dev";

    let one = load.run(&["-op", "version", "-c", "1"])?;
    table.add(Row::at_most("unary call, 1 caller, p50", one.p50, "ms", 0.35).original(0.53));
    table.add(Row::at_most("unary call, 1 caller, p99", one.p99, "ms", 1.0).original(1.28));
    let sixteen = load.run(&["-op", "version", "-c", "16"])?;
    table.add(Row::plain("unary call, 16 callers, rate", sixteen.rate, "/s"));
    table.add(Row::plain("unary call, 16 callers, CPU", sixteen.cpu, "µs").original(172.0));
    let many = load.run(&["-op", "version", "-c", "64"])?;
    table.add(Row::plain("unary call, 64 callers, p50", many.p50, "ms"));
    table.add(Row::plain("unary call, 64 callers, p99", many.p99, "ms"));
    table.add(Row::plain("unary call, 64 callers, rate", many.rate, "/s").original(10300.0));
    table.add(Row::at_most("unary call, 64 callers, CPU", many.cpu, "µs", 25.0).original(127.0));
    let proxied = load.run(&["-op", "version", "-c", "16", "-n", &load.address])?;
    table.add(Row::at_most("with node metadata, 16 callers, CPU", proxied.cpu, "µs", 70.0).original(293.0));
    let definitions = load.run(&["-op", rd, "-c", "16"])?;
    table.add(Row::at_most("get rd, 16 callers, CPU", definitions.cpu / 1e3, "ms", 0.8).original(7.6));
    let (connect, cpu) = load.connect()?;
    table.add(Row::at_most("new connection and one call, p50", connect, "ms", 3.0).original(2.3));
    table.add(Row::at_most("new connection and one call, server CPU", cpu, "ms", 1.0));
    let last = load.fanout()?;
    table.add(Row::at_most("1 000 watches, apply → last delivery", last, "ms", 30.0).original(71.0));
    for (name, limit, known) in [("machined", 30.0, 163.0), ("apid", 24.0, 128.0)] {
        let pid = fleet.daemons(name).first().ok_or_else(|| anyhow!("no {name}"))?.pid;
        let rss = processes::rss(pid).unwrap_or_default() as f64 / 1024.0;
        table
            .add(Row::at_most(format!("memory of {name} after it (RSS)"), rss, "MiB", limit).original(known));
    }
    Ok(())
}

/// The load generator, inside the cluster's network.
pub(crate) struct Load {
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
    pub(crate) fn new(fleet: &Fleet) -> Result<Self> {
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

    /// Calls of 64 callers for a few seconds: well over 1 000.
    pub(crate) fn burst(&self) -> Result<()> {
        self.command(&["-op", "version", "-c", "64"]).map(drop)
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

    pub(crate) fn fanout(&self) -> Result<f64> {
        let text = self.command(&["-op", "fanout", "-conns", "10"])?;
        let line = text
            .lines()
            .find(|line| line.contains("last min="))
            .ok_or_else(|| anyhow!("no result in {text}"))?;
        let last = line.split("last ").nth(1).and_then(|rest| field(rest, "med"));
        last.map(|seconds| seconds * 1e3).ok_or_else(|| anyhow!("no median in {line}"))
    }
}
