//! Bodies on their way through: requests from a client or from ourselves, replies from upstream.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tonic::Status;

use crate::frame::Gauge;
use crate::http2::MESSAGE_MAX;
use crate::proxy::ProxyConnection;
use crate::proxy::quota::Taken;
use crate::status;

/// A reply from upstream. A connection that breaks under it ends it with status Unavailable, as the
/// original does, and not with a bare reset; a message beyond the limit ends it at its header. Nothing is
/// kept here, however large the reply.
#[derive(Debug)]
pub struct UpstreamBody {
    incoming: Incoming,
    gauge: Gauge,
    broken: bool,
    _running: Option<Running>,
    _client: Option<Arc<ProxyConnection>>,
}

impl UpstreamBody {
    pub(crate) fn new(incoming: Incoming) -> Self {
        Self { incoming, gauge: Gauge::default(), broken: false, _running: None, _client: None }
    }

    /// Counts the body as running until it is gone.
    pub(crate) fn with(self, running: Running) -> Self {
        Self { _running: Some(running), ..self }
    }

    /// Keeps the client's side of the gateway until the body is gone: its connection to the machine is
    /// free for another client only then.
    pub(crate) fn of(self, client: Arc<ProxyConnection>) -> Self {
        Self { _client: Some(client), ..self }
    }
}

/// One of the calls that run on a connection.
#[derive(Debug)]
pub(crate) struct Running {
    count: Arc<AtomicUsize>,
    _taken: Option<Box<Taken>>,
}

impl Running {
    pub(crate) fn begin(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Relaxed);
        Self { count: count.clone(), _taken: None }
    }

    /// Keeps what the call has taken of its caller's share.
    pub(crate) fn keep(self, taken: Taken) -> Self {
        let mut this = self;
        this._taken = Some(Box::new(taken));
        this
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Relaxed);
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.broken {
            return Poll::Ready(None);
        }
        let failed = match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Ready(Some(Err(error))) => status::from_hyper(error),
            Poll::Ready(Some(Ok(frame))) => {
                match frame.data_ref().map(|data| self.gauge.check(data, MESSAGE_MAX)) {
                    Some(Err(refused)) => refused,
                    _ => return Poll::Ready(Some(Ok(frame))),
                }
            }
            other => return other,
        };
        self.broken = true;
        Poll::Ready(Some(Ok(Frame::trailers(status::trailers(&failed)))))
    }

    fn is_end_stream(&self) -> bool {
        self.broken || self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// Where a request body leaves the reason why it stopped.
pub(crate) type Verdict = Arc<OnceLock<Status>>;

/// A request on its way upstream.
pub(crate) enum RequestBody {
    /// A client's body, passed on as it comes.
    Passed { incoming: Incoming, gauge: Gauge, verdict: Verdict },
    /// A message that goes to several nodes.
    Once(Option<Bytes>),
    /// Messages that go to several nodes as they come.
    Fed(mpsc::Receiver<Bytes>),
}

impl RequestBody {
    pub(crate) fn passed(incoming: Incoming, verdict: Verdict) -> Self {
        RequestBody::Passed { incoming, gauge: Gauge::default(), verdict }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            RequestBody::Once(message) => Poll::Ready(message.take().map(|data| Ok(Frame::data(data)))),
            RequestBody::Fed(messages) => {
                messages.poll_recv(cx).map(|next| next.map(|data| Ok(Frame::data(data))))
            }
            RequestBody::Passed { incoming, gauge, verdict } => {
                let frame = Pin::new(incoming).poll_frame(cx);
                if let Poll::Ready(Some(Ok(frame))) = &frame
                    && let Some(data) = frame.data_ref()
                    && let Err(refused) = gauge.check(data, MESSAGE_MAX)
                {
                    let text = refused.message().to_owned();
                    let _ = verdict.set(refused);
                    return Poll::Ready(Some(Err(text.into())));
                }
                frame.map(|next| next.map(|result| result.map_err(Into::into)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RequestBody::Passed { incoming, .. } => incoming.is_end_stream(),
            RequestBody::Once(message) => message.is_none(),
            RequestBody::Fed(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Passed { incoming, .. } => incoming.size_hint(),
            RequestBody::Once(_) | RequestBody::Fed(_) => SizeHint::default(),
        }
    }
}

/// A reply to a client.
#[derive(Default)]
pub enum ReplyBody {
    /// Nothing: the status is in the headers.
    #[default]
    Empty,
    /// The reply of one upstream.
    Upstream(UpstreamBody),
    /// One message and the trailers of success.
    Merged(Merged),
    /// Messages of many upstreams, until all have ended.
    Streamed(Streamed),
}

/// One message in parts, as several nodes sent them.
pub struct Merged {
    pub(crate) parts: VecDeque<Bytes>,
    pub(crate) _taken: Arc<Taken>,
}

/// Messages that arrive from tasks; the tasks end with the body.
pub struct Streamed {
    pub(crate) messages: mpsc::Receiver<Bytes>,
    pub(crate) _tasks: tokio::task::JoinSet<()>,
}

fn success() -> Frame<Bytes> {
    Frame::trailers(status::trailers(&Status::ok("")))
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        match this {
            ReplyBody::Empty => Poll::Ready(None),
            ReplyBody::Upstream(body) => Pin::new(body).poll_frame(cx),
            ReplyBody::Merged(message) => match message.parts.pop_front() {
                Some(part) => Poll::Ready(Some(Ok(Frame::data(part)))),
                None => {
                    *this = ReplyBody::Empty;
                    Poll::Ready(Some(Ok(success())))
                }
            },
            ReplyBody::Streamed(streamed) => match streamed.messages.poll_recv(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Some(message)) => Poll::Ready(Some(Ok(Frame::data(message)))),
                Poll::Ready(None) => {
                    *this = ReplyBody::Empty;
                    Poll::Ready(Some(Ok(success())))
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ReplyBody::Empty => true,
            ReplyBody::Upstream(body) => body.is_end_stream(),
            ReplyBody::Merged(_) | ReplyBody::Streamed(_) => false,
        }
    }
}
