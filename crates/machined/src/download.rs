//! Fetches a configuration over HTTP: one small request, bounded in time, size and redirects.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use ichor_config::values::Url;

/// A configuration that is larger is none.
const BODY_MAX: usize = 32 << 20;

/// Status line and headers.
const HEAD_MAX: usize = 64 << 10;

/// Hops from one address to the next.
const REDIRECTS_MAX: usize = 5;

/// One request, answer and redirects included.
const ATTEMPT_MAX: Duration = Duration::from_secs(3 * 60);

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The address makes no sense here.
    #[error("{url}: {reason}")]
    Url {
        /// The address.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The server could not be reached, or what it said makes no sense.
    #[error("{url}: {source}")]
    Io {
        /// The address.
        url: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The server said no.
    #[error("{url}: the server answered {status}")]
    Status {
        /// The address.
        url: String,
        /// Its status line.
        status: String,
    },
}

impl DownloadError {
    /// Whether asking again may help. A server that is not there yet comes; one that says no means it.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Url { .. } => false,
            Self::Io { .. } => true,
            Self::Status { status, .. } => status.starts_with('5') || status.starts_with("429"),
        }
    }
}

/// Facts about the machine that an address can ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The machine's UUID.
    pub uuid: String,
    /// Its serial number.
    pub serial: String,
    /// The address of its first network card.
    pub mac: String,
    /// Its name.
    pub hostname: String,
    /// The code that META holds for this.
    pub code: String,
}

/// Fills `${uuid}` and the like in the query, in any case; a bare `uuid=` too.
pub fn fill(url: &str, facts: &Facts) -> String {
    let Some((base, query)) = url.split_once('?') else { return url.to_owned() };
    let known = [
        ("${uuid}", &facts.uuid),
        ("${serial}", &facts.serial),
        ("${mac}", &facts.mac),
        ("${hostname}", &facts.hostname),
        ("${code}", &facts.code),
    ];
    let pairs: Vec<String> = query
        .split('&')
        .map(|pair| match pair {
            "uuid=" | "uuid" => format!("uuid={}", escape(&facts.uuid)),
            pair => {
                known.iter().fold(pair.to_owned(), |text, (name, value)| replace(&text, name, &escape(value)))
            }
        })
        .collect();
    format!("{base}?{}", pairs.join("&"))
}

fn replace(text: &str, name: &str, value: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let mut out = String::new();
    let mut from = 0;
    while let Some(at) = lower[from..].find(name) {
        out.push_str(&text[from..from + at]);
        out.push_str(value);
        from += at + name.len();
    }
    out.push_str(&text[from..]);
    out
}

fn escape(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    value
        .bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// Fetches what is at `url`, which follows redirects.
///
/// # Errors
/// Any of [`DownloadError`].
pub async fn fetch(url: &str) -> Result<Vec<u8>, DownloadError> {
    fetch_with(url, &[]).await
}

/// The same with headers of the caller's.
///
/// # Errors
/// Any of [`DownloadError`].
pub async fn fetch_with(url: &str, headers: &[(String, String)]) -> Result<Vec<u8>, DownloadError> {
    let late = |_| DownloadError::Io { url: url.to_owned(), source: io::ErrorKind::TimedOut.into() };
    timeout(ATTEMPT_MAX, follow(url, headers)).await.map_err(late)?
}

async fn follow(url: &str, headers: &[(String, String)]) -> Result<Vec<u8>, DownloadError> {
    let mut next = url.to_owned();
    for _ in 0..=REDIRECTS_MAX {
        let failed = |source| DownloadError::Io { url: next.clone(), source };
        let target = Target::parse(&next)?;
        let answer = get(&target, headers).await.map_err(failed)?;
        match answer.code {
            200 => return Ok(answer.body),
            301 | 302 | 303 | 307 | 308 => {
                let location = answer.location.ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?;
                next = if location.starts_with('/') {
                    format!("http://{}{location}", target.authority)
                } else {
                    location
                };
            }
            _ => return Err(DownloadError::Status { url: next, status: answer.status }),
        }
    }
    Err(DownloadError::Url { url: next, reason: "too many redirects" })
}

struct Target {
    authority: String,
    host: String,
    port: u16,
    path: String,
}

impl Target {
    fn parse(text: &str) -> Result<Self, DownloadError> {
        let bad = |reason| DownloadError::Url { url: text.to_owned(), reason };
        let url = Url::parse(text).map_err(|_| bad("no address"))?;
        if url.scheme != "http" {
            return Err(bad("this build fetches configurations over http only"));
        }
        let port = match url.port() {
            "" => 80,
            port => port.parse().map_err(|_| bad("no port"))?,
        };
        let path = if url.path.is_empty() { "/" } else { &url.path };
        let path = if url.query.is_empty() { path.to_owned() } else { format!("{path}?{}", url.query) };
        if url.hostname().is_empty() || path.contains([' ', '\r', '\n']) {
            return Err(bad("no host, or odd characters"));
        }
        Ok(Self { authority: url.host.clone(), host: url.hostname().to_owned(), port, path })
    }
}

struct Answer {
    code: u16,
    status: String,
    location: Option<String>,
    body: Vec<u8>,
}

async fn get(target: &Target, headers: &[(String, String)]) -> io::Result<Answer> {
    let mut stream = TcpStream::connect((target.host.as_str(), target.port)).await?;
    let mut request = format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\nAccept: */*\r\nConnection: close\r\n",
        target.path, target.authority
    );
    for (name, value) in
        headers.iter().filter(|(name, value)| !format!("{name}{value}").contains(['\r', '\n']))
    {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes()).await?;
    // The connection ends with the answer, so all of it is what there is.
    let whole = read_up_to(&mut stream, HEAD_MAX + BODY_MAX).await?;
    parse(&whole).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no HTTP answer, or a broken one"))
}

async fn read_up_to(stream: &mut (impl AsyncRead + Unpin), max: usize) -> io::Result<Vec<u8>> {
    let mut whole = Vec::new();
    stream.take(max as u64 + 1).read_to_end(&mut whole).await?;
    match whole.len() > max {
        true => Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 32 MiB")),
        false => Ok(whole),
    }
}

/// Status, headers and body of a whole answer.
fn parse(whole: &[u8]) -> Option<Answer> {
    let end = whole.windows(4).take(HEAD_MAX).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&whole[..end]).ok()?;
    let body = &whole[end + 4..];
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.")?.split_once(' ')?.1.to_owned();
    let header = |name: &str| {
        let found = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
        found
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim().to_owned())
            .next()
    };
    let body = if header("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
        unchunk(body)?
    } else if let Some(len) = header("content-length") {
        // A connection that ended early must not pass for a shorter configuration.
        body.get(..len.parse().ok()?)?.to_vec()
    } else {
        body.to_vec()
    };
    Some(Answer { code: status.split(' ').next()?.parse().ok()?, location: header("location"), status, body })
}

/// Code and body of a whole answer, for the tests that hand in anything.
#[doc(hidden)]
pub fn read_answer(whole: &[u8]) -> Option<(u16, Vec<u8>)> {
    parse(whole).map(|answer| (answer.code, answer.body))
}

fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n")?;
        let size = std::str::from_utf8(&rest[..end]).ok()?.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        rest = &rest[end + 2..];
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size..)?.strip_prefix(b"\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Answers each connection with the next text.
    async fn server(answers: Vec<String>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 4096];
                let len = stream.read(&mut request).await.unwrap();
                let request = String::from_utf8_lossy(&request[..len]).into_owned();
                let answer = answer.replace("{path}", request.split(' ').nth(1).unwrap());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        format!("http://{address}")
    }

    #[tokio::test]
    async fn a_configuration_is_fetched_over_redirects_and_in_chunks() {
        let base = server(vec![
            "HTTP/1.1 302 Found\r\nLocation: /there?a=b\r\n\r\n".into(),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n7;x\r\n, world\r\n0\r\n\r\n"
                .into(),
        ])
        .await;
        assert_eq!(fetch(&format!("{base}/config")).await.unwrap(), b"hello, world");
        let base = server(vec!["HTTP/1.0 200 OK\r\n\r\n{path}".into()]).await;
        assert_eq!(fetch(&format!("{base}/a?b=c")).await.unwrap(), b"/a?b=c");
    }

    #[tokio::test]
    async fn a_server_that_refuses_stops_or_talks_nonsense_is_named() {
        for (answer, retryable) in [
            ("HTTP/1.1 404 Not Found\r\n\r\n", false),
            ("HTTP/1.1 503 Busy\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", true),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nshort", true),
            ("SSH-2.0-nonsense\r\n", true),
            ("", true),
        ] {
            let base = server(vec![answer.into()]).await;
            let error = fetch(&base).await.unwrap_err();
            assert!(error.to_string().starts_with("http://127.0.0.1:"), "{error}");
            assert_eq!(error.is_retryable(), retryable, "{error}");
        }
        let endless = server(vec!["HTTP/1.1 301 Go\r\nLocation: /x\r\n\r\n".into(); 10]).await;
        assert!(fetch(&endless).await.unwrap_err().to_string().ends_with("too many redirects"));
        for bad in ["https://a/", "http://", "ftp://a/", "http://a:x/"] {
            assert!(!fetch(bad).await.unwrap_err().is_retryable(), "{bad}");
        }
    }

    #[test]
    fn facts_are_filled_in_where_the_address_asks() {
        let facts =
            Facts { uuid: "u-1".into(), serial: "s 1".into(), mac: "aa:bb".into(), ..Facts::default() };
        for (url, want) in [
            ("http://a/b", "http://a/b"),
            ("http://a/${uuid}?x=${UUID}&s=${serial}", "http://a/${uuid}?x=u-1&s=s%201"),
            ("http://a/?uuid=&mac=${mac}&code=${code}", "http://a/?uuid=u-1&mac=aa%3Abb&code="),
        ] {
            assert_eq!(fill(url, &facts), want);
        }
    }
}
