//! Carries the bytes of one connection both ways.
//!
//! All connections of a thread share one buffer: bytes are read when they are there and written at once, and only what
//! the other end does not take yet is kept aside. An idle connection holds no memory for data.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

const BUFFER: usize = 64 * 1024;
/// A timer that is not needed now; it is cheaper to move than to make.
const FAR: Duration = Duration::from_secs(86_400);

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// Carries bytes until both sides are done, one fails, or the upstream is given up. `silent` is told when bytes for the
/// upstream were not even acknowledged within `patience`.
pub(super) async fn relay(
    client: &TcpStream,
    upstream: &TcpStream,
    given_up: impl Future<Output = ()>,
    patience: Duration,
    silent: impl Fn(),
) {
    // When the first bytes were sent that nothing came back for.
    let since: Cell<Option<Instant>> = Cell::new(None);
    let there = pump(client, upstream, || since.set(since.get().or_else(|| Some(Instant::now()))));
    let back = pump(upstream, client, || since.set(None));
    let mut both = pin!(async { tokio::try_join!(there, back) });
    let mut given_up = pin!(given_up);
    let mut timer = pin!(sleep(FAR));
    let mut armed: Option<Instant> = None;
    poll_fn(|context| {
        // A side that went away is no news to the other.
        if both.as_mut().poll(context).is_ready() || given_up.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        loop {
            if armed != since.get() {
                armed = since.get();
                Sleep::reset(timer.as_mut(), armed.unwrap_or_else(|| Instant::now() + FAR) + patience);
            }
            if armed.is_none() || timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            // Not every message has an answer; but whoever is there has acknowledged it.
            if waiting(upstream) {
                silent();
            }
            since.set(None);
        }
    })
    .await;
}

/// Whether bytes wait to be sent or acknowledged.
fn waiting(stream: &TcpStream) -> bool {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open for as long as the stream is borrowed, and the kernel writes one integer.
    let result = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    result != 0 || bytes > 0
}

/// One direction. The end of the input is passed on as the end of the output; the other direction goes on.
async fn pump(from: &TcpStream, to: &TcpStream, passed: impl Fn()) -> io::Result<()> {
    loop {
        from.readable().await?;
        let mut rest = match step(from, to) {
            Ok(Step::End) => {
                let _ = rustix::net::shutdown(to, rustix::net::Shutdown::Write);
                return Ok(());
            }
            Ok(Step::Passed(rest)) => rest,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        while !rest.is_empty() {
            to.writable().await?;
            match to.try_write(&rest) {
                Ok(written) => drop(rest.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        passed();
    }
}

enum Step {
    /// Bytes went on; these did not yet.
    Passed(Vec<u8>),
    End,
}

/// Reads what is there and writes what is taken.
fn step(from: &TcpStream, to: &TcpStream) -> io::Result<Step> {
    SCRATCH.with_borrow_mut(|buffer| {
        let length = from.try_read(buffer)?;
        if length == 0 {
            return Ok(Step::End);
        }
        let written = match to.try_write(&buffer[..length]) {
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        Ok(Step::Passed(buffer[written..length].to_vec()))
    })
}
