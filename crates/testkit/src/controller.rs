//! Runs single passes of one controller against a state, without a runtime.

use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, State, StateError, Wake};

/// One controller under test.
pub struct Harness<C> {
    /// The controller, for a look at its ports.
    pub controller: C,
    ctx: Context,
    wake: Wake,
}

impl<C: Controller> Harness<C> {
    /// Declares the controller's inputs and outputs on the state and starts it.
    pub fn new(state: &State, mut controller: C) -> Result<Self, StateError> {
        let (ctx, wake) = Context::detached(state, &controller)?;
        controller.start(wake.clone());
        Ok(Self { controller, ctx, wake })
    }

    /// One pass.
    pub async fn reconcile(&mut self) -> Result<(), ControllerError> {
        self.ctx.take_requeue();
        self.controller.reconcile(&self.ctx).await
    }

    /// After how long the last pass wants to run again.
    pub fn requeue(&self) -> Option<Duration> {
        self.ctx.take_requeue()
    }

    /// The context passes run with.
    pub fn context(&self) -> &Context {
        &self.ctx
    }

    /// True when something woke the controller since this was last asked.
    pub async fn was_woken(&self) -> bool {
        tokio::select! {
            biased;
            () = self.wake.woken() => true,
            () = std::future::ready(()) => false,
        }
    }
}
