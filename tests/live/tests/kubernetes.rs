//! Kubernetes on our machines, from nothing to pods that talk to each other, and through all that goes wrong.
//!
//! One cluster of three control planes and a worker carries the whole story, as bringing one up is the slow part.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ichor_live::host::Snapshot;
use ichor_live::story::{Part, tell};
use ichor_live::{Fleet, eventually, processes, wait};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

/// What a cluster may take until it is healthy, on a machine that does something else too.
const UP_MAX: Duration = Duration::from_secs(300);
/// Longest wait for pods to run.
const PODS_MAX: Duration = Duration::from_secs(300);

/// What a stopped cluster may take until all of it is ready again. A kubelet that waits for an API server which itself
/// waits for the kubelet takes minutes.
const RESTART_MAX: Duration = Duration::from_secs(90);

/// Memory of init, machined, apid and trustd on a control plane with Kubernetes.
const DAEMONS_KIB_MAX: u64 = 40 * 1024;
/// How long the API may not answer when a control plane is lost.
const GAP_MAX: Duration = Duration::from_secs(2);
/// How often that is tried at most.
const LOSSES: usize = 3;
/// Between two questions.
const GAP_STEP: Duration = Duration::from_millis(200);

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

    let story: [(&str, Part); 9] = [
        ("nodes are ready and carry the original's marks", |fleet| soon(fleet, nodes)),
        ("etcd has three voting members", |fleet| soon(fleet, members)),
        ("pods reach a service by name across nodes", services),
        ("kubectl logs, exec and port-forward work", streams),
        ("health finds nothing wrong, from both sides", health),
        ("our daemons need little beside it", budgets),
        ("machines restart in turn and no write is lost", reboots),
        ("a stopped cluster starts again in about the time of a first start", restart),
        ("a control plane is lost and the API answers on", loss),
    ];
    tell(&fleet, &story);
    fleet.destroy().unwrap();
    let difference = before.left();
    assert!(difference.is_empty(), "{difference:#?}");
}

/// Tries a part until it goes well: what is told of machines follows them.
fn soon(fleet: &Fleet, part: Part) -> Result<()> {
    eventually("a part", PODS_MAX, || {
        part(fleet).inspect_err(|_| std::thread::sleep(Duration::from_millis(300)))
    })
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
    eventually("apply", PODS_MAX, || fleet.kubectl(&["apply", "-f", &path.to_string_lossy()]))?;
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
    let start = Instant::now();
    while start.elapsed() < PODS_MAX {
        match fleet.kubectl(&[
            "exec",
            "client",
            "--",
            "/usr/local/bin/kubectl",
            "--request-timeout=10s",
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
    let talks = ["logs", "deployment/web"];
    let runs = ["exec", "deployment/web", "--", "/coredns", "-version"];
    for args in [&talks[..], &runs] {
        eventually("kubectl", PODS_MAX, || {
            let text = fleet.kubectl(args)?;
            ensure!(text.contains("CoreDNS-1.13.2"), "{text}");
            Ok(())
        })?;
    }
    let port = ichor_live::free_port()?;
    let mut forward =
        fleet.kubectl_command(&["port-forward", "service/web", &format!("{port}:8080")]).spawn()?;
    let answer = eventually("port-forward", PODS_MAX / 3, || {
        std::thread::sleep(Duration::from_millis(200));
        http_get(&format!("127.0.0.1:{port}"), "/health")
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
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    ensure!(text.starts_with("HTTP/1.1 200"), "{text}");
    Ok(text)
}

fn health(fleet: &Fleet) -> Result<()> {
    fleet.ok(&["-n", &fleet.address(0), "health", "--wait-timeout", "5m"])?;
    fleet.ok(&["-n", &fleet.address(0), "health", "--server=false", "--wait-timeout", "5m"])?;
    Ok(())
}

/// What our own daemons take beside a whole control plane.
fn budgets(fleet: &Fleet) -> Result<()> {
    let first = |name: &str| fleet.daemons(name).into_iter().next().with_context(|| format!("no {name}"));
    // What was needed for a moment is given back a little later.
    eventually("memory", Duration::from_secs(60), || {
        let mut total = 0;
        for name in ["init", "machined", "apid", "trustd"] {
            let kib = processes::pss(first(name)?.pid).context("no memory figure")?;
            println!("    {name}: {kib} KiB");
            total += kib;
        }
        if total > DAEMONS_KIB_MAX {
            std::thread::sleep(Duration::from_secs(5));
        }
        ensure!(total <= DAEMONS_KIB_MAX, "{total} KiB, {DAEMONS_KIB_MAX} at most");
        Ok(())
    })
}

/// Every machine restarts, one after the other, while a client writes all the time and tries a write twice at most.
fn reboots(fleet: &Fleet) -> Result<()> {
    let (done, away) = (AtomicBool::new(false), AtomicU8::new(0));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(fleet, &done, &away));
        let rebooted = (0..4).try_for_each(|number| {
            let start = Instant::now();
            away.store(number, Ordering::SeqCst);
            fleet.ok(&["-n", &fleet.address(number), "reboot", "--wait", "--timeout", "5m"])?;
            // Kubernetes calls a node ready for a while after it is gone, so each is asked itself.
            eventually("nodes and members are back", PODS_MAX, || {
                std::thread::sleep(Duration::from_millis(300));
                own_server(fleet, number).and_then(|()| nodes(fleet)).and_then(|()| members(fleet))
            })?;
            println!(
                "    {} rebooted and ready in {:.1} s",
                fleet.address(number),
                start.elapsed().as_secs_f64()
            );
            Ok(())
        });
        done.store(true, Ordering::SeqCst);
        let written = writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?;
        rebooted.and(written)
    })
}

/// The API server of a control plane answers, and its etcd is well.
fn own_server(fleet: &Fleet, number: u8) -> Result<()> {
    let services = fleet.ok(&["-n", &fleet.address(number), "services"])?;
    let well = |name: &str| services.lines().any(|line| line.contains(name) && line.contains(" OK "));
    ensure!(well("kubelet"), "{services}");
    if number == 3 {
        return Ok(());
    }
    ensure!(well("etcd"), "{services}");
    let server = format!("https://{}:6443", fleet.loopback(number));
    fleet.kubectl(&["--server", &server, "get", "--raw", "/readyz"]).map(drop)
}

/// Writes to one server after the other. The second try goes to one that is not away, as a balancer would choose it.
fn write_until(fleet: &Fleet, done: &AtomicBool, away: &AtomicU8) -> Result<()> {
    let (mut writes, mut again) = (0_u32, 0_u32);
    while !done.load(Ordering::SeqCst) {
        writes += 1;
        let write = |server: u8, name: String| {
            let server = format!("https://{}:6443", fleet.loopback(server));
            fleet.kubectl(&["--server", &server, "create", "configmap", &name, "--from-literal=a=b"])
        };
        let server = (writes % 3) as u8;
        if let Err(first) = write(server, format!("write-{writes}")) {
            again += 1;
            std::thread::sleep(Duration::from_secs(1));
            let away = away.load(Ordering::SeqCst);
            let other = (1..=2).map(|next| (server + next) % 3).find(|other| *other != away);
            write(other.unwrap_or(server), format!("write-{writes}-again"))
                .with_context(|| format!("write {writes} failed twice, {away} is away, first: {first}"))?;
        }
    }
    println!("    {writes} writes, {again} of them at the second try, none lost");
    ensure!(writes > 10, "only {writes} writes");
    Ok(())
}

/// All machines stop and start together: no API server is left that a kubelet could ask.
fn restart(fleet: &Fleet) -> Result<()> {
    fleet.ok(&["cluster", "stop", "--name", fleet.name()])?;
    let start = Instant::now();
    fleet.ok(&["cluster", "start", "--name", fleet.name()])?;
    eventually("all of a restarted cluster is ready", RESTART_MAX, || {
        std::thread::sleep(Duration::from_millis(300));
        // The nodes' last word from before the stop would be "ready" too: each machine's own server must answer.
        (0..=3).try_for_each(|number| own_server(fleet, number))?;
        nodes(fleet).and_then(|()| members(fleet))?;
        health(fleet)
    })?;
    let took = start.elapsed();
    println!("    ready again after {:.1} s", took.as_secs_f64());
    ensure!(took < RESTART_MAX, "{took:?}, {RESTART_MAX:?} at most");
    Ok(())
}

/// PID 1 of the machine whose name ends so: the one that shares its process namespace with that node's kubelet.
fn first_process(fleet: &Fleet, name: &str) -> Result<i32> {
    let namespace = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let ours = |pid: i32| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let end = format!("{name}\0");
        String::from_utf8_lossy(&arguments)
            .split_inclusive('\0')
            .any(|argument| argument.starts_with("--hostname-override=") && argument.ends_with(&end))
    };
    let kubelet = fleet.daemons("kubelet").into_iter().find(|kubelet| ours(kubelet.pid));
    let space = kubelet
        .and_then(|kubelet| namespace(kubelet.pid))
        .with_context(|| format!("no kubelet of {name}"))?;
    let machine = fleet.daemons("init").into_iter().find(|init| namespace(init.pid).as_ref() == Some(&space));
    Ok(machine.with_context(|| format!("no machine {name}"))?.pid)
}

/// A control plane dies at once; what a program on the worker sees of it through the balancer of its own node. What
/// else the host does can only make the gap longer, so it may be tried again.
fn loss(fleet: &Fleet) -> Result<()> {
    let mut best = Duration::MAX;
    for round in 0..LOSSES {
        if round > 0 {
            fleet.ok(&["cluster", "start", "--name", fleet.name()])?;
            eventually("the lost one is back", PODS_MAX, || {
                std::thread::sleep(Duration::from_millis(300));
                own_server(fleet, 1).and_then(|()| nodes(fleet)).and_then(|()| members(fleet))
            })?;
        }
        let gap = gap(fleet)?;
        println!(
            "    at most {:.1} s between two answers after the loss of a control plane",
            gap.as_secs_f64()
        );
        best = best.min(gap);
        if best <= GAP_MAX {
            return Ok(());
        }
    }
    bail!("{best:?}, {GAP_MAX:?} at most")
}

/// The longest time between two answers: one slow answer is no gap, a server that is gone is.
fn gap(fleet: &Fleet) -> Result<Duration> {
    let worker = first_process(fleet, "worker-1")?;
    let victim = first_process(fleet, "controlplane-2")?;
    let text = std::fs::read_to_string(fleet.home().join(".kube/config"))?;
    let server = text.lines().find_map(|line| line.trim().strip_prefix("server: ")).context("a server")?;
    let text = text.replace(server, "https://127.0.0.1:7445");
    let network = std::fs::File::open(format!("/proc/{worker}/ns/net"))?;
    let asking = std::thread::spawn(move || -> Result<Duration> {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let client = ichor_kube::Client::from_kubeconfig(&text)?;
            let ask = async || {
                tokio::time::timeout(Duration::from_secs(1), client.ready()).await.is_ok_and(|r| r.is_ok())
            };
            let start = Instant::now();
            while !ask().await {
                ensure!(start.elapsed() < PODS_MAX, "KubePrism does not answer on the worker");
            }
            ensure!(processes::kill(victim), "kill the second control plane");
            let (lost, mut answered, mut gap) = (Instant::now(), Instant::now(), Duration::ZERO);
            while lost.elapsed() < Duration::from_secs(20) {
                if ask().await {
                    gap = gap.max(answered.elapsed());
                    answered = Instant::now();
                }
                tokio::time::sleep(GAP_STEP).await;
            }
            Ok(gap.max(answered.elapsed()))
        })
    });
    asking.join().map_err(|_| anyhow::anyhow!("the asking thread panicked"))?
}
