//! The server: bounded connections, files streamed in pieces, nothing kept in memory.

use std::convert::Infallible;
use std::future::Future;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, RANGE};
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};

use crate::layout::{Blob, BlobError, Layout, Manifest};
use crate::route::{Part, Refusal, Route, parse, range};

/// Bytes read from a file at a time, and pieces that wait for a slow reader.
const PIECE: usize = 256 << 10;
const PIECES: usize = 2;

/// How much the server takes on.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at the same time; more wait to be accepted.
    pub connections: usize,
    /// How long a caller may take to send a request.
    pub request: Duration,
    /// How long a caller may take to accept one piece of an answer.
    pub piece: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 128, request: Duration::from_secs(10), piece: Duration::from_secs(60) }
    }
}

type Body = BoxBody<Bytes, std::io::Error>;

/// Serves a layout until `shutdown` is ready. Connections that are open then are closed.
pub async fn serve(
    listener: TcpListener,
    layout: Arc<Layout>,
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) {
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
                    let layout = layout.clone();
                    tasks.spawn(async move {
                        connection(stream, layout, limits).await;
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

async fn connection(stream: TcpStream, layout: Arc<Layout>, limits: Limits) {
    let service = service_fn(move |request| {
        let layout = layout.clone();
        async move { Ok::<_, Infallible>(answer(request, layout, limits).await) }
    });
    let mut server = http1::Builder::new();
    server
        .timer(TokioTimer::new())
        .header_read_timeout(limits.request)
        .max_headers(64)
        .max_buf_size(16 << 10);
    if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "registry: connection ended early");
    }
}

async fn answer<B>(request: Request<B>, layout: Arc<Layout>, limits: Limits) -> Response<Body> {
    let head = request.method() == Method::HEAD;
    let wanted = request.headers().get(RANGE).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let route = parse(request.method(), request.uri().path(), request.uri().query());
    let result = match route {
        Ok(Route::Base) => Ok(json("{}".to_owned(), head)),
        Ok(Route::Tags { registry, name }) => tags(&layout, registry.as_deref(), &name, head),
        Ok(Route::Manifest { registry, name, reference }) => {
            match layout.find(registry.as_deref(), &name, &reference) {
                Some(manifest) => file(layout, manifest, wanted, head, limits).await,
                None => {
                    let image = registry.map_or(String::new(), |registry| registry + "/") + &name;
                    let message = format!("there is no image {image} with {reference:?} here");
                    Err(Refusal::new(StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN", message))
                }
            }
        }
        Ok(Route::Blob { digest }) => {
            let blob = Manifest { digest, media_type: "application/octet-stream".into() };
            file(layout, blob, wanted, head, limits).await
        }
        Err(refusal) => Err(refusal),
    };
    result.unwrap_or_else(|refusal| {
        let mut response = json(refusal.body(), head);
        *response.status_mut() = refusal.status;
        response
    })
}

fn tags(layout: &Layout, registry: Option<&str>, name: &str, head: bool) -> Result<Response<Body>, Refusal> {
    let tags = layout.tags(registry, name);
    if tags.is_empty() {
        let message = format!("there is no repository {name} here");
        return Err(Refusal::new(StatusCode::NOT_FOUND, "NAME_UNKNOWN", message));
    }
    Ok(json(serde_json::json!({ "name": name, "tags": tags }).to_string(), head))
}

/// A file of the layout: all of it or a part.
async fn file(
    layout: Arc<Layout>,
    what: Manifest,
    wanted: Option<String>,
    head: bool,
    limits: Limits,
) -> Result<Response<Body>, Refusal> {
    let digest = what.digest.clone();
    let opened = tokio::task::spawn_blocking(move || layout.blob(&digest)).await;
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
    let body = if head { empty() } else { pieces(file, first, length, limits.piece) };
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

/// Streams a part of a file: a thread reads ahead by a few pieces and stops when the caller goes away or dawdles.
fn pieces(mut file: std::fs::File, first: u64, length: u64, patience: Duration) -> Body {
    let (sender, receiver) = mpsc::channel::<std::io::Result<Bytes>>(PIECES);
    let runtime = tokio::runtime::Handle::current();
    tokio::task::spawn_blocking(move || {
        let mut left = length;
        let mut result = file.seek(SeekFrom::Start(first)).map(|_| ());
        while left > 0 {
            let piece = result.and_then(|()| {
                let mut piece = vec![0; PIECE.min(usize::try_from(left).unwrap_or(PIECE))];
                file.read_exact(&mut piece).map(|()| Bytes::from(piece))
            });
            left = piece.as_ref().map_or(0, |piece| left - piece.len() as u64);
            let sent = runtime.block_on(tokio::time::timeout(patience, sender.send(piece)));
            if !matches!(sent, Ok(Ok(()))) {
                return;
            }
            result = Ok(());
        }
    });
    let frames = stream::unfold(receiver, |mut receiver| async move {
        let piece = receiver.recv().await?;
        Some((piece.map(Frame::data), receiver))
    });
    BodyExt::boxed(StreamBody::new(frames))
}

fn json(text: String, head: bool) -> Response<Body> {
    let length = text.len();
    let body = if head { empty() } else { Full::from(text).map_err(|never| match never {}).boxed() };
    Response::builder()
        .header(CONTENT_TYPE, "application/json")
        .header("docker-distribution-api-version", "registry/2.0")
        .header(CONTENT_LENGTH, length)
        .body(body)
        .expect("the headers are well formed")
}

fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed()
}
