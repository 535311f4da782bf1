//! Carries the bytes of one connection both ways.
//!
//! All connections of a thread share one buffer: bytes are read when they are there and written at once, and only what
//! the other end does not take yet is kept aside. An idle connection holds no memory for data.

use std::cell::{Cell, RefCell};
use std::io;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

const BUFFER: usize = 64 * 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// A question that waits for its answer: when it was sent, and who wants to know of a change.
#[derive(Default)]
struct Waiting {
    since: Cell<Option<Instant>>,
    changed: Notify,
}

impl Waiting {
    fn set(&self, since: Option<Instant>) {
        if self.since.get().is_some() != since.is_some() {
            self.since.set(since);
            self.changed.notify_one();
        }
    }
}

/// Carries bytes until both sides are done, one fails, or the upstream is given up. `silent` is told when the upstream
/// was sent something and said nothing for `patience`.
pub(super) async fn relay(
    client: &TcpStream,
    upstream: &TcpStream,
    given_up: impl Future<Output = ()>,
    patience: Duration,
    silent: impl Fn(),
) {
    let waiting = Waiting::default();
    let there = pump(client, upstream, || waiting.set(Some(Instant::now())));
    let back = pump(upstream, client, || waiting.set(None));
    let both = async { tokio::try_join!(there, back) };
    tokio::select! {
        // A side that went away is no news to the other.
        _ = both => {}
        () = given_up => {}
        () = watch(&waiting, patience, silent) => {}
    }
}

/// Never ends. Costs a timer only while an answer is due.
async fn watch(waiting: &Waiting, patience: Duration, silent: impl Fn()) {
    loop {
        let Some(since) = waiting.since.get() else {
            waiting.changed.notified().await;
            continue;
        };
        tokio::select! {
            () = waiting.changed.notified() => {}
            () = sleep_until(since + patience) => {
                silent();
                // Told once; the next question starts anew.
                waiting.since.set(None);
            }
        }
    }
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
