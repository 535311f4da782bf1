//! The server against callers that do not behave.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use ichor_http::server::{Limits, serve};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const LARGE: usize = 32 << 20;

async fn start(limits: Limits) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = || {
        service_fn(|request: Request<Incoming>| async move {
            let body = match request.uri().path() {
                "/large" => Bytes::from(vec![b'x'; LARGE]),
                path => Bytes::from(path.to_owned()),
            };
            Ok::<_, Infallible>(Response::new(Full::new(body)))
        })
    };
    tokio::spawn(serve("test", listener, limits, service, std::future::pending()));
    address
}

async fn ask(address: std::net::SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A connection that is refused may be reset.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_callers_are_let_go_and_make_room_for_others() {
    let limits =
        Limits { connections: 2, request: Duration::from_millis(300), stall: Duration::from_secs(5) };
    let address = start(limits).await;
    let mut silent = Vec::new();
    for part in ["", "GET / HTTP/1.1\r\nhost: x\r\n"] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(part.as_bytes()).await.unwrap();
        silent.push(stream);
    }
    let start = Instant::now();
    let answer = ask(address, "GET /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("/a"), "{answer}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_takes_nothing_is_let_go() {
    let limits =
        Limits { connections: 1, request: Duration::from_secs(5), stall: Duration::from_millis(500) };
    let address = start(limits).await;
    let mut greedy = TcpStream::connect(address).await.unwrap();
    greedy.write_all(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let start = Instant::now();
    let answer = ask(address, "GET /b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(answer.ends_with("/b"), "{answer}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_are_bounded_and_nonsense_is_refused() {
    let limits = Limits { connections: 4, request: Duration::from_secs(5), stall: Duration::from_secs(5) };
    let address = start(limits).await;
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(20_000));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100));
    for bad in ["nonsense\r\n\r\n", long.as_str(), many.as_str()] {
        let answer = ask(address, bad).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
}
