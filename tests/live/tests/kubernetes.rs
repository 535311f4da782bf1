//! Kubernetes on our machines, from nothing to pods that talk to each other, and through all that goes wrong.
//!
//! One cluster of three control planes and a worker carries the whole story, as bringing one up is the slow part.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ichor_live::host::Snapshot;
use ichor_live::{Fleet, processes, wait};
use serde_json::Value;

/// What a cluster may take until it is healthy, on a machine that does something else too.
const UP_MAX: Duration = Duration::from_secs(180);
/// Longest wait for pods to run.
const PODS_MAX: Duration = Duration::from_secs(90);

/// A server (CoreDNS answers `/health` on a port of its own), a service for it, and room for a client.
const WEB: &str = include_str!("kubernetes/web.yaml");

#[test]
fn a_cluster_runs_pods_and_survives_its_components() {
    let before = Snapshot::take();
    let start = Instant::now();
    let fleet = Fleet::kubernetes("k8s", 90, 3, 1, &[]).unwrap();
    let up = start.elapsed();
    println!("3 control planes and 1 worker healthy after {:.1} s", up.as_secs_f64());
    assert!(up < UP_MAX, "{up:?}");

    let story: [(&str, fn(&Fleet) -> Result<()>); 6] = [
        ("nodes are ready and carry the original's marks", nodes),
        ("etcd has three voting members", members),
        ("pods reach a service by name across nodes", services),
        ("kubectl logs, exec and port-forward work", streams),
        ("health finds nothing wrong, from both sides", health),
        ("components come back when they are killed", kills),
    ];
    for (what, part) in story {
        let start = Instant::now();
        part(&fleet).with_context(|| what.to_owned()).unwrap();
        println!("{what}: {:.1} s", start.elapsed().as_secs_f64());
    }
    fleet.destroy().unwrap();
    let difference = before.difference(&Snapshot::take());
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

fn is(object: &Value, condition: &str) -> bool {
    object["status"]["conditions"]
        .as_array()
        .is_some_and(|all| all.iter().any(|c| c["type"] == condition && c["status"] == "True"))
}

fn nodes(fleet: &Fleet) -> Result<()> {
    let list = get(fleet, &["nodes"])?;
    ensure!(items(&list).len() == 4, "{list}");
    for node in items(&list) {
        let name = &node["metadata"]["name"];
        ensure!(is(node, "Ready"), "{name} is not ready: {}", node["status"]["conditions"]);
        let info = &node["status"]["nodeInfo"];
        ensure!(info["kubeletVersion"] == "v1.35.0", "{name}: {info}");
        ensure!(info["containerRuntimeVersion"] == "containerd://2.1.6", "{name}: {info}");
        let controlplane = name.as_str().is_some_and(|name| name.contains("controlplane"));
        let label = &node["metadata"]["labels"]["node-role.kubernetes.io/control-plane"];
        ensure!(label.is_string() == controlplane, "{name}: {}", node["metadata"]["labels"]);
    }
    Ok(())
}

fn members(fleet: &Fleet) -> Result<()> {
    let text = fleet.ok(&["-n", &fleet.address(0), "etcd", "members"])?;
    let lines: Vec<&str> = text.lines().skip(1).collect();
    ensure!(lines.len() == 3 && lines.iter().all(|line| line.trim_end().ends_with("false")), "{text}");
    Ok(())
}

/// Waits until the pods with this label all run and says what is wrong with them otherwise.
fn running(fleet: &Fleet, label: &str, count: usize) -> Result<Vec<Value>> {
    let mut last = String::new();
    wait(label, PODS_MAX, || {
        std::thread::sleep(Duration::from_millis(300));
        let list = match get(fleet, &["pods", "-l", label]) {
            Ok(list) => list,
            Err(error) => {
                last = error.to_string();
                return None;
            }
        };
        let ready: Vec<Value> = items(&list).iter().filter(|pod| is(pod, "Ready")).cloned().collect();
        last = items(&list).iter().map(|pod| pod["status"].to_string()).collect::<Vec<_>>().join("\n");
        (ready.len() == count).then_some(ready)
    })
    .with_context(|| last)
}

fn services(fleet: &Fleet) -> Result<()> {
    let path = fleet.home().join("web.yaml");
    std::fs::write(&path, WEB)?;
    fleet.kubectl(&["apply", "-f", &path.to_string_lossy()])?;
    let web = running(fleet, "app=web", 2)?;
    let nodes: std::collections::BTreeSet<_> =
        web.iter().map(|p| p["spec"]["nodeName"].to_string()).collect();
    ensure!(nodes.len() == 2, "the two servers run on {nodes:?}");
    running(fleet, "app=client", 1)?;
    // By name through the service, then each pod by its address: both nodes are reached from the client's.
    ensure!(ask(fleet, "web.default.svc.cluster.local:8080")?.trim() == "OK");
    ensure!(ask(fleet, "web:8080")?.trim() == "OK");
    for pod in &web {
        let address = pod["status"]["podIP"].as_str().context("a pod without address")?;
        ensure!(ask(fleet, &format!("{address}:8080"))?.trim() == "OK");
    }
    Ok(())
}

/// Asks from inside of the client's pod.
fn ask(fleet: &Fleet, server: &str) -> Result<String> {
    let server = format!("--server=http://{server}");
    let mut last = None;
    for _ in 0..20 {
        match fleet.kubectl(&[
            "exec",
            "client",
            "--",
            "/usr/local/bin/kube",
            "kubectl",
            "--request-timeout=3s",
            &server,
            "get",
            "--raw",
            "/health",
        ]) {
            Ok(answer) => return Ok(answer),
            Err(error) => last = Some(error),
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    bail!("{server}: {last:?}")
}

fn streams(fleet: &Fleet) -> Result<()> {
    let log = fleet.kubectl(&["logs", "deployment/web"])?;
    ensure!(log.contains("CoreDNS-1.13.2"), "{log}");
    let version = fleet.kubectl(&["exec", "deployment/web", "--", "/coredns", "-version"])?;
    ensure!(version.contains("CoreDNS-1.13.2"), "{version}");
    let mut forward = fleet.kubectl_command(&["port-forward", "service/web", "18090:8080"]).spawn()?;
    let answer = wait("port-forward", Duration::from_secs(20), || {
        std::thread::sleep(Duration::from_millis(200));
        http_get("127.0.0.1:18090", "/health").ok()
    });
    // The one process we started: `timeout` passes the signal on.
    processes::terminate(forward.id());
    let _ = forward.wait();
    ensure!(answer?.ends_with("OK"));
    Ok(())
}

fn http_get(address: &str, path: &str) -> Result<String> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    ensure!(text.starts_with("HTTP/1.1 200"), "{text}");
    Ok(text)
}

fn health(fleet: &Fleet) -> Result<()> {
    fleet.ok(&["-n", &fleet.address(0), "health", "--wait-timeout", "2m"])?;
    fleet.ok(&["-n", &fleet.address(0), "health", "--server=false", "--wait-timeout", "2m"])?;
    Ok(())
}

/// One process of each kind on the second control plane is killed; all are there again and nothing else was lost.
fn kills(fleet: &Fleet) -> Result<()> {
    let ready = |what: &str| {
        wait(what, PODS_MAX, || {
            std::thread::sleep(Duration::from_millis(500));
            nodes(fleet).and_then(|()| members(fleet)).ok()
        })
    };
    for name in ["kubelet", "containerd", "etcd", "kube-apiserver", "kube-scheduler", "machined"] {
        let all = fleet.daemons(name);
        let Some(victim) = all.last() else { bail!("no process {name}") };
        let kept: Vec<i32> = fleet.daemons("kubelet").iter().map(|kubelet| kubelet.pid).collect();
        ensure!(processes::kill(victim.pid), "kill {name}");
        wait(name, PODS_MAX, || {
            let now = fleet.daemons(name);
            (now.len() == all.len() && now.iter().all(|process| process.pid != victim.pid)).then_some(())
        })?;
        ready(name)?;
        if name == "machined" {
            let now: Vec<i32> = fleet.daemons("kubelet").iter().map(|kubelet| kubelet.pid).collect();
            ensure!(kept == now, "a kubelet was restarted with machined: {kept:?}, {now:?}");
        }
    }
    fleet.kubectl(&["get", "deployment", "web"])?;
    Ok(())
}
