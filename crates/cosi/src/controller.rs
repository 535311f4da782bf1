//! The controller: declared inputs and outputs, one pass per wake-up.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use ichor_resource::Resource;
use tokio::sync::Notify;

use crate::collection::Subscriber;
use crate::context::Context;
use crate::dependency::{Input, Output};

/// Turns inputs into outputs. One pass per wake-up, safe to run twice, never blocks its thread.
pub trait Controller: Send + 'static {
    /// The name; also the owner of everything it writes.
    const NAME: &'static str;

    /// What it reads and what wakes it.
    fn inputs(&self) -> Vec<Input>;

    /// What it writes.
    fn outputs(&self) -> Vec<Output>;

    /// Called once before the first pass. Event sources outside of the state keep the handle and
    /// call it.
    fn start(&mut self, wake: Wake) {
        drop(wake);
    }

    /// One pass. An error or a panic repeats it after a pause that grows.
    fn reconcile(&mut self, ctx: &Context) -> impl Future<Output = Result<(), ControllerError>> + Send;
}

/// Wakes a controller. Wakes while it is busy make one more pass, not many.
#[derive(Clone)]
pub struct Wake(pub(crate) Arc<WakeCell>);

#[derive(Default)]
pub(crate) struct WakeCell {
    pub(crate) notify: Notify,
}

impl Wake {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    /// Asks for one more pass.
    pub fn wake(&self) {
        self.0.notify.notify_one();
    }

    /// Waits for the next wake-up; for tests that stand in for the runtime.
    pub async fn woken(&self) {
        self.0.notify.notified().await;
    }
}

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wake")
    }
}

impl Subscriber for WakeCell {
    fn changed(&self, _resource: &Arc<Resource>) {
        self.notify.notify_one();
    }
}

/// Why a pass failed. Anything that is an error turns into it with `?`.
pub struct ControllerError(Box<dyn Error + Send + Sync>);

impl ControllerError {
    /// From a text, when there is no error value to keep.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into().into())
    }

    /// The error itself.
    pub fn inner(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for ControllerError {
    fn from(error: E) -> Self {
        Self(Box::new(error))
    }
}

/// The error and its causes, each after a colon.
impl fmt::Display for ControllerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for ControllerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
