//! The gateway and the API's thread side by side on one core.
//!
//! A call goes from apid to machined and back, and between the two there is nothing to do at the same time. A scheduler
//! that sees an idle core wakes machined there all the same, and a core that slept takes longer to wake than most
//! calls take: on a quiet machine a quarter of a call's latency. So once a few calls came in a row, both run where
//! machined is at that moment. This holds for a tenth of a second, then both are free again and the next calls decide
//! anew: the core may have got other work. In a crowd of calls they stay apart, for then both have something to do, and
//! so they do for a single call: what it sets off may be much.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use ichor_rpc::peer::PeerIdentity;
use ichor_sys::cores::Cores;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tower::Service;
use tracing::debug;

/// How long the two stay together before the next calls decide anew.
const TURN: Duration = Duration::from_millis(100);

/// So many calls within a turn bring them together.
const ROW: u32 = 8;

/// More calls in a turn are a crowd: a lone caller is never that quick.
const CROWD: u32 = 1_000;

/// What can be done about where threads run.
pub(super) trait Place: Send + Sync {
    /// This thread and the process `gateway` run on one core.
    fn together(&self, gateway: i32);
    /// Both run anywhere again.
    fn apart(&self, gateway: i32);
}

/// This machine.
pub(super) struct Host {
    /// Where everything may run; none on a machine without a choice.
    all: Option<Cores>,
}

impl Host {
    pub(super) fn new() -> Self {
        Self { all: Cores::of_process().ok().filter(Cores::are_many) }
    }
}

impl Place for Host {
    fn together(&self, gateway: i32) {
        if self.all.is_none() {
            return;
        }
        let here = Cores::current();
        if let Err(error) = here.take().and_then(|()| here.give(gateway)) {
            debug!(%error, "calls cross cores");
        }
    }

    fn apart(&self, gateway: i32) {
        let Some(all) = &self.all else { return };
        if let Err(error) = all.take().and_then(|()| all.give(gateway)) {
            // The gateway may have ended meanwhile.
            debug!(%error, "a core is kept");
        }
    }
}

/// Knows when the two are together. All of it happens on the API's thread.
pub(super) struct OneCore<P = Host> {
    place: P,
    /// The process that this thread shares its core with, or will not for now; 0 for none.
    gateway: AtomicI32,
    /// Calls since the two came together, or were let go.
    calls: AtomicU32,
    row: Mutex<Row>,
    begun: Notify,
}

/// Calls of the time of a turn.
struct Row {
    began: Instant,
    calls: u32,
}

impl Row {
    /// The next call, which may begin another row; gives its number.
    fn next(&mut self) -> u32 {
        if self.began.elapsed() >= TURN {
            *self = Self { began: Instant::now(), calls: 0 };
        }
        self.calls = self.calls.saturating_add(1);
        self.calls
    }
}

impl<P: Place> OneCore<P> {
    pub(super) fn new(place: P) -> Arc<Self> {
        Arc::new(Self {
            place,
            gateway: AtomicI32::new(0),
            calls: AtomicU32::new(0),
            row: Mutex::new(Row { began: Instant::now(), calls: 0 }),
            begun: Notify::new(),
        })
    }

    /// A call of the process `gateway` arrived.
    fn arrived(&self, gateway: i32) {
        self.calls.fetch_add(1, Relaxed);
        let in_a_row = self.row.lock().unwrap_or_else(PoisonError::into_inner).next() >= ROW;
        if in_a_row && self.gateway.compare_exchange(0, gateway, Relaxed, Relaxed).is_ok() {
            self.place.together(gateway);
            self.begun.notify_one();
        }
    }

    /// Ends every turn. Runs as long as calls are served, on the same thread.
    pub(super) async fn keep(&self) {
        loop {
            self.begun.notified().await;
            sleep(TURN).await;
            self.place.apart(self.gateway.load(Relaxed));
            while self.calls.swap(0, Relaxed) > CROWD {
                sleep(TURN).await;
            }
            self.gateway.store(0, Relaxed);
        }
    }

    /// Nobody is served any more.
    pub(super) fn end(&self) {
        let gateway = self.gateway.swap(0, Relaxed);
        if gateway != 0 {
            self.place.apart(gateway);
        }
    }
}

/// Tells of every call of one connection.
#[derive(Clone)]
pub(super) struct Beside<S> {
    service: S,
    one_core: Arc<OneCore>,
    gateway: Option<i32>,
}

impl<S> Beside<S> {
    /// Around `service` for a connection of `peer`, which counts when it runs as user `gateway`.
    pub(super) fn new(service: S, one_core: Arc<OneCore>, peer: &PeerIdentity, gateway: u32) -> Self {
        let process = peer.credentials.filter(|process| process.uid == gateway);
        let gateway = process.and_then(|process| process.pid).filter(|pid| *pid > 0);
        Self { service, one_core, gateway }
    }
}

impl<S, R> Service<R> for Beside<S>
where
    S: Service<R>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: R) -> S::Future {
        if let Some(gateway) = self.gateway {
            self.one_core.arrived(gateway);
        }
        self.service.call(request)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::time::advance;

    use super::*;

    #[derive(Default)]
    struct Told(Mutex<Vec<(bool, i32)>>);

    impl Place for Told {
        fn together(&self, gateway: i32) {
            self.0.lock().unwrap().push((true, gateway));
        }

        fn apart(&self, gateway: i32) {
            self.0.lock().unwrap().push((false, gateway));
        }
    }

    fn started() -> Arc<OneCore<Told>> {
        let one_core = OneCore::new(Told::default());
        let kept = one_core.clone();
        tokio::spawn(async move { kept.keep().await });
        one_core
    }

    fn calls(one_core: &OneCore<Told>, count: u32, gateway: i32) {
        (0..count).for_each(|_| one_core.arrived(gateway));
    }

    async fn a_turn() {
        // The turn begins when the watch runs.
        for part in [TURN / 2, TURN] {
            tokio::task::yield_now().await;
            advance(part).await;
            tokio::task::yield_now().await;
        }
    }

    fn told(one_core: &OneCore<Told>) -> Vec<(bool, i32)> {
        std::mem::take(&mut *one_core.place.0.lock().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn calls_in_a_row_bring_both_together_for_a_turn() {
        let one_core = started();
        a_turn().await;
        assert_eq!(told(&one_core), [], "nobody calls");
        calls(&one_core, ROW - 1, 7);
        a_turn().await;
        calls(&one_core, ROW - 1, 7);
        assert_eq!(told(&one_core), [], "now and then");
        calls(&one_core, 2, 7);
        assert_eq!(told(&one_core), [(true, 7)]);
        a_turn().await;
        assert_eq!(told(&one_core), [(false, 7)]);
        calls(&one_core, ROW, 8);
        a_turn().await;
        assert_eq!(told(&one_core), [(true, 8), (false, 8)], "a new gateway");
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_keeps_them_apart() {
        let one_core = started();
        let crowd = || calls(&one_core, CROWD + 1, 7);
        crowd();
        a_turn().await;
        assert_eq!(told(&one_core), [(true, 7), (false, 7)]);
        crowd();
        a_turn().await;
        assert_eq!(told(&one_core), [], "still a crowd");
        a_turn().await;
        calls(&one_core, ROW, 7);
        assert_eq!(told(&one_core), [(true, 7)], "it is gone");
        one_core.end();
        one_core.end();
        assert_eq!(told(&one_core), [(false, 7)], "nobody stays on one core for ever");
    }
}
