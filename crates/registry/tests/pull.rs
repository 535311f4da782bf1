//! A registry on loopback, asked the way a container runtime asks.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ichor_registry::{Layout, Limits, serve_all};
use serde_json::json;
use tokio::net::TcpListener;

/// A blob in the layout; gives its digest.
fn put(dir: &Path, bytes: &[u8]) -> String {
    let hex: String = ichor_pki::sha256(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    fs::create_dir_all(dir.join("blobs/sha256")).unwrap();
    fs::write(dir.join("blobs/sha256").join(&hex), bytes).unwrap();
    format!("sha256:{hex}")
}

/// A layout with one image; gives the digests of its manifest and its layer.
fn layout(dir: &Path) -> (String, String) {
    let layer = put(dir, &vec![7; 1 << 20]);
    let manifest = json!({ "layers": [{ "digest": layer }] }).to_string();
    let manifest = put(dir, manifest.as_bytes());
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let name = "registry.example/group/app:v1";
    let entry =
        json!({ "mediaType": kind, "digest": manifest, "annotations": { "io.containerd.image.name": name } });
    fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    fs::write(dir.join("index.json"), json!({ "manifests": [entry] }).to_string()).unwrap();
    (manifest, layer)
}

/// A server for the time of one test.
struct Server {
    address: SocketAddr,
    _runtime: tokio::runtime::Runtime,
}

impl Server {
    fn start(dir: &Path, limits: Limits) -> Self {
        Self::start_all(vec![Arc::new(Layout::open(dir).unwrap())], limits)
    }

    fn start_all(layouts: Vec<Arc<Layout>>, limits: Limits) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(serve_all(listener, layouts, limits, std::future::pending()));
        Self { address, _runtime: runtime }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }

    /// The head (in lower case) and the body of an answer.
    fn ask(&self, line: &str, headers: &str) -> (String, Vec<u8>) {
        let mut stream = self.connect();
        write!(stream, "{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n").unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("an answer with a head");
        (String::from_utf8_lossy(&bytes[..end]).to_lowercase(), bytes[end + 4..].to_vec())
    }
}

#[test]
fn an_image_is_pulled_by_tag_and_by_digest() {
    let dir = tempfile::tempdir().unwrap();
    let (manifest, layer) = layout(dir.path());
    let server = Server::start(dir.path(), Limits::default());

    assert!(server.ask("GET /v2/", "").0.starts_with("http/1.1 200"));
    for reference in ["v1", &manifest] {
        let (head, body) =
            server.ask(&format!("GET /v2/group/app/manifests/{reference}?ns=registry.example"), "");
        assert!(
            head.contains("200 ok") && head.contains(&format!("docker-content-digest: {manifest}")),
            "{head}"
        );
        assert!(head.contains("content-type: application/vnd.oci.image.manifest.v1+json"), "{head}");
        assert!(String::from_utf8_lossy(&body).contains(&layer));
    }
    let (head, body) = server.ask(&format!("HEAD /v2/group/app/blobs/{layer}"), "");
    assert!(head.contains("content-length: 1048576") && body.is_empty(), "{head}");
    assert_eq!(server.ask(&format!("GET /v2/group/app/blobs/{layer}"), "").1, vec![7; 1 << 20]);
    let (_, tags) = server.ask("GET /v2/group/app/tags/list", "");
    assert_eq!(tags, br#"{"name":"group/app","tags":["v1"]}"#);
}

#[test]
fn a_pull_that_broke_off_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (_, layer) = layout(dir.path());
    let server = Server::start(dir.path(), Limits::default());

    let (head, body) = server.ask(&format!("GET /v2/group/app/blobs/{layer}"), "range: bytes=1048570-\r\n");
    assert!(
        head.contains("206 partial") && head.contains("content-range: bytes 1048570-1048575/1048576"),
        "{head}"
    );
    assert_eq!(body, [7; 6]);
    let (head, _) = server.ask(&format!("GET /v2/group/app/blobs/{layer}"), "range: bytes=1048576-\r\n");
    assert!(head.contains("416") && head.contains("content-range: bytes */1048576"), "{head}");
}

#[test]
fn what_is_not_there_is_named() {
    let dir = tempfile::tempdir().unwrap();
    layout(dir.path());
    let server = Server::start(dir.path(), Limits::default());

    let missing = format!("sha256:{}", "0".repeat(64));
    for (line, status, code) in [
        ("GET /v2/group/app/manifests/v2".to_owned(), "404", "MANIFEST_UNKNOWN"),
        ("GET /v2/group/app/manifests/v1?ns=other.example".to_owned(), "404", "MANIFEST_UNKNOWN"),
        (format!("GET /v2/group/app/blobs/{missing}"), "404", "BLOB_UNKNOWN"),
        ("GET /v2/none/tags/list".to_owned(), "404", "NAME_UNKNOWN"),
        ("PUT /v2/group/app/manifests/v1".to_owned(), "405", "UNSUPPORTED"),
        ("GET /v2/group/../../index.json".to_owned(), "404", "NAME_UNKNOWN"),
    ] {
        let (head, body) = server.ask(&line, "");
        let body = String::from_utf8_lossy(&body);
        assert!(
            head.starts_with(&format!("http/1.1 {status}")) && body.contains(code),
            "{line}: {head} {body}"
        );
    }
}

#[test]
fn a_blob_that_is_not_what_it_says_is_never_served() {
    let dir = tempfile::tempdir().unwrap();
    let (_, layer) = layout(dir.path());
    let server = Server::start(dir.path(), Limits::default());
    let path = dir.path().join("blobs/sha256").join(layer.trim_start_matches("sha256:"));

    assert!(server.ask(&format!("HEAD /v2/group/app/blobs/{layer}"), "").0.contains("200"));
    let mut bytes = fs::read(&path).unwrap();
    bytes[5] ^= 1;
    fs::write(&path, bytes).unwrap();
    let (head, body) = server.ask(&format!("GET /v2/group/app/blobs/{layer}"), "");
    assert!(
        head.starts_with("http/1.1 500") && String::from_utf8_lossy(&body).contains("DIGEST_INVALID"),
        "{head}"
    );
}

#[test]
fn callers_that_dawdle_do_not_keep_others_out() {
    let dir = tempfile::tempdir().unwrap();
    layout(dir.path());
    let limits =
        Limits { connections: 2, request: Duration::from_millis(200), piece: Duration::from_millis(200) };
    let server = Server::start(dir.path(), limits);

    let mut slow: Vec<TcpStream> = (0..2).map(|_| server.connect()).collect();
    for stream in &mut slow {
        stream.write_all(b"GET /v2/ HT").unwrap();
    }
    assert!(server.ask("GET /v2/", "").0.starts_with("http/1.1 200"));
}

#[test]
fn callers_that_leave_an_answer_unread_lose_their_connection() {
    let dir = tempfile::tempdir().unwrap();
    layout(dir.path());
    // More than sockets hold.
    let large = put(dir.path(), &vec![9; 48 << 20]);
    let limits =
        Limits { connections: 2, request: Duration::from_secs(10), piece: Duration::from_millis(200) };
    let server = Server::start(dir.path(), limits);
    let mut stalled: Vec<TcpStream> = (0..2).map(|_| server.connect()).collect();
    for stream in &mut stalled {
        write!(stream, "GET /v2/group/app/blobs/{large} HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    }
    assert!(server.ask("GET /v2/", "").0.starts_with("http/1.1 200"));
}

#[test]
fn what_one_layout_lacks_the_next_one_has() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_, layer) = layout(one.path());
    layout(two.path());
    let other = put(two.path(), b"only here");
    // Damaged in the first, whole in the second.
    fs::write(one.path().join("blobs/sha256").join(layer.trim_start_matches("sha256:")), "other").unwrap();
    let layouts = [&one, &two].map(|dir| Arc::new(Layout::open(dir.path()).unwrap())).to_vec();
    let server = Server::start_all(layouts, Limits::default());
    assert_eq!(server.ask(&format!("GET /v2/group/app/blobs/{layer}"), "").1, vec![7; 1 << 20]);
    assert_eq!(server.ask(&format!("GET /v2/group/app/blobs/{other}"), "").1, b"only here");
    assert_eq!(server.ask("GET /v2/group/app/tags/list", "").1, br#"{"name":"group/app","tags":["v1"]}"#);
    let (head, body) = server.ask("GET /healthz", "");
    assert!(head.starts_with("http/1.1 200") && body.is_empty(), "{head}");
}

#[test]
fn a_layout_that_is_none_says_which_file() {
    let dir = tempfile::tempdir().unwrap();
    let error = Layout::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("oci-layout") && error.contains("No such file"), "{error}");
    fs::write(dir.path().join("oci-layout"), r#"{"imageLayoutVersion":"2"}"#).unwrap();
    let error = Layout::open(dir.path()).unwrap_err().to_string();
    assert!(error.ends_with(r#"the layout has version "2"; only 1.0.0 is known"#), "{error}");
}
