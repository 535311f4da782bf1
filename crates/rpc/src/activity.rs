//! How busy a connection is: calls begun, calls running, whether it ever spoke.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};

use crate::status;

/// What every client sends at once: the preface of HTTP/2 and the header of its first frame.
const GREETING: usize = 24 + 9;

/// Counters of one connection.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    running: AtomicUsize,
    begun: AtomicUsize,
    served: AtomicUsize,
    read: AtomicUsize,
}

impl Activity {
    /// Counts a call until the guard is dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> Call {
        self.running.fetch_add(1, Relaxed);
        self.begun.fetch_add(1, Relaxed);
        Call(self.clone())
    }

    /// Calls begun so far.
    pub(crate) fn calls(&self) -> usize {
        self.begun.load(Relaxed)
    }

    /// Notes a call whose answer has begun and is not a refusal.
    pub(crate) fn serve(&self) {
        self.served.fetch_add(1, Relaxed);
    }

    /// Whether any call was answered with more than a refusal: anybody can make calls that are refused.
    pub(crate) fn was_served(&self) -> bool {
        self.served.load(Relaxed) > 0
    }

    /// Whether no call is running.
    pub(crate) fn is_quiet(&self) -> bool {
        self.running.load(Relaxed) == 0
    }

    /// Whether the peer has said enough to be taken for a client. One that sends byte by byte has not.
    pub(crate) fn has_spoken(&self) -> bool {
        self.read.load(Relaxed) >= GREETING
    }
}

/// A running call.
#[derive(Debug)]
pub(crate) struct Call(Arc<Activity>);

impl Call {
    /// Notes that its answer has begun and is not a refusal.
    pub(crate) fn serve(&self) {
        self.0.serve();
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Relaxed);
    }
}

/// A response body that keeps its call counted until it is gone.
pub(crate) struct Counted<B> {
    body: B,
    _call: Call,
}

impl<B> Counted<B> {
    pub(crate) fn new(body: B, call: Call) -> Self {
        Self { body, _call: call }
    }
}

impl<B: Body + Unpin> Body for Counted<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &mut polled
            && let Some(trailers) = frame.trailers_mut()
        {
            status::shorten(trailers);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A transport that counts what is read.
pub(crate) struct Observed<I> {
    io: I,
    activity: Arc<Activity>,
}

impl<I> Observed<I> {
    pub(crate) fn new(io: I, activity: Arc<Activity>) -> Self {
        Self { io, activity }
    }
}

impl<I: Read + Unpin> Read for Observed<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        if self.activity.has_spoken() {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        // Only the first bytes are counted, through a buffer of our own.
        let mut bytes = [0; GREETING];
        let mut own = ReadBuf::new(&mut bytes[..GREETING.min(buf.remaining())]);
        let result = Pin::new(&mut self.io).poll_read(cx, own.unfilled());
        self.activity.read.fetch_add(own.filled().len(), Relaxed);
        buf.put_slice(own.filled());
        result
    }
}

impl<I: Write + Unpin> Write for Observed<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }
}
