//! Waits until devices have their final names.

use ichor_cosi::{Context, Input, StateError, weak};
use ichor_resource::runtime::DevicesStatus;

/// The id of the devices status.
const DEVICES: &str = "devices";

/// Holds link controllers back until the device manager has settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevicesGate {
    wanted: bool,
}

impl DevicesGate {
    /// Waits for the device manager.
    pub const WAIT: Self = Self { wanted: true };
    /// There is none to wait for.
    pub const OPEN: Self = Self { wanted: false };

    /// The controller's inputs with the gate's own.
    pub(crate) fn inputs(self, inputs: Vec<Input>) -> Vec<Input> {
        let own = self.wanted.then(|| weak::<DevicesStatus>().id(DEVICES));
        inputs.into_iter().chain(own).collect()
    }

    /// True when links may be looked at.
    pub(crate) fn is_open(self, ctx: &Context) -> Result<bool, StateError> {
        if !self.wanted {
            return Ok(true);
        }
        Ok(ctx.get::<DevicesStatus>(DEVICES)?.is_some_and(|status| status.ready))
    }
}
