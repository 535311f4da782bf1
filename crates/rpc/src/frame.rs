//! gRPC's own framing inside a body: a flag, a length, a message.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame};
use tonic::Status;

use crate::proxy::quota::Taken;

/// Flag and length.
pub(crate) const HEADER: usize = 5;

/// One message of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// Whether the payload is compressed.
    pub(crate) compressed: bool,
    /// The payload.
    pub(crate) payload: Bytes,
}

impl Message {
    /// Header and payload in one piece.
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(HEADER + self.payload.len());
        out.put_u8(u8::from(self.compressed));
        // No message is longer than MESSAGE_MAX, which fits.
        out.put_u32(self.payload.len() as u32);
        out.extend_from_slice(&self.payload);
        out.freeze()
    }
}

/// A header read: what follows it.
pub(crate) fn parse_header(header: [u8; HEADER], limit: usize) -> Result<(bool, usize), Status> {
    let [flag, a, b, c, d] = header;
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if flag > 1 {
        return Err(Status::internal(format!("grpc: received message with invalid compression flag {flag}")));
    }
    if length > limit {
        return Err(too_large(length, limit));
    }
    Ok((flag == 1, length))
}

/// What the original says about a message beyond the limit.
pub(crate) fn too_large(length: usize, limit: usize) -> Status {
    Status::resource_exhausted(format!("grpc: received message larger than max ({length} vs. {limit})"))
}

/// Takes messages out of bytes that arrive in any pieces. Buffers one message at most.
#[derive(Debug)]
pub(crate) struct Splitter {
    buffer: BytesMut,
    limit: usize,
}

impl Splitter {
    pub(crate) fn new(limit: usize) -> Self {
        Self { buffer: BytesMut::new(), limit }
    }

    /// Adds what arrived.
    pub(crate) fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
    }

    /// The next whole message, if it is there.
    pub(crate) fn next(&mut self) -> Result<Option<Message>, Status> {
        let Some(header) = self.buffer.first_chunk::<HEADER>() else { return Ok(None) };
        let (compressed, length) = parse_header(*header, self.limit)?;
        if self.buffer.len() < HEADER + length {
            return Ok(None);
        }
        self.buffer.advance(HEADER);
        let payload = self.buffer.split_to(length).freeze();
        Ok(Some(Message { compressed, payload }))
    }

    /// Whether a message was begun and not ended.
    pub(crate) fn is_partial(&self) -> bool {
        !self.buffer.is_empty()
    }
}

/// The messages of a body, then its trailers.
pub(crate) struct Messages<B> {
    body: B,
    splitter: Splitter,
    trailers: Option<HeaderMap>,
    ended: bool,
    taken: Option<Arc<Taken>>,
}

impl<B> Messages<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    pub(crate) fn new(body: B, limit: usize) -> Self {
        Self { body, splitter: Splitter::new(limit), trailers: None, ended: false, taken: None }
    }

    /// Counts what arrives together with the other replies of a call; beyond their limit all of them end.
    pub(crate) fn count_in(&mut self, taken: Arc<Taken>) {
        self.taken = Some(taken);
    }

    /// The next message; none at the end. A body that ends inside a message is an error.
    pub(crate) async fn next(&mut self) -> Result<Option<Message>, Status> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Message>, Status>> {
        loop {
            if let Some(message) = self.splitter.next()? {
                return Poll::Ready(Ok(Some(message)));
            }
            if self.ended {
                return Poll::Ready(if self.splitter.is_partial() {
                    self.splitter = Splitter::new(0);
                    Err(Status::internal("unexpected EOF"))
                } else {
                    Ok(None)
                });
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None => self.ended = true,
                Some(Ok(frame)) => self.take(frame)?,
                Some(Err(error)) => {
                    self.ended = true;
                    return Poll::Ready(Err(Status::unavailable(error.to_string())));
                }
            }
        }
    }

    fn take(&mut self, frame: Frame<Bytes>) -> Result<(), Status> {
        match frame.into_data() {
            Ok(data) => {
                if let Some(taken) = &self.taken
                    && let Err(refused) = taken.collect(data.len())
                {
                    self.ended = true;
                    return Err(refused);
                }
                self.splitter.push(&data);
            }
            Err(frame) => {
                self.trailers = frame.into_trailers().ok();
                self.ended = true;
            }
        }
        Ok(())
    }

    /// The trailers, once `next` has said that there are no more messages.
    pub(crate) fn trailers(&self) -> Option<&HeaderMap> {
        self.trailers.as_ref()
    }
}

/// Watches messages go by without keeping them, to stop one that is too large at its header.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    header: [u8; HEADER],
    filled: u8,
    // A length on the wire has 32 bits.
    left: u32,
}

impl Gauge {
    /// Looks at the next piece of the body.
    pub(crate) fn check(&mut self, mut chunk: &[u8], limit: usize) -> Result<(), Status> {
        while !chunk.is_empty() {
            if self.left > 0 {
                let pass = (self.left as usize).min(chunk.len());
                self.left -= pass as u32;
                chunk = &chunk[pass..];
                continue;
            }
            let filled = usize::from(self.filled);
            let wanted = (HEADER - filled).min(chunk.len());
            self.header[filled..filled + wanted].copy_from_slice(&chunk[..wanted]);
            self.filled += wanted as u8;
            chunk = &chunk[wanted..];
            if usize::from(self.filled) == HEADER {
                self.filled = 0;
                self.left = parse_header(self.header, limit)?.1 as u32;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(payload: &'static [u8]) -> Message {
        Message { compressed: false, payload: Bytes::from_static(payload) }
    }

    #[test]
    fn messages_come_out_however_they_are_cut() {
        let wire = [message(b"one").encode(), message(b"").encode(), message(b"three").encode()].concat();
        for size in 1..=wire.len() {
            let mut splitter = Splitter::new(16);
            let mut gauge = Gauge::default();
            let mut found = Vec::new();
            for chunk in wire.chunks(size) {
                gauge.check(chunk, 16).expect("fits");
                splitter.push(chunk);
                while let Some(next) = splitter.next().expect("whole") {
                    found.push(next);
                }
            }
            assert_eq!(found, [message(b"one"), message(b""), message(b"three")], "pieces of {size}");
            assert!(!splitter.is_partial());
        }
    }

    #[test]
    fn a_message_beyond_the_limit_is_refused_at_its_header() {
        let mut splitter = Splitter::new(16);
        splitter.push(&[0, 0, 0, 0, 17]);
        let error = splitter.next().expect_err("too large");
        assert_eq!(error.message(), "grpc: received message larger than max (17 vs. 16)");
        let mut gauge = Gauge::default();
        gauge.check(&[0, 0, 0], 16).expect("not yet known");
        assert_eq!(gauge.check(&[0, 17], 16).expect_err("known").code(), tonic::Code::ResourceExhausted);
    }

    #[test]
    fn a_flag_that_means_nothing_is_refused() {
        let mut splitter = Splitter::new(16);
        splitter.push(&[2, 0, 0, 0, 0]);
        assert_eq!(splitter.next().expect_err("flag").code(), tonic::Code::Internal);
        assert!(Gauge::default().check(&[255, 0, 0, 0, 0], 16).is_err());
    }

    #[tokio::test]
    async fn a_body_that_ends_inside_a_message_is_an_error() {
        let body = http_body_util::Full::new(Bytes::from_static(&[0, 0, 0, 0, 9, 1, 2]));
        let mut messages = Messages::new(body, 16);
        assert_eq!(messages.next().await.expect_err("cut").message(), "unexpected EOF");
        assert_eq!(messages.next().await.expect("ended"), None);
    }
}
