//! HTTP/2 used against its purpose, by a client with a good certificate: bounded work, bounded memory, and others are
//! answered meanwhile.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use crate::bad_input::{connect, http, request};
use crate::support::{Client, Cluster, PATIENCE};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// How long an attack goes on.
const SPAN: Duration = Duration::from_millis(1500);
/// What an attack may cost in memory, attacker, node and the other tests in this one process together.
const MEMORY_MAX: u64 = 128 << 20;
/// The longest a bystander's call may take meanwhile, on a busy machine without optimisation.
const BYSTANDER_MAX: Duration = Duration::from_secs(10);

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut out = vec![length[1], length[2], length[3], kind, flags];
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// The headers of a call, without compression.
fn call_headers() -> Vec<u8> {
    let mut out = vec![0x83, 0x87];
    let literal = |out: &mut Vec<u8>, name: &[u8], value: &str| {
        out.extend_from_slice(name);
        out.push(u8::try_from(value.len()).unwrap());
        out.extend_from_slice(value.as_bytes());
    };
    literal(&mut out, &[0x04], "/machine.MachineService/Events");
    literal(&mut out, &[0x01], "node");
    literal(&mut out, &[0x0f, 0x10], "application/grpc");
    out
}

/// How a connection ended.
#[derive(Debug, PartialEq)]
enum End {
    /// The node said goodbye with this code, or just cut.
    Closed(Option<u32>),
    /// It still stands.
    Open,
}

/// Reads until the node closes, and finds its reason.
async fn read_end(mut reader: ReadHalf<TlsStream<TcpStream>>) -> End {
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 16 * 1024];
    let mut code = None;
    loop {
        match reader.read(&mut buffer).await {
            Ok(0) | Err(_) => return End::Closed(code),
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
        }
        while let Some(head) = bytes.first_chunk::<9>().copied() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            if bytes.len() < 9 + length {
                break;
            }
            let all: Vec<u8> = bytes.drain(..9 + length).collect();
            if head[3] == GOAWAY
                && let Some(found) = all[9..].get(4..8)
            {
                code = Some(u32::from_be_bytes(found.try_into().unwrap()));
            }
        }
    }
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Another client, which calls all the time: its slowest call.
async fn bystander(mut client: Client, until: Instant) -> Duration {
    let mut slowest = Duration::ZERO;
    while Instant::now() < until {
        let start = Instant::now();
        timeout(PATIENCE, client.version(())).await.expect("in time").expect("answer");
        slowest = slowest.max(start.elapsed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    slowest
}

/// Lets `attack` write for a while; `reads` says whether the attacker takes what comes back.
async fn under_attack<F>(reads: bool, attack: impl FnOnce(WriteHalf<TlsStream<TcpStream>>) -> F) -> End
where
    F: Future<Output = ()>,
{
    let cluster = Cluster::new();
    let _node = cluster.node(1);
    let mut client = cluster.client(1, &["os:reader"]);
    client.version(()).await.expect("answer");
    let (reader, mut writer) = split(connect(&cluster).await);
    writer.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("preface");
    writer.write_all(&frame(SETTINGS, 0, 0, &[])).await.expect("settings");
    let before = resident();
    let until = Instant::now() + SPAN;
    let attacked = timeout(SPAN, attack(writer));
    let ((_, end), slowest) = if reads {
        tokio::join!(
            async {
                tokio::join!(attacked, async { timeout(SPAN, read_end(reader)).await.unwrap_or(End::Open) })
            },
            bystander(client.clone(), until)
        )
    } else {
        let ((), slowest) = tokio::join!(async { _ = attacked.await }, bystander(client.clone(), until));
        drop(reader);
        ((Ok(()), End::Open), slowest)
    };
    let grown = resident().saturating_sub(before);
    assert!(slowest < BYSTANDER_MAX, "a bystander waited {slowest:?}");
    assert!(grown < MEMORY_MAX, "{} MiB more", grown >> 20);
    client.version(()).await.expect("answer after it");
    end
}

/// Writes frames until the other side has had enough.
async fn pour(mut writer: WriteHalf<TlsStream<TcpStream>>, mut next: impl FnMut() -> Vec<u8>) {
    loop {
        // Many at once, or the attacker is slower than the attacked.
        let mut batch = Vec::new();
        while batch.len() < 16 * 1024 {
            batch.extend(next());
        }
        if writer.write_all(&batch).await.is_err() {
            // Stays, so that the reader sees the end.
            return std::future::pending().await;
        }
    }
}

/// The code of "enhance your calm".
const CALM: End = End::Closed(Some(11));

#[tokio::test]
async fn rapid_resets_end_the_connection() {
    let end = under_attack(true, |writer| {
        let (headers, mut stream) = (call_headers(), 1_u32);
        pour(writer, move || {
            let open = frame(HEADERS, END_HEADERS, stream, &headers);
            let reset = frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
            stream = stream.wrapping_add(2) & 0x7fff_ffff;
            [open, reset].concat()
        })
    })
    .await;
    assert_eq!(end, CALM);
}

#[tokio::test]
async fn streams_without_end_leave_others_alone() {
    under_attack(true, |writer| {
        let (headers, mut stream) = (call_headers(), 1_u32);
        pour(writer, move || {
            let open = frame(HEADERS, END_HEADERS | END_STREAM, stream, &headers);
            stream = stream.wrapping_add(2) & 0x7fff_ffff;
            open
        })
    })
    .await;
}

#[tokio::test]
async fn headers_without_end_are_cut() {
    let end = under_attack(true, |mut writer| async move {
        let _ = writer.write_all(&frame(HEADERS, 0, 1, &call_headers())).await;
        let filler = [&[0x00, 0x01, b'x', 0x7f, 0x81, 0x7d][..], &[b'y'; 16_000]].concat();
        pour(writer, move || frame(CONTINUATION, 0, 1, &filler)).await;
    })
    .await;
    assert!(matches!(end, End::Closed(_)), "{end:?}");
}

#[tokio::test]
async fn continuations_with_nothing_in_them_are_cut() {
    let end = under_attack(true, |mut writer| async move {
        let _ = writer.write_all(&frame(HEADERS, 0, 1, &call_headers())).await;
        pour(writer, || frame(CONTINUATION, 0, 1, &[])).await;
    })
    .await;
    assert!(matches!(end, End::Closed(_)), "{end:?}");
}

#[tokio::test]
async fn pings_and_settings_that_nobody_reads_the_answers_of_cost_nothing() {
    for (kind, payload) in [(PING, &[7_u8; 8][..]), (SETTINGS, &[0, 3, 0, 0, 0, 100])] {
        under_attack(false, |writer| pour(writer, move || frame(kind, 0, 0, payload))).await;
    }
}

#[tokio::test]
async fn pings_settings_and_empty_frames_leave_others_alone() {
    for (kind, payload) in [(PING, &[7_u8; 8][..]), (SETTINGS, &[0, 3, 0, 0, 0, 100])] {
        under_attack(true, |writer| pour(writer, move || frame(kind, 0, 0, payload))).await;
    }
    for (kind, payload) in [(DATA, &[][..]), (WINDOW_UPDATE, &[0, 0, 0, 1])] {
        under_attack(true, |mut writer| async move {
            let _ = writer.write_all(&frame(HEADERS, END_HEADERS, 1, &call_headers())).await;
            pour(writer, move || frame(kind, 0, 1, payload)).await;
        })
        .await;
    }
}

#[tokio::test]
async fn headers_beyond_the_limit_are_refused_and_the_connection_goes_on() {
    let cluster = Cluster::new();
    let _node = cluster.node(1);
    let mut sender = http(&cluster).await;
    let mut large = request("POST", "application/grpc", &[0, 0, 0, 0, 0]);
    for number in 0..40 {
        let name = http::HeaderName::try_from(format!("x-{number}")).unwrap();
        large.headers_mut().insert(name, "y".repeat(4000).parse().unwrap());
    }
    let answer = timeout(PATIENCE, sender.send_request(large)).await.expect("in time");
    assert!(!answer.as_ref().is_ok_and(|response| response.status().is_success()), "{answer:?}");
    // On the same connection, or on a new one if the node has had enough of this one.
    let small = || request("POST", "application/grpc", &[0, 0, 0, 0, 0]);
    let again = match sender.ready().await {
        Ok(()) => sender.send_request(small()).await,
        Err(_) => http(&cluster).await.send_request(small()).await,
    };
    assert!(again.expect("answer").status().is_success());
}
