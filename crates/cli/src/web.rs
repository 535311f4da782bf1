//! One HTTP/1.1 request to a server on the web: TLS with the system's authorities, or none where the address says http.

use std::sync::Arc;
use std::time::Duration;

use http::header::{HOST, USER_AGENT};
use http::{HeaderValue, Request, Response, Uri};
use http_body::Body;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::failure::{Context as _, Failure};

/// Time for a connection and its handshake.
const CONNECT_MAX: Duration = Duration::from_secs(30);
/// Bundles of the system's authorities, the first that exists counts.
const SYSTEM_ROOTS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
/// Names another bundle.
const ROOTS_VARIABLE: &str = "SSL_CERT_FILE";

/// Makes connections; knows the authorities once they were needed.
#[derive(Default)]
pub struct Web {
    tls: Option<TlsConnector>,
}

impl Web {
    /// Sends a request to an absolute address; returns with the head of the answer. How long the answer may take is
    /// for the caller to bound.
    pub async fn send<B>(&mut self, request: Request<B>) -> Result<Response<Incoming>, Failure>
    where
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let uri = request.uri().clone();
        let (host, port, secure) = parts(&uri)?;
        let place = format!("{host}:{port}");
        let late = |_| Failure::new(format!("{place}: no connection within {}s", CONNECT_MAX.as_secs()));
        let stream = timeout(CONNECT_MAX, TcpStream::connect((host.as_str(), port))).await.map_err(late)?;
        let stream = stream.context(format!("connect to {place}"))?;
        let request = relative(request)?;
        if !secure {
            return exchange(TokioIo::new(stream), request).await.context(&uri);
        }
        let name = rustls::pki_types::ServerName::try_from(host.clone()).context(&host)?;
        let late = |_| Failure::new(format!("{place}: no TLS within {}s", CONNECT_MAX.as_secs()));
        let stream = timeout(CONNECT_MAX, self.tls()?.connect(name, stream)).await.map_err(late)?;
        exchange(TokioIo::new(stream.context(format!("TLS with {host}"))?), request).await.context(&uri)
    }

    fn tls(&mut self) -> Result<TlsConnector, Failure> {
        if let Some(tls) = &self.tls {
            return Ok(tls.clone());
        }
        use rustls::pki_types::pem::PemObject as _;
        ichor_pki::install_provider();
        let bundle = match std::env::var_os(ROOTS_VARIABLE) {
            Some(path) => Some(crate::files::read(path.as_ref())?),
            None => SYSTEM_ROOTS.iter().find_map(|path| std::fs::read(path).ok()),
        };
        let bundle = bundle.ok_or_else(|| {
            Failure::new("the system has no bundle of authorities")
                .hint(format!("name one with {ROOTS_VARIABLE}"))
        })?;
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(
            rustls::pki_types::CertificateDer::pem_slice_iter(&bundle).filter_map(Result::ok),
        );
        let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let tls = TlsConnector::from(Arc::new(config));
        self.tls = Some(tls.clone());
        Ok(tls)
    }
}

/// Host, port and whether TLS is wanted.
fn parts(uri: &Uri) -> Result<(String, u16, bool), Failure> {
    let secure = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        _ => return Err(Failure::new(format!("{uri}: not an address with http:// or https://"))),
    };
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
    Ok((host, uri.port_u16().unwrap_or(if secure { 443 } else { 80 }), secure))
}

/// The request as it goes over the line: the path alone, the host in its header.
fn relative<B>(mut request: Request<B>) -> Result<Request<B>, Failure> {
    let uri = request.uri().clone();
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let host = HeaderValue::from_str(authority).context(&uri)?;
    request.headers_mut().entry(HOST).or_insert(host);
    request.headers_mut().entry(USER_AGENT).or_insert(HeaderValue::from_static("ichorctl"));
    *request.uri_mut() = uri.path_and_query().map_or("/", |path| path.as_str()).parse().context(&uri)?;
    Ok(request)
}

async fn exchange<I, B>(io: I, request: Request<B>) -> Result<Response<Incoming>, hyper::Error>
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    tokio::spawn(connection);
    sender.send_request(request).await
}
