//! One receiver of events: a connection that is made when needed and made anew when it breaks.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::drain::Drain;
use super::event::Event;

/// Connecting and sending get this long each; who takes longer is tried again.
const LIMIT: Duration = Duration::from_secs(5);

/// The pause after the first failure; it doubles up to the last.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_LAST: Duration = Duration::from_secs(16);

/// Trouble is told this often. The telling is itself a line to be sent, so it must be rare.
const TELL_EVERY: Duration = Duration::from_secs(300);

/// What fits a datagram.
const DATAGRAM_MAX: usize = 65_507;

/// How events travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// A newline behind each.
    Tcp,
    /// One datagram each.
    Udp,
}

/// A receiver.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    /// How events travel there.
    pub transport: Transport,
    /// Its name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Added to every event.
    pub tags: BTreeMap<String, String>,
}

/// A text that names no receiver.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no receiver of logs; write tcp://host:port or udp://host:port")]
pub struct BadDestination(String);

impl Destination {
    /// Reads `tcp://host:port` or `udp://host:port`; a path behind it is ignored.
    pub fn parse(url: &str) -> Result<Self, BadDestination> {
        let parsed = || {
            let (scheme, rest) = url.split_once("://")?;
            let transport = match scheme {
                "tcp" => Transport::Tcp,
                "udp" => Transport::Udp,
                _ => return None,
            };
            let authority = rest.split(['/', '?', '#']).next()?;
            let (host, port) = authority.rsplit_once(':')?;
            let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
            let port = port.parse().ok().filter(|port| *port != 0)?;
            (!host.is_empty()).then(|| Self { transport, host: host.to_owned(), port, tags: BTreeMap::new() })
        };
        parsed().ok_or_else(|| BadDestination(url.to_owned()))
    }
}

impl std::fmt::Display for Destination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = match self.transport {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
        };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port),
            false => write!(f, "{scheme}://{}:{}", self.host, self.port),
        }
    }
}

enum Socket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

/// Sends events to one receiver, one after the other.
pub struct Outlet {
    destination: Destination,
    drain: Drain,
    socket: Option<Socket>,
    told: Option<Instant>,
}

impl Outlet {
    /// Nothing is connected yet.
    pub fn new(destination: Destination, drain: Drain) -> Self {
        Self { destination, drain, socket: None, told: None }
    }

    /// Sends an event, however long that takes. Trouble is told, rarely, and that it is over.
    pub async fn deliver(&mut self, event: &Event) {
        let mut bytes = event.encode(&self.destination.tags);
        match self.destination.transport {
            Transport::Tcp => bytes.push(b'\n'),
            // Cut is better than not at all, and what a datagram cannot hold is no line of a log.
            Transport::Udp => bytes.truncate(DATAGRAM_MAX),
        }
        // A receiver that is away must not keep a machine from stopping.
        let mut underway = Some(self.drain.begin());
        let mut pause = PAUSE_FIRST;
        let mut trouble = false;
        while let Err(error) = self.send(&bytes).await {
            underway = None;
            self.socket = None;
            if !trouble && self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
                self.told = Some(Instant::now());
                warn!(receiver = %self.destination, %error, "logs are not taken; trying again");
                trouble = true;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_LAST);
        }
        drop(underway);
        if trouble {
            info!(receiver = %self.destination, "logs are taken again");
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        let mut socket = match self.socket.take() {
            Some(socket) => socket,
            None => timeout(LIMIT, connect(&self.destination)).await.map_err(late)??,
        };
        timeout(LIMIT, write(&mut socket, bytes)).await.map_err(late)??;
        self.socket = Some(socket);
        Ok(())
    }
}

/// Sends all of it; part of it on a stream counts too, as the rest would be taken for another event.
async fn write(socket: &mut Socket, bytes: &[u8]) -> io::Result<()> {
    match socket {
        Socket::Tcp(stream) => {
            // Lets the reactor hear of the other side first.
            tokio::task::yield_now().await;
            if gone(stream) {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            stream.write_all(bytes).await
        }
        Socket::Udp(socket) => socket.send(bytes).await.map(drop),
    }
}

/// Whether the other side has hung up: a write would still succeed, into nothing.
fn gone(stream: &TcpStream) -> bool {
    let mut answer = [0; 512];
    // Receivers do not answer; what they say anyway is read and forgotten.
    for _ in 0..16 {
        match stream.try_read(&mut answer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
        }
    }
    false
}

async fn connect(destination: &Destination) -> io::Result<Socket> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host((destination.host.as_str(), destination.port)).await? {
        let connected = match destination.transport {
            Transport::Tcp => TcpStream::connect(address).await.map(Socket::Tcp),
            Transport::Udp => connect_udp(address).await.map(Socket::Udp),
        };
        match connected {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn connect_udp(address: SocketAddr) -> io::Result<UdpSocket> {
    let any = match address {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(address).await?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receivers_are_read_and_written() {
        for good in ["tcp://10.0.0.1:514", "udp://logs.example:514", "tcp://[fd00::1]:9000"] {
            assert_eq!(Destination::parse(good).unwrap().to_string(), good);
        }
        assert_eq!(Destination::parse("tcp://a:1/").unwrap().host, "a");
        for bad in ["", "a:1", "http://a:1", "tcp://a", "tcp://:1", "tcp://a:0", "udp://a:99999"] {
            assert!(Destination::parse(bad).is_err(), "{bad}");
        }
    }
}
