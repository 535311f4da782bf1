//! Asks upstream servers, one after the other.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, timeout};

use super::cache::Cache;
use super::message::{self, BadQuery, Query, SIZE_MAX, code};

/// The whole time for one question.
const BUDGET: Duration = Duration::from_millis(4500);
/// The time for one upstream over UDP before the next is tried.
const PATIENCE: Duration = Duration::from_millis(1500);
/// How long a member's addresses may be kept, in seconds.
const MEMBER_TTL: u32 = 10;
/// Failures in a row that make an upstream count as unhealthy.
const UNHEALTHY: u32 = 2;
/// An unhealthy upstream is asked last, except once in so long.
const SECOND_CHANCE: Duration = Duration::from_secs(30);

type OnHealth = Box<dyn Fn() + Send + Sync>;

/// Answers questions from its memory, its members or its upstreams.
pub struct Forwarder {
    state: Mutex<State>,
    began: Instant,
    on_health: OnceLock<OnHealth>,
}

#[derive(Default)]
struct State {
    cache: Cache,
    upstreams: Vec<SocketAddr>,
    failures: BTreeMap<SocketAddr, Failures>,
    members: BTreeMap<String, Vec<IpAddr>>,
}

/// An upstream that does not do its work.
struct Failures {
    count: u32,
    last: Instant,
    reason: String,
}

impl Default for Forwarder {
    fn default() -> Self {
        Self { state: Mutex::default(), began: Instant::now(), on_health: OnceLock::new() }
    }
}

impl fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwarder").field("upstreams", &self.lock().upstreams).finish_non_exhaustive()
    }
}

impl Forwarder {
    /// Sets the upstreams, in order of preference. Others than before make everything be forgotten.
    pub fn set_upstreams(&self, upstreams: Vec<SocketAddr>) {
        let mut state = self.lock();
        if state.upstreams != upstreams {
            state.failures.retain(|upstream, _| upstreams.contains(upstream));
            state.upstreams = upstreams;
            state.cache.clear();
        }
    }

    /// Why the upstream counts as unhealthy: it failed several times in a row.
    pub fn trouble(&self, upstream: SocketAddr) -> Option<String> {
        let state = self.lock();
        let failures = state.failures.get(&upstream).filter(|failures| failures.count >= UNHEALTHY)?;
        Some(failures.reason.clone())
    }

    /// Calls `listener` whenever an upstream becomes unhealthy or healthy. The first listener counts.
    pub fn on_health(&self, listener: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_health.set(Box::new(listener));
    }

    /// Sets the names that are answered without asking anyone, in lower case, and their addresses.
    pub fn set_members(&self, members: BTreeMap<String, Vec<IpAddr>>) {
        self.lock().members = members;
    }

    /// The addresses of a member of the cluster that the question means, if it asks for addresses.
    fn member(&self, query: &Query<'_>) -> Option<Vec<u8>> {
        let (name, kind) = query.asks()?;
        let state = self.lock();
        query.answer(kind, state.members.get(&name)?, MEMBER_TTL)
    }

    /// The answer to a client's bytes; `None` when they deserve none. Over UDP it is cut to what the client
    /// takes.
    pub async fn answer(&self, bytes: &[u8], over_udp: bool) -> Option<Vec<u8>> {
        let query = match Query::parse(bytes) {
            Ok(query) => query,
            Err(BadQuery::Ignore) => return None,
            Err(BadQuery::Code(code)) => return message::refuse_unread(bytes, code),
        };
        if let Some(response) = self.member(&query) {
            return Some(query.fit(response, over_udp));
        }
        let held = self.lock().cache.get(&query.key, self.began.elapsed());
        let mut response = match held {
            Some(response) => response,
            None => match timeout(BUDGET, self.ask(&query)).await {
                Ok(Some(response)) => {
                    let now = self.began.elapsed();
                    self.lock().cache.put(query.key.clone(), &response, now);
                    response
                }
                Ok(None) | Err(_) => return Some(query.refuse(code::SERVER_FAILURE)),
            },
        };
        query.adopt(&mut response);
        Some(query.fit(response, over_udp))
    }

    /// The upstreams in the order in which they are asked: as configured, the unhealthy ones last unless it is
    /// time to see whether they are back.
    pub(super) fn order(&self) -> Vec<SocketAddr> {
        let state = self.lock();
        let tired = |upstream: &SocketAddr| {
            state.failures.get(upstream).is_some_and(|failures| {
                failures.count >= UNHEALTHY && failures.last.elapsed() < SECOND_CHANCE
            })
        };
        let (last, first): (Vec<_>, Vec<_>) = state.upstreams.iter().partition(|upstream| tired(upstream));
        first.into_iter().chain(last).collect()
    }

    /// Asks the upstreams in order; a failure or refusal goes on to the next, and the last one's answer is
    /// better than none.
    async fn ask(&self, query: &Query<'_>) -> Option<Vec<u8>> {
        let mut last = None;
        for upstream in self.order() {
            let reason = match ask_one(query, upstream).await {
                Ok(response) => match message::result_code(&response) {
                    code @ (code::SERVER_FAILURE | code::REFUSED) => {
                        last = Some(response);
                        let text = if code == code::REFUSED { "refuses" } else { "fails (SERVFAIL)" };
                        text.to_owned()
                    }
                    _ => {
                        self.recovered(upstream);
                        return Some(response);
                    }
                },
                Err(error) if error.kind() == io::ErrorKind::TimedOut => "does not answer".to_owned(),
                Err(error) => format!("does not answer: {error}"),
            };
            self.failed(upstream, reason);
        }
        last
    }

    fn failed(&self, upstream: SocketAddr, reason: String) {
        tracing::debug!(%upstream, reason, "upstream failed");
        let mut state = self.lock();
        if !state.upstreams.contains(&upstream) {
            return;
        }
        let now = Instant::now();
        let fresh = || Failures { count: 0, last: now, reason: String::new() };
        let failures = state.failures.entry(upstream).or_insert_with(fresh);
        failures.count = failures.count.saturating_add(1);
        failures.last = now;
        failures.reason = reason;
        let turned = failures.count == UNHEALTHY;
        drop(state);
        self.tell(turned);
    }

    fn recovered(&self, upstream: SocketAddr) {
        let held = self.lock().failures.remove(&upstream);
        self.tell(held.is_some_and(|failures| failures.count >= UNHEALTHY));
    }

    fn tell(&self, turned: bool) {
        if let Some(listener) = self.on_health.get().filter(|_| turned) {
            listener();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn ask_one(query: &Query<'_>, upstream: SocketAddr) -> io::Result<Vec<u8>> {
    let id = random_id();
    let bytes = query.with_id(id);
    let response = timeout(PATIENCE, ask_udp(query, id, &bytes, upstream)).await??;
    if message::is_truncated(&response) {
        return timeout(PATIENCE, ask_tcp(query, id, &bytes, upstream)).await?;
    }
    Ok(response)
}

async fn ask_udp(query: &Query<'_>, id: u16, bytes: &[u8], upstream: SocketAddr) -> io::Result<Vec<u8>> {
    let local: IpAddr = match upstream {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // A socket per question: the kernel's choice of port is half of the protection against forgeries.
    let socket = UdpSocket::bind((local, 0)).await?;
    socket.connect(upstream).await?;
    socket.send(bytes).await?;
    let mut buffer = vec![0; SIZE_MAX];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if query.is_answered_by(&buffer[..length], id) {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}

async fn ask_tcp(query: &Query<'_>, id: u16, bytes: &[u8], upstream: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(upstream).await?;
    let length = u16::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    stream.write_all(&[&length.to_be_bytes()[..], bytes].concat()).await?;
    let length = stream.read_u16().await?;
    let mut response = vec![0; length.into()];
    stream.read_exact(&mut response).await?;
    if query.is_answered_by(&response, id) { Ok(response) } else { Err(io::ErrorKind::InvalidData.into()) }
}

fn random_id() -> u16 {
    let mut bytes = [0; 2];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK) {
        Ok(2) => u16::from_ne_bytes(bytes),
        // Early in a boot without entropy; the port still has to be guessed.
        _ => std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.subsec_nanos() as u16),
    }
}
