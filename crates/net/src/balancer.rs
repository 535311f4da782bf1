//! A TCP balancer in front of several servers, on a thread of its own.
//!
//! The best upstream is tried first; one that refuses is passed over at once, one that does not answer is overtaken by
//! the next after a moment, all within the same connection of the client. Whoever is suspected (a connection that is
//! not answered, bytes without an answer) is asked whether it is there, and when it is not, its connections are ended,
//! so that clients come again and are sent elsewhere.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::sync::{Notify, Semaphore};
use tokio::task::{JoinSet, LocalSet, spawn_local};
use tokio::time::{Instant, sleep, timeout};

mod relay;
mod scores;

use scores::Scores;

/// How long a client waits for an upstream, at most.
const DIAL_TIMEOUT: Duration = Duration::from_secs(15);
/// An upstream that has not answered by then gets company. A neighbour answers in a millisecond, another continent in
/// a quarter of a second.
const OVERTAKE: Duration = Duration::from_millis(250);
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const USER_TIMEOUT_MS: u32 = 30_000;
/// Between two rounds of asking every upstream.
const PROBE_EVERY: Duration = Duration::from_secs(20);
/// The first round after one that found nobody comes sooner, then ever later.
const PROBE_SOON: Duration = Duration::from_millis(500);
const PROBE_TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes that wait for an answer for longer raise the question whether anybody is there.
const PATIENCE: Duration = Duration::from_millis(400);
/// How the question is asked: this often, each time waiting for so long. A kernel answers even when its server is busy.
const ASKED: u32 = 2;
const ASK_TIMEOUT: Duration = Duration::from_millis(300);
/// Two descriptors each; what comes on top waits in the queue of the listener.
const CONNECTIONS_MAX: usize = 512;
/// A failing listener (no descriptors left) is not asked again at once.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Names are asked for again when older; the first answer must come within this.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(4);

/// A running balancer; dropping it ends it with all its connections.
pub struct Balancer {
    shared: Arc<Shared>,
    thread: std::thread::JoinHandle<()>,
}

struct Shared {
    scores: Mutex<Scores>,
    /// The list changed, or the end has come.
    news: Notify,
    stop: Notify,
    on_health: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Balancer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Balancer").field("scores", &*self.shared.lock()).finish()
    }
}

impl Balancer {
    /// Starts to accept connections. `on_health` is called, on the balancer's thread, whenever there comes to be a
    /// usable upstream or none is left.
    pub fn start(
        listener: std::net::TcpListener,
        on_health: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let shared = Arc::new(Shared {
            scores: Mutex::default(),
            news: Notify::new(),
            stop: Notify::new(),
            on_health: Box::new(on_health),
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(2)
            .thread_keep_alive(Duration::from_secs(1))
            .build()?;
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("kubeprism".to_owned()).spawn(move || {
            let _told = TellEnd(Arc::clone(&own));
            let tasks = LocalSet::new();
            tasks.block_on(&runtime, async {
                tokio::select! {
                    () = own.stop.notified() => {}
                    () = accept(listener, &own) => {}
                }
            });
        })?;
        Ok(Self { shared, thread })
    }

    /// Whether it still accepts connections; `on_health` is called when that ends.
    pub fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Replaces the upstreams (`host:port`). Known ones keep their scores, and connections go on.
    pub fn set_upstreams(&self, upstreams: Vec<String>) {
        self.shared.change(|scores| scores.set(upstreams));
        self.shared.news.notify_one();
    }

    /// Whether there is a usable upstream.
    pub fn healthy(&self) -> bool {
        self.shared.lock().healthy()
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.shared.stop.notify_one();
    }
}

/// Calls whoever listens when the thread ends, however that comes.
struct TellEnd(Arc<Shared>);

impl Drop for TellEnd {
    fn drop(&mut self) {
        (self.0.on_health)();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Scores> {
        self.scores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Scores)) {
        let mut scores = self.lock();
        let before = scores.healthy();
        change(&mut scores);
        let turned = before != scores.healthy();
        drop(scores);
        if turned {
            (self.on_health)();
        }
    }
}

/// What the tasks of the thread share.
struct Local {
    shared: Arc<Shared>,
    /// Signals of upstreams in use: their connections end when one is raised.
    ends: std::cell::RefCell<BTreeMap<String, Rc<Notify>>>,
    /// Upstreams being asked right now.
    asked: std::cell::RefCell<Vec<String>>,
}

async fn accept(listener: std::net::TcpListener, shared: &Arc<Shared>) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the balancer cannot listen"),
    };
    let local =
        Rc::new(Local { shared: Arc::clone(shared), ends: Default::default(), asked: Default::default() });
    spawn_local(probe_all(Arc::clone(shared)));
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((client, _)) => {
                let local = Rc::clone(&local);
                spawn_local(async move {
                    serve(client, &local).await;
                    drop(slot);
                });
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                sleep(ACCEPT_REST).await;
            }
        }
    }
}

async fn serve(client: TcpStream, local: &Rc<Local>) {
    let Ok(Some((upstream, address))) = timeout(DIAL_TIMEOUT, dial(local)).await else { return };
    tune(&client);
    tune(&upstream);
    let end = Rc::clone(local.ends.borrow_mut().entry(address.clone()).or_default());
    relay::relay(&client, &upstream, end.notified(), PATIENCE, || suspect(local, &address)).await;
    let mut ends = local.ends.borrow_mut();
    // One handle in the table, one here: nobody else uses it.
    if Rc::strong_count(&end) == 2 {
        ends.remove(&address);
    }
}

/// The first upstream that answers, best first, each with a head start over the next.
async fn dial(local: &Rc<Local>) -> Option<(TcpStream, String)> {
    let mut order = local.shared.lock().order().into_iter();
    let mut tries = JoinSet::new();
    let mut waiting: Vec<String> = Vec::new();
    loop {
        let next = order.next();
        if let Some(address) = next.clone() {
            waiting.push(address.clone());
            tries.spawn(async move {
                let begun = Instant::now();
                (connect(&address).await, address, begun.elapsed())
            });
        }
        let more = next.is_some();
        let outcome = tokio::select! {
            outcome = tries.join_next() => outcome,
            () = sleep(OVERTAKE), if more => {
                if let Some(last) = waiting.last() {
                    suspect(local, last);
                }
                continue;
            }
        };
        match outcome {
            // Nobody is left to wait for, and nobody else to ask.
            None if !more => return None,
            None | Some(Err(_)) => {}
            Some(Ok((Ok(stream), address, took))) => {
                local.shared.change(|scores| scores.succeeded(&address, took));
                return Some((stream, address));
            }
            Some(Ok((Err(error), address, _))) => {
                tracing::debug!(upstream = address, %error, "upstream not reached");
                waiting.retain(|other| *other != address);
                local.shared.change(|scores| scores.failed(&address));
            }
        }
    }
}

/// Asks an upstream whether it is there; when it is not and another one is, its connections end.
fn suspect(local: &Rc<Local>, address: &str) {
    let mut asked = local.asked.borrow_mut();
    if asked.iter().any(|other| other == address) {
        return;
    }
    asked.push(address.to_owned());
    let (local, address) = (Rc::clone(local), address.to_owned());
    spawn_local(async move {
        let there = ask(&address).await;
        local.asked.borrow_mut().retain(|other| *other != address);
        if there {
            return;
        }
        let scores = &local.shared;
        scores.change(|scores| scores.gone(&address));
        let end = local.ends.borrow().get(&address).cloned();
        if let Some(end) = end.filter(|_| scores.lock().others_usable(&address)) {
            tracing::warn!(upstream = address, "upstream does not answer; its connections are ended");
            end.notify_waiters();
        }
    });
}

async fn ask(address: &str) -> bool {
    for _ in 0..ASKED {
        let begun = Instant::now();
        if let Ok(Ok(_)) = timeout(ASK_TIMEOUT, connect(address)).await {
            return true;
        }
        // A refusal comes at once; a server that is just being restarted gets its time.
        sleep((ASK_TIMEOUT / 2).saturating_sub(begun.elapsed())).await;
    }
    false
}

/// Asks all upstreams in turn, now and then, and at once when the list changes.
async fn probe_all(shared: Arc<Shared>) {
    let mut soon = PROBE_SOON;
    loop {
        let addresses = shared.lock().addresses();
        if addresses.is_empty() {
            shared.news.notified().await;
            continue;
        }
        for address in addresses {
            let begun = Instant::now();
            let reached = matches!(timeout(PROBE_TIMEOUT, connect(&address)).await, Ok(Ok(_)));
            shared.change(|scores| match reached {
                true => scores.succeeded(&address, begun.elapsed()),
                false => scores.failed(&address),
            });
        }
        let rest = if shared.lock().healthy() { PROBE_EVERY } else { soon };
        soon = if rest == PROBE_EVERY { PROBE_SOON } else { (soon * 2).min(PROBE_EVERY) };
        if timeout(rest, shared.news.notified()).await.is_ok() {
            soon = PROBE_SOON;
        }
    }
}

async fn connect(address: &str) -> io::Result<TcpStream> {
    let addresses = match address.parse::<SocketAddr>() {
        Ok(address) => vec![address],
        Err(_) => resolve(address).await?,
    };
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

async fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    if let Some(("localhost", port)) = address.rsplit_once(':')
        && let Ok(port) = port.parse::<u16>()
    {
        return Ok(vec![(Ipv4Addr::LOCALHOST, port).into()]);
    }
    let found = timeout(RESOLVE_TIMEOUT, lookup_host(address)).await;
    Ok(found.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??.collect())
}

/// Dead peers are noticed, small requests leave at once. What the kernel refuses is left.
fn tune(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEP_ALIVE);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE);
    let _ = sockopt::set_tcp_user_timeout(stream, USER_TIMEOUT_MS);
}
