//! Bodies: what is sent, and what comes in pieces that must not take for ever.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep};

/// Any error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What a request carries.
pub type RequestBody = UnsyncBoxBody<Bytes, BoxError>;

/// Nothing to send.
pub fn empty() -> RequestBody {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// Bytes to send.
pub fn full(bytes: impl Into<Bytes>) -> RequestBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// The body of a response; the connection fails when nothing comes for too long.
pub struct Pieces {
    inner: Incoming,
    stall: Duration,
    late: Pin<Box<Sleep>>,
}

/// Nothing came for too long.
#[derive(Debug, thiserror::Error)]
#[error("no data within {0:?}")]
pub(crate) struct Stalled(Duration);

impl Pieces {
    pub(crate) fn new(inner: Incoming, stall: Duration) -> Self {
        Self { inner, stall, late: Box::pin(sleep(stall)) }
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(cx) {
            this.late.as_mut().reset(Instant::now() + this.stall);
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        ready!(this.late.as_mut().poll(cx));
        Poll::Ready(Some(Err(Stalled(this.stall).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
