//! The life of a cluster, from outside: create, look, reboot, destroy, and a host that is as before.

use std::time::Duration;

use ichor_live::host::Snapshot;
use ichor_live::{Fleet, processes, wait};

#[test]
fn a_cluster_that_was_created_rebooted_and_destroyed_leaves_the_host_as_it_was() {
    let before = Snapshot::take();
    let fleet = Fleet::create("traces", 61, 1, 1, &[]).unwrap();

    let version = fleet.ok(&["version"]).unwrap();
    assert!(version.contains("Server:"), "{version}");
    for number in 0..2 {
        let node = fleet.address(number);
        let status = fleet.ok(&["-n", &node, "get", "machinestatus", "-o", "yaml"]).unwrap();
        assert!(status.contains("stage: running"), "{status}");
    }
    fleet.ok(&["-n", &fleet.address(1), "reboot"]).unwrap();
    fleet.ok(&["-n", &fleet.address(1), "version"]).unwrap();

    fleet.destroy().unwrap();
    let difference = before.difference(&Snapshot::take());
    assert!(difference.is_empty(), "{difference:#?}");
}

#[test]
fn several_clusters_live_side_by_side() {
    let one = Fleet::create("one", 62, 1, 0, &[]).unwrap();
    let two = Fleet::create("two", 63, 1, 0, &[]).unwrap();

    for fleet in [&one, &two] {
        let shown = fleet.ok(&["cluster", "show", "--name", fleet.name()]).unwrap();
        assert!(shown.contains(fleet.name()) && shown.contains(&fleet.address(0)), "{shown}");
        fleet.ok(&["version"]).unwrap();
    }
    one.destroy().unwrap();
    two.ok(&["version"]).unwrap();
    two.destroy().unwrap();
}

#[test]
fn a_second_create_with_the_same_name_says_what_to_do_and_harms_nothing() {
    let fleet = Fleet::create("twice", 64, 1, 0, &[]).unwrap();
    let error = fleet
        .fails(&["cluster", "create", "--name", fleet.name(), "--cidr", "10.65.0.0/24", "--workers", "0"])
        .unwrap();
    assert!(error.contains(fleet.name()) && error.contains("destroy"), "{error}");
    fleet.ok(&["version"]).unwrap();
    fleet.destroy().unwrap();
}

#[test]
fn a_busy_address_is_named() {
    let fleet = Fleet::named("busy", 66).unwrap();
    let _taken = std::net::TcpListener::bind((fleet.loopback(0), 50000)).unwrap();
    let error = fleet
        .fails(&["cluster", "create", "--name", fleet.name(), "--cidr", "10.66.0.0/24", "--workers", "0"])
        .unwrap();
    assert!(error.contains(&fleet.loopback(0)), "{error}");
}

#[test]
fn a_cluster_killed_half_way_can_be_destroyed() {
    let before = Snapshot::take();
    let fleet = Fleet::create("halfway", 67, 1, 1, &[]).unwrap();
    for supervisor in processes::with_argument(fleet.name()).iter().filter(|p| p.name.contains("ichorctl")) {
        processes::kill(supervisor.pid);
    }
    wait("machines end with their supervisor", Duration::from_secs(5), || {
        fleet.processes().is_empty().then_some(())
    })
    .unwrap();
    fleet.destroy().unwrap();
    let difference = before.difference(&Snapshot::take());
    assert!(difference.is_empty(), "{difference:#?}");
}

#[test]
fn machines_stop_and_start_and_keep_their_state() {
    let fleet = Fleet::create("pause", 68, 1, 0, &[]).unwrap();
    let identity = fleet.ok(&["get", "identity", "-o", "jsonpath={.spec.nodeId}"]).unwrap();
    fleet.ok(&["cluster", "stop", "--name", fleet.name()]).unwrap();
    assert!(fleet.daemons("machined").is_empty());
    fleet.ok(&["cluster", "start", "--name", fleet.name()]).unwrap();
    let again = fleet.ok(&["get", "identity", "-o", "jsonpath={.spec.nodeId}"]).unwrap();
    assert_eq!(identity, again);
    assert!(!identity.trim().is_empty());
    fleet.destroy().unwrap();
}
