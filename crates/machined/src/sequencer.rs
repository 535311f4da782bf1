//! Sequences: named phases of named tasks, one sequence at a time.
//!
//! [`table`] says which phases a sequence has, as data; [`lock`] who may run when; this module runs
//! them and tells about it in events. What a task does is behind the [`Tasks`] port.

pub mod lock;
pub mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use ichor_wire::{common, machine};

use crate::events::Events;
use crate::services::BoxFuture;

pub use lock::{LockError, SequenceLock};
pub use table::{Check, Phase, Request, Sequence, Task, plan};

/// How a task ends other than well.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// It failed.
    #[error("{0}")]
    Failed(String),
    /// The sequence was cancelled.
    #[error("canceled")]
    Canceled,
    /// The machine ends here; not a failure.
    #[error("unix.Reboot({0:x})")]
    Reboot(u32),
}

/// How a sequence ends other than well.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    /// Another sequence runs.
    #[error(transparent)]
    Locked(#[from] LockError),
    /// Another sequence took over.
    #[error("sequence {sequence} was canceled")]
    Canceled {
        /// Which sequence.
        sequence: &'static str,
    },
    /// A task failed.
    #[error("error running phase {phase} in {sequence} sequence: task {task}: {reason}")]
    Failed {
        /// Which sequence.
        sequence: &'static str,
        /// Which phase.
        phase: &'static str,
        /// Which task.
        task: &'static str,
        /// Why.
        reason: String,
    },
    /// The machine ends with this reboot command.
    #[error("unix.Reboot({0:x})")]
    Reboot(u32),
}

/// What a running task knows of its sequence.
#[derive(Clone)]
pub struct TaskContext {
    /// What was asked for.
    pub request: Request,
    /// The API call behind it, or empty.
    pub actor: Arc<str>,
    /// Cancelled when another sequence takes over.
    pub cancel: CancellationToken,
}

/// What tasks do and what checks see.
pub trait Tasks: Send + Sync {
    /// Runs a task.
    fn run(&self, task: Task, context: TaskContext) -> BoxFuture<'static, Result<(), TaskError>>;

    /// Looks whether a phase is to run.
    fn check(&self, check: Check, request: &Request) -> bool;
}

/// Runs sequences. Cheap to clone.
#[derive(Clone)]
pub struct Sequencer {
    tasks: Arc<dyn Tasks>,
    events: Events,
    lock: Arc<SequenceLock>,
    runtime: Handle,
}

impl Sequencer {
    /// A sequencer whose background runs live on `runtime`.
    pub fn new(tasks: Arc<dyn Tasks>, events: Events, runtime: Handle) -> Self {
        Self { tasks, events, lock: Arc::new(SequenceLock::new()), runtime }
    }

    /// Starts a sequence in the background, in the name of an actor.
    ///
    /// Its failure is published as an event; whoever watches those decides what that means for the
    /// machine.
    pub fn start(&self, request: Request, takeover: bool, actor: &str) {
        let sequencer = self.clone();
        let actor: Arc<str> = actor.into();
        self.runtime.spawn(async move {
            // The error is in the event already.
            let _ = sequencer.run(request, takeover, &actor).await;
        });
    }

    /// Runs a sequence to its end.
    pub async fn run(&self, request: Request, takeover: bool, actor: &str) -> Result<(), SequenceError> {
        let sequence = request.sequence();
        let result = match self.lock.acquire(sequence, takeover).await {
            Ok(guard) => {
                let context = TaskContext { request, actor: actor.into(), cancel: guard.cancelled().clone() };
                self.run_locked(&context).await
            }
            Err(error) => Err(error.into()),
        };
        if let Err(error) = &result {
            let code = match error {
                SequenceError::Locked(_) => common::Code::Locked,
                SequenceError::Canceled { .. } => common::Code::Canceled,
                SequenceError::Failed { .. } | SequenceError::Reboot(_) => common::Code::Fatal,
            };
            match code {
                common::Code::Fatal if !matches!(error, SequenceError::Reboot(_)) => {
                    warn!("{} sequence: failed: {error}", sequence.as_str());
                }
                _ => {}
            }
            self.events.publish_as(
                actor,
                machine::SequenceEvent {
                    sequence: sequence.as_str().to_owned(),
                    action: machine::sequence_event::Action::Noop.into(),
                    error: Some(common::Error {
                        code: code.into(),
                        message: error.to_string(),
                        details: Vec::new(),
                    }),
                },
            );
        }
        result
    }

    async fn run_locked(&self, context: &TaskContext) -> Result<(), SequenceError> {
        let sequence = context.request.sequence();
        let phases = plan(&context.request);
        let began = Instant::now();
        let name = sequence.as_str();
        self.sequence_event(context, machine::sequence_event::Action::Start);
        info!("{name} sequence: {} phase(s)", phases.len());

        let mut result = Ok(());
        for (index, phase) in phases.iter().enumerate() {
            if context.cancel.is_cancelled() {
                result = Err(SequenceError::Canceled { sequence: name });
                break;
            }
            if phase.check.is_some_and(|check| !self.tasks.check(check, &context.request)) {
                continue;
            }
            result = self.run_phase(context, phase, index + 1, phases.len()).await;
            if result.is_err() {
                break;
            }
        }
        info!("{name} sequence: done: {:.1?}", began.elapsed());
        self.sequence_event(context, machine::sequence_event::Action::Stop);
        result
    }

    async fn run_phase(
        &self,
        context: &TaskContext,
        phase: &Phase,
        number: usize,
        of: usize,
    ) -> Result<(), SequenceError> {
        let sequence = context.request.sequence().as_str();
        let began = Instant::now();
        let progress = format!("{number}/{of}");
        self.phase_event(context, phase.name, machine::phase_event::Action::Start);
        info!("phase {} ({progress}): {} tasks(s)", phase.name, phase.tasks.len());

        // Siblings of a failed task are cancelled, the sequence's own token is not.
        let siblings = context.cancel.child_token();
        let mut running: FuturesUnordered<_> = phase
            .tasks
            .iter()
            .enumerate()
            .map(|(index, task)| {
                let context = TaskContext { cancel: siblings.clone(), ..context.clone() };
                let label = format!("task {} ({}/{})", task.as_str(), index + 1, phase.tasks.len());
                async move { (*task, self.run_task(*task, context, &label).await) }
            })
            .collect();
        let mut first = None;
        while let Some((task, result)) = running.next().await {
            let Err(error) = result else { continue };
            let error = match error {
                TaskError::Reboot(command) => SequenceError::Reboot(command),
                TaskError::Canceled => SequenceError::Canceled { sequence },
                TaskError::Failed(reason) if phase.forgiving => {
                    warn!("phase {} ({progress}): {}: ignored: {reason}", phase.name, task.as_str());
                    continue;
                }
                TaskError::Failed(reason) => {
                    SequenceError::Failed { sequence, phase: phase.name, task: task.as_str(), reason }
                }
            };
            siblings.cancel();
            first.get_or_insert(error);
        }
        drop(running);

        info!("phase {} ({progress}): done, {:.1?}", phase.name, began.elapsed());
        self.phase_event(context, phase.name, machine::phase_event::Action::Stop);
        match first {
            None => Ok(()),
            // A takeover shows as whatever the interrupted task made of it.
            Some(SequenceError::Failed { .. }) if context.cancel.is_cancelled() => {
                Err(SequenceError::Canceled { sequence })
            }
            Some(error) => Err(error),
        }
    }

    async fn run_task(&self, task: Task, context: TaskContext, label: &str) -> Result<(), TaskError> {
        let began = Instant::now();
        self.task_event(&context, task, machine::task_event::Action::Start);
        info!("{label}: starting");
        let cancel = context.cancel.clone();
        let limit = task.limit();
        // On its own task: a panic fails this task, not the sequencer.
        let mut work = self.runtime.spawn(self.tasks.run(task, context.clone()));
        let result = tokio::select! {
            ended = tokio::time::timeout(limit, &mut work) => match ended {
                Ok(Ok(result)) => result,
                Ok(Err(panic)) => Err(TaskError::Failed(format!("panic: {panic}"))),
                Err(_) => Err(TaskError::Failed(format!("not done within {}", seconds(limit)))),
            },
            () = cancel.cancelled() => Err(TaskError::Canceled),
        };
        if result.is_err() {
            work.abort();
        }
        match &result {
            Ok(()) => info!("{label}: done, {:.1?}", began.elapsed()),
            Err(TaskError::Reboot(_)) => {}
            Err(error) => warn!("{label}: failed: {error}"),
        }
        self.task_event(&context, task, machine::task_event::Action::Stop);
        result
    }

    fn sequence_event(&self, context: &TaskContext, action: machine::sequence_event::Action) {
        let sequence = context.request.sequence().as_str().to_owned();
        self.events.publish_as(
            &context.actor,
            machine::SequenceEvent { sequence, action: action.into(), error: None },
        );
    }

    fn phase_event(&self, context: &TaskContext, phase: &str, action: machine::phase_event::Action) {
        self.events.publish_as(
            &context.actor,
            machine::PhaseEvent { phase: phase.to_owned(), action: action.into() },
        );
    }

    fn task_event(&self, context: &TaskContext, task: Task, action: machine::task_event::Action) {
        self.events.publish_as(
            &context.actor,
            machine::TaskEvent { task: task.as_str().to_owned(), action: action.into() },
        );
    }
}

fn seconds(limit: Duration) -> String {
    format!("{} s", limit.as_secs())
}
