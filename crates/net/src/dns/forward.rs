//! Asks upstream servers, one after the other.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
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
/// Failures in a row that make an upstream count as unhealthy.
const UNHEALTHY: u32 = 2;

/// Answers questions from its memory or its upstreams.
#[derive(Debug)]
pub struct Forwarder {
    state: Mutex<State>,
    began: Instant,
}

#[derive(Debug, Default)]
struct State {
    cache: Cache,
    upstreams: Vec<SocketAddr>,
    failures: BTreeMap<SocketAddr, u32>,
}

impl Default for Forwarder {
    fn default() -> Self {
        Self { state: Mutex::default(), began: Instant::now() }
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

    /// False when the upstream failed several times in a row.
    pub fn is_healthy(&self, upstream: SocketAddr) -> bool {
        self.lock().failures.get(&upstream).is_none_or(|failures| *failures < UNHEALTHY)
    }

    /// The answer to a client's bytes; `None` when they deserve none. Over UDP it is cut to what the client
    /// takes.
    pub async fn answer(&self, bytes: &[u8], over_udp: bool) -> Option<Vec<u8>> {
        let query = match Query::parse(bytes) {
            Ok(query) => query,
            Err(BadQuery::Ignore) => return None,
            Err(BadQuery::Code(code)) => return message::refuse_unread(bytes, code),
        };
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
        if over_udp && response.len() > query.size {
            return Some(query.truncated());
        }
        Some(response)
    }

    /// Asks the upstreams in order; a failure or refusal goes on to the next, and the last one's answer is
    /// better than none.
    async fn ask(&self, query: &Query<'_>) -> Option<Vec<u8>> {
        let upstreams = self.lock().upstreams.clone();
        let mut last = None;
        for upstream in upstreams {
            let result = ask_one(query, upstream).await;
            let failed = match result {
                Ok(response) => match message::result_code(&response) {
                    code::SERVER_FAILURE | code::REFUSED => {
                        last = Some(response);
                        true
                    }
                    _ => {
                        self.lock().failures.remove(&upstream);
                        return Some(response);
                    }
                },
                Err(error) => {
                    tracing::debug!(%upstream, %error, "upstream does not answer");
                    true
                }
            };
            if failed {
                *self.lock().failures.entry(upstream).or_default() += 1;
            }
        }
        last
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
