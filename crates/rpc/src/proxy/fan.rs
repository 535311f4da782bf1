//! One call, many nodes: every request message goes to all, replies are merged or interleaved.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tonic::{Code, Status};

use super::upstreams::{Private, Upstream, Upstreams};
use super::{deadline, merge, proxied_from, strip};
use crate::body::{ReplyBody, RequestBody, Running, Streamed, UpstreamBody};
use crate::frame::{Message, Messages, too_large};
use crate::http2::MESSAGE_MAX;
use crate::route::is_streamed;
use crate::status;

/// Request messages that may wait for one slow node before the client has to wait too.
const REQUEST_QUEUE: usize = 4;
/// Replies that may wait for a slow client before the nodes have to wait too.
const REPLY_QUEUE: usize = 16;

/// Answers a call to many nodes.
pub(super) async fn call(
    upstreams: &Arc<Upstreams>,
    private: &Private,
    targets: Vec<String>,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Status> {
    let path = request.uri().path().to_owned();
    let deadline = deadline(request.headers()).map(|left| Instant::now() + left);
    let (head, incoming) = request.into_parts();
    let mut feeds = Vec::with_capacity(targets.len());
    let mut calls = Vec::with_capacity(targets.len());
    let spent = Arc::<AtomicUsize>::default();
    for target in targets {
        let (feed, fed) = mpsc::channel(REQUEST_QUEUE);
        feeds.push(feed);
        let (upstream, running) = upstreams.get(&target, &path, private)?;
        let mut headers = head.headers.clone();
        strip(&mut headers, proxied_from(&head.uri));
        // Replies are opened to be named; nodes must not compress them.
        headers.remove("grpc-accept-encoding");
        headers.remove(header::CONTENT_LENGTH);
        let mut request = Request::new(RequestBody::Fed(fed));
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = upstream.uri(&head.uri)?;
        *request.headers_mut() = headers;
        calls.push(Call {
            target: target.into(),
            upstream,
            running,
            request,
            deadline,
            spent: spent.clone(),
        });
    }
    if is_streamed(&path) {
        Ok(stream(calls, feeds, incoming))
    } else {
        merge_all(calls, feeds, incoming).await
    }
}

/// A call to one of the nodes.
struct Call {
    target: Arc<str>,
    upstream: Upstream,
    running: Running,
    request: Request<RequestBody>,
    deadline: Option<Instant>,
    /// Bytes that the replies of all nodes have taken so far.
    spent: Arc<AtomicUsize>,
}

impl Call {
    /// The messages of the reply, once it has begun.
    async fn begin(request: Request<RequestBody>, upstream: &Upstream) -> Result<Reply, Status> {
        let response = upstream.channel.send(request).await?;
        let (head, body) = response.into_parts();
        if let Some(status) = status::from_headers(&head.headers)
            && status.code() != Code::Ok
        {
            return Err(status);
        }
        if !head.status.is_success() {
            return Err(status::from_http(head.status));
        }
        Ok(Reply(Messages::new(body, MESSAGE_MAX)))
    }
}

/// The reply of one node.
struct Reply(Messages<UpstreamBody>);

impl Reply {
    /// The next message; none after a good end, the status after a bad one.
    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        match self.0.next().await? {
            Some(Message { compressed: true, .. }) => {
                Err(Status::internal("grpc: compressed reply cannot be merged"))
            }
            Some(Message { payload, .. }) => Ok(Some(payload)),
            None => match self.0.trailers().and_then(status::from_headers) {
                Some(status) if status.code() != Code::Ok => Err(status),
                _ => Ok(None),
            },
        }
    }
}

async fn within<T>(
    deadline: Option<Instant>,
    work: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    match deadline {
        None => work.await,
        Some(at) => timeout_at(at, work)
            .await
            .unwrap_or_else(|_| Err(Status::deadline_exceeded("context deadline exceeded"))),
    }
}

/// Copies the client's messages to all nodes; a node that has ended its call is skipped.
async fn feed_all(mut feeds: Vec<mpsc::Sender<Bytes>>, incoming: Incoming) -> Result<(), Status> {
    let mut messages = Messages::new(incoming, MESSAGE_MAX);
    while let Some(message) = messages.next().await? {
        let wire = message.encode();
        for feed in &feeds {
            // Fails when that node's call is over, which its reply tells.
            let _ = feed.send(wire.clone()).await;
        }
        feeds.retain(|feed| !feed.is_closed());
    }
    Ok(())
}

/// Waits for one reply of each node and joins them, in the order they came.
async fn merge_all(
    calls: Vec<Call>,
    feeds: Vec<mpsc::Sender<Bytes>>,
    incoming: Incoming,
) -> Result<Response<ReplyBody>, Status> {
    let mut tasks = JoinSet::new();
    for call in calls {
        tasks.spawn(unary(call));
    }
    let gather = async {
        let mut parts: Vec<Bytes> = Vec::with_capacity(tasks.len());
        let mut size = 0;
        while let Some(part) = tasks.join_next().await {
            let part = part.map_err(|panic| Status::internal(panic.to_string()))??;
            size += part.len();
            if size > MESSAGE_MAX {
                return Err(too_large(size, MESSAGE_MAX));
            }
            parts.push(part);
        }
        Ok(Bytes::from(parts.concat()))
    };
    // The replies decide; a request that breaks off in the middle ends everything.
    let feeding = async {
        match feed_all(feeds, incoming).await {
            Ok(()) => std::future::pending().await,
            Err(broken) => broken,
        }
    };
    let payload = tokio::select! {
        biased;
        payload = gather => payload?,
        broken = feeding => return Err(broken),
    };
    let message = Message { compressed: false, payload }.encode();
    Ok(reply(ReplyBody::Merged(Some(message))))
}

/// One node's part of a merged reply. Fails only when its shape cannot be merged.
async fn unary(call: Call) -> Result<Bytes, Status> {
    let Call { target, upstream, running: _running, request, deadline, spent } = call;
    let whole = async {
        let mut reply = Call::begin(request, &upstream).await?;
        reply.0.count_in(spent.clone());
        let first = reply.next().await?;
        // The status comes after the message.
        while reply.next().await?.is_some() {}
        Ok(first)
    };
    let part = within(deadline, whole).await;
    // Together they would not fit into one reply, so there is no use in collecting more.
    let all = spent.load(Relaxed);
    if all > MESSAGE_MAX {
        return Err(too_large(all, MESSAGE_MAX));
    }
    match part {
        Ok(first) => merge::unary(&first.unwrap_or_default(), &target),
        Err(failed) => Ok(merge::unary_failure(&failed, &target)),
    }
}

/// Passes messages on as they come from any node.
fn stream(calls: Vec<Call>, feeds: Vec<mpsc::Sender<Bytes>>, incoming: Incoming) -> Response<ReplyBody> {
    let (out, messages) = mpsc::channel(REPLY_QUEUE);
    let mut tasks = JoinSet::new();
    for call in calls {
        tasks.spawn(stream_one(call, out.clone()));
    }
    tasks.spawn(async move {
        // A request that breaks off ends its feeds; the nodes then end the call.
        let _ = feed_all(feeds, incoming).await;
    });
    reply(ReplyBody::Streamed(Streamed { messages, _tasks: tasks }))
}

async fn stream_one(call: Call, out: mpsc::Sender<Bytes>) {
    let Call { target, upstream, running: _running, request, deadline, .. } = call;
    let passing = async {
        let mut reply = Call::begin(request, &upstream).await?;
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
    if let Err(failed) = within(deadline, passing).await {
        let payload = merge::streamed_failure(&failed, &target);
        let _ = out.send(Message { compressed: false, payload }.encode()).await;
    }
}

fn reply(body: ReplyBody) -> Response<ReplyBody> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}
