//! Connections to other nodes: two per target, shared by all clients, closed when idle.
//!
//! Streams have a connection of their own: those that nobody reads can use up its window, and calls that
//! reply once must get through all the same.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Response, Uri};
use tokio::time::Instant;
use tonic::Status;

use super::uri_for;
use crate::authorize;
use crate::body::{ReplyBody, RequestBody, Running};
use crate::channel::Channel;
use crate::dial::{Dialer, Endpoint};
use crate::route::is_streamed;
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
    by_target: Mutex<HashMap<String, Lanes>>,
}

/// The connections to one target.
struct Lanes {
    calls: Upstream,
    streams: Upstream,
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

    /// The connection to `target` for calls of `path`, which may not be made yet.
    pub(super) fn get(&self, target: &str, path: &str) -> Result<Upstream, Status> {
        let mut by_target = self.by_target.lock().unwrap_or_else(PoisonError::into_inner);
        if !by_target.contains_key(target) && by_target.len() >= TARGETS_MAX {
            return Err(Status::resource_exhausted("too many targets"));
        }
        let lanes = by_target
            .entry(target.to_owned())
            .or_insert_with(|| Lanes { calls: self.upstream(target), streams: self.upstream(target) });
        let upstream = if replies_once(path) { &lanes.calls } else { &lanes.streams };
        upstream.use_count.touch();
        Ok(upstream.clone())
    }

    fn upstream(&self, target: &str) -> Upstream {
        let endpoint = Endpoint::new(target, self.port);
        let channel = Channel::new(Dialer::tls([endpoint.clone()], self.tls.clone()));
        let use_count = Arc::new(Use { running: Arc::default(), last: Mutex::new(Instant::now()) });
        Upstream { channel, endpoint, use_count }
    }

    /// Drops the connections that have been idle for too long; they close when the last handle is gone.
    pub(super) fn sweep(&self) {
        let mut by_target = self.by_target.lock().unwrap_or_else(PoisonError::into_inner);
        by_target.retain(|_, lanes| !lanes.calls.use_count.is_idle() || !lanes.streams.use_count.is_idle());
    }

    /// Lets running calls end, for a while.
    pub(super) fn retire(&self) {
        let mut by_target = self.by_target.lock().unwrap_or_else(PoisonError::into_inner);
        for upstream in by_target.drain().flat_map(|(_, lanes)| [lanes.calls, lanes.streams]) {
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

/// Whether a call has a single, bounded reply. An unknown path may be anything, so it does not count.
fn replies_once(path: &str) -> bool {
    let is_state_stream = matches!(path, "/cosi.resource.State/List" | "/cosi.resource.State/Watch");
    !is_streamed(path) && !is_state_stream && authorize::rule(path).is_some()
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
