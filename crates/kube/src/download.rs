//! Fetches manifests over HTTPS: one request, bounded in time, size and redirects.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Uri};
use ichor_rpc::{ClientTls, Dialer, Endpoint};
use tokio::time::timeout;

use crate::access::AccessError;
use crate::client::collect;
use crate::error::{Error, Status};
use crate::http2::Http2;
use crate::transport::{Request, Transport};

/// Hops from one address to the next.
const REDIRECTS_MAX: usize = 5;
/// One download, redirects included.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Why there is no manifest.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DownloadError {
    /// No address, or one that is not https.
    #[error("{0}: not an https address")]
    Address(String),
    /// From one address to the next, without an end.
    #[error("{0}: too many redirects")]
    Redirects(String),
    /// The authorities of the machine make no sense.
    #[error("trusted roots")]
    Roots(#[source] AccessError),
    /// The server could not be reached, or said no.
    #[error(transparent)]
    Server(#[from] Error),
}

/// Fetches what is at `url`; the server must chain to `authorities` (a PEM bundle). Headers go to the first host only.
///
/// # Errors
/// Any of [`DownloadError`].
pub async fn download(
    url: &str,
    headers: &[(String, String)],
    authorities: &[u8],
) -> Result<Vec<u8>, DownloadError> {
    let tls = ClientTls::verified(authorities, None)
        .map_err(|error| DownloadError::Roots(AccessError::Tls(error)))?;
    let late = |_| {
        let (what, seconds) = (format!("GET {url}"), TIME_MAX.as_secs());
        Err(DownloadError::Server(Error::Timeout { what, seconds }))
    };
    timeout(TIME_MAX, follow(url, headers, &tls)).await.unwrap_or_else(late)
}

async fn follow(url: &str, headers: &[(String, String)], tls: &ClientTls) -> Result<Vec<u8>, DownloadError> {
    let mut next = url.to_owned();
    let mut first = None;
    for _ in 0..=REDIRECTS_MAX {
        let (endpoint, path) = parse(&next).ok_or_else(|| DownloadError::Address(next.clone()))?;
        let known = first.get_or_insert_with(|| endpoint.clone()) == &endpoint;
        let request = Request {
            method: Method::GET,
            path,
            accept: "*/*",
            content_type: "",
            body: Bytes::new(),
            headers: if known { headers.to_vec() } else { Vec::new() },
        };
        let dialer = Dialer::tls([endpoint.clone()], tls.clone());
        let reply = Http2::new(endpoint.clone(), dialer, None).send(request).await?;
        let what = format!("GET {next}");
        match (reply.code, &reply.location) {
            (200, _) => return Ok(collect(&what, reply).await?),
            (301 | 302 | 303 | 307 | 308, Some(location)) => {
                next = match location.starts_with('/') {
                    true => format!("https://{endpoint}{location}"),
                    false => location.clone(),
                };
            }
            (code, _) => {
                let status = Status { code, ..Status::default() }.into();
                return Err(Error::Refused { what, status }.into());
            }
        }
    }
    Err(DownloadError::Redirects(url.to_owned()))
}

fn parse(url: &str) -> Option<(Endpoint, String)> {
    let uri: Uri = url.parse().ok()?;
    if uri.scheme_str() != Some("https") {
        return None;
    }
    let host = uri.host()?.trim_matches(['[', ']']);
    let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    Some((Endpoint::new(host, uri.port_u16().unwrap_or(443)), path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_https_is_an_address() {
        let shown = |url: &str| parse(url).map(|(endpoint, path)| format!("{endpoint} {path}"));
        assert_eq!(shown("https://example.com/a?b=c").as_deref(), Some("example.com:443 /a?b=c"));
        assert_eq!(shown("https://[fd00::1]:8443").as_deref(), Some("[fd00::1]:8443 /"));
        assert_eq!(shown("http://example.com"), None);
        assert_eq!(shown("nonsense"), None);
    }
}
