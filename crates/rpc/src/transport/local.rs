//! A Unix socket that wakes nobody for nothing.
//!
//! The kernel reports a Unix socket as writable each time its peer has read, and whoever asked for that is woken: that
//! was half of all wake-ups of a call. So it is asked for only once a write had to wait.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

/// A stream within the machine.
pub(crate) struct Local {
    stream: AsyncFd<UnixStream>,
    /// The same socket once more, where somebody had to wait until it took more.
    full: Option<AsyncFd<OwnedFd>>,
}

impl Local {
    /// Takes a stream over.
    pub(crate) fn new(stream: tokio::net::UnixStream) -> io::Result<Self> {
        let stream = register(stream.into_std()?, Interest::READABLE)?;
        Ok(Self { stream, full: None })
    }

    fn poll_with(
        &mut self,
        cx: &mut Context<'_>,
        mut write: impl FnMut(&UnixStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        if self.full.is_none() {
            match write(self.stream.get_ref()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let again = self.stream.get_ref().as_fd().try_clone_to_owned()?;
                    self.full = Some(register(again, Interest::WRITABLE)?);
                }
                done => return Poll::Ready(done),
            }
        }
        let Some(full) = &self.full else { return Poll::Pending };
        loop {
            let mut guard = ready!(full.poll_write_ready(cx))?;
            match guard.try_io(|_| write(self.stream.get_ref())) {
                Ok(done) => return Poll::Ready(done),
                Err(_would_block) => {}
            }
        }
    }
}

#[allow(deprecated, reason = "the successor is unsafe for odd types; these two keep their promise")]
fn register<T: AsRawFd>(of: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(of, interest)
}

impl AsyncRead for Local {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.stream.poll_read_ready(cx))?;
            let room = buf.initialize_unfilled();
            match guard.try_io(|stream| stream.get_ref().read(room)) {
                Ok(Ok(count)) => {
                    // There was no more: the next bytes tell of themselves.
                    if 0 < count && count < room.len() {
                        guard.clear_ready();
                    }
                    buf.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => {}
            }
        }
    }
}

impl AsyncWrite for Local {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |mut stream| stream.write(buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |mut stream| stream.write_vectored(bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.stream.get_ref().shutdown(Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;

    use super::*;

    fn pair() -> (Local, Local) {
        let (a, b) = tokio::net::UnixStream::pair().unwrap();
        (Local::new(a).unwrap(), Local::new(b).unwrap())
    }

    #[tokio::test]
    async fn more_than_the_socket_holds_gets_through_and_ends() {
        let (mut from, mut to) = pair();
        let text: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
        let sent = text.clone();
        let sending = tokio::spawn(async move {
            from.write_all(&sent).await.unwrap();
            assert!(from.full.is_some(), "nobody had to wait");
            from.shutdown().await.unwrap();
            from
        });
        let mut got = Vec::new();
        timeout(Duration::from_secs(60), to.read_to_end(&mut got)).await.unwrap().unwrap();
        assert!(got == text);
        // The other direction is open still.
        let mut from = sending.await.unwrap();
        to.write_all(b"thanks").await.unwrap();
        drop(to);
        let mut answer = String::new();
        timeout(Duration::from_secs(60), from.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert_eq!(answer, "thanks");
    }

    #[tokio::test]
    async fn bytes_that_come_one_by_one_are_all_read() {
        let (mut from, mut to) = pair();
        let reading = tokio::spawn(async move {
            let mut got = Vec::new();
            to.read_to_end(&mut got).await.unwrap();
            got
        });
        for byte in 0..100_u8 {
            from.write_all(&[byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        drop(from);
        let got = timeout(Duration::from_secs(60), reading).await.unwrap().unwrap();
        assert_eq!(got, (0..100).collect::<Vec<u8>>());
    }
}
