//! Connections to other nodes: one per target, shared by all clients, closed when idle.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Response, Uri};
use tokio::time::Instant;
use tonic::Status;

use super::uri_for;
use crate::body::{ReplyBody, RequestBody, Running};
use crate::channel::Channel;
use crate::dial::{Dialer, Endpoint};
use crate::tls::ClientTls;

/// A connection without calls is closed after this long.
const IDLE: Duration = Duration::from_secs(15 * 60);
/// Calls on a connection of a former identity are cut after this long.
const RETIRED: Duration = Duration::from_secs(30 * 60);
/// More targets than any cluster has nodes; beyond it, names are being made up.
const TARGETS_MAX: usize = 4096;

/// Connections made with one identity.
pub(super) struct Upstreams {
    tls: ClientTls,
    port: u16,
    by_target: Mutex<HashMap<String, Upstream>>,
}

/// The connection to one target.
#[derive(Clone)]
pub(super) struct Upstream {
    pub(super) channel: Channel<RequestBody>,
    endpoint: Endpoint,
    use_count: Arc<Use>,
}

struct Use {
    running: Arc<AtomicUsize>,
    last: Mutex<Instant>,
}

impl Upstreams {
    pub(super) fn new(tls: ClientTls, port: u16) -> Self {
        Self { tls, port, by_target: Mutex::default() }
    }

    /// The connection to `target`, which may not be made yet.
    pub(super) fn get(&self, target: &str) -> Result<Upstream, Status> {
        let mut by_target = self.by_target.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = by_target.get(target) {
            found.use_count.touch();
            return Ok(found.clone());
        }
        if by_target.len() >= TARGETS_MAX {
            return Err(Status::resource_exhausted("too many targets"));
        }
        let endpoint = Endpoint::new(target, self.port);
        let channel = Channel::new(Dialer::tls([endpoint.clone()], self.tls.clone()));
        let use_count = Arc::new(Use { running: Arc::default(), last: Mutex::new(Instant::now()) });
        let fresh = Upstream { channel, endpoint, use_count };
        by_target.insert(target.to_owned(), fresh.clone());
        Ok(fresh)
    }

    /// Drops the connections that have been idle for too long; they close when the last handle is gone.
    pub(super) fn sweep(&self) {
        let mut by_target = self.by_target.lock().unwrap_or_else(PoisonError::into_inner);
        by_target.retain(|_, upstream| !upstream.use_count.is_idle());
    }

    /// Lets running calls end, for a while.
    pub(super) fn retire(&self) {
        let mut by_target = self.by_target.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, upstream) in by_target.drain() {
            if upstream.use_count.running.load(Relaxed) == 0 {
                continue;
            }
            tokio::spawn(async move {
                tokio::time::sleep(RETIRED).await;
                upstream.channel.cut();
            });
        }
    }
}

impl Use {
    fn touch(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn is_idle(&self) -> bool {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        self.running.load(Relaxed) == 0 && last.elapsed() >= IDLE
    }
}

impl Upstream {
    /// The URI of a call to this target.
    pub(super) fn uri(&self, path: &Uri) -> Result<Uri, Status> {
        uri_for(&self.endpoint, path)
    }

    /// Counts a call as running.
    pub(super) fn begin(&self) -> Running {
        Running::begin(&self.use_count.running)
    }

    /// Keeps the connection counted as used while a reply is read.
    pub(super) fn hold(&self, response: Response<ReplyBody>) -> Response<ReplyBody> {
        let running = self.begin();
        response.map(|body| match body {
            ReplyBody::Upstream(body) => ReplyBody::Upstream(body.with(running)),
            other => other,
        })
    }
}
