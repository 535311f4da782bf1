//! The daemons of a live machine, seen from outside: what they run as, what they see, what they may use.
//!
//! What they cannot do is tried from inside, by `crates/sys/tests/confinement.rs`, in the same confinement.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use ichor_live::processes::Process;
use ichor_live::{Fleet, wait};

use crate::door::{certificate, channel, knock};
use crate::{create, run};

const OCTET: u8 = 38;
const WAIT: Duration = Duration::from_secs(90);

fn status(process: &Process) -> BTreeMap<String, String> {
    let text = fs::read_to_string(format!("/proc/{}/status", process.pid)).unwrap();
    let line = |line: &str| {
        let (key, value) = line.split_once(':')?;
        Some((key.to_owned(), value.split_whitespace().collect::<Vec<_>>().join(" ")))
    };
    text.lines().filter_map(line).collect()
}

fn capabilities(status: &BTreeMap<String, String>, key: &str) -> u64 {
    u64::from_str_radix(&status[key], 16).unwrap()
}

/// The one daemon of this name.
#[track_caller]
fn daemon(fleet: &Fleet, name: &str) -> Process {
    wait(name, WAIT, || fleet.daemons(name).into_iter().next_back()).unwrap()
}

/// Files and directories of the daemon's root that are not below a mount of the kernel's.
fn seen(process: &Process) -> Vec<String> {
    let root = format!("/proc/{}/root", process.pid);
    let mut found = Vec::new();
    let mut left = vec![PathBuf::from(&root)];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let shown = path.to_string_lossy()[root.len()..].to_owned();
            match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                true if shown == "/proc" => found.push(shown),
                true => left.push(path),
                false => found.push(shown),
            }
        }
    }
    found.sort();
    found
}

/// A value of the daemon's group, on either kind of hierarchy.
fn limit(process: &Process, controller: &str, v1: &str, v2: &str) -> String {
    let groups = fs::read_to_string(format!("/proc/{}/cgroup", process.pid)).unwrap();
    let found = groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let of = controllers.split(',').any(|name| name == controller);
        let v1 = of.then(|| format!("/sys/fs/cgroup/{controllers}{path}/{v1}"));
        let v2 = controllers.is_empty().then(|| format!("/sys/fs/cgroup{path}/{v2}"));
        fs::read_to_string(v1.or(v2)?).ok()
    });
    found.unwrap_or_default().trim().to_owned()
}

#[test]
fn the_daemons_run_with_nothing_they_do_not_need() {
    let fleet = create("confined", OCTET, 0);
    for (name, uid, view) in [
        (
            "apid",
            "50",
            &[
                "/etc/hosts",
                "/etc/nsswitch.conf",
                "/etc/resolv.conf",
                "/proc",
                "/system/run/apid/apid.sock",
                "/system/run/apid/runtime.sock",
                "/system/run/machined/machine.sock",
                "/usr/bin/ichor",
            ][..],
        ),
        ("trustd", "51", &["/proc", "/system/run/trustd/runtime.sock", "/usr/bin/ichor"]),
    ] {
        let process = daemon(&fleet, name);
        // It is listed a moment before it has locked itself in.
        wait("the lock", WAIT, || (status(&process)["Seccomp_filters"] == "2").then_some(())).unwrap();
        let status = status(&process);
        assert_eq!(status["Uid"], [uid; 4].join(" "), "{name}");
        assert_eq!(status["Gid"], [uid; 4].join(" "), "{name}");
        assert_eq!(status["Groups"], "", "{name}");
        for key in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(capabilities(&status, key), 0, "{name} {key}");
        }
        assert_eq!((status["NoNewPrivs"].as_str(), status["Seccomp"].as_str()), ("1", "2"), "{name}");
        wait("the sockets", WAIT, || (seen(&process).len() == view.len()).then_some(())).ok();
        assert_eq!(seen(&process), view, "{name}");
        let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", process.pid)).unwrap();
        let writable: Vec<&str> = mounts
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>())
            .filter(|fields| !fields[5].split(',').any(|option| option == "ro"))
            .map(|fields| fields[4])
            .collect();
        let expected: &[&str] = if name == "apid" { &["/system/run/apid"] } else { &[] };
        assert_eq!(writable, expected, "{name}: {mounts}");
        let memory = limit(&process, "memory", "memory.limit_in_bytes", "memory.max");
        assert_eq!(memory, (128 << 20).to_string(), "{name}");
        assert_eq!(limit(&process, "pids", "pids.max", "pids.max"), "64", "{name}");
        let limits = fs::read_to_string(format!("/proc/{}/limits", process.pid)).unwrap();
        for resource in ["Max core file size", "Max file size", "Max locked memory", "Max msgqueue size"] {
            let line = limits.lines().find(|line| line.starts_with(resource)).unwrap();
            let values: Vec<&str> = line[resource.len()..].split_whitespace().take(2).collect();
            assert_eq!(values, ["0", "0"], "{name}: {line}");
        }
    }
    let machined = status(&daemon(&fleet, "machined"));
    assert_eq!((machined["NoNewPrivs"].as_str(), machined["Seccomp"].as_str()), ("1", "2"));
    // CAP_SYS_BOOT, CAP_SYS_PACCT, CAP_LEASE, CAP_BLOCK_SUSPEND.
    for bit in [22, 20, 28, 36] {
        assert_eq!(capabilities(&machined, "CapEff") >> bit & 1, 0, "capability {bit}");
        assert_eq!(capabilities(&machined, "CapBnd") >> bit & 1, 0, "capability {bit}");
    }

    work_hard(&fleet);
    for name in ["apid", "trustd", "machined"] {
        let log = fleet.soon(&["-n", &fleet.address(0), "logs", name]).unwrap();
        assert!(!log.contains("refused system call"), "{name}: {log}");
    }
    fleet.destroy().unwrap();
}

/// Everything that could need a call nobody thought of: load, names that are looked up, new certificates, a stop.
fn work_hard(fleet: &Fleet) {
    let node = fleet.address(0);
    let authority = fleet.authority();
    run(async {
        let admin = certificate(&authority, &["os:admin"]);
        let mut calls = Vec::new();
        for _ in 0..8 {
            let (authority, address) = (authority.crt_pem().to_owned(), fleet.loopback(0));
            let admin = (admin.crt.clone(), admin.key.clone());
            calls.push(tokio::spawn(async move {
                let identity = Some((admin.0.as_bytes(), admin.1.as_bytes()));
                let tls = ichor_rpc::ClientTls::verified(&authority, identity).unwrap();
                for _ in 0..10 {
                    let endpoint = ichor_rpc::Endpoint::new(address.clone(), 50000);
                    let channel = ichor_rpc::Channel::new(ichor_rpc::Dialer::tls([endpoint], tls.clone()));
                    for _ in 0..20 {
                        knock(&channel, "/machine.MachineService/Version", &[]).await;
                    }
                }
            }));
        }
        for call in calls {
            call.await.unwrap();
        }
        let channel = channel(&fleet.loopback(0), &authority, Some(&admin));
        // Names are looked up by threads of the C library.
        for name in ["localhost", "no-such-name.example"] {
            knock(&channel, "/machine.MachineService/Version", &[("nodes", name)]).await;
        }
    });
    // A new name in the certificate: apid serves it without a restart.
    let before = daemon(fleet, "apid").pid;
    let patch = r#"{"machine":{"certSANs":["127.38.0.2","another.example"]}}"#;
    fleet.soon(&["-n", &node, "patch", "machineconfig", "--mode", "no-reboot", "-p", patch]).unwrap();
    wait("the new certificate", WAIT, || {
        let log = fleet.ok(&["-n", &node, "logs", "apid"]).ok()?;
        (log.matches("certificates are in use").count() >= 2).then_some(())
    })
    .unwrap();
    assert_eq!(daemon(fleet, "apid").pid, before);
    // Asked to stop, it finishes its calls and ends well; a new one takes its place.
    let pid = rustix::process::Pid::from_raw(before).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    wait("another apid", WAIT, || (daemon(fleet, "apid").pid != before).then_some(())).unwrap();
    wait("its answer", WAIT, || fleet.ok(&["-n", &node, "version"]).ok()).unwrap();
}
