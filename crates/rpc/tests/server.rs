//! Servers under peers that are slow, silent, too many, or just leaving.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use ichor_pki::{Authority, KeyAlgorithm, Leaf, Role, RoleSet};
use ichor_rpc::authorize::Assign;
use ichor_rpc::peer::PeerIdentity;
use ichor_rpc::server::{Grpc, Limits, serve_tls, serve_unix};
use ichor_rpc::unix::{Access, bind};
use ichor_rpc::{Channel, ClientTls, Dialer, Endpoint, ServerTls, roles};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(60);
/// The bounds of the servers: long enough for a peer that means well on a busy machine.
const BOUND: Duration = Duration::from_secs(2);

/// Bounds small enough to be met in a test.
fn limits() -> Limits {
    Limits {
        connections: 4,
        handshakes: 2,
        handshake: BOUND,
        preface: BOUND,
        idle: BOUND,
        drain: BOUND,
        ..Limits::default()
    }
}

struct Server {
    address: SocketAddr,
    authority: Authority,
    stop: CancellationToken,
    done: tokio::task::JoinHandle<()>,
}

/// Answers after the time that the path says, in milliseconds.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let wait = request.uri().path().trim_matches('/').parse().unwrap_or(0);
    sleep(Duration::from_millis(wait)).await;
    Ok(Response::new(Full::new(Bytes::from_static(b"done"))))
}

async fn serve(limits: Limits) -> Server {
    let now = jiff::Timestamp::now();
    let authority =
        Authority::generate(KeyAlgorithm::Ed25519, "talos", now, Authority::TEN_YEARS).expect("authority");
    let leaf = Leaf::server("node").with_names([""; 0], ["127.0.0.1".parse().unwrap()]);
    let pair = authority.issue(&leaf, now).expect("certificate");
    let tls = ServerTls::new();
    tls.set_certificate(&pair.crt, &pair.key).expect("certificate");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
    let address = listener.local_addr().expect("address");
    let stop = CancellationToken::new();
    let config = tls.server_only().expect("configuration");
    let done = tokio::spawn(serve_tls(listener, config, limits, stop.clone(), |_| service_fn(answer)));
    Server { address, authority, stop, done }
}

impl Server {
    fn tls(&self) -> tokio_rustls::TlsConnector {
        let config = rustls::ClientConfig::builder_with_provider(ichor_pki::provider())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(ichor_pki::roots(self.authority.crt_pem()).expect("roots"))
            .with_no_client_auth();
        Arc::new(config).into()
    }

    async fn connect(&self) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        let name = rustls::pki_types::ServerName::from(self.address.ip());
        timeout(PATIENCE, self.tls().connect(name, stream)).await.expect("in time")
    }

    async fn http(&self) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
        let stream = TokioIo::new(self.connect().await.expect("TLS"));
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.expect("HTTP/2");
        tokio::spawn(connection);
        sender
    }
}

fn call(wait_ms: u64) -> Request<Full<Bytes>> {
    Request::post(format!("https://node/{wait_ms}")).body(Full::default()).expect("request")
}

#[tokio::test]
async fn peers_that_never_shake_hands_are_cut_and_others_get_their_turn() {
    let server = serve(limits()).await;
    let start = Instant::now();
    // Twice as many as may shake hands at once.
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(TcpStream::connect(server.address).await.expect("connects"));
    }
    let mut sender = server.http().await;
    timeout(PATIENCE, sender.send_request(call(0))).await.expect("in time").expect("answer");
    for mut peer in silent {
        let read = timeout(PATIENCE, peer.read(&mut [0; 16])).await.expect("the server hangs up");
        assert!(matches!(read, Ok(0) | Err(_)));
    }
    assert!(start.elapsed() >= BOUND);
}

#[tokio::test]
async fn peers_that_never_speak_after_the_handshake_are_cut() {
    let server = serve(limits()).await;
    let mut silent = server.connect().await.expect("TLS");
    // The server's own settings come first; then it hangs up, with or without a goodbye of TLS.
    let _ = timeout(PATIENCE, silent.read_to_end(&mut Vec::new())).await.expect("the server hangs up");
}

#[tokio::test]
async fn idle_connections_are_closed_and_busy_ones_are_not() {
    let server = serve(limits()).await;
    let mut idle = server.http().await;
    idle.send_request(call(0)).await.expect("answer");
    let mut busy = server.http().await;
    // Longer than three idle times.
    let answer = busy.send_request(call(7000));
    let start = Instant::now();
    while !idle.is_closed() {
        assert!(start.elapsed() < PATIENCE, "the idle connection is still open");
        sleep(Duration::from_millis(10)).await;
    }
    timeout(PATIENCE, answer).await.expect("in time").expect("the busy one is answered");
}

#[tokio::test]
async fn connections_beyond_the_bound_wait_for_busy_ones_and_then_are_refused() {
    let server = serve(Limits { idle: Duration::from_secs(60), ..limits() }).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        let mut sender = server.http().await;
        let running = tokio::spawn(sender.send_request(call(600_000)));
        sleep(BOUND / 4).await;
        held.push((sender, running));
    }
    let mut fifth = server.http().await;
    assert!(timeout(PATIENCE, fifth.send_request(call(0))).await.expect("in time").is_err(), "no room");
    let (_, running) = held.pop().expect("four of them");
    running.abort();
    sleep(Duration::from_millis(50)).await;
    let mut sixth = server.http().await;
    timeout(PATIENCE, sixth.send_request(call(0))).await.expect("in time").expect("room again");
}

#[tokio::test]
async fn idle_connections_make_room_for_newcomers() {
    let server = serve(Limits { idle: Duration::from_secs(60), ..limits() }).await;
    let mut busy = server.http().await;
    let answer = tokio::spawn(busy.send_request(call(1500)));
    let mut idle = Vec::new();
    // Ten times as many as there are places; each newcomer is served at once.
    for _ in 0..40 {
        let mut sender = server.http().await;
        let start = Instant::now();
        timeout(PATIENCE, sender.send_request(call(0))).await.expect("in time").expect("answer");
        assert!(start.elapsed() < PATIENCE / 3, "{:?}", start.elapsed());
        idle.push(sender);
    }
    let open = idle.iter().filter(|sender| !sender.is_closed()).count();
    assert!(open <= 4, "{open} are still open");
    answer.await.expect("task").expect("the one that was being served is answered");
}

#[tokio::test]
async fn a_peer_that_sends_byte_by_byte_is_cut() {
    use tokio::io::AsyncWriteExt;
    let server = serve(limits()).await;
    let mut slow = server.connect().await.expect("TLS");
    let start = Instant::now();
    let dropped = async {
        for byte in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" {
            if slow.write_all(&[*byte]).await.is_err() || slow.flush().await.is_err() {
                return;
            }
            sleep(Duration::from_millis(30)).await;
        }
        let _ = slow.read_to_end(&mut Vec::new()).await;
    };
    timeout(PATIENCE, dropped).await.expect("the server hangs up");
    assert!(start.elapsed() >= BOUND);
}

#[tokio::test]
async fn a_stopping_server_finishes_what_it_can() {
    let server = serve(limits()).await;
    let mut sender = server.http().await;
    let (quick, slow) = (sender.send_request(call(900)), sender.clone().send_request(call(600_000)));
    let calls = tokio::spawn(async { tokio::join!(quick, slow) });
    sleep(BOUND / 4).await;
    server.stop.cancel();
    let (quick, slow) = timeout(PATIENCE, calls).await.expect("in time").expect("calls");
    assert!(quick.is_ok(), "the quick one is answered");
    assert!(slow.is_err(), "the slow one is cut");
    timeout(PATIENCE, server.done).await.expect("the server ends").expect("well");
    assert!(TcpStream::connect(server.address).await.is_err(), "nobody listens");
}

#[tokio::test]
async fn a_server_without_a_certificate_refuses_until_it_has_one() {
    let now = jiff::Timestamp::now();
    let authority =
        Authority::generate(KeyAlgorithm::Ed25519, "talos", now, Authority::TEN_YEARS).expect("authority");
    let tls = ServerTls::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
    let address = listener.local_addr().expect("address");
    let config = tls.server_only().expect("configuration");
    tokio::spawn(serve_tls(listener, config, limits(), CancellationToken::new(), |_| service_fn(answer)));
    let client = ClientTls::verified(authority.crt_pem(), None).expect("client TLS");
    let channel: Channel = Channel::new(Dialer::tls([Endpoint::new("127.0.0.1", address.port())], client));
    let status = channel.connect().await.expect_err("no certificate yet");
    assert_eq!(status.code(), tonic::Code::Unavailable);
    let leaf = Leaf::server("node").with_names([""; 0], ["127.0.0.1".parse().unwrap()]);
    let pair = authority.issue(&leaf, now).expect("certificate");
    tls.set_certificate(&pair.crt, &pair.key).expect("certificate");
    let start = Instant::now();
    while channel.connect().await.is_err() {
        assert!(start.elapsed() < PATIENCE, "still refused");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Tells in headers what the server knows of the peer.
async fn introduce(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let peer = request.extensions().get::<Arc<PeerIdentity>>().expect("peer");
    let uid = peer.credentials.map(|found| found.uid.to_string()).unwrap_or_default();
    let roles: Vec<_> = roles::of_extensions(request.extensions()).iter().map(str::to_owned).collect();
    let response = Response::builder().header("uid", uid).header("roles", roles.join(","));
    Ok(response.body(Full::default()).expect("response"))
}

#[tokio::test]
async fn a_unix_socket_has_its_mode_and_knows_its_peer() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("api.sock");
    let listener = bind(&path, Access { mode: 0o640, uid: None, gid: None }).expect("socket");
    let mode = std::fs::metadata(&path).expect("socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    let service = Assign::new(tower::service_fn(introduce), |peer| {
        assert!(peer.address.is_none());
        RoleSet::of(&[Role::Reader])
    });
    let stop = CancellationToken::new();
    tokio::spawn(serve_unix(listener, limits(), stop, move |peer| Grpc::new(service.clone(), peer)));
    let stream = TokioIo::new(UnixStream::connect(&path).await.expect("connects"));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.expect("HTTP/2");
    tokio::spawn(connection);
    let response = sender.send_request(call(0)).await.expect("answer");
    assert_eq!(response.headers()["uid"], rustix::process::getuid().as_raw().to_string());
    assert_eq!(response.headers()["roles"], "os:reader");
}

#[tokio::test]
async fn a_new_server_takes_over_the_socket_of_the_old_one() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("api.sock");
    let old = bind(&path, Access::PRIVATE).expect("first");
    let new = bind(&path, Access::PRIVATE).expect("second");
    drop(old);
    let client = UnixStream::connect(&path).await.expect("connects to the new one");
    timeout(PATIENCE, new.accept()).await.expect("in time").expect("accepts");
    drop(client);

    let file = dir.path().join("file");
    std::fs::write(&file, "precious").expect("file");
    let error = bind(&file, Access::PRIVATE).expect_err("not a socket");
    assert_eq!(error.to_string(), format!("replace the socket {}", file.display()));
    assert_eq!(std::fs::read_to_string(&file).expect("file"), "precious");
    let missing = dir.path().join("no/such/dir.sock");
    assert!(bind(&missing, Access::PRIVATE).is_err());
}
