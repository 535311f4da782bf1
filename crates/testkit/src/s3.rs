//! A small S3 service on the loopback: keeps objects in memory and answers only what is signed as it should be. It
//! checks signatures by what came over the line, with none of the code that makes them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ichor_pki::primitive::hmac_sha256;

/// The key of the only one who may ask.
pub const KEY_ID: &str = "AKIDEXAMPLE";
/// Its secret.
pub const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
/// The region it is in.
pub const REGION: &str = "test-1";
/// Keys on a page of a list: few, so that lists have several.
const PAGE: usize = 2;
/// The largest object it takes.
const OBJECT_MAX: usize = 256 << 20;

type Objects = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;
/// Parts of uploads that are not complete, by object and number.
type Parts = Arc<Mutex<BTreeMap<(String, u32), Vec<u8>>>>;

/// A running service; it ends with the process.
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    objects: Objects,
    stumbles: Arc<Mutex<usize>>,
}

impl Server {
    /// Starts a service.
    pub fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let server =
            Self { address: listener.local_addr()?, objects: Objects::default(), stumbles: Arc::default() };
        let (objects, stumbles) = (server.objects.clone(), server.stumbles.clone());
        let parts = Parts::default();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (objects, parts, stumbles) = (objects.clone(), parts.clone(), stumbles.clone());
                std::thread::spawn(move || {
                    // A caller that goes away is no news.
                    let _ = serve(stream, &objects, &parts, &stumbles);
                });
            }
        });
        Ok(server)
    }

    /// As `--s3-endpoint` takes it.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Keys with their buckets in front.
    pub fn keys(&self) -> Vec<String> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// An object, by bucket and key.
    pub fn get(&self, name: &str) -> Option<Vec<u8>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Puts an object there.
    pub fn put(&self, name: &str, content: &[u8]) {
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        objects.insert(name.to_owned(), content.to_vec());
    }

    /// The next requests find it unwell.
    pub fn stumble(&self, count: usize) {
        *self.stumbles.lock().unwrap_or_else(PoisonError::into_inner) = count;
    }
}

struct Request {
    method: String,
    path: String,
    query: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

fn serve(
    stream: TcpStream,
    objects: &Objects,
    parts: &Parts,
    stumbles: &Mutex<usize>,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(request) = read(&mut reader)? {
        let unwell = {
            let mut left = stumbles.lock().unwrap_or_else(PoisonError::into_inner);
            let unwell = *left > 0;
            *left = left.saturating_sub(1);
            unwell
        };
        let (code, body) = match (unwell, refusal(&request)) {
            (true, _) => (503, error("SlowDown", "later")),
            (false, Some(refusal)) => (403, refusal),
            (false, None) => upload(&request, objects, parts).unwrap_or_else(|| answer(&request, objects)),
        };
        let mut out = &stream;
        let always = "etag: \"x\"\r\nlast-modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n";
        write!(out, "HTTP/1.1 {code} X\r\n{always}content-length: {}\r\n\r\n", body.len())?;
        out.write_all(&body)?;
    }
    Ok(())
}

fn read(reader: &mut impl BufRead) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let size: usize = headers.get("content-length").and_then(|size| size.parse().ok()).unwrap_or(0);
    if size > OBJECT_MAX {
        return Err(std::io::ErrorKind::FileTooLarge.into());
    }
    let mut body = vec![0; size];
    reader.read_exact(&mut body)?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    Ok(Some(Request { method, path: path.to_owned(), query: query.to_owned(), headers, body }))
}

/// Why a request is not to be answered.
fn refusal(request: &Request) -> Option<Vec<u8>> {
    let header = |name: &str| request.headers.get(name).map(String::as_str).unwrap_or_default();
    let wrong = |message: &str| Some(error("SignatureDoesNotMatch", message));
    let proof = header("authorization").strip_prefix("AWS4-HMAC-SHA256 ").unwrap_or_default();
    let part = |name: &str| {
        let parts = proof.split(',').map(str::trim);
        parts
            .filter_map(|part| part.split_once('='))
            .find(|(key, _)| *key == name)
            .map_or("", |(_, value)| value)
    };
    let date = header("x-amz-date");
    let scope = format!("{}/{REGION}/s3/aws4_request", date.get(..8).unwrap_or_default());
    if part("Credential") != format!("{KEY_ID}/{scope}") {
        return Some(error("InvalidAccessKeyId", "nobody known here, or another region"));
    }
    if header("x-amz-content-sha256") != hex(&ichor_pki::sha256(&request.body)) {
        return wrong("the body is another one");
    }
    let names: Vec<&str> = part("SignedHeaders").split(';').collect();
    if !["host", "x-amz-content-sha256", "x-amz-date"].iter().all(|name| names.contains(name)) {
        return wrong("too little is signed");
    }
    let mut pairs: Vec<&str> = request.query.split('&').filter(|pair| !pair.is_empty()).collect();
    pairs.sort_unstable();
    let mut whole = format!("{}\n{}\n{}\n", request.method, request.path, pairs.join("&"));
    for name in &names {
        whole += &format!("{name}:{}\n", header(name));
    }
    whole += &format!("\n{}\n{}", part("SignedHeaders"), header("x-amz-content-sha256"));
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex(&ichor_pki::sha256(whole.as_bytes())));
    let mut key = format!("AWS4{SECRET}").into_bytes();
    for part in [date.get(..8).unwrap_or_default(), REGION, "s3", "aws4_request", &text] {
        key = hmac_sha256(&key, part.as_bytes()).to_vec();
    }
    if part("Signature") != hex(&key) { wrong("the signature is another one") } else { None }
}

/// Uploads in parts; nothing of them is to be seen before they are complete.
fn upload(request: &Request, objects: &Objects, parts: &Parts) -> Option<(u16, Vec<u8>)> {
    let has =
        |name: &str| request.query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let name = unescape(request.path.trim_start_matches('/'));
    let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
    match (request.method.as_str(), has("uploadId"), has("partNumber")) {
        ("POST", None, _) if has("uploads").is_some() => {
            let id = "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>";
            Some((200, id.into()))
        }
        ("PUT", Some(_), Some(number)) => {
            parts.insert((name, number.parse().unwrap_or_default()), request.body.clone());
            Some((200, Vec::new()))
        }
        ("POST", Some(_), None) => {
            let whole = parts.iter().filter(|((object, _), _)| *object == name);
            let whole = whole.flat_map(|(_, part)| part.iter().copied()).collect();
            parts.retain(|(object, _), _| *object != name);
            objects.lock().unwrap_or_else(PoisonError::into_inner).insert(name, whole);
            let done = "<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>";
            Some((200, done.into()))
        }
        ("DELETE", Some(_), None) => {
            parts.retain(|(object, _), _| *object != name);
            Some((204, Vec::new()))
        }
        _ => None,
    }
}

fn answer(request: &Request, objects: &Objects) -> (u16, Vec<u8>) {
    let mut objects = objects.lock().unwrap_or_else(PoisonError::into_inner);
    let name = unescape(request.path.trim_start_matches('/'));
    match request.method.as_str() {
        "PUT" => {
            objects.insert(name, request.body.clone());
            (200, Vec::new())
        }
        "DELETE" => {
            objects.remove(&name);
            (204, Vec::new())
        }
        "GET" if request.query.contains("list-type=2") => (200, list(request, &objects, &name)),
        "GET" => match objects.get(&name) {
            Some(content) => (200, content.clone()),
            None => (404, error("NoSuchKey", "there is no such object")),
        },
        _ => (405, error("MethodNotAllowed", "what?")),
    }
}

fn list(request: &Request, objects: &BTreeMap<String, Vec<u8>>, bucket: &str) -> Vec<u8> {
    let value = |name: &str| {
        let pairs = request.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| unescape(value)).unwrap_or_default()
    };
    let (prefix, after) = (value("prefix"), value("continuation-token"));
    let below = format!("{}/", bucket.trim_end_matches('/'));
    let keys = objects.keys().filter_map(|name| name.strip_prefix(&below));
    let mut keys: Vec<&str> =
        keys.filter(|key| key.starts_with(&prefix) && **key > *after).take(PAGE + 1).collect();
    let more = keys.len() > PAGE;
    keys.truncate(PAGE);
    let mut text = format!("<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>{more}</IsTruncated>");
    for key in &keys {
        let key = key.replace('&', "&amp;").replace('<', "&lt;");
        let rest = "<Size>1</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag>";
        text += &format!("<Contents><Key>{key}</Key>{rest}</Contents>");
    }
    if let (true, Some(last)) = (more, keys.last()) {
        text += &format!("<NextContinuationToken>{last}</NextContinuationToken>");
    }
    (text + "</ListBucketResult>").into_bytes()
}

fn error(code: &str, message: &str) -> Vec<u8> {
    format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>").into_bytes()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unescape(text: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        match byte {
            b'%' => match (digit(bytes.next()), digit(bytes.next())) {
                (Some(high), Some(low)) => out.push((high * 16 + low) as u8),
                _ => out.push(b'%'),
            },
            byte => out.push(byte),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}
