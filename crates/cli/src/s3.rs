//! A bucket of S3 or of something that speaks like it: put, get, list and delete, each signed, bounded and tried again.

mod settings;
mod sign;
mod xml;

use std::io::{Read as _, Write};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty, StreamBody};
use hyper::body::Incoming;
use jiff::Timestamp;
use tokio::time::timeout;

pub use settings::{Given, Place, Settings};
pub use sign::Credentials;

use crate::failure::{Context as _, Failure};
use crate::web::Web;
use sign::{Question, escape, hex, sign};

/// How often a request is tried.
const ATTEMPTS_MAX: u32 = 3;
/// The first pause between two attempts; each further one is twice as long.
const PAUSE: Duration = Duration::from_secs(1);
/// Time to begin an answer once a question is sent, and between two pieces.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// The slowest line for an object that is worth waiting for.
const BYTES_PER_SECOND_MIN: u64 = 64 << 10;
/// The largest page of a list, and the largest complaint.
const DOCUMENT_MAX: usize = 4 << 20;
/// Pages of a list; a thousand names each.
const PAGES_MAX: usize = 100;
/// What one request may carry; more needs many, which nobody here makes.
const OBJECT_MAX: u64 = 5 << 30;
/// Bytes read from a file at a time.
const PIECE: usize = 256 << 10;

type OutBody = BoxBody<Bytes, std::io::Error>;

/// A bucket and who asks it.
pub struct Bucket {
    settings: Settings,
    web: Web,
    pause: Duration,
}

/// Why a request did not do what it should.
struct Refused {
    failure: Failure,
    again: bool,
}

impl Bucket {
    /// A bucket; nothing is asked yet.
    pub fn new(settings: Settings) -> Self {
        Self { settings, web: Web::default(), pause: PAUSE }
    }

    /// For messages: `s3://bucket/key`.
    pub fn name(&self, key: &str) -> String {
        format!("s3://{}/{key}", self.settings.bucket)
    }

    /// Stores a file.
    pub async fn put(&mut self, key: &str, file: &Path) -> Result<(), Failure> {
        let doing = format!("store {}", self.name(key));
        let shown = file.display();
        let size = std::fs::metadata(file).context(&shown)?.len();
        if size > OBJECT_MAX {
            return Err(Failure::new(format!("{doing}: {size} bytes; one request carries at most 5 GiB"))
                .hint("make it smaller with --compress, or store it by hand"));
        }
        let mut opened = std::fs::File::open(file).context(&shown)?;
        let digest = hex(&ichor_pki::sha256_reader(&mut opened).context(&shown)?);
        let mut pause = self.pause;
        for attempt in 1.. {
            let body = file_body(std::fs::File::open(file).context(&shown)?);
            let limit = ANSWER_MAX + Duration::from_secs(size / BYTES_PER_SECOND_MIN);
            let asked = self.ask(Method::PUT, key, &[], Some((body, size)), &digest, limit).await;
            match asked {
                Ok(_) => break,
                Err(refused) => self.pause(&doing, refused, attempt, &mut pause).await?,
            }
        }
        Ok(())
    }

    /// Reads an object of at most `limit` bytes into `out`.
    pub async fn get(&mut self, key: &str, limit: u64, out: &mut impl Write) -> Result<(), Failure> {
        let doing = format!("read {}", self.name(key));
        let mut body = self.again(&doing, Method::GET, key, &[]).await?.into_body();
        let mut left = limit;
        while let Some(frame) = timeout(ANSWER_MAX, body.frame()).await.context(&doing)? {
            let Ok(data) = frame.context(&doing)?.into_data() else { continue };
            left = left
                .checked_sub(data.len() as u64)
                .ok_or_else(|| Failure::new(format!("{doing}: longer than {limit} bytes")))?;
            out.write_all(&data).context(&doing)?;
        }
        Ok(())
    }

    /// The keys that begin with `prefix`.
    pub async fn list(&mut self, prefix: &str) -> Result<Vec<String>, Failure> {
        let doing = format!("list {}", self.name(prefix));
        let mut keys = Vec::new();
        let mut token: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let mut query = vec![("list-type", "2"), ("prefix", prefix)];
            query.extend(token.as_deref().map(|token| ("continuation-token", token)));
            let answer = self.again(&doing, Method::GET, "", &query).await?;
            let page = text(answer).await.map_err(|failure| failure.within(&doing))?;
            let page = xml::page(&page).ok_or_else(|| {
                Failure::new(format!("{doing}: the answer is no list of a bucket"))
                    .hint("is the address that of an S3 service?")
            })?;
            keys.extend(page.keys);
            token = page.next;
            if token.is_none() {
                return Ok(keys);
            }
        }
        Err(Failure::new(format!("{doing}: more than {PAGES_MAX} pages")))
    }

    /// Deletes an object.
    pub async fn delete(&mut self, key: &str) -> Result<(), Failure> {
        let doing = format!("delete {}", self.name(key));
        self.again(&doing, Method::DELETE, key, &[]).await.map(drop)
    }

    /// Asks without a body until it works or is of no use.
    async fn again(
        &mut self,
        doing: &str,
        method: Method,
        key: &str,
        query: &[(&str, &str)],
    ) -> Result<Response<Incoming>, Failure> {
        let digest = hex(&ichor_pki::sha256(b""));
        let mut pause = self.pause;
        for attempt in 1.. {
            match self.ask(method.clone(), key, query, None, &digest, ANSWER_MAX).await {
                Ok(answer) => return Ok(answer),
                Err(refused) => self.pause(doing, refused, attempt, &mut pause).await?,
            }
        }
        Err(Failure::new(doing))
    }

    async fn pause(
        &self,
        doing: &str,
        refused: Refused,
        attempt: u32,
        pause: &mut Duration,
    ) -> Result<(), Failure> {
        if !refused.again || attempt >= ATTEMPTS_MAX {
            return Err(refused.failure.within(doing));
        }
        eprintln!("{doing}: {}; trying again", refused.failure);
        tokio::time::sleep(*pause).await;
        *pause *= 2;
        Ok(())
    }

    async fn ask(
        &mut self,
        method: Method,
        key: &str,
        query: &[(&str, &str)],
        body: Option<(OutBody, u64)>,
        digest: &str,
        limit: Duration,
    ) -> Result<Response<Incoming>, Refused> {
        let lasting = |failure| Refused { failure, again: false };
        let (host, path) = self.settings.address(&escape(key, true));
        let question =
            Question { method: &method, host: &host, path: &path, query, headers: &[], payload: digest };
        let who = &self.settings.credentials;
        let signed = sign(&question, who, &self.settings.region, Timestamp::now());
        let scheme = if self.settings.secure { "https" } else { "http" };
        let query = sign::query(query);
        let mark = if query.is_empty() { "" } else { "?" };
        let mut request =
            Request::builder().method(method).uri(format!("{scheme}://{host}{path}{mark}{query}"));
        for (name, value) in signed {
            request = request.header(name, value);
        }
        let body = match body {
            Some((body, size)) => {
                request =
                    request.header(CONTENT_LENGTH, size).header(CONTENT_TYPE, "application/octet-stream");
                body
            }
            None => Empty::new().map_err(|never| match never {}).boxed(),
        };
        let request = request.body(body).context("make the request").map_err(lasting)?;
        let answer = match timeout(limit, self.web.send(request)).await {
            Ok(answer) => answer.map_err(|failure| Refused { failure, again: true })?,
            Err(_) => {
                let failure = Failure::new(format!("no answer within {}s", limit.as_secs()));
                return Err(Refused { failure, again: true });
            }
        };
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let again = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        let why = text(answer).await.unwrap_or_default();
        Err(Refused { failure: complaint(status, &why), again })
    }
}

fn complaint(status: StatusCode, body: &str) -> Failure {
    let (code, message) = (xml::first(body, "Code"), xml::first(body, "Message"));
    let failure = match (&code, message) {
        (Some(code), Some(message)) => Failure::new(format!("{code}: {message}")),
        (Some(code), None) => Failure::new(format!("{code} ({status})")),
        (None, _) => Failure::new(status.to_string()),
    };
    match code.as_deref() {
        Some("SignatureDoesNotMatch" | "InvalidAccessKeyId") => {
            failure.hint("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY do not fit this bucket")
        }
        Some("AuthorizationHeaderMalformed" | "PermanentRedirect") => {
            failure.hint("the bucket is in another region: name it with --s3-region")
        }
        Some("RequestTimeTooSkewed") => failure.hint("the clock of this machine is wrong"),
        _ => failure,
    }
}

/// All of a short answer.
async fn text(answer: Response<Incoming>) -> Result<String, Failure> {
    let body = http_body_util::Limited::new(answer.into_body(), DOCUMENT_MAX).collect();
    let body = timeout(ANSWER_MAX, body).await.map_err(|_| Failure::new("the answer does not end"))?;
    let body = body.map_err(|error| Failure::new(error.to_string()))?.to_bytes();
    Ok(String::from_utf8_lossy(&body).into_owned())
}

fn file_body(file: std::fs::File) -> OutBody {
    let pieces = stream::try_unfold(file, |mut file| async move {
        let mut piece = vec![0; PIECE];
        let count = file.read(&mut piece)?;
        piece.truncate(count);
        Ok((count > 0).then(|| (Frame::data(Bytes::from(piece)), file)))
    });
    // The stream is asked from one place only.
    BoxBody::new(StreamBody::new(pieces))
}

#[cfg(test)]
mod tests {
    use ichor_testkit::s3::{KEY_ID, REGION, SECRET, Server};

    use super::*;

    fn bucket(server: &Server, secret: &str) -> Bucket {
        let env = |name: &str| match name {
            "AWS_ACCESS_KEY_ID" => Some(KEY_ID.to_owned()),
            "AWS_SECRET_ACCESS_KEY" => Some(secret.to_owned()),
            "AWS_REGION" => Some(REGION.to_owned()),
            "CUSTOM_S3_ENDPOINT" => Some(server.endpoint()),
            _ => None,
        };
        Bucket::new(Settings::resolve("backups", Given::default(), &env, &|_| None).unwrap())
    }

    #[tokio::test]
    async fn objects_are_stored_listed_read_and_deleted() {
        let server = Server::start().unwrap();
        let mut bucket = bucket(&server, SECRET);
        let file = tempfile::NamedTempFile::new().unwrap();
        let content: Vec<u8> = (0..700_000_u32).map(|at| (at % 253) as u8).collect();
        std::fs::write(file.path(), &content).unwrap();
        let keys = ["a/x-2026-01-13T06:00:00Z.snap", "a/y & z", "a/ü", "a/w", "b/v"];
        for key in keys {
            bucket.put(key, file.path()).await.unwrap();
        }
        assert_eq!(server.get("backups/a/x-2026-01-13T06:00:00Z.snap").unwrap(), content);
        // More than a page.
        assert_eq!(bucket.list("a/").await.unwrap(), ["a/w", keys[0], "a/y & z", "a/ü"]);
        let mut out = Vec::new();
        bucket.get("a/y & z", 1 << 20, &mut out).await.unwrap();
        assert_eq!(out, content);
        let long = bucket.get("a/w", 10, &mut Vec::new()).await.unwrap_err().to_string();
        assert!(long.contains("longer than 10 bytes"), "{long}");
        bucket.delete("a/w").await.unwrap();
        assert_eq!(server.keys().len(), 4);
        let missing = bucket.get("a/w", 10, &mut Vec::new()).await.unwrap_err().to_string();
        assert!(missing.contains("read s3://backups/a/w: NoSuchKey: there is no such object"), "{missing}");
    }

    #[tokio::test]
    async fn a_wrong_key_is_told_and_not_tried_again() {
        let server = Server::start().unwrap();
        let refused = bucket(&server, "another").list("").await.unwrap_err().to_string();
        assert!(refused.contains("SignatureDoesNotMatch") && refused.contains("AWS_SECRET"), "{refused}");
    }

    #[tokio::test]
    async fn a_service_that_stumbles_is_asked_again_a_few_times() {
        let server = Server::start().unwrap();
        let mut bucket = bucket(&server, SECRET);
        bucket.pause = Duration::from_millis(1);
        server.stumble(2);
        assert_eq!(bucket.list("").await.unwrap(), [] as [&str; 0]);
        server.stumble(3);
        let refused = bucket.list("").await.unwrap_err().to_string();
        assert!(refused.contains("SlowDown"), "{refused}");
    }
}
