//! One call, many nodes: the request goes to all, replies are merged or interleaved.
//!
//! What the calls to the nodes have in common is made once and shared. For every node there is a task, which makes its
//! request when the connection is there and keeps nothing of it.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri, header};
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tonic::{Code, Status};

use super::forward::{Begun, Gate};
use super::quota::Taken;
use super::upstreams::{Upstream, Upstreams};
use super::{ProxyConnection, deadline, merge, proxied_from};
use crate::authorize;
use crate::body::{Merged, ReplyBody, RequestBody, Running, Streamed, UpstreamBody};
use crate::frame::{HEADER, Message, Messages, too_large};
use crate::http2::MESSAGE_MAX;
use crate::route::{self, is_streamed};
use crate::status;

/// Request messages that may wait for one slow node before the client has to wait too.
const REQUEST_QUEUE: usize = 4;
/// Replies that may wait for a slow client before the nodes have to wait too.
const REPLY_QUEUE: usize = 16;
/// A call to more nodes than this closes the connections that it made: a connection costs as much memory as many
/// calls.
const KEPT_MAX: usize = 64;
/// Nodes that are called at a time when each replies once; the others follow as replies arrive.
const AT_ONCE_MAX: usize = 256;
/// Methods that take more than one message.
const UPLOADS: [&str; 1] = ["/machine.MachineService/EtcdRecover"];

/// Answers a call to many nodes.
pub(super) async fn call(
    client: Arc<ProxyConnection>,
    targets: Vec<Arc<str>>,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Status> {
    let upstreams = client.upstreams()?;
    let taken = client.share.several(targets.len());
    let taken = Arc::new(taken.map_err(|refused| client.turned_away(request.uri().path(), refused))?);
    let deadline = deadline(request.headers()).map(|left| Instant::now() + left);
    let gate = client.gate(request.headers());
    let (head, incoming) = request.into_parts();
    let headers = metadata(&head.headers, proxied_from(&head.uri));
    let (method, uri) = (head.method, head.uri);
    // The targets in there are many times as large as what is left.
    drop(head.headers);
    let keeps = targets.len() <= KEPT_MAX;
    let common = Arc::new(Common { client, upstreams, gate, method, uri, headers, deadline, taken, keeps });
    let path = common.uri.path();
    let mut messages = Messages::new(incoming, MESSAGE_MAX);
    if authorize::known(path).is_none() || UPLOADS.contains(&path) {
        let (feeds, fed): (Vec<_>, Vec<_>) = targets
            .iter()
            .map(|_| mpsc::channel(REQUEST_QUEUE))
            .map(|(feed, fed)| (feed, RequestBody::Fed(fed)))
            .unzip();
        let calls = targets.into_iter().zip(fed);
        let feeding = feed_all(feeds, messages);
        return match is_streamed(path) {
            true => Ok(stream(&common, calls, Some(feeding))),
            // All have to take the messages as they come.
            false => merge_all(&common, calls, usize::MAX, feeding).await,
        };
    }
    let message = within(deadline, pin!(messages.next())).await?.map(|message| message.encode());
    let calls = targets.into_iter().map(|target| (target, RequestBody::Once(message.clone())));
    match is_streamed(path) {
        true => Ok(stream(&common, calls, None::<std::future::Ready<Status>>)),
        // The rest of the request is not waited for, and does not end the call.
        false => merge_all(&common, calls, AT_ONCE_MAX, std::future::pending()).await,
    }
}

/// The metadata that every node is sent, in a map of its own: that of the client has room for all its targets.
fn metadata(all: &HeaderMap, from: HeaderValue) -> HeaderMap {
    // Replies are opened to be named; nodes must not compress them.
    const ACCEPT: HeaderName = HeaderName::from_static("grpc-accept-encoding");
    let left_out = [route::NODE, route::NODES, route::PROXY_FROM, ACCEPT, header::CONTENT_LENGTH];
    let mut headers = HeaderMap::new();
    for (key, value) in all.iter().filter(|(key, _)| !left_out.contains(key)) {
        headers.append(key, value.clone());
    }
    headers.insert(route::PROXY_FROM, from);
    headers
}

/// What the calls to all nodes have in common.
struct Common {
    client: Arc<ProxyConnection>,
    upstreams: Arc<Upstreams>,
    gate: Gate,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    deadline: Option<Instant>,
    taken: Arc<Taken>,
    /// Connections that are made for this call stay for the next one.
    keeps: bool,
}

impl Common {
    fn request(&self, upstream: &Upstream, body: RequestBody) -> Result<Request<RequestBody>, Status> {
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = upstream.uri(&self.uri)?;
        request.headers_mut().clone_from(&self.headers);
        Ok(request)
    }

    /// The reply of one node, once it has begun.
    async fn begin(self: &Arc<Self>, target: &Arc<str>, body: RequestBody) -> Result<Reply, Status> {
        let make = |upstream: &Upstream| self.request(upstream, body);
        let sent = self.client.send_to(&self.upstreams, &self.gate, target, self.uri.path(), make).await?;
        let Begun { response, running, is_new, key } = sent;
        let (head, body) = response.into_parts();
        let messages = Messages::new(body, MESSAGE_MAX);
        let release = (is_new && !self.keeps).then(|| (self.upstreams.clone(), key));
        let reply = Reply { messages: Some(messages), running: Some(running), release };
        if let Some(status) = status::from_headers(&head.headers)
            && status.code() != Code::Ok
        {
            return Err(status);
        }
        if !head.status.is_success() {
            return Err(status::from_http(head.status));
        }
        Ok(reply)
    }
}

/// The reply of one node.
struct Reply {
    messages: Option<Messages<UpstreamBody>>,
    running: Option<Running>,
    release: Option<(Arc<Upstreams>, Arc<str>)>,
}

impl Reply {
    /// The next message; none after a good end, the status after a bad one.
    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(messages) = &mut self.messages else { return Ok(None) };
        match messages.next().await? {
            Some(Message { compressed: true, .. }) => {
                Err(Status::internal("grpc: compressed reply cannot be merged"))
            }
            Some(Message { payload, .. }) => Ok(Some(payload)),
            None => match messages.trailers().and_then(status::from_headers) {
                Some(status) if status.code() != Code::Ok => Err(status),
                _ => Ok(None),
            },
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        // Only a connection without calls is released.
        (self.messages, self.running) = (None, None);
        if let Some((upstreams, key)) = &self.release {
            upstreams.release(key);
        }
    }
}

/// Bounds `work`, which stays where it is: moved here, it would take its room twice.
async fn within<T, W: Future<Output = Result<T, Status>>>(
    deadline: Option<Instant>,
    work: Pin<&mut W>,
) -> Result<T, Status> {
    match deadline {
        None => work.await,
        Some(at) => timeout_at(at, work)
            .await
            .unwrap_or_else(|_| Err(Status::deadline_exceeded("context deadline exceeded"))),
    }
}

/// Copies the client's messages to all nodes; a node that has ended its call is skipped. Ends only when the request
/// breaks off.
async fn feed_all(mut feeds: Vec<mpsc::Sender<Bytes>>, mut messages: Messages<Incoming>) -> Status {
    loop {
        match messages.next().await {
            Ok(Some(message)) => {
                let wire = message.encode();
                for feed in &feeds {
                    // Fails when that node's call is over, which its reply tells.
                    let _ = feed.send(wire.clone()).await;
                }
                feeds.retain(|feed| !feed.is_closed());
            }
            Ok(None) => {
                drop(feeds);
                return std::future::pending().await;
            }
            Err(broken) => return broken,
        }
    }
}

/// Waits for one reply of each node, `at_once` at a time, and joins them in the order they came. `broken` is why the
/// request ended early.
async fn merge_all(
    common: &Arc<Common>,
    mut calls: impl Iterator<Item = (Arc<str>, RequestBody)>,
    at_once: usize,
    broken: impl Future<Output = Status>,
) -> Result<Response<ReplyBody>, Status> {
    let mut tasks = JoinSet::new();
    for (target, body) in calls.by_ref().take(at_once) {
        tasks.spawn(unary(common.clone(), target, body));
    }
    let gather = async {
        let mut parts = VecDeque::new();
        let mut size = 0;
        while let Some(part) = tasks.join_next().await {
            if let Some((target, body)) = calls.next() {
                tasks.spawn(unary(common.clone(), target, body));
            }
            let part = part.map_err(|panic| Status::internal(panic.to_string()))??;
            size += part.len();
            if size > MESSAGE_MAX {
                return Err(too_large(size, MESSAGE_MAX));
            }
            parts.push_back(part);
        }
        parts.push_front(message_header(size));
        Ok(parts)
    };
    // The replies decide; a request that breaks off in the middle ends everything.
    let parts = tokio::select! {
        biased;
        parts = gather => parts?,
        broken = broken => return Err(broken),
    };
    Ok(reply(ReplyBody::Merged(Merged { parts, _taken: common.taken.clone() })))
}

/// What stands before the payload of a message.
fn message_header(size: usize) -> Bytes {
    let mut header = BytesMut::with_capacity(HEADER);
    header.put_u8(0);
    // No message is longer than MESSAGE_MAX, which fits.
    header.put_u32(size as u32);
    header.freeze()
}

/// One node's part of a merged reply. Fails only when no reply can be made of all parts.
async fn unary(common: Arc<Common>, target: Arc<str>, body: RequestBody) -> Result<Bytes, Status> {
    let whole = async {
        let mut reply = common.begin(&target, body).await?;
        if let Some(messages) = &mut reply.messages {
            messages.count_in(common.taken.clone());
        }
        let first = reply.next().await?;
        // The status comes after the message.
        while reply.next().await?.is_some() {}
        Ok(first)
    };
    let part = match within(common.deadline, pin!(whole)).await {
        Ok(first) => merge::unary(&first.unwrap_or_default(), &target)?,
        Err(failed) => {
            let part = merge::unary_failure(&failed, &target);
            let _ = common.taken.collect(part.len());
            part
        }
    };
    // Together they would not fit, so there is no use in collecting more.
    match common.taken.refused() {
        Some(refused) => Err(refused.clone()),
        None => Ok(part),
    }
}

/// Passes messages on as they come from any node.
fn stream(
    common: &Arc<Common>,
    calls: impl Iterator<Item = (Arc<str>, RequestBody)>,
    feeding: Option<impl Future<Output = Status> + Send + 'static>,
) -> Response<ReplyBody> {
    let (out, messages) = mpsc::channel(REPLY_QUEUE);
    let mut tasks = JoinSet::new();
    for (target, body) in calls {
        tasks.spawn(stream_one(common.clone(), target, body, out.clone()));
    }
    if let Some(feeding) = feeding {
        tasks.spawn(async move {
            // A request that breaks off ends its feeds; the nodes then end the call.
            let _ = feeding.await;
        });
    }
    reply(ReplyBody::Streamed(Streamed { messages, _tasks: tasks }))
}

async fn stream_one(common: Arc<Common>, target: Arc<str>, body: RequestBody, out: mpsc::Sender<Bytes>) {
    let passing = async {
        let mut reply = common.begin(&target, body).await?;
        while let Some(payload) = reply.next().await? {
            let payload = merge::streamed(&payload, &target);
            let wire = Message { compressed: false, payload }.encode();
            if out.send(wire).await.is_err() {
                // The client is gone.
                return Ok(());
            }
        }
        Ok(())
    };
    if let Err(failed) = within(common.deadline, pin!(passing)).await {
        let payload = merge::streamed_failure(&failed, &target);
        let _ = out.send(Message { compressed: false, payload }.encode()).await;
    }
}

fn reply(body: ReplyBody) -> Response<ReplyBody> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}
