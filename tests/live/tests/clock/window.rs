//! A window into a machine whose clock is not the host's: tools of today connect here, and the machine's certificate is
//! judged by the time it is there.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use ichor_pki::{Authority, CertInfo, Leaf, certified_key, provider, roots};
use jiff::{SignedDuration, Timestamp};
use rustls::pki_types::{ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// A connection is there within this, or not at all: the machine computes slowly.
const CONNECT_MAX: Duration = Duration::from_secs(60);
/// Between two looks at a clock that moves.
const SKEW: Duration = Duration::from_secs(3600);

/// The machine's clock, as seconds behind the host's.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clock(Arc<AtomicI64>);

impl Clock {
    /// What the test believes the machine's clock says from now on.
    pub(crate) fn set_behind(&self, seconds: i64) {
        self.0.store(seconds, Ordering::SeqCst);
    }

    /// The machine's time.
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::now() - SignedDuration::from_secs(self.0.load(Ordering::SeqCst))
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let now = SystemTime::from(self.now()).duration_since(UNIX_EPOCH).ok()?;
        Some(UnixTime::since_unix_epoch(now))
    }
}

/// One server of the machine.
#[derive(Clone)]
pub(crate) struct Window {
    /// Where it is, seen from the host.
    pub target: SocketAddr,
    /// The address that its certificate has to name.
    pub name: IpAddr,
    /// Who vouches for both sides.
    pub authority: Arc<Authority>,
    /// Whom the machine meets.
    pub client: Leaf,
    /// The machine's clock.
    pub clock: Clock,
    /// What is spoken inside.
    pub protocol: &'static [u8],
}

impl Window {
    /// Opens the window at an address of the host's loopback, for as long as the runtime lives.
    pub(crate) async fn open(self, at: SocketAddr) -> Result<()> {
        let leaf = Leaf::server("window").with_names([] as [&str; 0], [at.ip()]);
        let pair = self.authority.issue(&leaf, Timestamp::now())?;
        let key = certified_key(&pair.crt, &pair.key)?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
        config.alpn_protocols = vec![self.protocol.to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind(at).await.with_context(|| format!("listen on {at}"))?;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (window, acceptor) = (self.clone(), acceptor.clone());
                tokio::spawn(async move {
                    let passing = async {
                        // Here first: tools give a handshake ten seconds, which are few for the machine.
                        let mut here = acceptor.accept(stream).await?;
                        let mut there = window.connect().await?;
                        tokio::io::copy_bidirectional(&mut here, &mut there).await?;
                        anyhow::Ok(())
                    };
                    let _ = passing.await;
                });
            }
        });
        Ok(())
    }

    /// A new connection; the certificate has to be good by the machine's clock.
    async fn connect(&self) -> Result<TlsStream<TcpStream>> {
        let leaf = Leaf { backdate: SKEW, ..self.client.clone() };
        let pair = self.authority.issue(&leaf, self.clock.now())?;
        let key = certified_key(&pair.crt, &pair.key)?;
        let mut config = ClientConfig::builder_with_details(provider(), Arc::new(self.clock.clone()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots(self.authority.crt_pem())?)
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
        config.alpn_protocols = vec![self.protocol.to_vec()];
        let connecting = async {
            let stream = TcpStream::connect(self.target).await?;
            TlsConnector::from(Arc::new(config)).connect(ServerName::from(self.name), stream).await
        };
        Ok(tokio::time::timeout(CONNECT_MAX, connecting).await.context("no connection")??)
    }

    /// The certificate that a new connection is shown.
    pub(crate) async fn certificate(&self) -> Result<CertInfo> {
        let stream = self.connect().await?;
        let chain = stream.get_ref().1.peer_certificates().context("no certificate")?;
        Ok(CertInfo::from_der(chain.first().context("no certificate")?)?)
    }
}
