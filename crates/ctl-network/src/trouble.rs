//! What an applier could not do: told in the log when it is new, shown with the controller for as long as it
//! lasts.

use std::collections::BTreeSet;
use std::time::Duration;

use ichor_cosi::{Context, ControllerError};

/// How often what the kernel refused is tried again; changes of inputs or of the kernel come on top.
const RETRY: Duration = Duration::from_secs(60);

/// Collects the troubles of one pass and remembers which were told.
#[derive(Debug, Default)]
pub(crate) struct Troubles {
    told: BTreeSet<String>,
    now: Vec<String>,
    refused: BTreeSet<String>,
}

impl Troubles {
    /// Something is not there yet; its coming wakes the controller.
    pub(crate) fn waits(&mut self, text: String) {
        self.now.push(text);
    }

    /// The kernel said no.
    pub(crate) fn refused(&mut self, error: impl Into<ControllerError>) {
        let text = error.into().to_string();
        self.refused.insert(text.clone());
        self.now.push(text);
    }

    /// Ends a pass: shows what there is.
    pub(crate) fn show(&mut self, ctx: &Context) {
        let refused = std::mem::take(&mut self.refused);
        for text in refused.difference(&self.told) {
            tracing::warn!("{text}");
        }
        if !refused.is_empty() {
            ctx.requeue_after(RETRY);
        }
        self.told = refused;
        let now = std::mem::take(&mut self.now);
        if !now.is_empty() {
            ctx.trouble(now.join("; "));
        }
    }
}
