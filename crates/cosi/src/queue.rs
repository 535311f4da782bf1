//! Queue controllers: work on one resource at a time, with a pause of its own after a failure.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use ichor_resource::{Id, Kind, Resource};
use tokio::sync::Notify;
use tokio::task::coop;
use tokio::time::Instant;

use crate::access::Access;
use crate::backoff::Backoff;
use crate::collection::Subscriber;
use crate::context::Context;
use crate::controller::ControllerError;
use crate::dependency::{Input, InputKind, Output};
use crate::runtime::Subscribed;
use crate::status::{Entry, Failure};

/// One resource to work on. It may be gone by then.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Item {
    /// Namespace and type.
    pub kind: Arc<Kind>,
    /// The id.
    pub id: Id,
}

impl Item {
    fn of(resource: &Resource) -> Self {
        Self { kind: resource.meta().kind().clone(), id: resource.id().clone() }
    }
}

impl std::fmt::Display for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}({}/{})", self.kind.type_name(), self.kind.namespace(), self.id)
    }
}

/// A controller that works on single items: those of its primary inputs, and those it maps other
/// inputs to. An item is never worked on twice at the same time.
pub trait QController: Send + Sync + 'static {
    /// The name; also the owner of everything it writes.
    const NAME: &'static str;

    /// What it reads: `primary`, `mapped`, `mapped_destroy_ready`. Fixed once registered.
    fn inputs(&self) -> Vec<Input>;

    /// What it writes.
    fn outputs(&self) -> Vec<Output>;

    /// How many items it works on at a time.
    fn concurrency(&self) -> usize {
        1
    }

    /// Turns a change of a mapped input into items.
    fn map(&self, ctx: &Context, changed: &Item) -> Result<Vec<Item>, ControllerError> {
        let _ = (ctx, changed);
        Ok(Vec::new())
    }

    /// One item. An error or a panic repeats this item after a pause that grows.
    fn reconcile(
        &self,
        ctx: &Context,
        item: &Item,
    ) -> impl Future<Output = Result<(), ControllerError>> + Send;
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Job {
    Reconcile(Item),
    Map(Item),
}

impl Job {
    fn item(&self) -> &Item {
        match self {
            Self::Reconcile(item) | Self::Map(item) => item,
        }
    }
}

/// Work to be done. Bounded by the number of different items.
#[derive(Default)]
struct Queue {
    inner: Mutex<Lists>,
    notify: Notify,
}

#[derive(Default)]
struct Lists {
    ready: VecDeque<Job>,
    queued: HashSet<Job>,
    busy: HashSet<Job>,
    /// Changed while busy.
    again: HashSet<Job>,
    delayed: BTreeMap<(Instant, u64), Job>,
    timers: HashMap<Job, (Instant, u64)>,
    backoffs: HashMap<Job, Backoff>,
    counter: u64,
}

impl Lists {
    fn push(&mut self, job: Job) {
        if let Some(timer) = self.timers.remove(&job) {
            self.delayed.remove(&timer);
        }
        if self.busy.contains(&job) {
            self.again.insert(job);
        } else if self.queued.insert(job.clone()) {
            self.ready.push_back(job);
        }
    }

    fn push_at(&mut self, job: Job, due: Instant) {
        // A change that came meanwhile goes first.
        if self.again.contains(&job) || self.queued.contains(&job) {
            return;
        }
        if let Some(timer) = self.timers.remove(&job) {
            self.delayed.remove(&timer);
        }
        self.counter += 1;
        self.timers.insert(job.clone(), (due, self.counter));
        self.delayed.insert((due, self.counter), job);
    }

    /// The next job, or when to look again.
    fn pop(&mut self, now: Instant) -> Result<Job, Option<Instant>> {
        while let Some(first) = self.delayed.first_entry()
            && first.key().0 <= now
        {
            let job = first.remove();
            self.timers.remove(&job);
            self.push(job);
        }
        let Some(job) = self.ready.pop_front() else {
            return Err(self.delayed.keys().next().map(|(due, _)| *due));
        };
        self.queued.remove(&job);
        self.busy.insert(job.clone());
        Ok(job)
    }

    fn done(&mut self, job: Job, retry: Option<Instant>) {
        self.busy.remove(&job);
        if self.again.remove(&job) {
            self.push(job);
        } else if let Some(due) = retry {
            self.push_at(job, due);
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: Job) {
        self.lock().push(job);
        self.notify.notify_one();
    }

    async fn pop(&self) -> Job {
        loop {
            let (next, rest) = {
                let mut lists = self.lock();
                (lists.pop(Instant::now()), !lists.ready.is_empty())
            };
            match next {
                Ok(job) => {
                    if rest {
                        // One permit is all Notify keeps: pass it on to the next worker.
                        self.notify.notify_one();
                    }
                    return job;
                }
                Err(None) => self.notify.notified().await,
                Err(Some(due)) => {
                    drop(tokio::time::timeout_at(due, self.notify.notified()).await);
                }
            }
        }
    }

    fn done(&self, job: Job, retry: Option<Instant>) {
        self.lock().done(job, retry);
        self.notify.notify_one();
    }

    fn backoff(&self, job: &Job) -> Duration {
        self.lock().backoffs.entry(job.clone()).or_default().next()
    }

    fn forget_backoff(&self, job: &Job) {
        self.lock().backoffs.remove(job);
    }
}

/// Puts changed inputs into the queue.
struct Target {
    queue: Arc<Queue>,
    access: Arc<Access>,
}

impl Subscriber for Target {
    fn changed(&self, resource: &Arc<Resource>) {
        let kind = resource.meta().kind();
        for input in self.access.inputs() {
            if !input.covers(kind.namespace(), kind.type_name(), Some(resource.id())) {
                continue;
            }
            let item = Item::of(resource);
            match input.kind {
                InputKind::QueuePrimary => self.queue.push(Job::Reconcile(item)),
                InputKind::QueueMapped => self.queue.push(Job::Map(item)),
                InputKind::QueueMappedDestroyReady => {
                    if resource.meta().is_destroy_ready() {
                        self.queue.push(Job::Map(item));
                    }
                }
                InputKind::Strong | InputKind::Weak | InputKind::DestroyReady => {}
            }
        }
    }
}

/// The life of one queue controller.
pub(crate) async fn drive_queue<C: QController>(controller: C, entry: Arc<Entry>) {
    let queue = Arc::new(Queue::default());
    let target = Arc::new(Target { queue: queue.clone(), access: entry.access.clone() });
    let subscriber: Arc<dyn Subscriber> = target.clone();
    let _subscribed = Subscribed::new(&entry.access, &subscriber);
    for input in entry.access.inputs() {
        let kind = entry.access.state.kind(&input.namespace, input.type_name);
        for resource in kind.list() {
            target.changed(&resource);
        }
    }
    let workers =
        (0..controller.concurrency().max(1)).map(|_| work(&controller, &entry, &queue, &subscriber));
    join_all(workers).await;
}

async fn work<C: QController>(
    controller: &C,
    entry: &Arc<Entry>,
    queue: &Queue,
    subscriber: &Arc<dyn Subscriber>,
) {
    let ctx = Context::fixed(entry.access.clone(), subscriber.clone(), entry.wake.clone());
    loop {
        let job = queue.pop().await;
        // A queue that never runs dry must not keep others from running.
        coop::consume_budget().await;
        ctx.take_requeue();
        entry.began();
        let outcome = match &job {
            Job::Reconcile(item) => {
                let pass = AssertUnwindSafe(controller.reconcile(&ctx, item)).catch_unwind();
                Failure::sort(pass.await)
            }
            Job::Map(item) => {
                let mapped = catch_unwind(AssertUnwindSafe(|| controller.map(&ctx, item)));
                Failure::sort(mapped.map(|mapped| {
                    mapped.map(|items| {
                        for item in items {
                            queue.push(Job::Reconcile(item));
                        }
                    })
                }))
            }
        };
        let retry = match outcome {
            Ok(()) => {
                queue.forget_backoff(&job);
                entry.succeeded(ctx.take_trouble());
                ctx.take_requeue().map(|delay| Instant::now() + delay)
            }
            Err(failure) => {
                let pause = queue.backoff(&job);
                entry.failed(&failure, Some(&job.item().to_string()), pause);
                Some(Instant::now() + pause)
            }
        };
        queue.done(job, retry);
    }
}
