//! Who gets in, what is written down about it, and what the daemons could still do if they were not ours.

mod audit;
mod daemons;
mod door;
mod liar;
mod matrix;
mod secrets;

use std::time::Duration;

use ichor_live::{Fleet, wait};

/// Runs a test's calls, for a bounded time.
fn run<T>(work: impl Future<Output = T>) -> T {
    ichor_pki::install_provider();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(900), work).await.unwrap() })
}

/// A cluster whose machines answer; whether its Kubernetes is up does not matter here.
fn create(name: &str, octet: u8, workers: u8) -> Fleet {
    let fleet = Fleet::create(name, octet, 1, workers, &["--wait=false"]).unwrap();
    for number in 0..=workers {
        let (endpoint, node) = (fleet.loopback(number), fleet.address(number));
        wait("an answer", Duration::from_secs(120), || {
            fleet.ok(&["-e", &endpoint, "-n", &node, "version"]).ok()
        })
        .unwrap();
    }
    // Only operators may be forwarded to machines that are not known as members yet.
    let machines = usize::from(workers) + 1;
    wait("members", Duration::from_secs(120), || {
        let members =
            fleet.ok(&["-n", &fleet.address(0), "get", "members", "-o", "jsonpath={.metadata.id}"]).ok()?;
        (members.split_whitespace().count() == machines).then_some(())
    })
    .unwrap();
    fleet
}
