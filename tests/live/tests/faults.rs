//! Daemons die; nothing else does.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ichor_live::processes::{self, Process};
use ichor_live::{Fleet, wait};

/// How often each test kills, over all daemons.
const KILLS: usize = 200;

/// The daemons of the machine, by name.
fn daemons(fleet: &Fleet) -> BTreeMap<&'static str, Process> {
    ["machined", "apid", "trustd"]
        .into_iter()
        .filter_map(|name| Some((name, fleet.daemons(name).into_iter().next()?)))
        .collect()
}

#[test]
fn two_hundred_kills_restart_only_what_was_killed() {
    let fleet = Fleet::create("kills", 69, 1, 0, &[]).unwrap();
    let node = fleet.address(0);
    let mut slowest = Duration::ZERO;

    for round in 0..KILLS {
        let victim = ["machined", "apid", "trustd"][round % 3];
        let before = wait("all daemons run", Duration::from_secs(10), || {
            let found = daemons(&fleet);
            (found.len() == 3).then_some(found)
        })
        .unwrap();

        let start = Instant::now();
        assert!(processes::kill(before[victim].pid));
        let after = wait(&format!("round {round}: {victim} is back"), Duration::from_secs(1), || {
            let found = daemons(&fleet);
            (found.len() == 3 && found[victim] != before[victim]).then_some(found)
        })
        .unwrap();
        for (name, process) in &after {
            if *name != victim {
                assert_eq!(
                    (process.pid, process.started),
                    (before[name].pid, before[name].started),
                    "round {round}: {name} was restarted with {victim}"
                );
            }
        }
        wait(
            &format!("round {round}: the API answers after {victim} was killed"),
            Duration::from_secs(2),
            || fleet.ok(&["-n", &node, "version"]).ok(),
        )
        .unwrap();
        slowest = slowest.max(start.elapsed());
        let zombies: Vec<_> = fleet.processes().into_iter().filter(|p| p.state == 'Z').collect();
        // One may be on its way to its reaper at the very moment of the look.
        if !zombies.is_empty() {
            wait("no zombie stays", Duration::from_secs(1), || {
                fleet.processes().iter().all(|p| p.state != 'Z').then_some(())
            })
            .unwrap();
        }
    }
    println!("{KILLS} kills, slowest return to an answering API: {slowest:?}");

    let services = fleet.ok(&["-n", &node, "services"]).unwrap();
    for name in ["machined", "apid", "trustd"] {
        assert!(services.lines().any(|l| l.contains(name) && l.contains("Running")), "{services}");
    }
    fleet.destroy().unwrap();
}
