//! A fake machined: answers a few methods in ways that the gateway has to cope with.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use ichor_rpc::authorize::ByRole;
use ichor_rpc::gate::Gate;
use ichor_rpc::server::{Grpc, Limits, serve_unix};
use ichor_rpc::unix::{Access, bind};
use ichor_wire::common::Data;
use ichor_wire::machine as api;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{PATIENCE, Thread, wait_for};

/// A fake machined with a role check in front.
pub(crate) struct Machine {
    path: PathBuf,
    name: Arc<str>,
    /// Connections there have been.
    pub connections: Arc<AtomicUsize>,
    /// Streams that are open right now.
    pub streams: Arc<AtomicUsize>,
    /// Chunks that `Copy` has handed to its transport.
    pub copied: Arc<AtomicUsize>,
    thread: Mutex<Option<Thread>>,
}

impl Machine {
    pub(super) fn new(path: &Path, name: &str) -> Self {
        Self {
            path: path.to_owned(),
            name: name.into(),
            connections: Arc::default(),
            streams: Arc::default(),
            copied: Arc::default(),
            thread: Mutex::default(),
        }
    }

    pub(crate) fn start(&self) {
        let (path, name) = (self.path.clone(), self.name.clone());
        let (streams, copied) = (self.streams.clone(), self.copied.clone());
        let connections = self.connections.clone();
        let bound = CancellationToken::new();
        let told = bound.clone();
        *self.thread.lock().unwrap() = Some(Thread::spawn(move |stop| async move {
            let listener = bind(&path, Access::PRIVATE).expect("socket");
            told.cancel();
            let service = tower::service_fn(move |request| {
                answer(request, name.clone(), streams.clone(), copied.clone())
            });
            let service = Gate::new(service, ByRole);
            serve_unix(listener, Limits::default(), stop, move |peer| {
                connections.fetch_add(1, Ordering::SeqCst);
                Grpc::new(service.clone(), peer)
            })
            .await;
        }));
        wait_for("machined", || bound.is_cancelled());
    }

    /// Waits until `Copy` can hand out nothing more, because nobody reads.
    pub(crate) async fn wait_until_stalled(&self) {
        let start = Instant::now();
        let mut before = 0;
        loop {
            tokio::time::sleep(Duration::from_millis(150)).await;
            let now = self.copied.load(Ordering::SeqCst);
            if now == before && now > 0 {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "the machine still sends");
            before = now;
        }
    }

    pub(crate) fn stop(&self) {
        *self.thread.lock().unwrap() = None;
        std::fs::remove_file(&self.path).expect("socket");
    }
}

pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Counts an open stream.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Answers as the machine `name` does.
pub(crate) async fn answer_as(request: Request<Incoming>, name: &str) -> Result<Response<Body>, Infallible> {
    answer(request, name.into(), Arc::default(), Arc::default()).await
}

async fn answer(
    request: Request<Incoming>,
    name: Arc<str>,
    streams: Arc<AtomicUsize>,
    copied: Arc<AtomicUsize>,
) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    let method = head.uri.path().rsplit('/').next().unwrap_or_default().to_owned();
    let header = |key: &str| {
        let values: Vec<_> =
            head.headers.get_all(key).iter().filter_map(|value| value.to_str().ok()).collect();
        values.join(",")
    };
    let data = |bytes: Bytes| Data { metadata: None, bytes };
    Ok(match method.as_str() {
        // The version says what arrived.
        "Version" => {
            let version = api::VersionInfo {
                tag: header("talos-role"),
                sha: header("proxyfrom"),
                built: header("grpc-timeout"),
                os: format!("{}{}", header("node"), header("nodes")),
                go_version: format!("{}|{}", header("ichor-caller"), header("ichor-proxy")),
                arch: head.uri.authority().map(ToString::to_string).unwrap_or_default(),
            };
            let message = api::Version { version: Some(version), ..api::Version::default() };
            one(&api::VersionResponse { messages: vec![message] })
        }
        "Hostname" => {
            let message = api::Hostname { metadata: None, hostname: name.to_string() };
            one(&api::HostnameResponse { messages: vec![message] })
        }
        // A reply that cannot be merged.
        "LoadAvg" => one(&api::LoadAvgResponse::default()),
        "EtcdRecover" => {
            let size = body.collect().await.map(|all| all.to_bytes().len()).unwrap_or_default();
            let error = format!("{size} bytes");
            let metadata = Some(ichor_wire::common::Metadata { error, ..Default::default() });
            one(&api::EtcdRecoverResponse { messages: vec![api::EtcdRecover { metadata }] })
        }
        // An error with a lot to say.
        "ApplyConfiguration" => Status::invalid_argument("line wrong\n".repeat(20_000)).into_http(),
        "Read" => Status::not_found("no such file").into_http(),
        // One message of as many bytes as the metadata asks for; only its header and a part of it are true.
        "Memory" => {
            let size: u32 = header("size").parse().unwrap_or_default();
            let mut start = BytesMut::from(&[0][..]);
            start.put_u32(size);
            start.resize(64 * 1024, 0);
            reply(
                futures_util::stream::iter([Frame::data(start.freeze())])
                    .chain(futures_util::stream::pending()),
            )
        }
        "Logs" => {
            let lines = (0..3).map(move |line| data(format!("{name} line {line}\n").into()));
            stream(futures_util::stream::iter(lines.collect::<Vec<_>>()))
        }
        // Half a stream, then an error.
        "DiskUsage" => failing(data("part".into()), Status::data_loss("the rest is gone")),
        // Without end, as fast as it is read.
        "Copy" => {
            let chunk = data(Bytes::from(vec![7; 32 * 1024]));
            stream(futures_util::stream::repeat(chunk).inspect(move |_| {
                copied.fetch_add(1, Ordering::SeqCst);
            }))
        }
        // One message, then silence until the client goes.
        "Events" => {
            streams.fetch_add(1, Ordering::SeqCst);
            let open = Open(streams);
            let hello = futures_util::stream::iter([api::Event::default()]);
            stream(hello.chain(futures_util::stream::pending()).map(move |event| {
                let _still = &open;
                event
            }))
        }
        other => Status::unimplemented(format!("the fake machine has no {other}")).into_http(),
    })
}

fn frame<M: prost::Message>(message: &M) -> Frame<Bytes> {
    let mut out = BytesMut::new();
    out.put_u8(0);
    out.put_u32(message.encoded_len() as u32);
    message.encode(&mut out).expect("fits");
    Frame::data(out.freeze())
}

fn trailers(status: &Status) -> Frame<Bytes> {
    let mut map = HeaderMap::new();
    status.add_header(&mut map).expect("status");
    Frame::trailers(map)
}

fn reply(frames: impl Stream<Item = Frame<Bytes>> + Send + 'static) -> Response<Body> {
    let body = StreamBody::new(frames.map(Ok));
    let mut response = Response::new(body.boxed_unsync());
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

fn one<M: prost::Message>(message: &M) -> Response<Body> {
    let frames = [frame(message), trailers(&Status::ok(""))];
    reply(futures_util::stream::iter(frames))
}

fn stream<M: prost::Message>(messages: impl Stream<Item = M> + Send + 'static) -> Response<Body> {
    let end = futures_util::stream::iter([trailers(&Status::ok(""))]);
    reply(messages.map(|message| frame(&message)).chain(end))
}

fn failing<M: prost::Message>(message: M, status: Status) -> Response<Body> {
    reply(futures_util::stream::iter([frame(&message), trailers(&status)]))
}
