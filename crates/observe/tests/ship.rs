//! Logs on their way to receivers on loopback: delivery, return after an outage, receivers that do not read.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ichor_observe::LogManager;
use ichor_observe::ship::{Destination, Drain, Tally, ship_logs};
use ichor_testkit::{listen_again, own_loopback};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(20);

fn start(logs: &LogManager, url: &str) -> (JoinHandle<()>, Arc<Tally>, Drain) {
    let mut destination = Destination::parse(url).unwrap();
    destination.tags.insert("rack".into(), "7".into());
    let (tally, drain) = (Arc::new(Tally::default()), Drain::default());
    let task = tokio::spawn(ship_logs(logs.clone(), destination, drain.clone(), Arc::clone(&tally)));
    (task, tally, drain)
}

async fn line(listener: &TcpListener, count: usize) -> Vec<Value> {
    let (stream, _) = timeout(LIMIT, listener.accept()).await.unwrap().unwrap();
    let mut lines = BufReader::new(stream).lines();
    let mut seen = Vec::new();
    while seen.len() < count {
        let line = timeout(LIMIT, lines.next_line()).await.unwrap().unwrap().expect("a line");
        seen.push(serde_json::from_str(&line).expect("one object a line"));
    }
    seen
}

#[tokio::test]
async fn old_and_new_lines_of_all_logs_reach_a_stream() {
    let logs = LogManager::new();
    logs.ring("apid").write_line("before");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("tcp://{}", listener.local_addr().unwrap());
    let (task, tally, drain) = start(&logs, &url);
    let writer = tokio::spawn({
        let logs = logs.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            logs.ring("trustd").write_line(r#"{"level":"error","msg":"after"}"#);
        }
    });
    let seen = line(&listener, 2).await;
    assert_eq!((seen[0]["msg"].as_str(), seen[0]["talos-service"].as_str()), (Some("before"), Some("apid")));
    assert_eq!((seen[1]["msg"].as_str(), seen[1]["talos-level"].as_str()), (Some("after"), Some("error")));
    assert_eq!(seen[1]["rack"], "7");
    writer.await.unwrap();
    timeout(LIMIT, drain.settled(LIMIT)).await.unwrap();
    assert_eq!((tally.sent.load(Ordering::Relaxed), tally.lost.load(Ordering::Relaxed)), (2, 0));
    task.abort();
}

#[tokio::test]
async fn one_datagram_holds_one_event_without_a_newline() {
    let logs = LogManager::new();
    logs.ring("apid").write_line("hello");
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (task, _, _) = start(&logs, &format!("udp://{}", socket.local_addr().unwrap()));
    let mut datagram = vec![0; 65_536];
    let len = timeout(LIMIT, socket.recv(&mut datagram)).await.unwrap().unwrap();
    assert!(!datagram[..len].ends_with(b"\n"));
    let event: Value = serde_json::from_slice(&datagram[..len]).unwrap();
    assert_eq!(event["msg"], "hello");
    task.abort();
}

#[tokio::test]
async fn lines_wait_for_a_receiver_that_is_away() {
    let logs = LogManager::new();
    logs.ring("apid").write_line("one");
    let listener = TcpListener::bind((own_loopback(), 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (task, tally, drain) = start(&logs, &format!("tcp://{address}"));
    assert_eq!(line(&listener, 1).await[0]["msg"], "one");
    // The connection was dropped with its first line; the next one finds nobody.
    drop(listener);
    logs.ring("apid").write_line("two");
    tokio::time::sleep(Duration::from_millis(300)).await;
    let waited = std::time::Instant::now();
    drain.settled(LIMIT).await;
    assert!(waited.elapsed() < LIMIT / 2, "a receiver that is away holds up nobody");
    let listener = listen_again(address).await;
    assert_eq!(line(&listener, 1).await[0]["msg"], "two");
    assert_eq!(tally.lost.load(Ordering::Relaxed), 0);
    task.abort();
}

#[tokio::test]
async fn a_receiver_that_never_reads_holds_up_nobody_and_losses_are_counted() {
    let logs = LogManager::new();
    let deaf = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let good = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (deaf_task, deaf_tally, _) = start(&logs, &format!("tcp://{}", deaf.local_addr().unwrap()));
    let (good_task, good_tally, _) = start(&logs, &format!("tcp://{}", good.local_addr().unwrap()));
    let silent = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = deaf.accept().await {
            held.push(stream);
        }
    });
    let reader = tokio::spawn(async move {
        let (stream, _) = good.accept().await.unwrap();
        let mut lines = BufReader::new(stream).lines();
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains("the last line") {
                return;
            }
        }
    });
    // Far more than the ring and the socket buffers hold together.
    let ring = logs.ring("noisy");
    for number in 0..300 {
        ring.write_line(&format!("{number} {}", "x".repeat(100_000)));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(ring.memory() < 2 << 20, "the ring stays a ring");
    ring.write_line("the last line");
    timeout(LIMIT, reader).await.expect("the good receiver gets everything in time").unwrap();
    assert!(good_tally.sent.load(Ordering::Relaxed) > deaf_tally.sent.load(Ordering::Relaxed));
    let counted = async {
        while deaf_tally.lost.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(LIMIT, counted).await.expect("what the ring gave up is counted");
    deaf_task.abort();
    good_task.abort();
    silent.abort();
}
