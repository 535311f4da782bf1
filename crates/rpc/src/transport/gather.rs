//! Writes that wait for each other.
//!
//! The client side of HTTP/2 sends the head of a request before it looks at the body, though the body is often there
//! already. Two writes wake the peer twice. So each write lets all others who are ready have their turn first.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream whose writes begin one turn later.
pub(crate) struct Gather<T> {
    inner: T,
    /// The others had their turn.
    ripe: bool,
}

impl<T> Gather<T> {
    /// Delays the writes on `inner`.
    pub(crate) fn new(inner: T) -> Self {
        Self { inner, ripe: false }
    }

    /// False at the first call for a write: it is asked for again, after everybody else who is ready.
    fn is_ripe(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.ripe {
            self.ripe = true;
            cx.waker().wake_by_ref();
            return false;
        }
        true
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Gather<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Gather<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if !self.is_ripe(cx) {
            return Poll::Pending;
        }
        let done = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.ripe = done.is_pending();
        done
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if !self.is_ripe(cx) {
            return Poll::Pending;
        }
        let done = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.ripe = done.is_pending();
        done
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn a_write_lets_others_have_their_turn() {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let tasks = tokio::task::LocalSet::new();
        tasks
            .run_until(async {
                let (near, _far) = tokio::io::duplex(64);
                let (ours, theirs) = (seen.clone(), seen.clone());
                let writing = tokio::task::spawn_local(async move {
                    let mut stream = Gather::new(near);
                    stream.write_all(b"head").await.unwrap();
                    ours.borrow_mut().push("written");
                });
                let other = tokio::task::spawn_local(async move { theirs.borrow_mut().push("other") });
                writing.await.unwrap();
                other.await.unwrap();
            })
            .await;
        assert_eq!(*seen.borrow(), ["other", "written"]);
    }
}
