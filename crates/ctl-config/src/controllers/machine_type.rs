//! The role of the machine, from its configuration.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive};
use ichor_ctl::{Configuration, active_input};
use ichor_resource::config::MachineType;
use ichor_types::MachineType as Role;

/// Publishes the role of the machine.
#[derive(Debug, Default)]
pub struct MachineTypeController;

impl Controller for MachineTypeController {
    const NAME: &'static str = "config.MachineTypeController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<MachineType>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = Configuration::active(ctx)?;
        let machine_type = config.as_deref().and_then(|config| config.root()).map_or(Role::Unknown, role);
        ctx.modify::<MachineType>(MachineType::ID, |spec| spec.machine_type = machine_type)?;
        Ok(())
    }
}

fn role(config: &ichor_config::v1alpha1::Config) -> Role {
    config.machine_type()
}
