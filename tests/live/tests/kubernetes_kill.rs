//! The programs of a node die one by one; only they come back, and pods do not notice.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ichor_live::processes::{self, Process};
use ichor_live::{Fleet, wait};

/// What is killed, over and over.
const VICTIMS: [&str; 4] = ["machined", "kubelet", "etcd", "containerd"];
/// What must not notice.
const OTHERS: [&str; 3] = ["apid", "trustd", "kube-apiserver"];
/// Longest wait until all is well.
const WELL_MAX: Duration = Duration::from_secs(240);
/// How often.
const ROUNDS: usize = 8;

/// The programs of the machine by name, one of a pod among them. Others of the control plane end by themselves when
/// they lose their lease.
fn programs(fleet: &Fleet) -> BTreeMap<&'static str, Process> {
    let names = VICTIMS.into_iter().chain(OTHERS);
    names.filter_map(|name| Some((name, fleet.daemons(name).into_iter().next()?))).collect()
}

fn all_up(fleet: &Fleet) -> Option<BTreeMap<&'static str, Process>> {
    let found = programs(fleet);
    let services = fleet.ok(&["-n", &fleet.address(0), "services"]).ok()?;
    let up = |name: &&str| services.lines().any(|line| line.contains(name) && line.contains("OK"));
    (found.len() == VICTIMS.len() + OTHERS.len() && ["cri", "etcd", "kubelet"].iter().all(up))
        .then_some(found)
}

#[test]
fn programs_of_a_node_come_back_alone() {
    let fleet = Fleet::kubernetes("k8s-kills", 91, 1, 0, &[]).unwrap();
    let mut slowest: BTreeMap<&str, Duration> = BTreeMap::new();
    for round in 0..ROUNDS {
        let victim = VICTIMS[round % VICTIMS.len()];
        let before = wait("all is well", WELL_MAX, || all_up(&fleet)).unwrap();
        let start = Instant::now();
        assert!(processes::kill(before[victim].pid));
        let after = wait(&format!("round {round}: {victim} is back"), WELL_MAX, || {
            all_up(&fleet).filter(|found| found[victim] != before[victim])
        })
        .unwrap();
        let took = slowest.entry(victim).or_default();
        *took = (*took).max(start.elapsed());
        for (name, process) in after.iter().filter(|(name, _)| **name != victim) {
            assert_eq!(
                (process.pid, process.started),
                (before[name].pid, before[name].started),
                "round {round}: {name} was started anew with {victim}"
            );
        }
    }
    println!("{ROUNDS} kills, slowest return: {slowest:?}");
    wait("the API answers", WELL_MAX, || fleet.kubectl(&["get", "nodes"]).ok()).unwrap();

    // Containers of services look to clients as those of the original do.
    let has =
        |text: &str, image: &str| text.lines().any(|line| line.contains(image) && line.contains("RUNNING"));
    let both = |text: &str| has(text, "siderolabs/kubelet") && has(text, "etcd");
    fleet.says(&["-n", &fleet.address(0), "containers"], both).unwrap();

    fleet.ok(&["-n", &fleet.address(0), "reboot"]).unwrap();
    wait("the machine is back", WELL_MAX, || all_up(&fleet)).unwrap();
    fleet.destroy().unwrap();
}
