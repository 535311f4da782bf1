//! Connections to other nodes: two per target, shared by all clients, closed when idle.
//!
//! Replies that nobody reads use up the window of a connection. A shared one therefore carries no more than
//! [`SHARED_MAX`] calls at a time, which cannot fill it; who comes then gets a connection of its own, and
//! what it does not read stalls nobody else. Streams are kept apart from calls that reply once, so that many
//! open streams do not cost every short call a connection.
//!
//! Targets that cannot be reached are kept apart from the others: a few, for a short time, so that calls to a node
//! that is down fail without a new attempt each. However many there are, they take no place from nodes that answer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{Response, Uri};
use tokio::time::Instant;
use tonic::Status;

use super::uri_for;
use crate::authorize;
use crate::body::{ReplyBody, RequestBody, Running};
use crate::channel::Channel;
use crate::dial::{Dialer, Endpoint};
use crate::http2::{self, Hop};
use crate::members::Members;
use crate::route::is_streamed;
use crate::tls::ClientTls;

/// A connection without calls is closed after this long.
const IDLE: Duration = Duration::from_secs(15 * 60);
/// Calls on a connection of a former identity are cut after this long.
const RETIRED: Duration = Duration::from_secs(30 * 60);
/// Targets that are kept; beyond it, those that are idle have to make room.
const TARGETS_MAX: usize = 2048;
/// Targets that could not be reached and are remembered.
const FAILED_MAX: usize = 256;
/// How long a target that could not be reached is remembered: as long as the longest wait between two attempts.
const FAILED_KEPT: Duration = Duration::from_secs(15);

/// Calls at a time on a shared connection: half of what its window takes if nobody reads any of them.
const SHARED_MAX: usize = (http2::CONNECTION_WINDOW / http2::STREAM_WINDOW / 2) as usize;

/// Connections made with one identity.
pub(super) struct Upstreams {
    tls: ClientTls,
    port: u16,
    members: Arc<ArcSwap<Members>>,
    targets: Mutex<Targets>,
}

#[derive(Default)]
struct Targets {
    /// Those with a connection, or calls.
    live: HashMap<Arc<str>, Lanes>,
    /// Those that could not be reached; their channels know when to try again.
    failed: HashMap<Arc<str>, Lanes>,
}

/// The connections to one target, each made when it is first needed.
#[derive(Default)]
struct Lanes {
    calls: Option<Upstream>,
    streams: Option<Upstream>,
}

/// The connection to one target.
#[derive(Clone)]
pub(super) struct Upstream {
    pub(super) channel: Channel<RequestBody>,
    endpoint: Arc<Endpoint>,
    use_count: Arc<Use>,
}

struct Use {
    running: Arc<AtomicUsize>,
    last: Mutex<Instant>,
}

impl Upstreams {
    pub(super) fn new(tls: ClientTls, port: u16, members: Arc<ArcSwap<Members>>) -> Self {
        Self { tls, port, members, targets: Mutex::default() }
    }

    /// The connection to `target` for a call of `path`, which may not be made yet. The call counts as running
    /// from here on.
    pub(super) fn get(
        self: &Arc<Self>,
        target: &Arc<str>,
        path: &str,
        private: &Private,
    ) -> (Upstream, Running) {
        let mut targets = self.targets();
        let mut uncached = Lanes::default();
        let lanes = targets.lanes(target).unwrap_or(&mut uncached);
        let lane = if replies_once(path) { &mut lanes.calls } else { &mut lanes.streams };
        let shared = lane.get_or_insert_with(|| self.upstream(target, Hop::Remote));
        shared.use_count.touch();
        let upstream = match shared.use_count.running.load(Relaxed) < SHARED_MAX {
            true => shared.clone(),
            false => private.get(self, target),
        };
        let running = Running::begin(&upstream.use_count.running);
        (upstream, running)
    }

    fn upstream(&self, target: &str, hop: Hop) -> Upstream {
        let endpoint = Endpoint::new(target, self.port);
        let dialer = Dialer::node(endpoint.clone(), self.tls.clone(), self.members.clone(), hop);
        Upstream::new(dialer, endpoint)
    }

    /// A call to `target` ended because it could not be reached. Unless others are on their way to it, it makes room.
    pub(super) fn unreachable(&self, target: &Arc<str>) {
        self.targets().unreachable(target);
    }

    /// A call to `target` ended and its connection need not be kept for others.
    pub(super) fn release(&self, target: &str) {
        let mut targets = self.targets();
        if targets.live.get(target).is_some_and(|lanes| !lanes.is_running()) {
            targets.live.remove(target);
        }
    }

    /// Drops the connections that have been idle for too long; they close when the last handle is gone.
    pub(super) fn sweep(&self) {
        self.targets().sweep(IDLE, FAILED_KEPT);
    }

    /// Lets running calls end, for a while.
    pub(super) fn retire(&self) {
        let Targets { live, failed: _ } = std::mem::take(&mut *self.targets());
        for upstream in live.into_values().flat_map(Lanes::into_iter) {
            if upstream.use_count.running.load(Relaxed) == 0 {
                continue;
            }
            tokio::spawn(async move {
                tokio::time::sleep(RETIRED).await;
                upstream.channel.cut();
            });
        }
    }

    fn targets(&self) -> MutexGuard<'_, Targets> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Targets {
    /// The place of `target`; none when all are taken by calls that run.
    fn lanes(&mut self, target: &Arc<str>) -> Option<&mut Lanes> {
        if !self.live.contains_key(target) {
            let known = self.failed.remove(target).unwrap_or_default();
            if self.live.len() >= TARGETS_MAX && !self.make_room() {
                return None;
            }
            self.live.insert(target.clone(), known);
        }
        self.live.get_mut(target)
    }

    /// Drops targets without a connection, then a quarter of the idle ones, those not used for longest.
    fn make_room(&mut self) -> bool {
        self.live.retain(|_, lanes| lanes.is_running() || lanes.is_connected());
        if self.live.len() >= TARGETS_MAX {
            let idle = self.live.iter().filter(|(_, lanes)| !lanes.is_running());
            let mut idle: Vec<(Duration, Arc<str>)> =
                idle.map(|(target, lanes)| (lanes.rested(), target.clone())).collect();
            idle.sort_unstable_by_key(|(rested, _)| std::cmp::Reverse(*rested));
            for (_, target) in idle.into_iter().take(TARGETS_MAX / 4) {
                self.live.remove(&target);
            }
        }
        self.live.len() < TARGETS_MAX
    }

    fn sweep(&mut self, idle: Duration, failed: Duration) {
        self.live.retain(|_, lanes| lanes.is_running() || lanes.rested() < idle);
        self.failed.retain(|_, lanes| lanes.rested() < failed);
    }

    fn unreachable(&mut self, target: &Arc<str>) {
        let is_lost = |lanes: &Lanes| !lanes.is_running() && !lanes.is_connected();
        if !self.live.get(target).is_some_and(is_lost) {
            return;
        }
        let Some((target, lanes)) = self.live.remove_entry(target) else { return };
        if self.failed.len() >= FAILED_MAX {
            let oldest = self.failed.iter().max_by_key(|(_, lanes)| lanes.rested());
            if let Some(oldest) = oldest.map(|(target, _)| target.clone()) {
                self.failed.remove(&oldest);
            }
        }
        self.failed.insert(target, lanes);
    }
}

impl Lanes {
    fn iter(&self) -> impl Iterator<Item = &Upstream> {
        self.calls.iter().chain(&self.streams)
    }

    fn into_iter(self) -> impl Iterator<Item = Upstream> {
        self.calls.into_iter().chain(self.streams)
    }

    fn is_running(&self) -> bool {
        self.iter().any(|upstream| upstream.use_count.running.load(Relaxed) > 0)
    }

    fn is_connected(&self) -> bool {
        self.iter().any(|upstream| upstream.channel.is_connected())
    }

    /// Since when nobody has asked for it.
    fn rested(&self) -> Duration {
        self.iter().map(|upstream| upstream.use_count.rested()).min().unwrap_or(Duration::MAX)
    }
}

/// The connections to other nodes of one client of the gateway. Each was asked for while the shared one of
/// its target carried [`SHARED_MAX`] calls, so there cannot be many.
#[derive(Default)]
pub(super) struct Private(Mutex<Own>);

/// Connections, and the identity they were made with.
#[derive(Default)]
struct Own {
    of: Weak<Upstreams>,
    by_target: HashMap<Arc<str>, Upstream>,
}

impl Private {
    fn get(&self, of: &Arc<Upstreams>, target: &Arc<str>) -> Upstream {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Made with another identity: what runs on them may end, new calls go elsewhere.
        if !std::ptr::eq(held.of.as_ptr(), Arc::as_ptr(of)) {
            *held = Own { of: Arc::downgrade(of), by_target: HashMap::new() };
        }
        held.by_target.entry(target.clone()).or_insert_with(|| of.upstream(target, Hop::Private)).clone()
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

    fn rested(&self) -> Duration {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

impl Upstream {
    fn new(dialer: Dialer, endpoint: Endpoint) -> Self {
        let use_count = Arc::new(Use { running: Arc::default(), last: Mutex::new(Instant::now()) });
        Self { channel: Channel::new(dialer), endpoint: Arc::new(endpoint), use_count }
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

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: &str = "/machine.MachineService/Version";

    fn upstreams() -> Arc<Upstreams> {
        let tls = ClientTls::insecure([]).expect("settings");
        Arc::new(Upstreams::new(tls, 1, Arc::default()))
    }

    fn counts(upstreams: &Upstreams) -> (usize, usize) {
        let targets = upstreams.targets();
        (targets.live.len(), targets.failed.len())
    }

    #[test]
    fn unreachable_targets_are_few_short_lived_and_take_no_place() {
        let (upstreams, private) = (upstreams(), Private::default());
        for number in 0..5000 {
            let target: Arc<str> = format!("invented-{number}").into();
            let (_, running) = upstreams.get(&target, VERSION, &private);
            upstreams.unreachable(&target);
            assert_eq!(counts(&upstreams).0, 1, "somebody is still on the way");
            drop(running);
            upstreams.unreachable(&target);
            assert_eq!(counts(&upstreams), (0, FAILED_MAX.min(number + 1)));
        }
        // What failed a moment ago is remembered, with its wait, and not made anew.
        let last: Arc<str> = "invented-4999".into();
        drop(upstreams.get(&last, VERSION, &private));
        assert_eq!(counts(&upstreams), (1, FAILED_MAX - 1));
        upstreams.unreachable(&last);
        upstreams.sweep();
        assert_eq!(counts(&upstreams), (0, FAILED_MAX), "not yet");
        upstreams.targets().sweep(IDLE, Duration::ZERO);
        assert_eq!(counts(&upstreams), (0, 0));
    }

    #[test]
    fn idle_targets_make_room_and_running_ones_stay() {
        let (upstreams, private) = (upstreams(), Private::default());
        let call = |number: usize| upstreams.get(&format!("node-{number}").into(), VERSION, &private);
        let running: Vec<_> = (0..TARGETS_MAX).map(call).collect();
        // Everybody is busy: a call gets through, and nothing is kept of it.
        drop(call(TARGETS_MAX));
        assert_eq!(counts(&upstreams), (TARGETS_MAX, 0));
        drop(running);
        drop(call(TARGETS_MAX));
        assert_eq!(counts(&upstreams), (1, 0), "those without a connection go first");
    }

    #[test]
    fn a_released_target_is_dropped_unless_others_call_it() {
        let (upstreams, private) = (upstreams(), Private::default());
        let target: Arc<str> = "node-1".into();
        let (_, running) = upstreams.get(&target, VERSION, &private);
        upstreams.release(&target);
        assert_eq!(counts(&upstreams), (1, 0));
        drop(running);
        upstreams.release(&target);
        assert_eq!(counts(&upstreams), (0, 0));
    }
}
