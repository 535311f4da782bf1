//! etcd of live machines: members join, die, leave, come back; clusters are lost and recovered.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ichor_live::{Fleet, eventually, processes, root, wait};
use ichor_testkit::s3;

const JOIN_MAX: Duration = Duration::from_secs(240);

/// Three control planes whose etcd is complete.
fn fleet(name: &str, octet: u8) -> Fleet {
    let fleet = Fleet::kubernetes(name, octet, 3, 0, &["--wait=false"]).unwrap();
    wait_for_voters(&fleet, 0, 3);
    fleet
}

fn members(fleet: &Fleet, number: u8) -> Vec<String> {
    let text = fleet.ok(&["-n", &fleet.address(number), "etcd", "members"]).unwrap_or_default();
    text.lines().skip(1).map(str::to_owned).collect()
}

#[track_caller]
fn wait_for_voters(fleet: &Fleet, number: u8, count: usize) {
    wait("members that vote", JOIN_MAX, || {
        let members = members(fleet, number);
        // A member without an address for clients has not begun to take calls, though it may vote.
        let serves = |line: &String| line.contains(":2379") && line.trim_end().ends_with("false");
        (members.len() == count && members.iter().all(serves)).then_some(())
    })
    .unwrap();
}

fn hostname(fleet: &Fleet, number: u8) -> String {
    format!("{}-controlplane-{}", fleet.name(), number + 1)
}

/// The process of the member on a machine, as the host sees it.
fn process(fleet: &Fleet, number: u8) -> Option<i32> {
    let own = format!("--name={}", hostname(fleet, number));
    let found = fleet.daemons("etcd").into_iter().find(|process| {
        let line = std::fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|argument| argument == own.as_bytes())
    });
    found.map(|process| process.pid)
}

/// Runs the original's client beside the member, with the certificate of the machine.
fn etcdctl(fleet: &Fleet, number: u8, args: &[&str]) -> Result<String> {
    let pid = process(fleet, number).context("etcd does not run")?;
    let secret = |file: &str| format!("/proc/{pid}/root/system/secrets/etcd/{file}");
    let output = Command::new("nsenter")
        .args(["-t", &pid.to_string(), "-n", "--"])
        .args(["bash", "-c", "program=$1; shift; exec -a etcdctl \"$program\" \"$@\"", "bash"])
        .arg(root().join("build/components/etcd"))
        .args(["--cacert", &secret("ca.crt"), "--cert", &secret("admin.crt"), "--key", &secret("admin.key")])
        .args(["--endpoints", "https://127.0.0.1:2379", "--command-timeout", "10s"])
        .args(args)
        .process_group(0)
        .output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => bail!("etcdctl {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr)),
    }
}

#[track_caller]
fn has(fleet: &Fleet, number: u8, key: &str, wanted: &str) {
    let answer = eventually("an answer of etcd", JOIN_MAX, || {
        etcdctl(fleet, number, &["get", key, "--print-value-only"])
    });
    // A member answers with what all agreed on, or not at all.
    assert_eq!(answer.unwrap(), wanted);
}

#[track_caller]
fn put(fleet: &Fleet, number: u8, key: &str, value: &str) {
    eventually("etcd to take a value", JOIN_MAX, || etcdctl(fleet, number, &["put", key, value])).unwrap();
}

/// Ends when the member of a machine is another process than `old`, or none.
#[track_caller]
fn wait_for_end(fleet: &Fleet, number: u8, old: Option<i32>) {
    wait("the end of a member", JOIN_MAX, || (process(fleet, number) != old).then_some(())).unwrap();
}

/// Forgets all data of workloads on these machines, as a broken disk does, and starts them again.
fn wipe(fleet: &Fleet, numbers: &[u8]) {
    let old: Vec<_> = numbers.iter().map(|number| process(fleet, *number)).collect();
    let nodes: Vec<String> = numbers.iter().map(|number| fleet.address(*number)).collect();
    let nodes = nodes.join(",");
    // Kubernetes is not waited for: what is tried here needs none.
    let reset =
        ["reset", "--graceful=false", "--reboot", "--wait=false", "--system-labels-to-wipe", "EPHEMERAL"];
    let reset = [&["-n", nodes.as_str()], reset.as_slice()].concat();
    // Not told twice: a machine that heard it is on its way.
    if let Err(error) = fleet.ok(&reset) {
        println!("{error:#}");
    }
    for (number, old) in numbers.iter().zip(old) {
        wait_for_end(fleet, *number, old);
    }
}

#[test]
fn members_die_leave_and_come_back() {
    let fleet = fleet("members", 71);
    put(&fleet, 0, "key", "value");
    has(&fleet, 2, "key", "value");

    for number in 0..3 {
        fleet.refused(&["-n", &fleet.address(number), "bootstrap"], "AlreadyExists").unwrap();
    }
    fleet.refused(&["-n", &fleet.address(0), "etcd", "recover"], "has a quorum").unwrap();

    // A killed member is the same member a moment later.
    let before = wait("three members", JOIN_MAX, || Some(members(&fleet, 0)).filter(|all| all.len() == 3));
    let before = before.unwrap();
    let pid = wait("a process", JOIN_MAX, || process(&fleet, 1)).unwrap();
    assert!(processes::kill(pid));
    wait("a new process", JOIN_MAX, || process(&fleet, 1).filter(|new| *new != pid)).unwrap();
    has(&fleet, 1, "key", "value");
    wait("the same members", JOIN_MAX, || (members(&fleet, 0) == before).then_some(())).unwrap();

    // The lead goes to another, and only from the one who has it.
    let leader = |number: u8| {
        // Between two leaders there is none.
        wait("a leader", JOIN_MAX, || {
            let status = fleet.ok(&["-n", &fleet.address(number), "etcd", "status"]).ok()?;
            let line = status.lines().nth(1)?;
            let mut ids = line.split_whitespace().filter(|word| word.len() == 16).map(str::to_owned);
            Some((ids.next()?, ids.next()?))
        })
        .unwrap()
    };
    let (_, first) = leader(0);
    wait("another leader", JOIN_MAX, || {
        for number in 0..3 {
            if leader(number).0 == first {
                // Whoever led when it was asked may have lost the lead since.
                let _ = fleet.run(&["-n", &fleet.address(number), "etcd", "forfeit-leadership"]);
            }
        }
        (leader(0).1 != first).then_some(())
    })
    .unwrap();

    // Upkeep.
    let node = fleet.address(0);
    let own = leader(0).0;
    fleet
        .says(&["-n", &node, "get", "etcdmember", "local", "-o", "yaml"], |text| text.contains(&own))
        .unwrap();
    fleet.says(&["-n", &node, "etcd", "alarm", "list"], str::is_empty).unwrap();
    fleet.soon(&["-n", &node, "etcd", "defrag"]).unwrap();
    fleet.refused(&["-n", &node, "etcd", "downgrade", "validate", "3.4"], "InvalidArgument").unwrap();
    fleet.refused(&["-n", &node, "etcd", "remove-member", "abc"], "NotFound").unwrap();

    // Who leaves takes nothing along; after a restart the machine is a new member.
    wait("two members", JOIN_MAX, || {
        // Asked again while the answer was lost or a leader was missing; a second time it is refused, which is well.
        let _ = fleet.run(&["-n", &fleet.address(2), "etcd", "leave"]);
        (members(&fleet, 0).len() == 2).then_some(())
    })
    .unwrap();
    wait("the end of the third", JOIN_MAX, || process(&fleet, 2).is_none().then_some(())).unwrap();
    fleet.soon(&["-n", &fleet.address(2), "reboot", "--wait=false"]).unwrap();
    wait_for_voters(&fleet, 0, 3);
    has(&fleet, 2, "key", "value");

    // A machine that lost its data takes the place of its former self.
    wipe(&fleet, &[1]);
    wait_for_voters(&fleet, 0, 3);
    has(&fleet, 1, "key", "value");
    fleet.destroy().unwrap();
}

#[test]
fn a_lost_quorum_and_a_lost_cluster_are_recovered() {
    let fleet = fleet("recover", 72);
    put(&fleet, 0, "key", "one");

    // Two of three are gone: the one that is left rebuilds the cluster. It is held meanwhile, or the first that is back
    // would join the other two before the second is gone, and nothing would be lost.
    let left = wait("a process", JOIN_MAX, || process(&fleet, 0)).unwrap();
    assert!(processes::hold(left, true));
    wipe(&fleet, &[1, 2]);
    assert!(processes::hold(left, false));
    let told = wait("the lost quorum to be noticed", JOIN_MAX, || {
        fleet.ok(&["-e", &fleet.loopback(0), "-n", &fleet.address(0), "etcd", "recover"]).ok()
    })
    .unwrap();
    assert!(told.contains(&hostname(&fleet, 1)) && told.contains(&hostname(&fleet, 2)), "{told}");
    wait_for_voters(&fleet, 0, 3);
    for number in [1, 2] {
        has(&fleet, number, "key", "one");
    }

    // All are gone: a snapshot brings them back, as they were when it was made.
    let path = fleet.home().join("etcd.snapshot");
    let path = path.to_str().unwrap();
    let snapshot = ["-n", &fleet.address(1), "etcd", "snapshot", path];
    fleet.says(&snapshot, |told| told.contains("etcd snapshot saved to")).unwrap();
    put(&fleet, 0, "key", "two");
    wipe(&fleet, &[0, 1, 2]);
    wait("the refusal of a machine without data", JOIN_MAX, || {
        let refused =
            fleet.fails(&["-e", &fleet.loopback(0), "-n", &fleet.address(0), "etcd", "recover"]).ok()?;
        refused.contains("no data").then_some(())
    })
    .unwrap();
    wait("bootstrap", JOIN_MAX, || {
        fleet
            .ok(&["-e", &fleet.loopback(0), "-n", &fleet.address(0), "bootstrap", "--recover-from", path])
            .ok()
    })
    .unwrap();
    wait_for_voters(&fleet, 0, 3);
    has(&fleet, 1, "key", "one");
    fleet.destroy().unwrap();
}

#[test]
fn a_sealed_copy_in_a_bucket_brings_a_cluster_back() {
    let fleet = Fleet::kubernetes("bucket", 95, 1, 0, &["--wait=false"]).unwrap();
    wait_for_voters(&fleet, 0, 1);
    put(&fleet, 0, "key", "one");
    let bucket = Bucket::start(&fleet);
    bucket.take_copies(&fleet);
    put(&fleet, 0, "key", "two");
    wipe(&fleet, &[0]);
    let machine = ["-n", &fleet.address(0), "bootstrap", "--recover-from", "s3://backups/lab/"];
    let args = [machine.as_slice(), &["--age-identity", &bucket.identity], &bucket.flags()].concat();
    eventually("bootstrap", JOIN_MAX, || fleet.ok(&args)).unwrap();
    wait_for_voters(&fleet, 0, 1);
    has(&fleet, 0, "key", "one");
    fleet.destroy().unwrap();
}

/// A bucket on this host, and the keys to it and to what is in it.
struct Bucket {
    server: s3::Server,
    endpoint: String,
    identity: String,
}

impl Bucket {
    /// The published pair of age's documentation.
    const IDENTITY: &str = "AGE-SECRET-KEY-1GFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPQ4EGAEX";
    const RECIPIENT: &str = "age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj";

    fn start(fleet: &Fleet) -> Self {
        let server = s3::Server::start().unwrap();
        let keys = fleet.home().join(".aws");
        std::fs::create_dir_all(&keys).unwrap();
        let text = format!(
            "[default]\naws_access_key_id = {}\naws_secret_access_key = {}\n",
            s3::KEY_ID,
            s3::SECRET
        );
        std::fs::write(keys.join("credentials"), text).unwrap();
        let identity = fleet.home().join("identity.txt");
        std::fs::write(&identity, format!("# for tests\n{}\n", Self::IDENTITY)).unwrap();
        let identity = identity.to_str().unwrap().to_owned();
        Self { endpoint: server.endpoint(), server, identity }
    }

    fn flags(&self) -> [&str; 4] {
        ["--s3-endpoint", &self.endpoint, "--s3-region", s3::REGION]
    }

    /// Copies with no more than the role for it, asking an endpoint itself, as pods do.
    fn take_copies(&self, fleet: &Fleet) {
        let config = fleet.home().join("backup.yaml");
        let config = config.to_str().unwrap();
        fleet.soon(&["-n", &fleet.address(0), "config", "new", config, "--roles", "os:etcd:backup"]).unwrap();
        let near = ["--talosconfig", config, "-e", &fleet.loopback(0)];
        let address = fleet.address(0);
        let services = [near.as_slice(), &["-n", &address, "services"]].concat();
        fleet.refused(&services, "PermissionDenied").unwrap();
        let name = |time: &str, end: &str| format!("backups/lab/prod-{time}.snap{end}");
        let old = [name("2020-01-01T00:00:00Z", ".age"), name("2020-01-02T00:00:00Z", "")];
        let others = [name("2020-01-01", ""), "backups/lab/notes.txt".into(), "backups/x".into()];
        for key in old.iter().chain(&others) {
            self.server.put(key, b"something");
        }
        let args = [near.as_slice(), &["etcd", "backup", "s3://backups/lab"], &self.flags()].concat();
        fleet.refused(&args, "--age-recipient").unwrap();
        let sealed = ["--age-recipient", Self::RECIPIENT, "--keep", "2", "--compress"];
        let args = [args.as_slice(), &sealed].concat();
        eventually("a sealed copy", JOIN_MAX, || {
            let output = fleet.command(&args).env("CLUSTER_NAME", "prod").output()?;
            match output.status.success() {
                true => Ok(()),
                false => bail!("{}", String::from_utf8_lossy(&output.stderr)),
            }
        })
        .unwrap();
        let keys = self.server.keys();
        assert!(!keys.contains(&old[0]) && keys.contains(&old[1]), "{keys:?}");
        assert!(others.iter().all(|key| keys.contains(key)), "{keys:?}");
        let copy = keys.iter().find(|key| key.ends_with(".snap.zst.age")).unwrap();
        assert!(self.server.get(copy).unwrap().starts_with(b"age-encryption.org/v1\n-> X25519 "));
        // As a plain file it is what the original takes.
        let plain = fleet.home().join("plain.snapshot");
        let fetch = ["etcd", "fetch", "--age-identity", &self.identity, "s3://backups/lab/"];
        let told = fleet.ok(&[fetch.as_slice(), &[plain.to_str().unwrap()], &self.flags()].concat()).unwrap();
        assert!(told.contains("snapshot info: hash"), "{told}");
        assert_eq!(std::fs::metadata(&plain).unwrap().len() % 512, 32);
    }
}

#[test]
fn workers_have_no_etcd() {
    let fleet = Fleet::create("no-etcd", 73, 1, 1, &[]).unwrap();
    let worker = fleet.address(1);
    fleet.refused(&["-n", &worker, "bootstrap"], "FailedPrecondition").unwrap();
    for what in ["members", "status"] {
        fleet.refused(&["-n", &worker, "etcd", what], "only available on control plane nodes").unwrap();
    }
    fleet.destroy().unwrap();
}
