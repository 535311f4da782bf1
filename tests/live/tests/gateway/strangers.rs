//! A caller without a certificate at a configured node.
//!
//! In TLS 1.3 a client has finished before the server has looked for its certificate, so it can send calls behind its
//! last message of the handshake, and never hears more than the alert. That is what is done here: as many handshakes as
//! carry a hundred thousand calls, at full speed.

use std::time::Instant;

use ichor_live::{Fleet, processes};
use ichor_rpc::{Channel, ClientTls, Dialer, Endpoint, dial};
use ichor_wire::machine::machine_service_client::MachineServiceClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Code;

use crate::{ADMIN_MAX, LARGE_KIB_MAX, SOON, admin, call, endpoint, inside};

/// Calls that are sent in all, how many of them over one connection, and connections at a time.
const CALLS: usize = 100_000;
const PER_CONNECTION: usize = 100;
const AT_ONCE: usize = 64;
/// Calls of a usual client, which tries each on a connection of its own.
const USUAL: usize = 200;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// The greeting of HTTP/2 and calls of `Version`, one after the other, with nothing in them.
fn calls() -> Vec<u8> {
    const PATH: &[u8] = b"/machine.MachineService/Version";
    let mut headers = vec![0x83, 0x87, 0x04, u8::try_from(PATH.len()).unwrap()];
    headers.extend_from_slice(PATH);
    headers.extend_from_slice(b"\x01\x01m\x0f\x10\x10application/grpc\x00\x02te\x08trailers");
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    for number in 0..PER_CONNECTION {
        // The end of the headers and of the stream.
        bytes.extend(frame(1, 5, u32::try_from(number * 2 + 1).unwrap(), &headers));
    }
    bytes
}

/// What became of the calls of one connection.
enum Fate {
    /// The server said that it wants a certificate.
    Alert,
    /// The connection was cut.
    Cut,
    /// Something came back.
    Answer(usize),
}

async fn push(to: &Endpoint, tls: &ClientTls, bytes: &[u8]) -> Fate {
    let is_alert = |text: String| match text.contains("CertificateRequired") {
        true => Fate::Alert,
        false => Fate::Cut,
    };
    let mut stream = match dial::stream(to, tls).await {
        Ok((stream, _)) => stream,
        Err(error) => return is_alert(format!("{error:?}")),
    };
    // The alert may come while this is being sent.
    let _ = stream.write_all(bytes).await;
    let _ = stream.flush().await;
    let mut buffer = [0; 4096];
    match stream.read(&mut buffer).await {
        Ok(0) => Fate::Cut,
        Ok(length) => Fate::Answer(length),
        Err(error) => is_alert(format!("{error:?}")),
    }
}

#[test]
fn a_hundred_thousand_calls_without_a_certificate_get_nowhere_and_disturb_nobody() {
    let fleet = Fleet::create("nobody", 74, 1, 0, &[]).unwrap();
    let apid = fleet.daemon("apid").unwrap().pid;
    let (endpoint, tls) = (endpoint(&fleet), admin(&fleet));
    let stranger = ClientTls::insecure([]).unwrap();
    let bytes = calls();
    let before = processes::rss(apid).unwrap();
    let (alerts, cuts, mut waits, taken) = inside(&fleet, || async {
        // The very same bytes are answered where there is a certificate.
        match timeout(SOON, push(&endpoint, &tls, &bytes)).await.expect("in time") {
            Fate::Answer(_) => {}
            Fate::Alert | Fate::Cut => panic!("an administrator is not answered"),
        }
        // A usual client is told as much.
        for _ in 0..USUAL {
            let channel = Channel::new(Dialer::tls([endpoint.clone()], stranger.clone()));
            let refused = MachineServiceClient::new(channel).version(()).await.expect_err("nobody gets in");
            assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        }
        let start = Instant::now();
        let (mut alerts, mut cuts, mut waits) = (0_usize, 0_usize, Vec::new());
        let mut tasks = JoinSet::new();
        let mut left = CALLS / PER_CONNECTION;
        while left > 0 || !tasks.is_empty() {
            while left > 0 && tasks.len() < AT_ONCE {
                let (to, with, bytes) = (endpoint.clone(), stranger.clone(), bytes.clone());
                tasks.spawn(async move { timeout(SOON, push(&to, &with, &bytes)).await.expect("in time") });
                left -= 1;
            }
            match tasks.join_next().await.unwrap().unwrap() {
                Fate::Alert => alerts += 1,
                Fate::Cut => cuts += 1,
                Fate::Answer(length) => panic!("{length} bytes for somebody without a certificate"),
            }
            if (alerts + cuts) % 100 == 0 {
                waits.push(call(&endpoint, &tls).await);
            }
        }
        (alerts, cuts, waits, start.elapsed())
    });
    let rss = processes::rss(apid).unwrap();
    waits.sort_unstable();
    // One look at a busy machine may be held up by the machine; half of them are not.
    let (usual, worst) = (waits[waits.len() / 2], waits[waits.len() - 1]);
    println!(
        "{CALLS} calls over {} connections without a certificate in {taken:?}: {alerts} alerts, {cuts} cuts; an \
         administrator waits {usual:?} ({worst:?} at most), apid has {rss} KiB ({before} before)",
        CALLS / PER_CONNECTION
    );
    // An alert may get lost when the server resets what it did not read.
    assert!(alerts > 0, "nobody was told why");
    assert!(usual <= ADMIN_MAX, "an administrator waited {usual:?}");
    assert!(worst <= 10 * ADMIN_MAX, "an administrator waited {worst:?}");
    assert!(rss <= LARGE_KIB_MAX, "apid: {rss} KiB");
    assert_eq!(fleet.daemon("apid").unwrap().pid, apid, "the gateway was restarted");
    fleet.destroy().unwrap();
}
