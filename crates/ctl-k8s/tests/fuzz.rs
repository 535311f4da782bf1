//! The server of static pods, which every process of the machine can reach: any bytes are answered or refused, and the next
//! caller is served.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use ichor_ctl_k8s::pod_server::StaticPodServerController;
use ichor_fuzz::Target;
use ichor_resource::k8s::StaticPodServerStatus;
use ichor_testkit::Harness;

/// One connection: sends all, and reads all that comes.
fn exchange(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // A server that has seen enough may close first.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn pod_server_requests() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (state, _clock) = ichor_testkit::state();
    let place = tempfile::tempdir().unwrap();
    let mut harness = Harness::new(&state, StaticPodServerController::new(place.path())).unwrap();
    runtime.block_on(harness.reconcile()).unwrap();
    let status = state.get::<StaticPodServerStatus>("k8s", "static-pod-server-status").unwrap();
    let address = status.url.strip_prefix("http://").unwrap().to_owned();
    let good = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let seeds = [&good[..], b"HEAD / HTTP/1.1\r\n\r\n", b"POST /x HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"];
    let words = ["\r\n\r\n", "GET ", "HEAD ", "Content-Length: "];
    // Short, so that an input is one request: the answer to a second one waits for something new.
    let target = Target::text("pod-server-requests").seeds(seeds).words(words).rounds(3_000).len_max(500);
    target.run(|input| {
        let answer = exchange(&address, input);
        let text = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.is_empty() || text.starts_with("HTTP/1.1 "), "{text}");
        assert_eq!(answer.is_empty(), !input.ends_with(b"\r\n\r\n"), "{text}");
        text.get(..12).unwrap_or_default().to_owned()
    });
    assert!(exchange(&address, good).starts_with(b"HTTP/1.1 200 OK\r\n"));
}
