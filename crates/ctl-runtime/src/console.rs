//! `debug` of the configuration: logs of services on the console.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output};
use ichor_ctl::{Configuration, active_input};
use ichor_observe::ConsoleLogs;
use ichor_types::MachineType;

/// Says too much on a control plane, where the kubelet is not what one looks for.
const KUBELET: &str = "kubelet";

/// Copies logs of services to the console while the configuration says `debug: true`.
pub struct ConsoleLogController {
    console: ConsoleLogs,
}

impl ConsoleLogController {
    /// A controller of this copier.
    pub fn new(console: ConsoleLogs) -> Self {
        Self { console }
    }
}

impl Controller for ConsoleLogController {
    const NAME: &'static str = "runtime.ConsoleLogController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input()]
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let configuration = Configuration::active(ctx)?;
        let (debug, worker) = match &configuration {
            Some(found) => (found.debug(), found.machine_type() == MachineType::Worker),
            None => (false, false),
        };
        let except: &[&str] = if worker { &[] } else { &[KUBELET] };
        self.console.copy_all(debug, except);
        Ok(())
    }
}
