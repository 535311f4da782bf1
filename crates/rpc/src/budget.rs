//! Bounds on the request bytes that a server holds: per message, per connection and in all.
//!
//! gRPC announces the length of a message in five bytes, and a server that collects it holds that much until the call
//! is answered. Here a message is given room for its whole length before its first byte is handed on, so messages that
//! were admitted can always be completed. A message that finds no room waits for a moment, in which bodies that arrive
//! too slowly lose their place to it; then it is refused with `ResourceExhausted`. Part of the room is kept for small
//! messages, so large ones never hold up ordinary calls. The decisions are in [`book`], the body is in [`body`].

mod body;
mod book;

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;

use crate::peer;
pub use body::BudgetedBody;
use book::{Admission, Book};

/// Bounds on request bodies.
#[derive(Clone, Debug)]
pub struct BodyLimits {
    /// The largest message.
    pub message: usize,
    /// Bytes that the calls of one connection hold together; at least `message`.
    pub connection: usize,
    /// Bytes that all calls hold together.
    pub total: usize,
    /// Messages of at most this size are small.
    pub small: usize,
    /// The part of `total` that only small messages get.
    pub reserve: usize,
    /// Messages that wait for room at a time.
    pub waiting: usize,
    /// How long a message waits for room before it is refused.
    pub wait: Duration,
    /// A body without progress for this long loses its room when another message needs it.
    pub stall: Duration,
    /// Bytes a second below which a body loses its room when another message needs it. An eighth of it is what every
    /// body has to keep up.
    pub rate: usize,
    /// Time for a body to begin, and for each of its messages beyond what `rate` gives it.
    pub deadline: Duration,
}

impl BodyLimits {
    /// How long a message of this length may take to arrive.
    fn time_for(&self, length: usize) -> Duration {
        let rate = (self.rate / 8).max(1);
        self.deadline + Duration::from_secs((length / rate) as u64)
    }
}

/// The room for request bodies of one server, or of several that share it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct BodyBudget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: BodyLimits,
    book: Mutex<Book>,
    next: AtomicU64,
}

impl BodyBudget {
    /// Room within these limits.
    pub fn new(limits: BodyLimits) -> Self {
        let book = Mutex::new(Book::new(limits.clone()));
        Self(Arc::new(Shared { limits, book, next: AtomicU64::new(0) }))
    }

    /// Bytes held at this moment.
    pub fn used(&self) -> usize {
        self.book().used()
    }

    /// The part of one connection.
    pub(crate) fn connection(&self, address: Option<IpAddr>) -> Arc<ConnectionBudget> {
        let number = self.0.next.fetch_add(1, Relaxed);
        let group =
            address.map_or(Group::Connection(number), |address| Group::Address(peer::network(address)));
        Arc::new(ConnectionBudget { budget: self.clone(), group, used: AtomicUsize::new(0) })
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whom a call is counted with when room is short: nobody gets more of it by opening more connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Group {
    /// An IPv4 address, or the /64 of an IPv6 address.
    Address(IpAddr),
    /// A connection that has no address.
    Connection(u64),
}

/// The part of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionBudget {
    budget: BodyBudget,
    group: Group,
    /// Changed under the lock of the book only.
    used: AtomicUsize,
}

impl ConnectionBudget {
    /// The part of one call.
    pub(crate) fn call(self: &Arc<Self>) -> Arc<CallBudget> {
        let id = self.budget.0.next.fetch_add(1, Relaxed);
        Arc::new(CallBudget { connection: self.clone(), id, held: AtomicUsize::new(0) })
    }
}

/// What one call holds, until its answer begins.
#[derive(Debug)]
pub(crate) struct CallBudget {
    connection: Arc<ConnectionBudget>,
    id: u64,
    /// Changed under the lock of the book only.
    held: AtomicUsize,
}

impl CallBudget {
    fn limits(&self) -> &BodyLimits {
        &self.connection.budget.0.limits
    }

    /// Changes what the call holds. Pending while there is no room; ask again when woken, and now and then.
    fn poll_hold(&self, cx: &mut Context<'_>, bytes: usize) -> Poll<Result<(), Status>> {
        let mut book = self.connection.budget.book();
        match book.hold(self, bytes, Instant::now()) {
            Admission::Granted => Poll::Ready(Ok(())),
            Admission::Refused => Poll::Ready(Err(no_room(bytes))),
            Admission::Queued => {
                book.wait(self, bytes, cx.waker());
                Poll::Pending
            }
        }
    }

    /// The body arrives slower than it is read; the error says that its room was needed.
    fn poll_open(&self, cx: &Context<'_>, received: usize, progress: bool) -> Result<(), Status> {
        let mut book = self.connection.budget.book();
        match book.open(self, received, progress, Instant::now(), cx.waker()) {
            true => Ok(()),
            false => Err(Status::resource_exhausted(
                "the request body arrived too slowly while other requests waited for room; send it again",
            )),
        }
    }

    /// The whole body has arrived, or nobody reads it any more.
    fn close(&self) {
        self.connection.budget.book().close(self.id);
    }
}

impl Drop for CallBudget {
    fn drop(&mut self) {
        let mut book = self.connection.budget.book();
        book.close(self.id);
        book.release(self);
    }
}

fn no_room(bytes: usize) -> Status {
    Status::resource_exhausted(format!(
        "no room for a request of {bytes} bytes: too many large requests at once; try again"
    ))
}
