//! Machines join and leave a cluster that is used: one control plane becomes three and loses the one that began it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ichor_live::host::Snapshot;
use ichor_live::story::{Part, tell};
use ichor_live::{Fleet, SOON, eventually, processes};
use serde_json::Value;

/// Longest wait for what follows from a change of the machines.
const SETTLE_MAX: Duration = Duration::from_secs(180);

/// Two pods that a budget holds apart.
const WEB: &str = include_str!("machines/web.yaml");

#[test]
fn machines_join_and_leave_a_cluster_in_use() {
    let before = Snapshot::take();
    // The first one needs no bootstrap.
    let fleet = Fleet::kubernetes("machines", 93, 1, 0, &["--with-init-node"]).unwrap();
    let story: [(&str, Part); 6] = [
        ("two control planes and a worker are added", add),
        ("what would cost the quorum is refused", quorum),
        ("a worker leaves, and a budget of its pods holds", worker_leaves),
        ("the control plane that began it leaves, and no write is lost", first_leaves),
        ("everything is as if it had never been there", without_the_first),
        ("a new one takes its place", successor),
    ];
    tell(&fleet, &story);
    fleet.destroy().unwrap();
    let difference = before.left();
    assert!(difference.is_empty(), "{difference:#?}");
}

fn get(fleet: &Fleet, what: &[&str]) -> Result<Value> {
    let mut args = vec!["get", "-o", "json"];
    args.extend(what);
    Ok(serde_json::from_str(&fleet.kubectl(&args)?)?)
}

fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map_or(&[], Vec::as_slice)
}

/// The names of nodes that are ready.
fn ready_nodes(fleet: &Fleet) -> Result<BTreeSet<String>> {
    let list = get(fleet, &["nodes"])?;
    let ready = |node: &&Value| {
        let conditions = node["status"]["conditions"].as_array();
        conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
    };
    let name = |node: &Value| node["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    Ok(items(&list).iter().filter(ready).map(name).collect())
}

fn machine(fleet: &Fleet, kind: &str, number: usize) -> String {
    format!("{}-{kind}-{number}", fleet.name())
}

fn names(fleet: &Fleet, machines: &[(&str, usize)]) -> BTreeSet<String> {
    machines.iter().map(|(kind, number)| machine(fleet, kind, *number)).collect()
}

/// Waits until the nodes are these, all ready.
fn nodes_are(fleet: &Fleet, machines: &[(&str, usize)]) -> Result<()> {
    eventually("the nodes", SETTLE_MAX, || {
        let (ready, wanted) = (ready_nodes(fleet)?, names(fleet, machines));
        ensure!(ready == wanted, "{ready:?}, not {wanted:?}");
        Ok(())
    })
}

/// Waits until a machine knows this many members of etcd that all vote and serve.
fn voters(fleet: &Fleet, number: u8, count: usize) -> Result<()> {
    fleet
        .says(&["-n", &fleet.address(number), "etcd", "members"], |text| {
            // One without an address for clients does not serve them yet.
            let serves = |line: &str| line.contains(":2379") && line.trim_end().ends_with("false");
            text.lines().skip(1).count() == count && text.lines().skip(1).all(serves)
        })
        .map(drop)
}

fn add(fleet: &Fleet) -> Result<()> {
    let told = fleet.fails(&["cluster", "add", "--name", fleet.name()])?;
    ensure!(told.contains("there is nothing to add"), "{told}");
    let shown =
        fleet.ok(&["cluster", "add", "--name", fleet.name(), "--controlplanes", "2", "--workers", "1"])?;
    for (name, address) in [("controlplane-3", 2), ("worker-1", 3)] {
        let line = shown.lines().find(|line| line.contains(name)).with_context(|| shown.clone())?;
        ensure!(line.contains(&fleet.address(address)) && line.contains("running"), "{line}");
    }
    voters(fleet, 2, 3)?;
    nodes_are(fleet, &[("controlplane", 1), ("controlplane", 2), ("controlplane", 3), ("worker", 1)])?;
    // The new ones are reached as the first ones are.
    for number in [1, 2] {
        fleet.soon(&["-e", &fleet.loopback(number), "-n", &fleet.address(number), "version"])?;
    }
    Ok(())
}

/// The process of a machine's member of etcd, as the host sees it.
fn member(fleet: &Fleet, name: &str) -> Result<i32> {
    let own = format!("--name={name}");
    let is = |pid: i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|argument| argument == own.as_bytes())
    };
    let found = fleet.daemons("etcd").into_iter().find(|process| is(process.pid));
    Ok(found.with_context(|| format!("no member {name}"))?.pid)
}

fn quorum(fleet: &Fleet) -> Result<()> {
    let held = member(fleet, &machine(fleet, "controlplane", 3))?;
    ensure!(processes::hold(held, true));
    let told =
        fleet.fails(&["cluster", "remove", "--name", fleet.name(), &machine(fleet, "controlplane", 2)]);
    ensure!(processes::hold(held, false));
    let told = told?;
    ensure!(told.contains("would lose its quorum") && told.contains("controlplane-3"), "{told}");
    let told = fleet.fails(&["cluster", "remove", "--name", fleet.name(), "nobody"])?;
    ensure!(told.contains("has no machine nobody"), "{told}");
    // The one that was held catches up before anything else is asked of it.
    for number in 0..3 {
        voters(fleet, number, 3)?;
    }
    Ok(())
}

/// Pods of the deployment that are ready, by node.
fn web_on(fleet: &Fleet) -> Result<Vec<String>> {
    let list = get(fleet, &["pods", "-l", "app=web"])?;
    let ready = |pod: &&Value| {
        let conditions = pod["status"]["conditions"].as_array();
        conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
    };
    let node = |pod: &Value| pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
    Ok(items(&list).iter().filter(ready).map(node).collect())
}

fn worker_leaves(fleet: &Fleet) -> Result<()> {
    let path = fleet.home().join("web.yaml");
    std::fs::write(&path, WEB)?;
    fleet.kubectl(&["apply", "-f", &path.to_string_lossy()])?;
    let worker = machine(fleet, "worker", 1);
    eventually("both pods on the worker", SETTLE_MAX, || {
        let nodes = web_on(fleet)?;
        ensure!(nodes == [worker.as_str(); 2], "{nodes:?}");
        Ok(())
    })?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| least_ready(fleet, &done));
        let removed = fleet.ok(&["cluster", "remove", "--name", fleet.name(), &worker]);
        done.store(true, Ordering::SeqCst);
        let (looks, least) = watcher.join().map_err(|_| anyhow::anyhow!("the watcher panicked"))?;
        removed?;
        println!("    {looks} looks, at least {least} of 2 pods ready");
        ensure!(looks > 0 && least >= 1, "{least} pods were ready at the worst of {looks} looks");
        Ok(())
    })?;
    let nodes = fleet.kubectl(&["get", "nodes"])?;
    ensure!(!nodes.contains(&worker), "{nodes}");
    eventually("both pods elsewhere", SETTLE_MAX, || {
        let nodes = web_on(fleet)?;
        ensure!(nodes.len() == 2 && !nodes.contains(&worker), "{nodes:?}");
        Ok(())
    })
}

/// Looks until told to stop; an API that does not answer shows nothing.
fn least_ready(fleet: &Fleet, done: &AtomicBool) -> (u32, usize) {
    let (mut looks, mut least) = (0, usize::MAX);
    while !done.load(Ordering::SeqCst) {
        if let Ok(nodes) = web_on(fleet) {
            looks += 1;
            least = least.min(nodes.len());
        }
    }
    (looks, least)
}

fn first_leaves(fleet: &Fleet) -> Result<()> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(fleet, &done));
        let removed = fleet.ok(&["cluster", "remove", "--name", fleet.name(), &fleet.address(0)]);
        // The others go on for a while without it.
        std::thread::sleep(Duration::from_secs(3));
        done.store(true, Ordering::SeqCst);
        let written = writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?;
        removed?;
        all_there(fleet, &written?)
    })
}

/// Writes through the control planes that stay, each write twice at most. Gives the names of all that were taken.
fn write_until(fleet: &Fleet, done: &AtomicBool) -> Result<Vec<String>> {
    let (mut names, mut again) = (Vec::new(), 0);
    while !done.load(Ordering::SeqCst) {
        let number = names.len();
        let write = |turn: usize, name: &str| {
            let server = format!("https://{}:6443", fleet.loopback(1 + (turn % 2) as u8));
            fleet.kubectl(&["--server", &server, "create", "configmap", name, "--from-literal=a=b"])
        };
        let mut name = format!("write-{number}");
        if let Err(first) = write(number, &name) {
            again += 1;
            std::thread::sleep(Duration::from_secs(1));
            name.push_str("-again");
            write(number + 1, &name)
                .with_context(|| format!("write {number} failed twice, first: {first}"))?;
        }
        names.push(name);
    }
    println!("    {} writes, {again} of them at the second try, none refused", names.len());
    ensure!(names.len() > 2, "only {} writes", names.len());
    Ok(names)
}

fn all_there(fleet: &Fleet, names: &[String]) -> Result<()> {
    let list = eventually("the writes", SOON, || get(fleet, &["configmaps"]))?;
    let found: BTreeSet<&str> =
        items(&list).iter().filter_map(|object| object["metadata"]["name"].as_str()).collect();
    let lost: Vec<&String> = names.iter().filter(|name| !found.contains(name.as_str())).collect();
    ensure!(lost.is_empty(), "lost: {lost:?}");
    Ok(())
}

fn without_the_first(fleet: &Fleet) -> Result<()> {
    nodes_are(fleet, &[("controlplane", 2), ("controlplane", 3)])?;
    voters(fleet, 1, 2)?;
    // The client configuration follows, and the address of the API is the one it always was.
    let config = std::fs::read_to_string(fleet.home().join(".talos/config"))?;
    ensure!(!config.contains(&fleet.loopback(0)) && config.contains(&fleet.loopback(2)), "{config}");
    let server = format!("https://{}:6443", fleet.loopback(0));
    fleet.kubectl(&["--server", &server, "get", "nodes"])?;
    fleet.soon(&["-n", &fleet.address(1), "health", "--wait-timeout", "2m"])?;
    Ok(())
}

/// The next control plane gets the address of the endpoint, and joins through those that are left.
fn successor(fleet: &Fleet) -> Result<()> {
    fleet.ok(&["cluster", "add", "--name", fleet.name(), "--controlplanes", "1"])?;
    voters(fleet, 0, 3)?;
    nodes_are(fleet, &[("controlplane", 2), ("controlplane", 3), ("controlplane", 4)])?;
    let shown = fleet.ok(&["cluster", "show", "--name", fleet.name()])?;
    let line = shown.lines().find(|line| line.contains("controlplane-4")).with_context(|| shown.clone())?;
    ensure!(line.contains(&format!("{} ", fleet.address(0))), "{line}");
    Ok(())
}
