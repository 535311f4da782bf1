//! Daemons die; nothing else does.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ichor_live::processes::{self, Process};
use ichor_live::{Fleet, SOON, eventually, wait};

/// How often each test kills, over all daemons.
const KILLS: usize = 200;
/// A daemon is back within this, and the API answers within that, every time. Looking at all processes of the host takes
/// its part of it.
const BACK_MAX: Duration = Duration::from_secs(1);
const ANSWER_MAX: Duration = Duration::from_secs(2);

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
    let (mut back, mut answered) = (Vec::new(), Vec::new());

    for round in 0..KILLS {
        let victim = ["machined", "apid", "trustd"][round % 3];
        let before = wait("all daemons run", SOON, || {
            let found = daemons(&fleet);
            (found.len() == 3).then_some(found)
        })
        .unwrap();

        let start = Instant::now();
        assert!(processes::kill(before[victim].pid));
        let after = wait(&format!("round {round}: {victim} is back"), SOON, || {
            let found = daemons(&fleet);
            (found.len() == 3 && found[victim] != before[victim]).then_some(found)
        })
        .unwrap();
        back.push(start.elapsed());
        for (name, process) in &after {
            if *name != victim {
                assert_eq!(
                    (process.pid, process.started),
                    (before[name].pid, before[name].started),
                    "round {round}: {name} was restarted with {victim}"
                );
            }
        }
        eventually(&format!("round {round}: the API answers after {victim} was killed"), SOON, || {
            fleet.ok(&["-n", &node, "version"])
        })
        .unwrap();
        answered.push(start.elapsed());
        let zombies: Vec<_> = fleet.processes().into_iter().filter(|p| p.state == 'Z').collect();
        // One may be on its way to its reaper at the very moment of the look.
        if !zombies.is_empty() {
            wait("no zombie stays", SOON, || fleet.processes().iter().all(|p| p.state != 'Z').then_some(()))
                .unwrap();
        }
    }
    for (what, mut times, limit) in [("back", back, BACK_MAX), ("an answer", answered, ANSWER_MAX)] {
        times.sort_unstable();
        let (usual, slowest) = (times[KILLS / 2], times[KILLS - 1]);
        println!("{KILLS} kills, {what}: half within {usual:?}, the slowest {slowest:?}");
        assert!(slowest <= limit, "{what}: {slowest:?} at the slowest, {limit:?} at most");
    }

    let running = |text: &str, name: &str| text.lines().any(|l| l.contains(name) && l.contains("Running"));
    let all = |text: &str| ["machined", "apid", "trustd"].iter().all(|name| running(text, name));
    fleet.says(&["-n", &node, "services"], all).unwrap();
    fleet.destroy().unwrap();
}
