//! Connections to other nodes: two per target, shared by all clients, closed when idle.
//!
//! Replies that nobody reads use up the window of a connection. A shared one therefore carries no more than
//! [`SHARED_MAX`] calls at a time, which cannot fill it; who comes then gets a connection of its own, and
//! what it does not read stalls nobody else. Streams are kept apart from calls that reply once, so that many
//! open streams do not cost every short call a connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use http::{Response, Uri};
use tokio::time::Instant;
use tonic::Status;

use super::uri_for;
use crate::authorize;
use crate::body::{ReplyBody, RequestBody, Running};
use crate::channel::Channel;
use crate::dial::{Dialer, Endpoint};
use crate::http2;
use crate::route::is_streamed;
use crate::tls::ClientTls;

/// A connection without calls is closed after this long.
const IDLE: Duration = Duration::from_secs(15 * 60);
/// Calls on a connection of a former identity are cut after this long.
const RETIRED: Duration = Duration::from_secs(30 * 60);
/// More targets than any cluster has nodes; beyond it, names are being made up.
const TARGETS_MAX: usize = 4096;

/// Calls at a time on a shared connection: half of what its window takes if nobody reads any of them.
const SHARED_MAX: usize = (http2::CONNECTION_WINDOW / http2::STREAM_WINDOW / 2) as usize;

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

    /// The connection to `target` for a call of `path`, which may not be made yet. The call counts as running
    /// from here on.
    pub(super) fn get(
        self: &Arc<Self>,
        target: &str,
        path: &str,
        private: &Private,
    ) -> Result<(Upstream, Running), Status> {
        let mut by_target = self.by_target.lock().unwrap_or_else(PoisonError::into_inner);
        if !by_target.contains_key(target) && by_target.len() >= TARGETS_MAX {
            return Err(Status::resource_exhausted("too many targets"));
        }
        let lanes = by_target
            .entry(target.to_owned())
            .or_insert_with(|| Lanes { calls: self.upstream(target), streams: self.upstream(target) });
        let shared = if replies_once(path) { &lanes.calls } else { &lanes.streams };
        shared.use_count.touch();
        let upstream = match shared.use_count.running.load(Relaxed) < SHARED_MAX {
            true => shared.clone(),
            false => private.get(self, target),
        };
        let running = Running::begin(&upstream.use_count.running);
        Ok((upstream, running))
    }

    fn upstream(&self, target: &str) -> Upstream {
        let endpoint = Endpoint::new(target, self.port);
        Upstream::new(Dialer::tls([endpoint.clone()], self.tls.clone()), endpoint)
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

/// The connections to other nodes of one client of the gateway. Each was asked for while the shared one of
/// its target carried [`SHARED_MAX`] calls, so there cannot be many.
#[derive(Default)]
pub(super) struct Private(Mutex<(Weak<Upstreams>, HashMap<String, Upstream>)>);

impl Private {
    fn get(&self, of: &Arc<Upstreams>, target: &str) -> Upstream {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, by_target) = &mut *held;
        // Made with another identity: what runs on them may end, new calls go elsewhere.
        if !std::ptr::eq(known.as_ptr(), Arc::as_ptr(of)) {
            *known = Arc::downgrade(of);
            by_target.clear();
        }
        by_target
            .entry(target.to_owned())
            .or_insert_with(|| {
                let endpoint = Endpoint::new(target, of.port);
                Upstream::new(Dialer::private(endpoint.clone(), of.tls.clone()), endpoint)
            })
            .clone()
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
    fn new(dialer: Dialer, endpoint: Endpoint) -> Self {
        let use_count = Arc::new(Use { running: Arc::default(), last: Mutex::new(Instant::now()) });
        Self { channel: Channel::new(dialer), endpoint, use_count }
    }

    /// The URI of a call to this target.
    pub(super) fn uri(&self, path: &Uri) -> Result<Uri, Status> {
        uri_for(&self.endpoint, path)
    }
}

/// Keeps a call counted as running while its reply is read.
pub(super) fn hold(response: Response<ReplyBody>, running: Running) -> Response<ReplyBody> {
    response.map(|body| match body {
        ReplyBody::Upstream(body) => ReplyBody::Upstream(body.with(running)),
        other => other,
    })
}
