//! What goes wrong with machines that join, and with the cluster they join: it is said why, nothing is left half
//! done, and the next try succeeds.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ichor_live::story::{Part, tell};
use ichor_live::{Fleet, SOON, eventually, processes, wait};

/// Longest wait for a machine to join, or for what follows from it.
const JOIN_MAX: Duration = Duration::from_secs(240);
/// So much room etcd has: a few large objects fill it. What was deleted is forgotten soon, as it is after minutes
/// elsewhere.
const QUOTA: &str = "cluster: {etcd: {extraArgs: {quota-backend-bytes: \"33554432\", \
    auto-compaction-mode: periodic, auto-compaction-retention: 10s}}}";
/// The size of such an object, below what the API takes.
const LARGE: usize = 900 * 1024;

#[test]
fn joins_that_fail_say_why_and_the_next_try_succeeds() {
    let fleet = Fleet::kubernetes("joining", 93, 1, 0, &["--config-patch", QUOTA]).unwrap();
    let story: [(&str, Part); 6] = [
        ("manifests that cannot be read or applied", manifests),
        ("a worker with a wrong token", wrong_token),
        ("a worker whose kubelet has no image", no_image),
        ("a control plane with another authority", wrong_authority),
        ("a control plane that dies while it joins", killed),
        ("a full database", full),
    ];
    tell(&fleet, &story);
    fleet.destroy().unwrap();
}

/// Why they are not in the cluster is a resource, and `health` says it; what is mended is applied.
fn manifests(fleet: &Fleet) -> Result<()> {
    let node = fleet.address(0);
    let before = fleet.soon(&["-n", &node, "read", "/system/state/config.yaml"])?;
    let patch = |contents: [&str; 2]| {
        let [unread, refused] = contents;
        let manifests = format!(
            "cluster:\n  inlineManifests:\n    - name: unread\n      contents: {unread:?}\n    - name: refused\n      \
             contents: {refused:?}\n"
        );
        fleet.soon(&["-n", &node, "patch", "machineconfig", "--mode", "no-reboot", "--patch", &manifests])
    };
    patch(["kind: [", "{apiVersion: example.com/v1, kind: Thing, metadata: {name: thing}}"])?;
    let reasons = ["manifest 99-unread: ", "99-refused: Thing thing: the server knows no Thing"];
    let list = ["-n", &node, "get", "diagnostics", "-o", "yaml"];
    fleet.says(&list, |text| reasons.iter().all(|reason| text.contains(reason)))?;
    eventually("health says why", SOON, || {
        let output = fleet.run(&["-n", &node, "health", "--wait-timeout", "10s"])?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        ensure!(!output.status.success() && reasons.iter().all(|reason| text.contains(reason)), "{text}");
        Ok(())
    })?;
    // Lists of a patch are added to those that are there: first without, then with what was meant.
    let file = fleet.home().join("before.yaml");
    std::fs::write(&file, before)?;
    let file = file.to_string_lossy();
    fleet.soon(&["-n", &node, "apply-config", "--mode", "no-reboot", "--file", &file])?;
    fleet.says(&list, |text| !text.contains("99-"))?;
    patch([
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: unread, namespace: default}}",
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: refused, namespace: default}}",
    ])?;
    eventually("what was mended", SOON, || fleet.kubectl(&["get", "configmaps", "unread", "refused"]))?;
    fleet.says(&list, |text| !text.contains("99-"))?;
    fleet.ok(&["-n", &node, "health", "--wait-timeout", "5m"]).map(drop)
}

fn add(fleet: &Fleet, kind: &str, patch: &str) -> Result<()> {
    let mut args = vec!["cluster", "add", "--name", fleet.name(), kind, "1", "--wait=false"];
    if !patch.is_empty() {
        args.extend(["--config-patch", patch]);
    }
    fleet.ok(&args).map(drop)
}

fn remove(fleet: &Fleet, machine: &str, more: &[&str]) -> Result<()> {
    fleet.ok(&[&["cluster", "remove", "--name", fleet.name(), machine], more].concat()).map(drop)
}

/// Waits until a node is ready.
fn ready(fleet: &Fleet, machine: &str) -> Result<()> {
    eventually("a node that is ready", JOIN_MAX, || {
        let nodes = fleet.kubectl(&["get", "nodes"])?;
        ensure!(nodes.lines().any(|line| line.starts_with(machine) && line.contains(" Ready ")), "{nodes}");
        Ok(())
    })
}

/// The members of etcd, one a line.
fn members(fleet: &Fleet) -> Result<Vec<String>> {
    let text = fleet.ok(&["-n", &fleet.address(0), "etcd", "members"])?;
    Ok(text.lines().skip(1).map(|line| line.trim_end().to_owned()).collect())
}

/// Waits until this many members serve and vote, and there are no others.
fn voters(fleet: &Fleet, count: usize) -> Result<()> {
    eventually("members that vote", JOIN_MAX, || {
        let members = members(fleet)?;
        let serves = |line: &String| line.contains(":2379") && line.ends_with("false");
        ensure!(members.len() == count && members.iter().all(serves), "{members:?}");
        Ok(())
    })
}

/// It cannot have a certificate, so it says why where everything can be seen that has no API: on its console.
fn wrong_token(fleet: &Fleet) -> Result<()> {
    let worker = format!("{}-worker-1", fleet.name());
    add(fleet, "--workers", "machine: {token: aaaaaa.aaaaaaaaaaaaaaaa}")?;
    let console = fleet.home().join(format!(".talos/clusters/{}/{worker}.log", fleet.name()));
    wait("the reason on the console", SOON, || {
        let text = std::fs::read_to_string(&console).unwrap_or_default();
        text.lines().any(|line| line.contains("Unauthenticated")).then_some(())
    })?;
    fleet.fails(&["-e", &fleet.loopback(1), "-n", &fleet.address(1), "version"])?;
    remove(fleet, &worker, &["--force"])?;
    voters(fleet, 1)
}

fn no_image(fleet: &Fleet) -> Result<()> {
    let worker = format!("{}-worker-1", fleet.name());
    add(fleet, "--workers", "machine: {kubelet: {image: \"ghcr.io/siderolabs/kubelet:v1.35.99\"}}")?;
    let node = fleet.address(1);
    let why = |text: &str| text.contains("v1.35.99") && text.contains("kubelet");
    eventually("why", SOON, || {
        let output = fleet.run(&["-n", &node, "why"])?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(why(&text), "{text}");
        Ok(())
    })?;
    fleet.says(&["-n", &node, "service", "kubelet"], |text| text.contains("v1.35.99"))?;
    // The right one, and it joins by itself.
    let right = "machine: {kubelet: {image: \"ghcr.io/siderolabs/kubelet:v1.35.0\"}}";
    fleet.soon(&["-n", &node, "patch", "machineconfig", "--mode", "no-reboot", "--patch", right])?;
    ready(fleet, &worker)?;
    remove(fleet, &worker, &[])
}

/// The authority of etcd in a configuration, as a patch.
fn authority(config: &std::path::Path) -> Result<String> {
    let text = std::fs::read(config)?;
    let documents =
        ichor_config::Documents::load(&text).map_err(|problems| anyhow::anyhow!("{problems:?}"))?;
    let etcd = documents.root().and_then(|root| root.cluster.as_ref()?.etcd.clone());
    let pair = etcd.and_then(|etcd| etcd.ca).context("no authority of etcd")?;
    let encode = |pem: &[u8]| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem);
    Ok(format!("cluster: {{etcd: {{ca: {{crt: {}, key: {}}}}}}}", encode(&pair.crt.0), encode(&pair.key.0)))
}

fn wrong_authority(fleet: &Fleet) -> Result<()> {
    let dir = fleet.home().join("other");
    let place = dir.to_string_lossy().into_owned();
    fleet.ok(&["gen", "config", "other", "https://10.93.0.2:6443", "--output", &place])?;
    let machines = fleet.home().join(format!(".talos/clusters/{}/machines", fleet.name()));
    let right = authority(&machines.join(format!("{}-controlplane-1/config.yaml", fleet.name())))?;
    add(fleet, "--controlplanes", &authority(&dir.join("controlplane.yaml"))?)?;
    let node = fleet.address(1);
    fleet.says(&["-n", &node, "service", "etcd"], |text| {
        text.contains("Waiting to join a cluster") && text.contains("certificate")
    })?;
    eventually("why", SOON, || {
        let output = fleet.run(&["-n", &node, "why"])?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(text.contains("etcd") && text.contains("certificate"), "{text}");
        Ok(())
    })?;
    // Nobody was let in half-way.
    voters(fleet, 1)?;
    fleet.soon(&["-n", &node, "patch", "machineconfig", "--mode", "no-reboot", "--patch", &right])?;
    voters(fleet, 2)?;
    ready(fleet, &format!("{}-controlplane-2", fleet.name()))
}

/// The machine's power goes the moment the others know it as one who joins.
fn killed(fleet: &Fleet) -> Result<()> {
    let machine = format!("{}-controlplane-3", fleet.name());
    let address = fleet.address(2);
    add(fleet, "--controlplanes", "")?;
    let seen = wait("a third member", JOIN_MAX, || {
        let members = members(fleet).ok()?;
        members.into_iter().find(|line| line.contains(&address))
    })?;
    let init = fleet.daemons("init").into_iter().next_back().context("no machine")?;
    ensure!(processes::kill(init.pid), "kill the new machine");
    println!("    it was {}", if seen.ends_with("true") { "a learner" } else { "a member already" });
    eventually("the end of the machine", SOON, || {
        let shown = fleet.ok(&["cluster", "show", "--name", fleet.name()])?;
        ensure!(shown.lines().any(|line| line.contains(&machine) && line.contains("crashed")), "{shown}");
        Ok(())
    })?;
    fleet.ok(&["cluster", "start", "--name", fleet.name(), &machine, "--wait=false"])?;
    voters(fleet, 3)?;
    ready(fleet, &machine)
}

fn full(fleet: &Fleet) -> Result<()> {
    let file = fleet.home().join("large");
    std::fs::write(&file, "x".repeat(LARGE))?;
    let from = format!("--from-file={}", file.display());
    let mut names = Vec::new();
    let refused = wait("a full database", JOIN_MAX, || {
        let name = format!("large-{}", names.len());
        let written = fleet.kubectl(&["create", "configmap", &name, &from]);
        names.push(name);
        written.err().map(|error| error.to_string()).filter(|error| error.contains("space"))
    })?;
    println!("    refused after {} objects: {}", names.len(), refused.lines().last().unwrap_or_default());
    let node = fleet.address(0);
    fleet.says(&["-n", &node, "etcd", "alarm", "list"], |text| text.contains("NOSPACE"))?;
    fleet.says(&["-n", &node, "get", "diagnostics"], |text| text.contains("etcd-nospace"))?;
    // What is not needed goes, which a full database still allows, then its pages, then the alarm.
    let mut delete = vec!["delete", "configmap", "--ignore-not-found", "--wait=false"];
    delete.extend(names.iter().map(String::as_str));
    eventually("objects that go", JOIN_MAX, || fleet.kubectl(&delete))?;
    let nodes: Vec<String> = (0..3).map(|number| fleet.address(number)).collect();
    eventually("writes again", JOIN_MAX, || {
        // Old versions of objects take room until they are compacted.
        for node in &nodes {
            fleet.ok(&["-n", node, "etcd", "defrag"])?;
        }
        fleet.ok(&["-n", &node, "etcd", "alarm", "disarm"])?;
        fleet.kubectl(&["create", "configmap", "small", "--from-literal=a=b"]).map(drop)
    })?;
    fleet.says(&["-n", &node, "etcd", "alarm", "list"], |text| !text.contains("NOSPACE")).map(drop)
}
