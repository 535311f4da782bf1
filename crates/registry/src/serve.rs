//! The server: bounded connections, files streamed in pieces, nothing kept in memory.
//!
//! Files are read on the blocking threads of the runtime, one piece at a time: a caller that does not read holds neither a
//! thread nor, after a while, its connection.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::Future;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, RANGE};
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::layout::{Blob, BlobError, Layout, Manifest};
use crate::route::{Part, Refusal, Route, parse, range};
use crate::stall::StallLimit;

/// Bytes read from a file at a time.
const PIECE: usize = 128 << 10;

/// Where one asks whether the server is well.
const HEALTH: &str = "/healthz";

/// How much the server takes on.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at the same time; more wait to be accepted.
    pub connections: usize,
    /// How long a caller may take to send a request.
    pub request: Duration,
    /// How long a caller may leave an answer unread.
    pub piece: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 128, request: Duration::from_secs(10), piece: Duration::from_secs(60) }
    }
}

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// Where images are looked for; earlier layouts go before later ones.
type Layouts = Arc<[Arc<Layout>]>;

/// Serves a layout until `shutdown` is ready. Connections that are open then are closed.
pub async fn serve(
    listener: TcpListener,
    layout: Arc<Layout>,
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) {
    serve_all(listener, vec![layout], limits, shutdown).await;
}

/// The same for several layouts: what is missing or damaged in one is taken from the next.
pub async fn serve_all(
    listener: TcpListener,
    layouts: Vec<Arc<Layout>>,
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) {
    let layouts: Layouts = layouts.into();
    let places = Arc::new(Semaphore::new(limits.connections));
    let mut tasks = tokio::task::JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        let accepted = async {
            let place = places.clone().acquire_owned().await.expect("the semaphore is never closed");
            (listener.accept().await, place)
        };
        tokio::select! {
            (accepted, place) = accepted => match accepted {
                Ok((stream, _)) => {
                    let layouts = layouts.clone();
                    tasks.spawn(async move {
                        connection(stream, layouts, limits).await;
                        drop(place);
                    });
                }
                // Out of descriptors, mostly: waiting is all that helps.
                Err(error) => {
                    tracing::warn!(%error, "registry: cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = tasks.join_next() => {}
            () = &mut shutdown => break,
        }
    }
    tasks.shutdown().await;
}

async fn connection(stream: TcpStream, layouts: Layouts, limits: Limits) {
    let service = service_fn(move |request| {
        let layouts = layouts.clone();
        async move { Ok::<_, Infallible>(answer(request, layouts).await) }
    });
    let mut server = http1::Builder::new();
    server
        .timer(TokioTimer::new())
        .header_read_timeout(limits.request)
        .max_headers(64)
        .max_buf_size(16 << 10);
    let stream = TokioIo::new(StallLimit::new(stream, limits.piece));
    if let Err(error) = server.serve_connection(stream, service).await {
        tracing::debug!(%error, "registry: connection ended early");
    }
}

async fn answer<B>(request: Request<B>, layouts: Layouts) -> Response<Body> {
    let head = request.method() == Method::HEAD;
    if request.uri().path() == HEALTH {
        return json(String::new(), head);
    }
    let wanted = request.headers().get(RANGE).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let route = parse(request.method(), request.uri().path(), request.uri().query());
    let result = match route {
        Ok(Route::Base) => Ok(json("{}".to_owned(), head)),
        Ok(Route::Tags { registry, name }) => tags(&layouts, registry.as_deref(), &name, head),
        Ok(Route::Manifest { registry, name, reference }) => {
            let found = layouts
                .iter()
                .find_map(|layout| Some((layout, layout.find(registry.as_deref(), &name, &reference)?)));
            match found {
                Some((layout, manifest)) => file([layout.clone()].into(), manifest, wanted, head).await,
                None => {
                    let image = registry.map_or(String::new(), |registry| registry + "/") + &name;
                    let message = format!("there is no image {image} with {reference:?} here");
                    Err(Refusal::new(StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN", message))
                }
            }
        }
        Ok(Route::Blob { digest }) => {
            let blob = Manifest { digest, media_type: "application/octet-stream".into() };
            file(layouts, blob, wanted, head).await
        }
        Err(refusal) => Err(refusal),
    };
    result.unwrap_or_else(|refusal| {
        let mut response = json(refusal.body(), head);
        *response.status_mut() = refusal.status;
        response
    })
}

fn tags(
    layouts: &[Arc<Layout>],
    registry: Option<&str>,
    name: &str,
    head: bool,
) -> Result<Response<Body>, Refusal> {
    let tags: BTreeSet<&str> = layouts.iter().flat_map(|layout| layout.tags(registry, name)).collect();
    if tags.is_empty() {
        let message = format!("there is no repository {name} here");
        return Err(Refusal::new(StatusCode::NOT_FOUND, "NAME_UNKNOWN", message));
    }
    Ok(json(serde_json::json!({ "name": name, "tags": tags }).to_string(), head))
}

/// The first layout's blob that can be given; else why the last one that has it cannot.
fn blob(layouts: &[Arc<Layout>], digest: &str) -> Result<Blob, BlobError> {
    let mut last = BlobError::Missing(digest.to_owned());
    for layout in layouts {
        match layout.blob(digest) {
            Ok(blob) => return Ok(blob),
            Err(BlobError::Missing(_)) => {}
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A file of the layouts: all of it or a part.
async fn file(
    layouts: Layouts,
    what: Manifest,
    wanted: Option<String>,
    head: bool,
) -> Result<Response<Body>, Refusal> {
    let digest = what.digest.clone();
    let opened = tokio::task::spawn_blocking(move || blob(&layouts, &digest)).await;
    let Blob { file, size } = match opened {
        Ok(Ok(blob)) => blob,
        Ok(Err(error)) => return Err(unavailable(&error)),
        Err(error) => {
            let message = format!("reading the blob failed: {error}");
            return Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "UNKNOWN", message));
        }
    };
    let mut response = Response::builder()
        .header(CONTENT_TYPE, &what.media_type)
        .header("docker-content-digest", &what.digest)
        .header(ETAG, format!("\"{}\"", what.digest))
        .header(ACCEPT_RANGES, "bytes");
    let (first, length) = match range(wanted.as_deref(), size) {
        Part::Whole => (0, size),
        Part::Bytes(first, last) => {
            let part = format!("bytes {first}-{last}/{size}");
            response = response.status(StatusCode::PARTIAL_CONTENT).header(CONTENT_RANGE, part);
            (first, last - first + 1)
        }
        Part::Outside => {
            response = response
                .status(StatusCode::RANGE_NOT_SATISFIABLE)
                .header(CONTENT_RANGE, format!("bytes */{size}"));
            return Ok(response.body(empty()).expect("the headers are well formed"));
        }
    };
    response = response.header(CONTENT_LENGTH, length);
    let body = if head { empty() } else { pieces(file, first, length) };
    Ok(response.body(body).expect("the headers are well formed"))
}

fn unavailable(error: &BlobError) -> Refusal {
    let (status, code) = match error {
        BlobError::Missing(_) => (StatusCode::NOT_FOUND, "BLOB_UNKNOWN"),
        BlobError::Corrupt(_) => (StatusCode::INTERNAL_SERVER_ERROR, "DIGEST_INVALID"),
        BlobError::Read { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "UNKNOWN"),
    };
    if status.is_server_error() {
        tracing::error!(%error, "registry: a blob cannot be served");
    }
    Refusal::new(status, code, error.to_string())
}

/// Streams a part of a file, a piece whenever the connection has room for one.
fn pieces(file: std::fs::File, first: u64, length: u64) -> Body {
    let state = Some((file, first, length)).filter(|_| length > 0);
    let frames = stream::unfold(state, |state| async move {
        let (file, at, left) = state?;
        let read = tokio::task::spawn_blocking(move || {
            let mut piece = vec![0; PIECE.min(usize::try_from(left).unwrap_or(PIECE))];
            file.read_exact_at(&mut piece, at).map(|()| (file, piece))
        });
        match read.await.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            Ok((file, piece)) => {
                let len = piece.len() as u64;
                let rest = Some((file, at + len, left - len)).filter(|(_, _, left)| *left > 0);
                Some((Ok(Frame::data(Bytes::from(piece))), rest))
            }
            Err(error) => Some((Err(error), None)),
        }
    });
    BodyExt::boxed_unsync(StreamBody::new(frames))
}

fn json(text: String, head: bool) -> Response<Body> {
    let length = text.len();
    let body = if head { empty() } else { Full::from(text).map_err(|never| match never {}).boxed_unsync() };
    Response::builder()
        .header(CONTENT_TYPE, "application/json")
        .header("docker-distribution-api-version", "registry/2.0")
        .header(CONTENT_LENGTH, length)
        .body(body)
        .expect("the headers are well formed")
}

fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}
