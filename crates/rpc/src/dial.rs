//! Outgoing connections: where to, and what to say when it fails (in the words of Go, which clients match).

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http_body::Body;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::TokioIo;
use ichor_types::deadlines::DIAL;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tracing::debug;

use crate::http2::Hop;
use crate::members::Members;
use crate::tls::ClientTls;
use crate::transport::{Gather, Transport};
use crate::{http2, socket, status};

/// A host and port to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address or name.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl Endpoint {
    /// An endpoint.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A connection that could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// No TCP connection.
    #[error("transport: Error while dialing: dial tcp {endpoint}: {}", go_connect(.source))]
    Tcp {
        /// Where to.
        endpoint: Endpoint,
        /// Why not.
        source: io::Error,
    },
    /// The name has no address.
    #[error("transport: Error while dialing: dial tcp: lookup {host}: {}", go_text(.source))]
    Lookup {
        /// The name.
        host: String,
        /// Why not.
        source: io::Error,
    },
    /// Not in time.
    #[error("transport: Error while dialing: dial tcp {endpoint}: i/o timeout")]
    Timeout {
        /// Where to.
        endpoint: Endpoint,
    },
    /// TLS refused, by either side.
    #[error("transport: authentication handshake failed: tls: {source}")]
    Tls {
        /// Where to.
        endpoint: Endpoint,
        /// Why not.
        source: io::Error,
    },
    /// A name that no certificate can carry.
    #[error("transport: authentication handshake failed: tls: {host:?} is not a valid server name")]
    ServerName {
        /// The name.
        host: String,
    },
    /// No Unix connection.
    #[error("transport: Error while dialing: dial unix {}: {}", .path.display(), go_connect(.source))]
    Unix {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// HTTP/2 did not begin.
    #[error("transport: {}", status::chain(.source))]
    Http2 {
        /// Why not.
        source: hyper::Error,
    },
    /// There is nowhere to go.
    #[error("no endpoints given")]
    NoEndpoints,
}

impl DialError {
    /// The status a call ends with.
    pub fn to_status(&self) -> Status {
        Status::unavailable(format!("connection error: desc = {:?}", self.to_string()))
    }
}

fn go_connect(error: &io::Error) -> String {
    format!("connect: {}", go_text(error))
}

/// The text of an error as Go prints it: lower case, without the number.
fn go_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().map(|first| first.to_ascii_lowercase().to_string() + letters.as_str()).unwrap_or_default()
}

/// Connections that may be made at a time.
#[derive(Debug)]
pub(crate) struct Dials {
    /// Places for connections that are being made.
    pub(crate) connects: Semaphore,
    /// Places for those of them that the peer has accepted. They cost far more memory, and as a rule less time.
    pub(crate) handshakes: Semaphore,
}

/// How to reach a server. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Dialer {
    /// A Unix socket.
    Unix(Arc<PathBuf>),
    /// TCP without TLS, for services whose callers seal what they send.
    Tcp(Arc<Endpoint>),
    /// TLS to one of several endpoints, each attempt starting at the next one.
    Tls(Arc<TlsDialer>),
}

/// The TLS side of [`Dialer`].
#[derive(Debug)]
pub struct TlsDialer {
    endpoints: Vec<Endpoint>,
    tls: ClientTls,
    name: Option<String>,
    members: Option<Arc<ArcSwap<Members>>>,
    hop: Hop,
    next: AtomicUsize,
}

impl Dialer {
    /// Connects to the socket at `path`.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Dialer::Unix(Arc::new(path.into()))
    }

    /// Connects to `endpoint` without TLS.
    pub fn tcp(endpoint: Endpoint) -> Self {
        Dialer::Tcp(Arc::new(endpoint))
    }

    /// Connects to the first of `endpoints` that answers.
    pub fn tls(endpoints: impl IntoIterator<Item = Endpoint>, tls: ClientTls) -> Self {
        Self::tls_named(endpoints, tls, None)
    }

    /// The same, where certificates carry `name` instead of the host that is dialed.
    pub fn tls_named(
        endpoints: impl IntoIterator<Item = Endpoint>,
        tls: ClientTls,
        name: Option<String>,
    ) -> Self {
        let endpoints = endpoints.into_iter().collect();
        let next = AtomicUsize::new(0);
        Dialer::Tls(Arc::new(TlsDialer { endpoints, tls, name, members: None, hop: Hop::Remote, next }))
    }

    /// Connects to one node of the cluster; the names of `members` are not asked of a name server.
    pub(crate) fn node(endpoint: Endpoint, tls: ClientTls, members: Arc<ArcSwap<Members>>, hop: Hop) -> Self {
        let (endpoints, next) = (vec![endpoint], AtomicUsize::new(0));
        Dialer::Tls(Arc::new(TlsDialer { endpoints, tls, name: None, members: Some(members), hop, next }))
    }

    /// A connection of its own, for callers that speak something else than gRPC over HTTP/2. It ends when its
    /// last handle is gone.
    ///
    /// # Errors
    /// When nobody answers, or not as expected.
    pub async fn open(&self) -> Result<SendRequest<tonic::body::Body>, DialError> {
        self.connect(CancellationToken::new(), None).await
    }

    /// Whether failures are cheap and local, so that trying again at once is right.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Dialer::Unix(_))
    }

    /// The `:authority` of calls without one.
    pub(crate) fn authority(&self) -> String {
        match self {
            Dialer::Unix(_) => "localhost".to_owned(),
            Dialer::Tcp(endpoint) => endpoint.to_string(),
            Dialer::Tls(tls) => tls.endpoints.first().map(Endpoint::to_string).unwrap_or_default(),
        }
    }

    /// Connects and starts HTTP/2; the connection lives in a task of its own until it is closed, all
    /// handles are gone, or `cut`. `dials` bounds how many are made at a time.
    pub(crate) async fn connect<B>(
        &self,
        cut: CancellationToken,
        dials: Option<&Dials>,
    ) -> Result<SendRequest<B>, DialError>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        match self {
            Dialer::Unix(path) => {
                let stream = UnixStream::connect(path.as_path())
                    .await
                    .and_then(Transport::unix)
                    .map_err(|source| DialError::Unix { path: path.to_path_buf(), source })?;
                begin(stream, Hop::Local, cut).await
            }
            Dialer::Tcp(endpoint) => {
                let attempt = async {
                    begin(Transport::Tcp(connect_tcp(endpoint, &[]).await?), Hop::Remote, cut).await
                };
                let late = |_| DialError::Timeout { endpoint: Endpoint::clone(endpoint) };
                timeout(DIAL, attempt).await.map_err(late)?
            }
            Dialer::Tls(tls) => tls.connect(cut, dials).await,
        }
    }
}

impl TlsDialer {
    async fn connect<B>(
        &self,
        cut: CancellationToken,
        dials: Option<&Dials>,
    ) -> Result<SendRequest<B>, DialError>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut last = DialError::NoEndpoints;
        let start = self.next.fetch_add(1, Relaxed);
        for offset in 0..self.endpoints.len() {
            let endpoint = &self.endpoints[start.wrapping_add(offset) % self.endpoints.len()];
            let attempt = async {
                let members = self.members.as_ref().map(|members| members.load_full());
                let known = members.as_ref().map_or(&[][..], |members| members.addresses_of(&endpoint.host));
                let stream = connect_tcp(endpoint, known).await?;
                // Never closed.
                let _place = match dials {
                    Some(dials) => dials.handshakes.acquire().await.ok(),
                    None => None,
                };
                let name = self.name.as_ref().unwrap_or(&endpoint.host);
                let tls = connect_tls(endpoint, name, stream, &self.tls).await?;
                begin(Transport::tls(tls), self.hop, cut.clone()).await
            };
            match timeout(DIAL, attempt).await {
                Ok(Ok(sender)) => return Ok(sender),
                Ok(Err(error)) => last = error,
                Err(_) => last = DialError::Timeout { endpoint: endpoint.clone() },
            }
        }
        Err(last)
    }
}

/// Opens a TLS stream to one endpoint and tells the address that answered, for clients that choose
/// among endpoints themselves. The caller bounds the time.
pub async fn stream(
    endpoint: &Endpoint,
    tls: &ClientTls,
) -> Result<(tokio_rustls::client::TlsStream<TcpStream>, IpAddr), DialError> {
    let tcp = connect_tcp(endpoint, &[]).await?;
    let peer = tcp.peer_addr().map_err(|source| DialError::Tcp { endpoint: endpoint.clone(), source })?.ip();
    Ok((connect_tls(endpoint, &endpoint.host, tcp, tls).await?, peer))
}

/// Connects to `endpoint`. `known` are the addresses of its name, where those need not be looked up.
async fn connect_tcp(endpoint: &Endpoint, known: &[IpAddr]) -> Result<TcpStream, DialError> {
    let at = |address: &IpAddr| SocketAddr::new(*address, endpoint.port);
    let found: Vec<SocketAddr> = match endpoint.host.parse::<IpAddr>() {
        Ok(address) => vec![at(&address)],
        Err(_) if !known.is_empty() => known.iter().map(at).collect(),
        Err(_) => {
            let lookup = lookup_host((endpoint.host.as_str(), endpoint.port)).await;
            lookup.map_err(|source| DialError::Lookup { host: endpoint.host.clone(), source })?.collect()
        }
    };
    let stream = connect_any(&found).await.map_err(|source| match source.kind() {
        io::ErrorKind::TimedOut => DialError::Timeout { endpoint: endpoint.clone() },
        _ => DialError::Tcp { endpoint: endpoint.clone(), source },
    })?;
    socket::tune(&stream);
    Ok(stream)
}

/// Connects to the first of `addresses` that accepts. One that does not answer leaves time for the next.
async fn connect_any(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    let share = DIAL / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
    for address in addresses {
        match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

async fn connect_tls(
    endpoint: &Endpoint,
    name: &str,
    stream: TcpStream,
    tls: &ClientTls,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, DialError> {
    let name =
        ServerName::try_from(name.to_owned()).map_err(|_| DialError::ServerName { host: name.to_owned() })?;
    TlsConnector::from(tls.config())
        .connect(name, stream)
        .await
        .map_err(|source| DialError::Tls { endpoint: endpoint.clone(), source })
}

async fn begin<B>(stream: Transport, hop: Hop, cut: CancellationToken) -> Result<SendRequest<B>, DialError>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (sender, connection) = http2::client(hop)
        .handshake(TokioIo::new(Gather::new(stream)))
        .await
        .map_err(|source| DialError::Http2 { source })?;
    tokio::spawn(async move {
        tokio::select! {
            biased;
            ended = connection => if let Err(error) = ended {
                debug!(error = %status::chain(&error), "upstream connection ended");
            },
            () = cut.cancelled() => {}
        }
    });
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_speak_as_go_does() {
        let error = DialError::Tcp {
            endpoint: Endpoint::new("10.5.0.9", 50000),
            source: io::Error::from_raw_os_error(111),
        };
        assert_eq!(
            error.to_status().message(),
            "connection error: desc = \"transport: Error while dialing: dial tcp 10.5.0.9:50000: connect: connection refused\""
        );
        let timeout = DialError::Timeout { endpoint: Endpoint::new("fd00::1", 50000) };
        assert_eq!(
            timeout.to_string(),
            "transport: Error while dialing: dial tcp [fd00::1]:50000: i/o timeout"
        );
    }
}
