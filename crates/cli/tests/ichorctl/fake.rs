//! A node in the test's own process: real TLS, real HTTP/2, answers from a table.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use ichor_config::talosconfig::{ClientConfig, Context};
use ichor_pki::{Authority, KeyAlgorithm, Leaf};
use ichor_rpc::ServerTls;
use ichor_rpc::server::{Limits, serve_tls};
use jiff::Timestamp;
use prost::Message;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::run::{Run, ichorctl};

/// What a method answers.
pub(crate) struct Answer {
    messages: Vec<Vec<u8>>,
    status: (i32, String),
    /// Leaves the stream open after the messages.
    hold: bool,
}

impl Answer {
    pub(crate) fn one(message: &impl Message) -> Self {
        Self::many([message.encode_to_vec()])
    }

    pub(crate) fn many(messages: impl IntoIterator<Item = Vec<u8>>) -> Self {
        Self { messages: messages.into_iter().collect(), status: (0, String::new()), hold: false }
    }

    pub(crate) fn error(code: tonic::Code, message: &str) -> Self {
        Self { messages: Vec::new(), status: (code as i32, message.to_owned()), hold: false }
    }

    pub(crate) fn held(mut self) -> Self {
        self.hold = true;
        self
    }
}

/// One call as the node saw it.
#[derive(Clone)]
pub(crate) struct Seen {
    pub headers: HeaderMap,
    pub message: Bytes,
    /// How many calls of this method came before.
    pub before: usize,
}

impl Seen {
    pub(crate) fn decode<M: Message + Default>(&self) -> M {
        M::decode(self.message.clone()).unwrap()
    }

    /// The machines the call is for, when the endpoint is to ask several.
    pub(crate) fn nodes(&self) -> Vec<String> {
        self.headers.get_all("nodes").iter().map(|value| value.to_str().unwrap().to_owned()).collect()
    }

    /// The machine the call is for, when it is one.
    pub(crate) fn node(&self) -> String {
        self.headers.get("node").map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
    }
}

type Handler = Box<dyn Fn(&Seen) -> Answer + Send + Sync>;
type Journal = Arc<Mutex<Vec<(String, Seen)>>>;

/// The node and the home directory of whoever talks to it.
pub(crate) struct Fake {
    pub home: TempDir,
    journal: Journal,
    stop: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
    port: u16,
    /// Of the server's key, as `--cert-fingerprint` wants it.
    pub fingerprint: String,
    /// Whose certificates the node takes.
    pub authority: Authority,
}

/// Handlers by method path.
#[derive(Default)]
pub(crate) struct Methods(BTreeMap<&'static str, Handler>);

impl Methods {
    pub(crate) fn on(
        mut self,
        path: &'static str,
        handler: impl Fn(&Seen) -> Answer + Send + Sync + 'static,
    ) -> Self {
        self.0.insert(path, Box::new(handler));
        self
    }

    /// Starts the node and writes a client configuration for `nodes`.
    pub(crate) fn start(self, nodes: &[&str]) -> Fake {
        self.start_as(nodes, true)
    }

    /// Starts a node that waits for its configuration: it asks nobody for a certificate.
    pub(crate) fn start_in_maintenance(self) -> Fake {
        self.start_as(&[], false)
    }

    fn start_as(self, nodes: &[&str], mutual: bool) -> Fake {
        let now = Timestamp::now();
        let ca = Authority::generate(KeyAlgorithm::Ed25519, "talos", now, Authority::TEN_YEARS).unwrap();
        let server = Leaf::server("node").with_names(Vec::<String>::new(), ["127.0.0.1".parse().unwrap()]);
        let server = ca.issue(&server, now).unwrap();
        let tls = ServerTls::new();
        tls.set_certificate(&server.crt, &server.key).unwrap();
        tls.set_accepted(ca.crt_pem()).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let journal = Journal::default();
        let stop = CancellationToken::new();
        let thread = {
            let (journal, stop, handlers, tls) = (journal.clone(), stop.clone(), Arc::new(self), tls.clone());
            let config = if mutual { tls.mutual() } else { tls.server_only() }.unwrap();
            std::thread::spawn(move || serve(listener, config, stop, handlers, journal))
        };
        let year = std::time::Duration::from_secs(365 * 24 * 60 * 60);
        let client = ca.issue(&Leaf::client("", ["os:admin"]).with_lifetime(year), now).unwrap();
        let home = tempfile::tempdir().unwrap();
        let mut context =
            Context::new(&[format!("127.0.0.1:{port}")], ca.crt_pem(), &client.crt, &client.key);
        context.nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
        let config = ClientConfig::single("test", context);
        std::fs::create_dir(home.path().join(".talos")).unwrap();
        std::fs::write(home.path().join(".talos/config"), config.to_yaml()).unwrap();
        let fingerprint = ichor_pki::CertInfo::parse(&server.crt).unwrap().spki_fingerprint;
        Fake { home, journal, stop, thread: Some(thread), port, fingerprint, authority: ca }
    }
}

impl Fake {
    pub(crate) fn run(&self, words: &[&str]) -> Run {
        ichorctl(self.home.path(), words)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// The calls of a method so far.
    pub(crate) fn calls(&self, path: &str) -> Vec<Seen> {
        let journal = self.journal.lock().unwrap();
        journal.iter().filter(|(called, _)| called == path).map(|(_, seen)| seen.clone()).collect()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    listener: std::net::TcpListener,
    tls: Arc<rustls::ServerConfig>,
    stop: CancellationToken,
    methods: Arc<Methods>,
    journal: Journal,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let limits = Limits { drain: std::time::Duration::ZERO, ..Limits::default() };
        serve_tls(listener, tls, limits, stop, move |_| {
            let (methods, journal) = (methods.clone(), journal.clone());
            service_fn(move |request| answer(request, methods.clone(), journal.clone()))
        })
        .await;
    });
}

async fn answer(
    request: Request<Incoming>,
    methods: Arc<Methods>,
    journal: Journal,
) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let before = journal.lock().unwrap().iter().filter(|(called, _)| *called == path).count();
    // Five bytes of frame header stand before the message.
    let seen = Seen { headers: head.headers, message: body.slice(5.min(body.len())..), before };
    let answer = match methods.0.get(path.as_str()) {
        Some(handler) => handler(&seen),
        None => Answer::error(tonic::Code::Unimplemented, &format!("unknown method {path}")),
    };
    journal.lock().unwrap().push((path, seen));
    let mut frames: Vec<Result<Frame<Bytes>, Infallible>> =
        answer.messages.iter().map(|message| Ok(Frame::data(framed(message)))).collect();
    if !answer.hold {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", answer.status.0.into());
        if !answer.status.1.is_empty() {
            trailers.insert("grpc-message", answer.status.1.replace(' ', "%20").parse().unwrap());
        }
        frames.push(Ok(Frame::trailers(trailers)));
    }
    let frames = futures_util::stream::iter(frames);
    let body = if answer.hold {
        use futures_util::StreamExt as _;
        BoxBody::new(StreamBody::new(frames.chain(futures_util::stream::pending())))
    } else {
        BoxBody::new(StreamBody::new(frames))
    };
    Ok(Response::builder().header("content-type", "application/grpc").body(body).unwrap())
}

fn framed(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(message.len() + 5);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap());
    frame.extend_from_slice(message);
    frame.freeze()
}
