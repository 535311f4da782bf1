//! The client: a pool of connections, TLS where the address says https, redirects and sizes bounded.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::header::{LOCATION, USER_AGENT};
use http::uri::Scheme;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use ichor_types::deadlines::{DIAL_HTTP, HTTP_STALL};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::timeout;

use crate::body::{Pieces, RequestBody, empty};

/// Unused connections are closed after this time.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Unused connections to one host.
const IDLE_CONNECTIONS_MAX: usize = 4;
/// The most headers, and the most bytes, of a response's head.
const HEADERS_MAX: usize = 100;
const HEAD_MAX: usize = 64 << 10;
/// The system's bundles of authorities; the first that exists counts.
const SYSTEM_ROOTS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
/// Names another bundle.
const ROOTS_VARIABLE: &str = "SSL_CERT_FILE";

/// Why there is no response, or none of use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The address makes no sense here.
    #[error("{url}: {reason}")]
    Address {
        /// The address.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The server could not be reached, or did not speak HTTP.
    #[error("{url}: {text}")]
    Exchange {
        /// The address.
        url: String,
        /// The error and its causes.
        text: String,
        /// Nothing was sent: there was no connection.
        connect: bool,
    },
    /// The server took too long.
    #[error("{url}: no response within {limit:?}")]
    Timeout {
        /// The address.
        url: String,
        /// How long it had.
        limit: Duration,
    },
    /// The server refused.
    #[error("{url}: the server answered {status}")]
    Status {
        /// The address.
        url: String,
        /// Its answer.
        status: StatusCode,
    },
    /// More than is wanted.
    #[error("{url}: larger than {limit} bytes")]
    TooLarge {
        /// The address.
        url: String,
        /// The limit.
        limit: usize,
    },
    /// From one address to the next, without an end.
    #[error("{url}: more than {limit} redirects")]
    Redirects {
        /// Where it began.
        url: String,
        /// The limit.
        limit: usize,
    },
    /// There is no way to check the server.
    #[error("{url}: {reason}")]
    Insecure {
        /// The address.
        url: String,
        /// Why.
        reason: String,
    },
}

impl ClientError {
    /// Whether the same request may succeed later: the server is not there yet, or busy.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Address { .. } | Self::Redirects { .. } | Self::TooLarge { .. } | Self::Insecure { .. } => {
                false
            }
            Self::Exchange { .. } | Self::Timeout { .. } => true,
            Self::Status { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
        }
    }
}

/// What a download may cost.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// All of it, redirects included.
    pub time: Duration,
    /// Bytes of the body.
    pub bytes: usize,
    /// Hops from one address to the next.
    pub redirects: usize,
}

/// A client; clones share its connections.
#[derive(Debug, Clone)]
pub struct Client {
    pool: legacy::Client<HttpsConnector<HttpConnector>, RequestBody>,
    /// Why there is no TLS, where there is none.
    insecure: Option<String>,
}

impl Client {
    /// A client of servers without TLS.
    pub fn plain() -> Self {
        Self::new(RootCertStore::empty(), Some("https is not supported here".to_owned()))
    }

    /// A client that accepts servers with a certificate of these authorities, a PEM bundle.
    pub fn trusting(authorities: &[u8]) -> Self {
        Self::of_bundle(authorities, "the trusted roots")
    }

    /// A client that accepts servers of the system's authorities, or those of the bundle that `SSL_CERT_FILE` names.
    pub fn system() -> Self {
        let named = std::env::var_os(ROOTS_VARIABLE);
        let place = named.as_deref().map(Path::new);
        let place = place.or_else(|| SYSTEM_ROOTS.iter().map(Path::new).find(|path| path.exists()));
        let place = place.unwrap_or(Path::new(SYSTEM_ROOTS[0]));
        match std::fs::read(place) {
            Ok(bundle) => Self::of_bundle(&bundle, &place.display().to_string()),
            Err(error) => {
                let reason = format!("read certificate authorities: {}: {error}", place.display());
                Self::new(RootCertStore::empty(), Some(reason))
            }
        }
    }

    fn of_bundle(bundle: &[u8], place: &str) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(bundle).filter_map(Result::ok));
        let none = roots.is_empty().then(|| format!("no certificate authorities in {place}"));
        Self::new(roots, none)
    }

    fn new(roots: RootCertStore, insecure: Option<String>) -> Self {
        ichor_pki::install_provider();
        let tls = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(DIAL_HTTP));
        tcp.set_nodelay(true);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let pool = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .http1_max_headers(HEADERS_MAX)
            .http1_max_buf_size(HEAD_MAX)
            .build(connector);
        Self { pool, insecure }
    }

    /// Sends a request to an absolute address; the head of the response must come within `limit`.
    ///
    /// # Errors
    /// Any of [`ClientError`] but a refusal: a response of any status is one.
    pub async fn send(
        &self,
        mut request: Request<RequestBody>,
        limit: Duration,
    ) -> Result<Response<Pieces>, ClientError> {
        let url = shown(request.uri());
        match (request.uri().scheme(), &self.insecure) {
            (Some(scheme), None) if *scheme == Scheme::HTTPS => {}
            (Some(scheme), Some(reason)) if *scheme == Scheme::HTTPS => {
                return Err(ClientError::Insecure { url, reason: reason.clone() });
            }
            (Some(scheme), _) if *scheme == Scheme::HTTP => {}
            _ => return Err(ClientError::Address { url, reason: "not an http:// or https:// address" }),
        }
        let agent = HeaderValue::from_static(concat!("ichor/", env!("CARGO_PKG_VERSION")));
        request.headers_mut().entry(USER_AGENT).or_insert(agent);
        match timeout(limit, self.pool.request(request)).await {
            Err(_) => Err(ClientError::Timeout { url, limit }),
            Ok(Ok(response)) => Ok(response.map(|body| Pieces::new(body, HTTP_STALL))),
            Ok(Err(error)) => {
                Err(ClientError::Exchange { connect: error.is_connect(), text: causes(&error), url })
            }
        }
    }

    /// Sends a request without a body and follows redirects. The caller's headers, credentials among them, go to the
    /// first host only; from https it never leads to http.
    ///
    /// # Errors
    /// Any of [`ClientError`] but a refusal.
    pub async fn follow(
        &self,
        request: Request<()>,
        redirects: usize,
        limit: Duration,
    ) -> Result<Response<Pieces>, ClientError> {
        let (mut head, ()) = request.into_parts();
        let first = head.uri.clone();
        for _ in 0..=redirects {
            let response = self.send(Request::from_parts(head.clone(), empty()), limit).await?;
            let Some(next) = redirect(&head.uri, &response)? else { return Ok(response) };
            if next.authority() != first.authority() || next.scheme() != first.scheme() {
                head.headers.clear();
            }
            head.uri = next;
        }
        Err(ClientError::Redirects { url: shown(&first), limit: redirects })
    }

    /// Downloads what is at `url`, redirects followed.
    ///
    /// # Errors
    /// Any of [`ClientError`].
    pub async fn get(
        &self,
        url: &str,
        headers: &[(String, String)],
        limits: Limits,
    ) -> Result<Bytes, ClientError> {
        let bad = |reason| ClientError::Address { url: url.to_owned(), reason };
        let mut request = Request::new(());
        *request.uri_mut() = url.parse().map_err(|_| bad("not an address"))?;
        for (name, value) in headers {
            let name: HeaderName = name.parse().map_err(|_| bad("a header has no valid name"))?;
            let value: HeaderValue = value.parse().map_err(|_| bad("a header has no valid value"))?;
            request.headers_mut().append(name, value);
        }
        let url = &shown(request.uri());
        let whole = async {
            let response = self.follow(request, limits.redirects, limits.time).await?;
            match response.status() {
                StatusCode::OK => collect(response.into_body(), url, limits.bytes).await,
                status => Err(ClientError::Status { url: url.clone(), status }),
            }
        };
        let late = |_| Err(ClientError::Timeout { url: url.clone(), limit: limits.time });
        timeout(limits.time, whole).await.unwrap_or_else(late)
    }
}

/// All of a body of at most `limit` bytes; `url` is for errors.
///
/// # Errors
/// When it is longer or ends early.
pub async fn collect(body: Pieces, url: &str, limit: usize) -> Result<Bytes, ClientError> {
    match Limited::new(body, limit).collect().await {
        Ok(whole) => Ok(whole.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            Err(ClientError::TooLarge { url: url.to_owned(), limit })
        }
        Err(error) => {
            Err(ClientError::Exchange { url: url.to_owned(), text: causes(&*error), connect: false })
        }
    }
}

/// Where a response sends the caller on to.
fn redirect<B>(from: &Uri, response: &Response<B>) -> Result<Option<Uri>, ClientError> {
    match response.status().as_u16() {
        301 | 302 | 303 | 307 | 308 => {}
        _ => return Ok(None),
    }
    let bad = |reason| ClientError::Address { url: shown(from), reason };
    let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let next = resolve(from, location).ok_or_else(|| bad("the server redirects to no valid address"))?;
    if from.scheme() == Some(&Scheme::HTTPS) && next.scheme() != Some(&Scheme::HTTPS) {
        return Err(bad("the server redirects from https to http"));
    }
    Ok(Some(next))
}

/// The address that `location` means on a page at `from`: a whole one, or what differs.
fn resolve(from: &Uri, location: &str) -> Option<Uri> {
    let (scheme, authority, path) = (from.scheme_str()?, from.authority()?, from.path());
    let folder = path.rfind('/').map_or("/", |end| &path[..=end]);
    let whole = match location {
        "" => return None,
        _ if location.split(['/', '?', '#']).next().is_some_and(|start| start.contains(':')) => {
            location.to_owned()
        }
        _ if location.starts_with("//") => format!("{scheme}:{location}"),
        _ if location.starts_with('/') => format!("{scheme}://{authority}{location}"),
        _ if location.starts_with('?') => format!("{scheme}://{authority}{path}{location}"),
        _ => format!("{scheme}://{authority}{folder}{location}"),
    };
    whole.parse().ok().filter(|next: &Uri| next.scheme().is_some() && next.authority().is_some())
}

/// An address without what may be secret in it.
fn shown(uri: &Uri) -> String {
    let host = uri.authority().map_or("", |authority| authority.as_str());
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    format!("{}://{host}{}", uri.scheme_str().unwrap_or_default(), uri.path())
}

/// An error with its causes.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let _ = write!(text, ": {cause}");
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_names_a_whole_address_or_what_differs() {
        let from: Uri = "https://one.test:8443/folder/page?query".parse().unwrap();
        for (location, wanted) in [
            ("http://two.test/page", Some("http://two.test/page")),
            ("//two.test/page", Some("https://two.test/page")),
            ("/page?a=b:c", Some("https://one.test:8443/page?a=b:c")),
            ("next.yaml", Some("https://one.test:8443/folder/next.yaml")),
            ("deeper/next.yaml", Some("https://one.test:8443/folder/deeper/next.yaml")),
            ("?again", Some("https://one.test:8443/folder/page?again")),
            ("", None),
            ("mailto:somebody", None),
            ("http://", None),
        ] {
            let found = resolve(&from, location).map(|next| next.to_string());
            assert_eq!(found.as_deref(), wanted, "{location}");
        }
    }
}
