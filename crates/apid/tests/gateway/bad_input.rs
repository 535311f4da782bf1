//! Peers that break the rules: a precise answer or a cut, never a hang.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tonic::Code;

use crate::support::{Cluster, PATIENCE, with};

/// A TLS connection without anything on it.
pub(crate) async fn connect(cluster: &Cluster) -> TlsStream<TcpStream> {
    let pair = cluster.certificate(&["os:admin"]);
    let key = ichor_pki::certified_key(&pair.crt, &pair.key).expect("key");
    let roots = ichor_pki::roots(cluster.authority.crt_pem()).expect("roots");
    let config = rustls::ClientConfig::builder_with_provider(ichor_pki::provider())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_client_cert_resolver(std::sync::Arc::new(rustls::sign::SingleCertAndKey::from(key)));
    let stream = TcpStream::connect((cluster.address(1), cluster.port)).await.expect("connects");
    let name = rustls::pki_types::ServerName::from(cluster.address(1));
    // No ALPN here: the gateway offers it and must not demand it.
    tokio_rustls::TlsConnector::from(std::sync::Arc::new(config)).connect(name, stream).await.expect("TLS")
}

pub(crate) async fn http(cluster: &Cluster) -> SendRequest<Full<Bytes>> {
    let stream = TokioIo::new(connect(cluster).await);
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

pub(crate) fn request(method: &str, kind: &str, body: &'static [u8]) -> Request<Full<Bytes>> {
    Request::builder()
        .method(method)
        .uri("https://node/machine.MachineService/Version")
        .header("content-type", kind)
        .body(Full::new(Bytes::from_static(body)))
        .expect("request")
}

/// HTTP status, gRPC status and message of an answer.
async fn ask(
    sender: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> (StatusCode, String, String) {
    let response = timeout(PATIENCE, sender.send_request(request)).await.expect("in time").expect("answer");
    let (head, body) = response.into_parts();
    let body = timeout(PATIENCE, body.collect()).await.expect("in time").expect("body");
    let trailers = body.trailers().cloned().unwrap_or_default();
    let status = tonic::Status::from_header_map(&head.headers).or(tonic::Status::from_header_map(&trailers));
    let status = status.expect("a gRPC status");
    (head.status, (status.code() as i32).to_string(), status.message().to_owned())
}

#[tokio::test]
async fn what_is_not_a_call_is_told_so() {
    let cluster = Cluster::new();
    let _node = cluster.node(1);
    let mut sender = http(&cluster).await;
    let empty = &[0, 0, 0, 0, 0];
    let good = ask(&mut sender, request("POST", "application/grpc", empty)).await;
    assert_eq!(good, (StatusCode::OK, "0".to_owned(), String::new()));
    let good = ask(&mut sender, request("POST", "application/grpc+proto", empty)).await;
    assert_eq!(good.1, "0");

    let (http, grpc, _) = ask(&mut sender, request("GET", "application/grpc", empty)).await;
    assert_eq!((http, grpc.as_str()), (StatusCode::METHOD_NOT_ALLOWED, "13"));
    for kind in ["text/html", "application/json", "application/grpc-web", ""] {
        let (http, grpc, _) = ask(&mut sender, request("POST", kind, empty)).await;
        assert_eq!((http, grpc.as_str()), (StatusCode::UNSUPPORTED_MEDIA_TYPE, "3"), "{kind}");
    }
}

#[tokio::test]
async fn frames_that_lie_are_refused_at_their_header() {
    let cluster = Cluster::new();
    let _node = cluster.node(1);
    let own = cluster.address(1).to_string();
    let mut sender = http(&cluster).await;
    for many in [false, true] {
        let ask = async |sender: &mut SendRequest<Full<Bytes>>, body: &'static [u8]| {
            let mut request = request("POST", "application/grpc", body);
            // A method whose reply waits for the whole request.
            *request.uri_mut() = "https://node/machine.MachineService/EtcdRecover".parse().unwrap();
            if many {
                request.headers_mut().insert("nodes", own.parse().unwrap());
            }
            let (_, grpc, message) = ask(sender, request).await;
            (grpc, message)
        };
        let (grpc, message) = ask(&mut sender, &[0, 2, 0, 0, 1, 9]).await;
        assert_eq!(grpc, "8", "{message}");
        assert!(message.contains("larger than max (33554433 vs. 33554432)"), "{message}");
        let (grpc, message) = ask(&mut sender, &[0, 255, 255, 255, 255]).await;
        assert_eq!(grpc, "8", "{message}");
        let (grpc, message) = ask(&mut sender, &[9, 0, 0, 0, 0]).await;
        assert_eq!(grpc, "13", "{message}");
        // The connection is none the worse for it.
        let (grpc, _) = ask(&mut sender, &[0, 0, 0, 0, 1, 9]).await;
        assert_eq!(grpc, "0");
    }
}

#[tokio::test]
async fn noise_inside_tls_is_cut_and_others_go_on() {
    let cluster = Cluster::new();
    let _node = cluster.node(1);
    let mut noise = connect(&cluster).await;
    noise.write_all(b"GET / HTTP/1.1\r\nHost: node\r\n\r\nGET / HTTP/1.1\r\n\r\n").await.expect("writes");
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, noise.read_to_end(&mut answer)).await.expect("the connection is closed");

    let mut bare = TcpStream::connect((cluster.address(1), cluster.port)).await.expect("connects");
    bare.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("writes");
    let _ = timeout(PATIENCE, bare.read_to_end(&mut answer)).await.expect("the connection is closed");

    // Peers that connect and say nothing do not keep others out.
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect((cluster.address(1), cluster.port)).await.expect("connects"));
    }
    cluster.client(1, &["os:admin"]).version(()).await.expect("answer");
    drop(silent);
}

#[tokio::test]
async fn a_reply_beyond_the_limit_is_stopped_at_its_header() {
    const LIMIT: usize = 32 * 1024 * 1024;
    let cluster = Cluster::new();
    let (_one, _two) = (cluster.node(1), cluster.node(2));
    let target = cluster.address(2).to_string();
    for node in [None, Some(target.as_str())] {
        // A client that would take more, to see who stops it.
        let mut client = cluster.client(1, &["os:admin"]).max_decoding_message_size(2 * LIMIT);
        let size = (LIMIT + 1).to_string();
        let mut pairs = vec![("size", size.as_str())];
        pairs.extend(node.map(|node| ("node", node)));
        let call = client.memory(with((), &pairs));
        let status = timeout(PATIENCE, call).await.expect("in time").expect_err("too large");
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        assert_eq!(status.message(), "grpc: received message larger than max (33554433 vs. 33554432)");

        // The largest that is allowed begins to arrive.
        let size = LIMIT.to_string();
        pairs[0] = ("size", size.as_str());
        let call = client.memory(with((), &pairs));
        assert!(timeout(Duration::from_millis(300), call).await.is_err(), "it is still on its way");
    }
}
