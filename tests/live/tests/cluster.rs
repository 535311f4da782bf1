//! The life of a cluster, from outside: create, look, reboot, destroy, and a host that is as before.

use ichor_live::host::Snapshot;
use ichor_live::{Fleet, SOON, processes, wait};

#[test]
fn a_cluster_that_was_created_rebooted_and_destroyed_leaves_the_host_as_it_was() {
    let before = Snapshot::take();
    let fleet = Fleet::create("traces", 61, 1, 1, &[]).unwrap();

    let version = fleet.ok(&["version"]).unwrap();
    assert!(version.contains("Server:"), "{version}");
    for number in 0..2 {
        let node = fleet.address(number);
        let status = ["-n", &node, "get", "machinestatus", "-o", "yaml"];
        fleet.says(&status, |text| text.contains("stage: running")).unwrap();
    }
    fleet.ok(&["-n", &fleet.address(1), "reboot"]).unwrap();
    fleet.soon(&["-n", &fleet.address(1), "version"]).unwrap();

    fleet.destroy().unwrap();
    let difference = before.left();
    assert!(difference.is_empty(), "{difference:#?}");
}

#[test]
fn several_clusters_live_side_by_side() {
    let one = Fleet::create("one", 62, 1, 0, &[]).unwrap();
    let two = Fleet::create("two", 63, 1, 0, &[]).unwrap();

    for fleet in [&one, &two] {
        let shown = fleet.ok(&["cluster", "show", "--name", fleet.name()]).unwrap();
        assert!(shown.contains(fleet.name()) && shown.contains(&fleet.address(0)), "{shown}");
        fleet.soon(&["version"]).unwrap();
    }
    one.destroy().unwrap();
    two.soon(&["version"]).unwrap();
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
    wait("machines end with their supervisor", SOON, || fleet.processes().is_empty().then_some(())).unwrap();
    fleet.destroy().unwrap();
    let difference = before.left();
    assert!(difference.is_empty(), "{difference:#?}");
}

#[test]
fn machines_stop_and_start_and_keep_their_state() {
    let fleet = Fleet::create("pause", 68, 1, 0, &[]).unwrap();
    let identity = fleet.soon(&["get", "identity", "-o", "jsonpath={.spec.nodeId}"]).unwrap();
    fleet.ok(&["cluster", "stop", "--name", fleet.name()]).unwrap();
    wait("the end of machined", SOON, || fleet.daemons("machined").is_empty().then_some(())).unwrap();
    fleet.ok(&["cluster", "start", "--name", fleet.name()]).unwrap();
    let again = fleet.soon(&["get", "identity", "-o", "jsonpath={.spec.nodeId}"]).unwrap();
    assert_eq!(identity, again);
    assert!(!identity.trim().is_empty());
    fleet.destroy().unwrap();
}

#[test]
fn a_machine_gets_the_memory_and_cpus_that_were_asked_for() {
    let sizes = ["--memory", "300MiB", "--cpus", "1.5", "--memory-workers", "200", "--cpus-workers", "0.5"];
    let fleet = Fleet::create("size", 69, 1, 1, &sizes).unwrap();
    let shown = fleet.ok(&["cluster", "show", "--name", fleet.name()]).unwrap();
    for word in ["1.50", "315 MB", "0.50", "210 MB"] {
        assert!(shown.contains(word), "{word} in {shown}");
    }
    wait("both machines", SOON, || (fleet.daemons("init").len() == 2).then_some(())).unwrap();
    let mut found: Vec<_> = fleet.daemons("init").iter().map(|init| limits_of(init.pid)).collect();
    found.sort_unstable();
    assert_eq!(found, [(200 << 20, 500), (300 << 20, 1500)]);

    let error = fleet.fails(&["cluster", "create", "--name", "none", "--memory", "1MiB"]).unwrap();
    assert!(error.contains("--memory"), "{error}");
    fleet.destroy().unwrap();
}

/// The nearest ceilings above a process, in bytes and thousandths of a processor; both kinds of hierarchy.
fn limits_of(pid: i32) -> (u64, u64) {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let nearest = |controller: &str, files: [&str; 2]| {
        let line = groups.lines().find(|line| {
            let names = line.split(':').nth(1).unwrap_or_default();
            names.split(',').any(|name| name == controller)
        });
        let (tree, line) = match line {
            Some(line) => (format!("/sys/fs/cgroup/{}", line.split(':').nth(1).unwrap()), line),
            None => ("/sys/fs/cgroup".to_owned(), groups.lines().find(|l| l.starts_with("0::")).unwrap()),
        };
        let path = line.splitn(3, ':').nth(2).unwrap().trim_start_matches('/').to_owned();
        let path = std::path::Path::new(&path);
        path.ancestors()
            .flat_map(|group| files.map(|file| std::path::Path::new(&tree).join(group).join(file)))
            .filter_map(|file| std::fs::read_to_string(file).ok()?.split_whitespace().next()?.parse().ok())
            // No limit is a word, -1 or a number near the largest.
            .find(|value| *value < 1_u64 << 60)
            .unwrap_or(0)
    };
    let memory = nearest("memory", ["memory.max", "memory.limit_in_bytes"]);
    let quota = nearest("cpu", ["cpu.max", "cpu.cfs_quota_us"]);
    (memory, quota / 100)
}
