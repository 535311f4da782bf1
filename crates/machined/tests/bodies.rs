//! Request bodies that never come to an end: what they cost machined, and whether others are served meanwhile.

#[path = "api/bench.rs"]
#[allow(dead_code, reason = "shared with other tests, which use more of it")]
mod bench;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use http::Request;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use ichor_rpc::roles::ROLE_KEY;
use ichor_rpc::{ClientTls, Endpoint, dial};
use ichor_testkit::{ScriptedBody, anonymous_memory};
use ichor_wire::machine;
use ichor_wire::machine::apply_configuration_request::Mode;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use bench::{Bench, WORKER};

const MIB: usize = 1 << 20;
/// Unfinished bodies, on a tenth as many connections.
const BODIES: usize = 100;
/// How much machined may grow by them.
const GROWTH_MAX: usize = 64 * MIB;
/// How long the attack goes on.
const LASTS: Duration = Duration::from_secs(6);
/// Any other call ends within this, on a busy machine.
const SERVED_MAX: Duration = Duration::from_secs(1);
/// The tests take the memory of the process for themselves.
static ALONE: LazyLock<Mutex<()>> = LazyLock::new(Mutex::default);

/// Bodies that hold on to their connections until this is dropped.
struct Attack {
    calls: Vec<JoinHandle<()>>,
    sent: Arc<AtomicUsize>,
}

impl Attack {
    /// Opens all bodies; one that is refused is opened again.
    async fn start<I, F>(announced: usize, connect: impl Fn() -> F) -> Self
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = I>,
    {
        let sent = Arc::<AtomicUsize>::default();
        let mut calls = Vec::new();
        for _ in 0..BODIES / 10 {
            let stream = TokioIo::new(connect().await);
            let (sender, connection) = handshake(TokioExecutor::new(), stream).await.unwrap();
            calls.push(tokio::spawn(async move { drop(connection.await) }));
            for _ in 0..10 {
                calls.push(tokio::spawn(again(sender.clone(), announced, Arc::clone(&sent))));
            }
        }
        Self { calls, sent }
    }
}

async fn again(mut sender: SendRequest<ScriptedBody>, announced: usize, sent: Arc<AtomicUsize>) {
    while !sender.is_closed() {
        let request = Request::post("https://node/machine.MachineService/ApplyConfiguration")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header(ROLE_KEY, "os:admin")
            .body(ScriptedBody::unfinished_message(announced, announced - 1).counted(&sent))
            .unwrap();
        drop(sender.send_request(request).await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        self.calls.iter().for_each(JoinHandle::abort);
    }
}

/// The most that memory grew by, and the longest call, while `call` is made on and on.
async fn observe<F: Future<Output = ()>>(before: usize, call: impl Fn() -> F) -> (usize, Duration) {
    let (began, mut growth, mut longest) = (Instant::now(), 0, Duration::ZERO);
    while began.elapsed() < LASTS {
        let called = Instant::now();
        call().await;
        longest = longest.max(called.elapsed());
        growth = growth.max(anonymous_memory().saturating_sub(before));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    (growth, longest)
}

/// A configuration of more than a mebibyte.
fn large_configuration() -> machine::ApplyConfigurationRequest {
    let text = format!("{WORKER}# {}\n", "x".repeat(MIB));
    machine::ApplyConfigurationRequest {
        data: text.into_bytes(),
        mode: Mode::Auto.into(),
        dry_run: true,
        ..machine::ApplyConfigurationRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_unfinished_maximal_bodies_neither_fill_memory_nor_hold_up_others() {
    let _alone = ALONE.lock().await;
    let bench = Bench::start().await;
    bench.configure(WORKER).await;
    bench.machine().apply_configuration(bench.as_admin(large_configuration())).await.unwrap();
    // What an earlier test freed would hide what this one takes.
    ichor_sys::memory::trim();
    let before = anonymous_memory();
    let socket = bench.node.host.paths.machine_socket();
    let attack = Attack::start(32 * MIB, || async { UnixStream::connect(&socket).await.unwrap() }).await;
    let (growth, longest) = observe(before, || async {
        let reply = bench.machine().version(bench.as_reader(())).await.unwrap();
        assert_eq!(reply.into_inner().messages.len(), 1);
    })
    .await;
    assert!(attack.sent.load(Relaxed) > 32 * MIB, "the attack took place");
    assert!(growth <= GROWTH_MAX, "{} MiB", growth / MIB);
    assert!(longest < SERVED_MAX, "{longest:?}");
    // A large one has to wait until a stalled one makes room.
    let began = Instant::now();
    bench.machine().apply_configuration(bench.as_admin(large_configuration())).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_bodies_of_strangers_in_maintenance_mode_do_no_harm() {
    let _alone = ALONE.lock().await;
    let bench = Bench::start().await;
    let maintenance = bench.maintenance().await;
    maintenance.machine().apply_configuration(large_configuration()).await.unwrap();
    // What an earlier test freed would hide what this one takes.
    ichor_sys::memory::trim();
    let before = anonymous_memory();
    let endpoint = Endpoint::new("127.0.0.1", maintenance.port);
    let tls = ClientTls::insecure([]).unwrap();
    let connect = || async { dial::stream(&endpoint, &tls).await.unwrap().0 };
    let attack = Attack::start(4 * MIB, connect).await;
    let small =
        machine::ApplyConfigurationRequest { dry_run: true, data: WORKER.into(), ..Default::default() };
    let (growth, longest) = observe(before, || async {
        maintenance.machine().apply_configuration(small.clone()).await.unwrap();
    })
    .await;
    assert!(attack.sent.load(Relaxed) > 8 * MIB, "the attack took place");
    assert!(growth <= GROWTH_MAX, "{} MiB", growth / MIB);
    assert!(longest < SERVED_MAX, "{longest:?}");
    let began = Instant::now();
    maintenance.machine().apply_configuration(large_configuration()).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(11), "{:?}", began.elapsed());
}
