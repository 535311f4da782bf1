//! Runs controllers: one task each, woken by changes of their inputs.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio::task::{JoinSet, coop};
use tokio::time::Instant;
use tracing::error;

use crate::access::Access;
use crate::backoff::Backoff;
use crate::collection::Subscriber;
use crate::context::Context;
use crate::controller::{Controller, ControllerError, Wake};
use crate::dependency::{Edge, Input, Output, OutputKind};
use crate::error::StateError;
use crate::queue::{QController, drive_queue};
use crate::state::State;
use crate::status::{ControllerStatus, Entry, Failure};

/// Why a controller was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The name is taken.
    #[error("controller {0} is registered already")]
    Name(&'static str),
    /// An exclusive output has another writer.
    #[error("controller {controller} cannot write {type_name}: {other} writes it, and both must share it")]
    Output {
        /// The controller that was refused.
        controller: &'static str,
        /// The type in question.
        type_name: &'static str,
        /// The controller that was first.
        other: &'static str,
    },
    /// The inputs contradict each other.
    #[error("{0}")]
    Inputs(#[from] StateError),
}

/// A failed controller rests at least this long, whatever changes.
const REST_MIN: Duration = Duration::from_millis(200);

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// All controllers over one state. Cheap to clone; all clones are one runtime.
#[derive(Clone)]
pub struct Runtime(Arc<Inner>);

struct Inner {
    state: State,
    board: Mutex<Board>,
    added: Notify,
}

#[derive(Default)]
struct Board {
    entries: Vec<Arc<Entry>>,
    /// Registered and not started.
    jobs: Vec<Job>,
}

impl Runtime {
    /// A runtime without controllers.
    pub fn new(state: State) -> Self {
        Self(Arc::new(Inner { state, board: Mutex::default(), added: Notify::new() }))
    }

    /// The state the controllers work on.
    pub fn state(&self) -> &State {
        &self.0.state
    }

    /// Adds a controller, before or while the runtime runs.
    pub fn register<C: Controller>(&self, controller: C) -> Result<(), RegisterError> {
        let (inputs, outputs) = (controller.inputs(), controller.outputs());
        self.register_boxed(C::NAME, inputs, outputs, Box::new(controller))
    }

    fn register_boxed(
        &self,
        name: &'static str,
        inputs: Vec<Input>,
        outputs: Vec<Output>,
        controller: Box<dyn Passes>,
    ) -> Result<(), RegisterError> {
        let access = Access::new(&self.0.state, name, inputs, outputs)?;
        self.add(access, |entry| Box::pin(drive(controller, entry)))
    }

    /// Adds a queue controller, before or while the runtime runs.
    pub fn register_queue<C: QController>(&self, controller: C) -> Result<(), RegisterError> {
        let (inputs, outputs) = (controller.inputs(), controller.outputs());
        let access = Access::new(&self.0.state, C::NAME, inputs, outputs)?;
        self.add(access, |entry| Box::pin(drive_queue(controller, entry)))
    }

    fn add(&self, access: Access, job: impl FnOnce(Arc<Entry>) -> Job) -> Result<(), RegisterError> {
        let mut board = self.lock();
        for other in &board.entries {
            check_outputs(&access, &other.access)?;
        }
        let entry = Arc::new(Entry::new(access));
        board.entries.push(entry.clone());
        board.jobs.push(job(entry));
        drop(board);
        self.0.added.notify_one();
        Ok(())
    }

    /// Runs all controllers until `shutdown` is done. Passes under way are dropped then, as a
    /// crash would drop them; controllers are written for that.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        let mut tasks = JoinSet::new();
        loop {
            let jobs = std::mem::take(&mut self.lock().jobs);
            for job in jobs {
                tasks.spawn(job);
            }
            tokio::select! {
                () = &mut shutdown => break,
                () = self.0.added.notified() => {}
                // Controllers do not end, and their panics are caught; this one is a bug of ours.
                Some(ended) = tasks.join_next() => error!(?ended, "controller task ended"),
            }
        }
        tasks.shutdown().await;
    }

    /// The graph of controllers and resources, as it is now.
    pub fn dependencies(&self) -> Vec<Edge> {
        let board = self.lock();
        let mut edges: Vec<_> = board.entries.iter().flat_map(|entry| entry.access.edges()).collect();
        edges.sort_by_key(|edge| edge.controller);
        edges
    }

    /// How all controllers are doing, by name.
    pub fn status(&self) -> Vec<ControllerStatus> {
        let board = self.lock();
        let mut list: Vec<_> = board.entries.iter().map(|entry| entry.status()).collect();
        list.sort_by_key(|status| status.name);
        list
    }

    fn lock(&self) -> MutexGuard<'_, Board> {
        self.0.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("controllers", &self.lock().entries.len()).finish_non_exhaustive()
    }
}

fn check_outputs(new: &Access, other: &Access) -> Result<(), RegisterError> {
    if new.name == other.name {
        return Err(RegisterError::Name(new.name));
    }
    for output in new.outputs() {
        let clash = other.outputs().iter().any(|held| {
            held.type_name == output.type_name
                && (held.kind == OutputKind::Exclusive || output.kind == OutputKind::Exclusive)
        });
        if clash {
            return Err(RegisterError::Output {
                controller: new.name,
                type_name: output.type_name,
                other: other.name,
            });
        }
    }
    Ok(())
}

/// Ends the subscriptions of a controller whose task is dropped.
pub(crate) struct Subscribed {
    access: Arc<Access>,
    target: Arc<dyn Subscriber>,
}

impl Subscribed {
    pub(crate) fn new(access: &Arc<Access>, target: &Arc<dyn Subscriber>) -> Self {
        access.subscribe(target);
        Self { access: access.clone(), target: target.clone() }
    }
}

impl Drop for Subscribed {
    fn drop(&mut self) {
        self.access.unsubscribe(&self.target);
    }
}

type Pass<'a> = Pin<Box<dyn Future<Output = Result<(), ControllerError>> + Send + 'a>>;

/// A controller of any type. There is one loop for all of them, and between passes none holds the memory of its
/// next one.
trait Passes: Send {
    fn start(&mut self, wake: Wake);
    fn pass<'a>(&'a mut self, ctx: &'a Context) -> Pass<'a>;
}

impl<C: Controller> Passes for C {
    fn start(&mut self, wake: Wake) {
        Controller::start(self, wake);
    }

    fn pass<'a>(&'a mut self, ctx: &'a Context) -> Pass<'a> {
        Box::pin(self.reconcile(ctx))
    }
}

/// The life of one controller.
async fn drive(mut controller: Box<dyn Passes>, entry: Arc<Entry>) {
    let target: Arc<dyn Subscriber> = entry.wake.0.clone();
    let _subscribed = Subscribed::new(&entry.access, &target);
    let ctx = Context::new(entry.access.clone(), target, entry.wake.clone());
    let mut backoff = Backoff::default();

    let started = catch_unwind(AssertUnwindSafe(|| controller.start(entry.wake.clone())));
    if let Err(payload) = started {
        rest(&entry, &Failure::panic(&*payload), &mut backoff).await;
    }
    // The first pass comes without any change, and so does the first one after a failure.
    entry.wake.wake();
    let mut again = None;
    loop {
        wait(&entry.wake, again).await;
        // A controller that wakes itself must not keep others from running.
        coop::consume_budget().await;
        ctx.take_requeue();
        ctx.take_trouble();
        entry.began();
        // A controller may panic before its first wait, too.
        let pass = AssertUnwindSafe(async { controller.pass(&ctx).await }).catch_unwind();
        match Failure::sort(pass.await) {
            Ok(()) => {
                backoff.reset();
                entry.succeeded(ctx.take_trouble());
                again = ctx.take_requeue().map(|delay| Instant::now() + delay);
            }
            Err(failure) => {
                rest(&entry, &failure, &mut backoff).await;
                again = None;
                entry.wake.wake();
            }
        }
    }
}

/// Waits before the next try. A change of what the controller reads may be just what it was missing, so it ends the
/// wait, though not at once: a controller that fails must not run as often as its inputs change.
async fn rest(entry: &Entry, failure: &Failure, backoff: &mut Backoff) {
    let pause = backoff.next();
    entry.failed(failure, None, pause);
    let end = Instant::now() + pause;
    tokio::time::sleep(pause.min(REST_MIN)).await;
    wait(&entry.wake, Some(end)).await;
}

async fn wait(wake: &Wake, deadline: Option<Instant>) {
    let woken = wake.0.notify.notified();
    match deadline {
        None => woken.await,
        // Both ends mean the same: time for a pass.
        Some(deadline) => drop(tokio::time::timeout_at(deadline, woken).await),
    }
}
