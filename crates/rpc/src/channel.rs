//! A connection that is made when needed, shared by many calls, and made again when it breaks.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri};
use http_body::Body;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http2::SendRequest;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::body::UpstreamBody;
use crate::dial::{DialError, Dialer, Dials};
use crate::status;

/// The wait after the first failure; each further one is 1.6 times as long.
const BACKOFF_BASE: Duration = Duration::from_millis(100);
/// The longest wait between attempts that take their time, as to a machine that is gone.
const BACKOFF_MAX: Duration = Duration::from_secs(15);
/// The longest wait after an attempt that failed at once: it cost nothing, and a machine that refuses is about to serve.
const BACKOFF_REFUSED_MAX: Duration = Duration::from_millis(500);

/// A client connection to one server. Cheap to clone; clones share the connection.
///
/// It is a tower service, so generated clients take it: `StateClient::new(channel)`. Nothing connects
/// before the first call. After a failure, calls fail at once until the next attempt is due; towards
/// Unix sockets every call may try.
pub struct Channel<B = tonic::body::Body> {
    inner: Arc<Inner<B>>,
}

struct Inner<B> {
    dialer: Dialer,
    authority: Option<Authority>,
    ready: Mutex<Option<SendRequest<B>>>,
    dialing: tokio::sync::Mutex<Backoff>,
    cut: CancellationToken,
}

/// A call that is on its way, or must wait for a connection.
// Taken apart where it is made: boxing would cost the common way what it saves the other.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Begun<F, B> {
    Sent(F),
    Unsent(Request<B>),
}

#[derive(Default)]
struct Backoff {
    delay: Duration,
    failed: Option<(Instant, Status)>,
}

impl Backoff {
    /// How long to wait after an attempt that took so long.
    fn next(&mut self, took: Duration) -> Duration {
        let most = if took < BACKOFF_REFUSED_MAX { BACKOFF_REFUSED_MAX } else { BACKOFF_MAX };
        self.delay = self.delay.mul_f32(1.6).clamp(BACKOFF_BASE, BACKOFF_MAX);
        self.delay.min(most)
    }
}

impl<B> Clone for Channel<B> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<B> Channel<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// A channel that connects through `dialer`.
    pub fn new(dialer: Dialer) -> Self {
        let authority = Authority::try_from(dialer.authority()).ok();
        Self {
            inner: Arc::new(Inner {
                dialer,
                authority,
                ready: Mutex::new(None),
                dialing: tokio::sync::Mutex::default(),
                cut: CancellationToken::new(),
            }),
        }
    }

    /// Connects, if there is no connection, and says why it fails.
    pub async fn connect(&self) -> Result<(), Status> {
        match self.current() {
            Some(_) => Ok(()),
            None => self.dial(None).await.map(drop),
        }
    }

    /// The same; an attempt that has to be made takes one of the `dials` while it lasts.
    pub(crate) async fn connect_within(&self, dials: &Dials) -> Result<(), Status> {
        match self.current() {
            Some(_) => Ok(()),
            None => self.dial(Some(dials)).await.map(drop),
        }
    }

    /// Whether a call would find a connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.current().is_some()
    }

    /// Sends a request on the connection there is, without any future but the answer's.
    ///
    /// This is the way of almost every call, so nothing of what the other way needs is in it.
    pub(crate) fn begin(
        &self,
        request: Request<B>,
    ) -> Begun<impl Future<Output = Result<Response<Incoming>, TrySendError<Request<B>>>> + use<B>, B> {
        match self.current() {
            Some(mut sender) => Begun::Sent(sender.try_send_request(request)),
            None => Begun::Unsent(request),
        }
    }

    /// Goes on with a call that failed: once more, if it never left.
    pub(crate) async fn recover(
        &self,
        mut error: TrySendError<Request<B>>,
    ) -> Result<Response<UpstreamBody>, Status> {
        match error.take_message() {
            Some(unsent) => {
                self.forget();
                self.send(unsent).await
            }
            None => Err(status::from_hyper(error.into_error())),
        }
    }

    /// Sends a request as it is; its URI must be whole.
    pub async fn send(&self, mut request: Request<B>) -> Result<Response<UpstreamBody>, Status> {
        let mut again = true;
        loop {
            let mut sender = match self.current() {
                Some(sender) => sender,
                None => self.dial(None).await?,
            };
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(response.map(UpstreamBody::new)),
                Err(mut error) => match error.take_message() {
                    // It never left, because the connection had closed unnoticed: a new one may carry it.
                    Some(unsent) if again => {
                        again = false;
                        request = unsent;
                        self.forget();
                    }
                    _ => return Err(status::from_hyper(error.into_error())),
                },
            }
        }
    }

    /// Cuts the connection with every call on it, and all later ones that come from clones.
    pub fn cut(&self) {
        self.inner.cut.cancel();
    }

    /// Fills in what the URI of a generated client lacks.
    pub(crate) fn complete(&self, request: &mut Request<B>) {
        if request.uri().authority().is_some() {
            return;
        }
        let path = request.uri().path_and_query().cloned();
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(if self.inner.dialer.is_local() { Scheme::HTTP } else { Scheme::HTTPS });
        parts.authority.clone_from(&self.inner.authority);
        parts.path_and_query = Some(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }

    fn current(&self) -> Option<SendRequest<B>> {
        let ready = self.inner.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.as_ref().filter(|sender| sender.is_ready()).cloned()
    }

    fn forget(&self) {
        let mut ready = self.inner.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if ready.as_ref().is_some_and(|sender| !sender.is_ready()) {
            *ready = None;
        }
    }

    async fn dial(&self, dials: Option<&Dials>) -> Result<SendRequest<B>, Status> {
        // One caller dials, the others wait for what it finds.
        let mut backoff = self.inner.dialing.lock().await;
        if let Some(sender) = self.current() {
            return Ok(sender);
        }
        if let Some((until, status)) = &backoff.failed
            && Instant::now() < *until
        {
            return Err(status.clone());
        }
        // Taken here, so that many who wait for one node hold one place between them. It is never closed.
        let _place = match dials {
            Some(dials) => dials.connects.acquire().await.ok(),
            None => None,
        };
        let began = Instant::now();
        // Boxed: those who wait need no room for the state of a TLS handshake.
        match Box::pin(self.inner.dialer.connect(self.inner.cut.clone(), dials)).await {
            Ok(sender) => {
                *backoff = Backoff::default();
                *self.inner.ready.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender.clone());
                Ok(sender)
            }
            Err(error) => Err(self.failed(&mut backoff, &error, began.elapsed())),
        }
    }

    fn failed(&self, backoff: &mut Backoff, error: &DialError, took: Duration) -> Status {
        let status = error.to_status();
        if !self.inner.dialer.is_local() {
            backoff.failed = Some((Instant::now() + backoff.next(took), status.clone()));
        }
        status
    }
}

impl tower::Service<Request<tonic::body::Body>> for Channel<tonic::body::Body> {
    type Response = Response<UpstreamBody>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Status>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<tonic::body::Body>) -> Self::Future {
        self.complete(&mut request);
        let channel = self.clone();
        Box::pin(async move { channel.send(request).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_refused_many_times_is_not_called_refusing_long_after_it_serves() {
        let mut backoff = Backoff::default();
        let waits: Vec<Duration> = (0..40).map(|_| backoff.next(Duration::from_millis(1))).collect();
        assert_eq!(waits[0], BACKOFF_BASE);
        assert!(waits.iter().all(|wait| *wait <= BACKOFF_REFUSED_MAX), "{waits:?}");
        assert_eq!(
            backoff.next(Duration::from_secs(3)),
            BACKOFF_MAX,
            "one that does not answer is left alone"
        );
    }
}
