//! How each controller is doing, for people who ask why.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ichor_resource::Nanos;
use tracing::warn;

use crate::access::Access;
use crate::controller::{ControllerError, Wake};

/// What a controller is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ControllerPhase {
    /// Registered, not started.
    #[default]
    Registered,
    /// Waits for a change.
    Idle,
    /// In a pass.
    Running,
    /// Failed; waits for the next attempt.
    Backoff,
}

/// The record of one controller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControllerStatus {
    /// The name.
    pub name: &'static str,
    /// What it is doing.
    pub phase: ControllerPhase,
    /// Passes so far.
    pub runs: u64,
    /// Failed passes in a row; zero when the last one was good.
    pub failures: u32,
    /// Failed passes so far, panics included.
    pub failures_total: u64,
    /// Panics so far.
    pub panics: u64,
    /// Why it last failed. Stays after it recovered.
    pub last_error: Option<String>,
    /// When it last failed.
    pub last_error_at: Option<Nanos>,
    /// When the next attempt comes, while it waits for one.
    pub retry_at: Option<Nanos>,
    /// What the last pass could not get done though it did not fail; see [`Context::trouble`].
    ///
    /// [`Context::trouble`]: crate::Context::trouble
    pub trouble: Option<String>,
}

/// A registered controller as the runtime keeps it.
pub(crate) struct Entry {
    pub(crate) access: Arc<Access>,
    pub(crate) wake: Wake,
    status: Mutex<ControllerStatus>,
}

impl Entry {
    pub(crate) fn new(access: Access) -> Self {
        let status = ControllerStatus { name: access.name, ..ControllerStatus::default() };
        Self { access: Arc::new(access), wake: Wake::new(), status: Mutex::new(status) }
    }

    pub(crate) fn status(&self) -> ControllerStatus {
        self.lock().clone()
    }

    pub(crate) fn began(&self) {
        let mut status = self.lock();
        status.phase = ControllerPhase::Running;
        status.runs += 1;
        status.retry_at = None;
    }

    pub(crate) fn succeeded(&self, trouble: Option<String>) {
        let mut status = self.lock();
        status.phase = ControllerPhase::Idle;
        status.failures = 0;
        status.trouble = trouble;
    }

    /// Notes and logs a failure, of one item when there is one.
    pub(crate) fn failed(&self, failure: &Failure, item: Option<&str>, pause: Duration) {
        let name = self.access.name;
        let text = match item {
            Some(item) => format!("{item}: {failure}"),
            None => failure.to_string(),
        };
        warn!(controller = name, error = %text, retry_in = ?pause, "controller failed");
        let now = self.access.state.now();
        let mut status = self.lock();
        status.phase = ControllerPhase::Backoff;
        status.failures = status.failures.saturating_add(1);
        status.failures_total += 1;
        status.panics += u64::from(matches!(failure, Failure::Panic(_)));
        status.last_error = Some(text);
        status.last_error_at = Some(now);
        let pause = i64::try_from(pause.as_nanos()).unwrap_or(i64::MAX);
        status.retry_at = Some(Nanos(now.0.saturating_add(pause)));
    }

    fn lock(&self) -> MutexGuard<'_, ControllerStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a pass ended badly.
pub(crate) enum Failure {
    Error(ControllerError),
    Panic(String),
}

impl Failure {
    /// Sorts the outcome of a pass.
    pub(crate) fn sort(
        outcome: Result<Result<(), ControllerError>, Box<dyn Any + Send>>,
    ) -> Result<(), Self> {
        match outcome {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Self::Error(error)),
            Err(payload) => Err(Self::panic(&*payload)),
        }
    }

    pub(crate) fn panic(payload: &(dyn Any + Send)) -> Self {
        let text = payload
            .downcast_ref::<&str>()
            .map(ToString::to_string)
            .or_else(|| payload.downcast_ref::<String>().cloned());
        Self::Panic(text.unwrap_or_else(|| "no message".to_owned()))
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Error(error) => write!(f, "{error}"),
            Self::Panic(text) => write!(f, "panic: {text}"),
        }
    }
}
