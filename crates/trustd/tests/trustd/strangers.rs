//! Peers that connect and then stall, more of them than there are places, while a worker joins.

use std::time::{Duration, Instant};

use http::Request;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use ichor_rpc::{ClientTls, dial};
use ichor_testkit::{ScriptedBody, anonymous_memory};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::LocalSet;
use tokio_rustls::client::TlsStream;

use crate::support::{Trustd, request, start};

/// As many as there are places.
const STRANGERS: usize = 1280;
/// The largest request, as gRPC announces it.
const ANNOUNCED: usize = 64 * 1024;
/// Each test takes the machine for itself.
static ALONE: Mutex<()> = Mutex::const_new(());

/// A call whose body stalls after so many bytes.
fn unfinished(token: &str, sent: usize) -> Request<ScriptedBody> {
    Request::post("https://trustd/securityapi.SecurityService/Certificate")
        .header("content-type", "application/grpc")
        .header("token", token)
        .body(ScriptedBody::unfinished_message(ANNOUNCED, sent))
        .expect("request")
}

async fn tls(trustd: &Trustd) -> TlsStream<TcpStream> {
    let tls = ClientTls::verified(trustd.authority.crt_pem(), None).expect("client TLS");
    dial::stream(&trustd.endpoint(), &tls).await.expect("TLS").0
}

async fn http(trustd: &Trustd) -> SendRequest<ScriptedBody> {
    let stream = TokioIo::new(tls(trustd).await);
    let (sender, connection) = handshake(TokioExecutor::new(), stream).await.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

/// Joins, and says how long it took.
async fn join(trustd: &Trustd) -> Duration {
    let csr = request();
    let began = Instant::now();
    trustd.ask("abc.def", &csr).await.expect("a certificate");
    began.elapsed()
}

#[tokio::test]
async fn stalled_strangers_do_not_delay_a_join() {
    let _alone = ALONE.lock().await;
    LocalSet::new().run_until(stalled("wrong")).await;
}

#[tokio::test]
async fn a_stalled_crowd_with_the_token_does_not_delay_a_join() {
    let _alone = ALONE.lock().await;
    LocalSet::new().run_until(stalled("abc.def")).await;
}

async fn stalled(token: &str) {
    let trustd = start().await;
    trustd.ready().await;
    let mut held: Vec<Box<dyn std::any::Any>> = Vec::new();
    for number in 0..STRANGERS {
        let mut sender = http(&trustd).await;
        let call = tokio::spawn(sender.send_request(unfinished(token, 100)));
        // Until the server has it, the one or other way.
        tokio::task::yield_now().await;
        held.push(Box::new((sender, call)));
        if number == STRANGERS / 2 {
            assert!(join(&trustd).await < Duration::from_secs(1), "with half of them");
        }
    }
    for _ in 0..5 {
        let took = join(&trustd).await;
        assert!(took < Duration::from_secs(1), "{took:?} among stalled calls");
    }
    for number in 0..300 {
        match number % 3 {
            // Never shakes hands.
            0 => held.push(Box::new(TcpStream::connect(trustd.listen).await.expect("connects"))),
            // Never speaks.
            1 => held.push(Box::new(tls(&trustd).await)),
            // Headers that never come to an end: the frame lacks END_HEADERS.
            _ => {
                let mut stream = tls(&trustd).await;
                let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
                let headers = [0, 0, 1, 1, 0, 0, 0, 0, 1, 0x83];
                let all = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings, &headers].concat();
                stream.write_all(&all).await.expect("sent");
                stream.flush().await.expect("sent");
                held.push(Box::new(stream));
            }
        }
    }
    for _ in 0..5 {
        let took = join(&trustd).await;
        assert!(took < Duration::from_secs(1), "{took:?} among all kinds of them");
    }
}

#[tokio::test]
async fn open_streams_of_one_connection_stay_within_memory() {
    let _alone = ALONE.lock().await;
    LocalSet::new().run_until(many_streams()).await;
}

async fn many_streams() {
    let trustd = start().await;
    trustd.ready().await;
    let mut sender = http(&trustd).await;
    let before = anonymous_memory();
    let mut calls = Vec::new();
    for _ in 0..2100 {
        calls.push(tokio::spawn(sender.send_request(unfinished("abc.def", ANNOUNCED - 1))));
    }
    let began = Instant::now();
    let mut most = 0;
    while began.elapsed() < Duration::from_secs(2) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        most = most.max(anonymous_memory().saturating_sub(before));
    }
    // Both ends are in this process: the client's 2 100 waiting calls are in it, too.
    assert!(most < 32 << 20, "{} MiB", most >> 20);
    assert!(join(&trustd).await < Duration::from_secs(1));
}
