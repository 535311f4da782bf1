//! The audit log of live machines: own calls, forwarded ones, refused ones, and those who never got in.

use std::time::Duration;

use ichor_live::{Fleet, processes, wait};
use ichor_pki::{KeyPair, Leaf};

use crate::door::{channel, knock, now};
use crate::{create, run};

const OCTET: u8 = 38;
const WAIT: Duration = Duration::from_secs(90);

/// The last line of a machine's audit log that has all of `words`.
#[track_caller]
fn line(fleet: &Fleet, number: u8, words: &[&str]) -> String {
    let node = fleet.address(number);
    let found = wait(&format!("{words:?} in the audit log of {node}"), WAIT, || {
        let log = fleet.ok(&["-n", &node, "logs", "audit"]).ok()?;
        log.lines().rfind(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned)
    });
    found.unwrap_or_else(|error| {
        panic!("{error}\n{}", fleet.ok(&["-n", &node, "logs", "audit", "--tail", "40"]).unwrap_or_default())
    })
}

#[test]
fn who_called_what_is_written_where_it_happened() {
    let fleet = create("audit", OCTET, 1);
    let authority = fleet.authority();
    let issue =
        |name: &str, role: &str| -> KeyPair { authority.issue(&Leaf::client(name, [role]), now()).unwrap() };
    let (jo, eve) = (issue("jo", "os:admin"), issue("eve", "os:reader"));
    let worker = fleet.address(1);
    let path = "/machine.MachineService/Reboot";
    run(async {
        let to_plane = channel(&fleet.loopback(0), &authority, Some(&eve));
        knock(&to_plane, path, &[("ichor-caller", "1 10.0.0.1 00 jo"), ("talos-role", "os:admin")]).await;
        let admin = channel(&fleet.loopback(0), &authority, Some(&jo));
        knock(&admin, path, &[("node", &worker)]).await;
        knock(&channel(&fleet.loopback(0), &authority, None), path, &[]).await;
    });

    let denied = line(&fleet, 0, &[path, "\"name\":\"eve\"", "\"code\":\"PermissionDenied\""]);
    assert!(
        denied.contains("\"roles\":[\"os:reader\"]") && denied.contains("\"level\":\"warn\""),
        "{denied}"
    );
    assert!(denied.contains("\"address\":\"10.38.0.1:") && denied.contains("\"certificate\":\""), "{denied}");

    // The machine that does the work knows who asked for it, and through whom.
    let forwarded = line(&fleet, 1, &[path, "\"name\":\"jo\"", "\"proxy_address\":\"10.38.0.2:"]);
    assert!(forwarded.contains("\"roles\":[\"os:admin\"]"), "{forwarded}");
    assert!(forwarded.contains("\"address\":\"10.38.0.1:"), "{forwarded}");

    line(&fleet, 0, &["handshake refused", "\"reason\":\"no certificate\"", "\"address\":\"10.38.0.1\""]);

    fleet.soon(&["-n", &worker, "read", "/etc/hosts"]).unwrap();
    line(&fleet, 1, &["/machine.MachineService/Read", "\"target\":\"/etc/hosts\"", "\"code\":\"OK\""]);
    fleet.fails(&["-n", &worker, "service", "apid", "stop"]).unwrap();
    line(&fleet, 1, &["/machine.MachineService/ServiceStop", "\"target\":\"apid\""]);

    // Every worker's first certificate was signed by a control plane, which says so.
    line(
        &fleet,
        0,
        &["/securityapi.SecurityService/Certificate", "\"code\":\"OK\"", "\"address\":\"10.38.0.3"],
    );

    // A flood leaves a few lines and counts, and all of it is in them.
    const CALLS: u64 = 300;
    run(async {
        let channel = channel(&fleet.loopback(0), &authority, Some(&eve));
        for _ in 0..CALLS {
            knock(&channel, "/machine.MachineService/Hostname", &[]).await;
        }
    });
    let flood = |line: &&str| line.contains("/machine.MachineService/Hostname") && line.contains("\"eve\"");
    let count = |line: &str| -> u64 {
        let text = line.split("\"count\":").nth(1).map_or("1", |rest| rest.split(',').next().unwrap_or("0"));
        text.parse().unwrap()
    };
    let log = fleet.says(&["-n", &fleet.address(0), "logs", "audit"], |log| {
        log.lines().filter(flood).map(count).sum::<u64>() == CALLS
    });
    let log = log.unwrap();
    let lines = log.lines().filter(flood).count();
    assert!(lines < 50 && log.lines().any(|line| flood(&line) && count(line) > 1), "{lines} lines");
    let secrets = ["-----BEGIN", "token:", "hunter2"];
    assert!(secrets.iter().all(|secret| !log.contains(secret)));

    // What is written outlives the one who wrote it, line by line, and is small.
    let old = fleet.daemons("machined");
    assert!(!old.is_empty() && old.iter().all(|machined| processes::kill(machined.pid)));
    wait("other machineds", WAIT, || {
        let new = fleet.daemons("machined");
        (new.len() == old.len() && new.iter().all(|process| !old.contains(process))).then_some(())
    })
    .unwrap();
    assert_eq!(line(&fleet, 0, &[path, "\"name\":\"eve\"", "\"code\":\"PermissionDenied\""]), denied);
    assert_eq!(line(&fleet, 1, &[path, "\"name\":\"jo\"", "\"proxy_address\":\"10.38.0.2:"]), forwarded);
    let kept = fleet.soon(&["-n", &fleet.address(0), "read", "/system/run/audit.log"]).unwrap();
    // The client puts the machine's name in front.
    let line = &denied[denied.find('{').unwrap()..];
    assert!(kept.contains(line) && kept.len() < 256 * 1024, "{} bytes", kept.len());
    assert!(secrets.iter().all(|secret| !kept.contains(secret)));
    fleet.destroy().unwrap();
}
