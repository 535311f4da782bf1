//! What a connection writes in one turn leaves in one piece.
//!
//! HTTP/2 hands every larger frame to its transport alone and flushes after each: an event for a thousand watches was a
//! thousand records, system calls and wake-ups of the peer. So nothing leaves before the connection has said all it has to
//! say at that moment. Both halves share the transport: HTTP/2 owns the one, the other is where a turn is seen to end.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBufCursor, Write};

/// So much waits for the end of a turn: what a TLS record holds.
const MOST: usize = 16 * 1024;

/// Room that a connection keeps from one turn to the next.
const KEPT: usize = 1024;

/// A transport whose writes wait for the end of the turn.
pub(crate) struct Held<I>(Arc<Mutex<Shared<I>>>);

/// Lets go what a transport holds.
pub(crate) struct Outlet<I>(Arc<Mutex<Shared<I>>>);

/// A connection whose turns end with its words on their way.
pub(crate) struct Turns<'a, C, I> {
    /// The connection.
    pub(crate) connection: Pin<&'a mut C>,
    outlet: Outlet<I>,
}

struct Shared<I> {
    io: I,
    held: Vec<u8>,
    /// So much of it has left.
    left: usize,
    /// Somebody wants it to arrive.
    flush: bool,
    /// Why the last turn could not end, until somebody hears it.
    failed: Option<io::Error>,
}

/// Both halves of a transport.
pub(crate) fn hold<I>(io: I) -> (Held<I>, Outlet<I>) {
    let shared = Shared { io, held: Vec::new(), left: 0, flush: false, failed: None };
    let shared = Arc::new(Mutex::new(shared));
    (Held(shared.clone()), Outlet(shared))
}

impl<I> Outlet<I> {
    /// A connection over the other half.
    pub(crate) fn turns<C>(self, connection: Pin<&mut C>) -> Turns<'_, C, I> {
        Turns { connection, outlet: self }
    }
}

impl<C: Future, I: Write + Unpin> Future for Turns<'_, C, I> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<C::Output> {
        let done = self.connection.as_mut().poll(cx);
        lock(&self.outlet.0).end_turn(cx);
        done
    }
}

fn lock<I>(shared: &Mutex<Shared<I>>) -> MutexGuard<'_, Shared<I>> {
    // Whoever panicked here took its connection with it.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<I: Write + Unpin> Shared<I> {
    fn heard(&mut self) -> io::Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }

    fn write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.heard()?;
        let length = bufs.iter().map(|buf| buf.len()).sum();
        if self.held.len() + length > MOST {
            ready!(self.drain(cx))?;
            if length >= MOST {
                return Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
            }
        }
        for buf in bufs {
            self.held.extend_from_slice(buf);
        }
        Poll::Ready(Ok(length))
    }

    /// Hands everything to the transport.
    fn drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.left < self.held.len() {
            match ready!(Pin::new(&mut self.io).poll_write(cx, &self.held[self.left..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.left += count,
            }
        }
        self.left = 0;
        self.held.clear();
        if self.held.capacity() > KEPT {
            self.held = Vec::new();
        }
        Poll::Ready(Ok(()))
    }

    fn drain_and_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.drain(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    /// What the transport does not take now it takes later: it wakes the connection, whose turn ends again.
    fn end_turn(&mut self, cx: &mut Context<'_>) {
        if !self.flush {
            return;
        }
        if let Poll::Ready(done) = self.drain_and_flush(cx) {
            self.flush = false;
            if let Err(error) = done {
                self.failed = Some(error);
                // The connection has to hear it.
                cx.waker().wake_by_ref();
            }
        }
    }
}

impl<I: Read + Unpin> Read for Held<I> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut lock(&self.0).io).poll_read(cx, buf)
    }
}

impl<I: Write + Unpin> Write for Held<I> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        lock(&self.0).write(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        lock(&self.0).write(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut shared = lock(&self.0);
        shared.flush = true;
        Poll::Ready(shared.heard())
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut shared = lock(&self.0);
        ready!(shared.drain(cx))?;
        Pin::new(&mut shared.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::time::Duration;

    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWrite as _, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::timeout;

    use super::*;

    type Near = TokioIo<DuplexStream>;

    fn pair(room: usize) -> (TokioIo<Held<Near>>, Outlet<Near>, DuplexStream) {
        let (near, far) = duplex(room);
        let (held, outlet) = hold(TokioIo::new(near));
        (TokioIo::new(held), outlet, far)
    }

    #[tokio::test]
    async fn nothing_leaves_before_the_end_of_a_turn() {
        let (mut held, outlet, mut far) = pair(1024);
        let mut turn = 0;
        let connection = pin!(poll_fn(|cx| {
            turn += 1;
            if turn == 2 {
                return Poll::Ready(());
            }
            for word in ["one ", "two ", "three"] {
                assert!(Pin::new(&mut held).poll_write(cx, word.as_bytes()).is_ready());
                assert!(Pin::new(&mut held).poll_flush(cx).is_ready());
                let none = pin!(far.read_u8()).poll(cx);
                assert!(none.is_pending(), "it left too early");
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
        outlet.turns(connection).await;
        let mut buf = [0; 64];
        let count = far.read(&mut buf).await.unwrap();
        assert_eq!(&buf[..count], b"one two three", "one piece");
    }

    #[tokio::test]
    async fn much_gets_through_a_narrow_transport_in_order_and_ends() {
        let (mut held, outlet, mut far) = pair(100);
        let text: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
        let sent = text.clone();
        let sending = async move {
            for part in sent.chunks(700).chain([&[7; 3 * MOST][..]]) {
                held.write_all(part).await.unwrap();
                held.flush().await.unwrap();
            }
            held.shutdown().await.unwrap();
        };
        let sending = pin!(sending);
        let mut got = Vec::new();
        let both = async { tokio::join!(outlet.turns(sending), far.read_to_end(&mut got)) };
        timeout(Duration::from_secs(60), both).await.unwrap().1.unwrap();
        assert_eq!(got.len(), text.len() + 3 * MOST);
        assert!(got.starts_with(&text));
    }

    #[tokio::test]
    async fn a_connection_hears_that_its_last_words_did_not_leave() {
        let (mut held, outlet, far) = pair(100);
        drop(far);
        let connection = pin!(async move {
            held.write_all(b"hello").await.unwrap();
            held.flush().await.unwrap();
            tokio::task::yield_now().await;
            held.flush().await
        });
        let end = timeout(Duration::from_secs(60), outlet.turns(connection)).await.unwrap();
        assert_eq!(end.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
