//! Containers on a machine: where its images come from, and what a container cannot do to the host.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ichor_live::host::Snapshot;
use ichor_live::{Fleet, eventually, wait};

/// The time for an image of the largest layer, on a machine that does something else too.
const PULL_MAX: Duration = Duration::from_secs(30);
/// Longest wait for a pod to end.
const POD_MAX: Duration = Duration::from_secs(300);

/// A pod that may do everything, on any node.
const POD: &str = r#"{
  "apiVersion": "v1", "kind": "Pod",
  "metadata": { "name": "meddler", "namespace": "kube-system" },
  "spec": {
    "restartPolicy": "Never", "hostPID": true, "hostNetwork": true, "hostIPC": true,
    "tolerations": [{ "operator": "Exists" }],
    "containers": [{
      "name": "meddler", "image": "registry.k8s.io/pause:3.10", "command": ["/meddler"],
      "securityContext": { "privileged": true },
      "volumeMounts": [{ "name": "program", "mountPath": "/meddler" }]
    }],
    "volumes": [{ "name": "program", "hostPath": { "path": "/var/meddler" } }]
  }
}"#;

#[test]
fn images_come_from_the_mirror_and_containers_stay_in_their_machine() {
    let before = Snapshot::take();
    let fleet = Fleet::kubernetes("boxes", 92, 1, 0, &[]).unwrap();
    configured(&fleet).context("the runtime is configured").unwrap();
    pulls(&fleet).context("images are pulled").unwrap();
    pods(&fleet).context("pods through the machine API").unwrap();
    meddling(&fleet).context("a privileged pod").unwrap();
    fleet.destroy().unwrap();
    let difference = before.left();
    assert!(difference.is_empty(), "{difference:#?}");
}

fn on(fleet: &Fleet, args: &[&str]) -> Result<String> {
    let address = fleet.address(0);
    let all: Vec<&str> = ["-n", &address].into_iter().chain(args.iter().copied()).collect();
    fleet.soon(&all)
}

/// The mirrors of the configuration and the parts reach containerd as files.
fn configured(fleet: &Fleet) -> Result<()> {
    let hosts = on(fleet, &["read", "/etc/cri/conf.d/hosts/registry.k8s.io/hosts.toml"])?;
    ensure!(hosts.contains("[host.'http://10.92.0.1:5000']"), "{hosts}");
    let merged = on(fleet, &["read", "/etc/cri/conf.d/cri.toml"])?;
    for line in [
        "## /etc/cri/conf.d/00-base.part (sha256:",
        "config_path = '/etc/cri/conf.d/hosts'",
        "base_runtime_spec = '/etc/cri/conf.d/base-spec.json'",
        "discard_unpacked_layers = true",
    ] {
        ensure!(merged.contains(line), "no {line} in {merged}");
    }
    let registries = on(fleet, &["get", "registryconfigs", "-o", "yaml"])?;
    ensure!(registries.contains("http://10.92.0.1:5000"), "{registries}");
    let well = |line: &str| line.contains(" cri ") && line.contains("Running   OK");
    fleet.says(&["-n", &fleet.address(0), "services"], |text| text.lines().any(well)).map(drop)
}

fn pulls(fleet: &Fleet) -> Result<()> {
    let start = Instant::now();
    on(fleet, &["image", "pull", "--namespace", "system", "registry.k8s.io/kube-proxy:v1.35.0"])?;
    let taken = start.elapsed();
    println!("kube-proxy pulled and unpacked in {:.2} s", taken.as_secs_f64());
    ensure!(taken < PULL_MAX, "{taken:?}");
    let address = fleet.address(0);
    let missing = ["-n", &address, "image", "pull", "--namespace", "cri", "registry.k8s.io/nothing:v0"];
    fleet.refused(&missing, "registry.k8s.io/nothing:v0").map(drop)
}

/// The name of the scheduler's container that runs; one that ended stays in the list for a while.
fn scheduler(listed: &str) -> Option<String> {
    let mut running = listed.lines().filter(|line| line.contains("CONTAINER_RUNNING"));
    running
        .find_map(|line| line.split_whitespace().find(|word| word.contains(":kube-scheduler:")))
        .map(str::to_owned)
}

/// Containers of pods are listed, counted, read and restarted, and so is a service.
fn pods(fleet: &Fleet) -> Result<()> {
    let node = fleet.address(0);
    let list = ["-n", &node, "containers", "-k"];
    let listed = fleet.says(&list, |text| scheduler(text).is_some())?;
    let id = scheduler(&listed).context("no scheduler")?;
    let memory = |text: &str| {
        let line = text.lines().find(|line| line.contains(&id))?;
        line.split_whitespace().find_map(|word| word.parse::<f64>().ok().filter(|megabytes| *megabytes > 1.0))
    };
    fleet.says(&["-n", &node, "stats", "-k"], |text| memory(text).is_some())?;
    let log = ["-n", &node, "logs", "-k", &id, "--tail", "1"];
    fleet.says(&log, |text| !text.trim().is_empty())?;
    on(fleet, &["restart", "-k", &id])?;
    fleet.says(&list, |text| scheduler(text).is_some_and(|new| new != id))?;
    let before = fleet.daemon("kubelet")?.pid;
    on(fleet, &["service", "kubelet", "restart"])?;
    wait("another kubelet", POD_MAX, || fleet.daemon("kubelet").ok().filter(|new| new.pid != before))?;
    let well = |line: &str| line.contains(" kubelet ") && line.contains("Running   OK");
    fleet.says(&["-n", &node, "services"], |text| text.lines().any(well)).map(drop)
}

/// A privileged pod with the namespaces of its machine tries to change the host, and does not.
fn meddling(fleet: &Fleet) -> Result<()> {
    let machine = format!("{}-controlplane-1", fleet.name());
    let clusters = fleet.home().join(".talos/clusters");
    let program = clusters.join(fleet.name()).join("machines").join(machine).join("var/meddler");
    std::fs::copy(env!("CARGO_BIN_EXE_meddler"), &program).with_context(|| program.display().to_string())?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    let file = fleet.home().join("meddler.json");
    std::fs::write(&file, POD)?;
    // The account that pods run under is made a moment after the server is there.
    eventually("the pod is taken", POD_MAX, || fleet.kubectl(&["apply", "-f", &file.to_string_lossy()]))?;
    let pod = ["-n", "kube-system", "get", "pod", "meddler", "-o", "jsonpath={.status.phase}"];
    wait("the pod to end", POD_MAX, || match fleet.kubectl(&pod).ok()?.as_str() {
        "Succeeded" | "Failed" => Some(()),
        _ => None,
    })?;
    let wanted = "mount another /proc: done\n\
         write /proc/sys/kernel/panic: refused\n\
         write /proc/sys/kernel/panic_on_oops: refused\n\
         write /proc/sys/vm/overcommit_memory: refused\n\
         write /proc/sys/vm/swappiness: refused\n\
         write /proc/sys/fs/file-max: refused\n\
         write /proc/sys/net/ipv4/ip_forward: done\n\
         write /proc-too/sys/kernel/panic: refused\n\
         write /proc-too/sys/kernel/panic_on_oops: refused\n\
         write /proc-too/sys/vm/overcommit_memory: refused\n\
         write /proc-too/sys/vm/swappiness: refused\n\
         write /proc-too/sys/fs/file-max: refused\n\
         write /proc-too/sys/net/ipv4/ip_forward: done\n\
         open /proc/sysrq-trigger: refused\n\
         write below /sys: refused\n";
    eventually("what the pod said", POD_MAX / 5, || {
        let said = fleet.kubectl(&["-n", "kube-system", "logs", "meddler"])?;
        ensure!(said == wanted, "the pod said\n{said}\nand not\n{wanted}");
        Ok(())
    })
}
