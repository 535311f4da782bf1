//! Callers that hold whatever they can get hold of, while the node saves a configuration and issues certificates.

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ichor_machined::{registryd, start};
use ichor_wire::{machine, time};
use tokio_util::sync::CancellationToken;

use crate::bench::{Bench, WAIT, WORKER};

/// Callers of each kind; of two kinds together they stay below the number of file streams that a node allows.
const CALLERS: usize = 28;
/// How often saving and issuing are tried.
const ATTEMPTS: usize = 60;
/// The most that clients may delay either.
const DELAY_MAX: Duration = Duration::from_millis(100);

/// A directory in memory: what is measured is waiting for threads, not for the disk of the machine that runs the tests.
fn memory() -> tempfile::TempDir {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() { tempfile::tempdir_in(shared).unwrap() } else { tempfile::tempdir().unwrap() }
}

fn fifo(dir: &Path) -> String {
    let path = dir.join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    path.to_string_lossy().into_owned()
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// How long the node's own work takes: nine of ten attempts, and the longest.
async fn measure(bench: &Bench) -> [(Duration, Duration); 2] {
    let (mut saved, mut issued) = (Vec::new(), Vec::new());
    for _ in 0..ATTEMPTS {
        let start = Instant::now();
        let change = bench.node.store.config.change().await;
        let yaml = Bytes::from_static(WORKER.as_bytes());
        let save = change.persist(&yaml);
        tokio::time::timeout(WAIT, save).await.expect("a configuration is not saved").unwrap();
        saved.push(start.elapsed());
        drop(change);
        // Where certificates with slow keys are issued.
        let start = Instant::now();
        let issue = tokio::task::spawn_blocking(|| ());
        tokio::time::timeout(WAIT, issue).await.expect("no thread to issue a certificate").unwrap();
        issued.push(start.elapsed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    [saved, issued].map(|mut times| {
        times.sort_unstable();
        (times[times.len() * 9 / 10], times[times.len() - 1])
    })
}

#[test]
fn nothing_a_client_does_delays_saving_a_configuration_or_issuing_a_certificate() {
    let controllers = start::controllers_runtime().unwrap();
    let api = start::api_thread().unwrap();
    controllers.block_on(async {
        let dir = memory();
        let pipe = fifo(dir.path());
        let (cache, tree) = (dir.path().join("cache"), dir.path().join("tree"));
        std::fs::create_dir_all(cache.join("manifests")).unwrap();
        std::fs::create_dir_all(cache.join("blob")).unwrap();
        for number in 0..2_000 {
            std::fs::create_dir_all(tree.join(format!("{}/{number}", number % 50))).unwrap();
        }
        let bench = Bench::start_in(dir, &api).await;
        let [quiet_save, quiet_issue] = measure(&bench).await;

        // The image cache: connections that say half of what they want, and then nothing.
        let (port, stop) = (free_port(), CancellationToken::new());
        let roots = vec![cache.to_string_lossy().into_owned()];
        let registry = tokio::spawn(registryd::serve(roots, port, stop.clone()));
        let connect = || TcpStream::connect(("127.0.0.1", port));
        let start = Instant::now();
        while connect().is_err() {
            assert!(start.elapsed() < WAIT, "the image cache is not served");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let stalled: Vec<TcpStream> = (0..CALLERS).filter_map(|_| connect().ok()).collect();
        for mut stream in &stalled {
            stream.write_all(b"GET /v2/ HTTP/1.1\r\nhost").unwrap();
        }
        // The API: clocks that are pipes, listings and archives that nobody reads to the end.
        let mut calls = Vec::new();
        let mut held = Vec::new();
        for _ in 0..CALLERS {
            let (mut time, mut files) = (bench.time(), bench.machine());
            let clock = bench.as_reader(time::TimeRequest { server: format!("/dev/..{pipe}") });
            calls.push(tokio::spawn(async move { drop(time.time_check(clock).await) }));
            let root = tree.to_string_lossy().into_owned();
            let usage = machine::DiskUsageRequest { paths: vec![root.clone(); 64], ..Default::default() };
            let usage = bench.as_reader(usage);
            let copy = bench.as_admin(machine::CopyRequest { root_path: root });
            held.push(files.disk_usage(usage).await.unwrap().into_inner());
            calls.push(tokio::spawn(async move { drop(files.copy(copy).await) }));
        }

        let [save, issue] = measure(&bench).await;
        println!(
            "saving {quiet_save:?}, with clients {save:?}; issuing {quiet_issue:?}, with clients {issue:?}"
        );
        for (what, quiet, busy) in [("saving", quiet_save, save), ("issuing", quiet_issue, issue)] {
            assert!(
                busy.0.saturating_sub(quiet.0) < DELAY_MAX,
                "{what}: {quiet:?} and {busy:?} with clients"
            );
            // Other programs of a shared machine have their turn now and then.
            assert!(busy.1 < Duration::from_secs(2), "{what}: {busy:?}");
        }
        // And a client that asks for a file still gets it.
        let mut list = bench.machine();
        let entries =
            list.list(bench.as_reader(machine::ListRequest { root: "/etc".into(), ..Default::default() }));
        tokio::time::timeout(WAIT, entries).await.expect("files are not listed").unwrap();
        calls.iter().for_each(tokio::task::JoinHandle::abort);
        stop.cancel();
        tokio::time::timeout(WAIT, registry).await.expect("the image cache does not stop").unwrap().unwrap();
    });
}

#[tokio::test]
async fn a_pipe_as_the_clock_of_time_is_refused_and_holds_no_thread() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = fifo(&dir.path().canonicalize().unwrap());
    let bench = Bench::start().await;
    for server in [format!("/dev/..{pipe}"), "/dev/../etc/hostname".to_owned()] {
        for _ in 0..10 {
            let request = bench.as_reader(time::TimeRequest { server: server.clone() });
            let mut time = bench.time();
            let answer = tokio::time::timeout(WAIT, time.time_check(request)).await;
            let status = answer.expect("the pipe is waited for").unwrap_err();
            let expected = format!("error querying PTP device {server:?}: not a path of a device below /dev");
            assert_eq!(status.message(), expected);
        }
    }
}
