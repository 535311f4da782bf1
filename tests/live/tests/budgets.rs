//! Memory, size and idle CPU are budgets; going over one fails the build.

use std::fs;
use std::time::Duration;

use ichor_live::{Fleet, processes, root, wait};

/// Proportional memory of all first-party daemons of an idle control plane, in KiB.
const DAEMONS_KIB_MAX: u64 = 24 * 1024;
/// Of that, PID 1.
const INIT_KIB_MAX: u64 = 2 * 1024;
/// Idle CPU of the same processes: a tenth of a percent of a core.
const IDLE_CPU_MAX: f64 = 0.001;
/// Idle wake-ups of the same processes, per second.
const IDLE_WAKES_MAX: f64 = 5.0;
/// From the start of PID 1 to the first answer over mutual TLS, on a machine that was never on before. Asking is part
/// of it, and so is the process that asks; the best of three counts.
const FRESH_MAX: Duration = Duration::from_millis(150);
/// How long the idle machine is watched.
const IDLE: Duration = Duration::from_secs(20);
/// The node program, in bytes.
// The aim is 16 MB, which the node had before it ran Kubernetes; docs/status.md has the account of what grew.
const NODE_BYTES_MAX: u64 = 17_800_000;
/// `ichorctl`, in bytes.
const CLI_BYTES_MAX: u64 = 20_000_000;

#[test]
fn programs_are_small() {
    for (file, limit) in [("build/ichor", NODE_BYTES_MAX), ("bin/ichorctl", CLI_BYTES_MAX)] {
        let size =
            fs::metadata(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}; run `make build`")).len();
        println!("{file}: {size} bytes");
        assert!(size <= limit, "{file}: {size} bytes, {limit} at most");
    }
}

#[test]
fn an_idle_machine_needs_little_memory_and_less_cpu() {
    let fleet = Fleet::create("budget", 70, 1, 0, &[]).unwrap();
    fleet.ok(&["version"]).unwrap();
    fleet.ok(&["get", "rd"]).unwrap();
    // Buffers of the boot are given back a little later.
    std::thread::sleep(Duration::from_secs(12));

    let daemons: Vec<_> =
        ["init", "machined", "apid", "trustd"].into_iter().flat_map(|name| fleet.daemons(name)).collect();
    assert_eq!(daemons.len(), 4, "{daemons:?}");
    let mut total = 0;
    for daemon in &daemons {
        let kib = processes::pss(daemon.pid).unwrap();
        println!("{}: {kib} KiB", daemon.name);
        total += kib;
        if daemon.name == "init" {
            assert!(kib <= INIT_KIB_MAX, "init: {kib} KiB, {INIT_KIB_MAX} at most");
        }
    }
    println!("all daemons: {total} KiB");
    assert!(total <= DAEMONS_KIB_MAX, "{total} KiB, {DAEMONS_KIB_MAX} at most");

    let spent = || daemons.iter().map(|d| processes::run_nanos(d.pid).unwrap()).sum::<u64>();
    let wakes = || daemons.iter().map(|d| processes::switches(d.pid).unwrap()).collect::<Vec<_>>();
    let (before, wakes_before) = (spent(), wakes());
    std::thread::sleep(IDLE);
    let per_second: Vec<_> = wakes()
        .iter()
        .zip(wakes_before)
        .map(|(now, before)| (now - before) as f64 / IDLE.as_secs_f64())
        .collect();
    for (daemon, rate) in daemons.iter().zip(&per_second) {
        println!("{}: {rate:.2} wake-ups a second", daemon.name);
    }
    let all = per_second.iter().sum::<f64>();
    assert!(all <= IDLE_WAKES_MAX, "{all:.1} wake-ups a second, {IDLE_WAKES_MAX} at most: {per_second:?}");
    let share = (spent() - before) as f64 / IDLE.as_nanos() as f64;
    println!("idle CPU: {:.3} % of a core", share * 100.0);
    assert!(share <= IDLE_CPU_MAX, "{:.3} % of a core, {:.3} % at most", share * 100.0, IDLE_CPU_MAX * 100.0);
    fleet.destroy().unwrap();
}

#[test]
fn two_hundred_calls_do_not_grow_machined() {
    let fleet = Fleet::create("growth", 71, 1, 0, &[]).unwrap();
    let machined = fleet.daemons("machined")[0].pid;
    fleet.ok(&["get", "rd"]).unwrap();
    let before = wait("memory", Duration::from_secs(5), || processes::pss(machined)).unwrap();
    for _ in 0..100 {
        fleet.ok(&["get", "rd"]).unwrap();
        fleet.ok(&["logs", "machined"]).unwrap();
    }
    std::thread::sleep(Duration::from_secs(12));
    let after = processes::pss(machined).unwrap();
    println!("machined: {before} KiB before, {after} KiB after 200 calls");
    assert!(after <= before + 4096, "machined grew from {before} to {after} KiB");
    fleet.destroy().unwrap();
}

#[test]
fn a_new_machine_answers_at_once() {
    let mut best = Duration::MAX;
    for _ in 0..3 {
        let fleet = Fleet::create("fresh", 77, 1, 0, &["--wait=false"]).unwrap();
        wait("an answer", Duration::from_secs(10), || fleet.ok(&["version"]).ok()).unwrap();
        let answered = processes::uptime().unwrap();
        let init = &fleet.daemons("init")[0];
        best = best.min(answered.saturating_sub(init.since_boot()));
        fleet.destroy().unwrap();
    }
    println!("start of PID 1 to the first answer, fresh state: {best:?}");
    assert!(best <= FRESH_MAX, "{best:?}, {FRESH_MAX:?} at most");
}
