//! Calls that name more targets than a cluster has nodes, at a live machine: attacks of a reader that once ended the
//! gateway, or locked everybody out of other nodes for a quarter of an hour.

use std::time::Duration;

use ichor_live::{Fleet, processes, wait};
use ichor_pki::{Authority, Leaf};
use ichor_rpc::{Channel, ClientTls, Dialer, Endpoint};
use ichor_wire::common::Metadata;
use ichor_wire::machine::machine_service_client::MachineServiceClient;
use tokio::time::timeout;
use tonic::Status;

use crate::{PORT, SOON, admin};

const OCTET: u8 = 91;
/// What one of these calls may add to the gateway, in KiB.
const GROWTH_KIB_MAX: u64 = 8 * 1024;

type Client = MachineServiceClient<Channel>;

fn client(fleet: &Fleet, tls: ClientTls) -> Client {
    MachineServiceClient::new(Channel::new(Dialer::tls([Endpoint::new(fleet.loopback(0), PORT)], tls)))
}

fn reader(authority: &Authority) -> ClientTls {
    let pair = authority.issue(&Leaf::client("eve", ["os:reader"]), jiff::Timestamp::now()).unwrap();
    ClientTls::verified(authority.crt_pem(), Some((pair.crt.as_bytes(), pair.key.as_bytes()))).unwrap()
}

/// Asks all targets for their version and gives the metadata of their answers.
async fn ask(client: &mut Client, targets: &[String]) -> Result<Vec<Metadata>, Status> {
    let mut request = tonic::Request::new(());
    for target in targets {
        request.metadata_mut().append("nodes", target.parse().unwrap());
    }
    let reply = timeout(SOON, client.version(request)).await.expect("in time")?;
    Ok(reply.into_inner().messages.into_iter().map(|message| message.metadata.unwrap_or_default()).collect())
}

/// Runs `work` and gives by how much the process grew meanwhile, at most.
fn growth<T>(pid: i32, what: &str, work: impl FnOnce() -> T) -> (T, u64) {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
    let before = processes::rss(pid).unwrap();
    let done = work();
    let peak = processes::peak(pid).unwrap_or_else(|| panic!("{what}: the gateway is gone"));
    println!("{what}: apid had {before} KiB, {peak} at most");
    (done, peak.saturating_sub(before))
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Whether the machine of a process has this address.
fn has_address(pid: i32, address: &str) -> bool {
    let trie = std::fs::read_to_string(format!("/proc/{pid}/net/fib_trie")).unwrap_or_default();
    trie.lines().any(|line| line.trim_start_matches([' ', '|', '-', '+']) == address)
}

/// The names of the cluster's members, as the first machine knows them.
fn members(fleet: &Fleet, count: usize) -> Vec<String> {
    let found = wait("members", SOON, || {
        let text =
            fleet.ok(&["-n", &fleet.address(0), "get", "members", "-o", "jsonpath={.metadata.id}"]).ok()?;
        let names: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        (names.len() == count).then_some(names)
    });
    found.unwrap()
}

#[test]
fn a_reader_with_many_targets_ends_nothing_and_locks_nobody_out() {
    let fleet = Fleet::create("targets", OCTET, 1, 1, &[]).unwrap();
    let authority = fleet.authority();
    let names = members(&fleet, 2);
    let worker = names.iter().find(|name| name.contains("worker")).expect("a worker").clone();
    let apid = fleet.daemons("apid");
    let pid =
        apid.iter().map(|process| process.pid).find(|pid| has_address(*pid, &fleet.address(0))).unwrap();
    let mut readers: Vec<Client> = (0..3).map(|_| client(&fleet, reader(&authority))).collect();
    run(ask(&mut readers[0], &[fleet.address(0), fleet.address(1)])).unwrap();

    // Three calls with 1 700 targets, which are all the same.
    let repeated = vec!["a".to_owned(); 1700];
    let (answers, grown) = growth(pid, "3 x 1700 repeated targets", || {
        let mut answers = Vec::new();
        std::thread::scope(|scope| {
            let calls: Vec<_> =
                readers.iter_mut().map(|client| scope.spawn(|| run(ask(client, &repeated)))).collect();
            answers.extend(calls.into_iter().map(|call| call.join().unwrap()));
        });
        answers
    });
    for answer in answers {
        let answer = answer.unwrap();
        assert!(answer.len() == 1 && answer[0].error.contains("not a known member"), "{answer:?}");
    }
    assert!(grown <= GROWTH_KIB_MAX, "{grown} KiB");
    let mut boss = client(&fleet, admin(&fleet));
    assert_eq!(run(ask(&mut boss, &[fleet.address(1)])).unwrap()[0].error, "");

    // 4 096 invented names in six calls; then another node by a name that nobody has used yet.
    for round in 0..6 {
        let invented: Vec<String> = (0..683).map(|number| format!("invented-{round}-{number}")).collect();
        let (answers, grown) = growth(pid, "683 invented names", || run(ask(&mut readers[0], &invented)));
        let answers = answers.unwrap();
        assert_eq!(answers.len(), invented.len());
        assert!(answers.iter().all(|answer| answer.error.contains("not a known member")), "{answers:?}");
        assert!(grown <= GROWTH_KIB_MAX, "{grown} KiB");
    }
    let answer = run(ask(&mut boss, std::slice::from_ref(&worker))).unwrap();
    assert_eq!((answer.len(), answer[0].error.as_str()), (1, ""), "{answer:?}");
    fleet.soon(&["-n", &worker, "version"]).unwrap();
    // A reader gets there by name and by address, too, and to nobody else.
    for target in [worker, fleet.address(1)] {
        assert_eq!(run(ask(&mut readers[1], &[target])).unwrap()[0].error, "");
    }
    let bridge = format!("10.{OCTET}.0.1");
    let denied = run(ask(&mut readers[1], std::slice::from_ref(&bridge))).unwrap();
    assert!(denied[0].error.contains("not a known member"), "{denied:?}");

    // As many different ones as a call may have, from somebody who may call them: they all lead back to the gateway.
    let loopback: Vec<String> =
        (0..1024).map(|number| format!("127.9.{}.{}", number >> 8, number & 255)).collect();
    let (answers, grown) = growth(pid, "1024 targets", || run(ask(&mut boss, &loopback)));
    let answers = answers.unwrap();
    assert_eq!(answers.len(), loopback.len());
    assert!(answers.iter().all(|answer| !answer.error.is_empty()), "{answers:?}");
    assert!(grown <= GROWTH_KIB_MAX, "{grown} KiB");

    let after: Vec<i32> = fleet.daemons("apid").iter().map(|process| process.pid).collect();
    assert_eq!(after, apid.iter().map(|process| process.pid).collect::<Vec<_>>(), "a gateway was restarted");
    // Who tried what is in the audit log.
    let own = fleet.address(0);
    for words in [
        [bridge.as_str(), "PermissionDenied", "target is not a cluster member", "\"name\":\"eve\""],
        ["invented-0-", "PermissionDenied", "target is not a cluster member", "\"name\":\"eve\""],
        ["127.9.0.", "Unavailable", "target is not a cluster member and not reachable", "Version"],
    ] {
        wait(&format!("{words:?} in the audit log"), Duration::from_secs(30), || {
            let log = fleet.ok(&["-n", &own, "logs", "audit"]).ok()?;
            log.lines().any(|line| words.iter().all(|word| line.contains(word))).then_some(())
        })
        .unwrap();
    }
    fleet.destroy().unwrap();
}
