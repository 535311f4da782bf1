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
        let machine_type = config.map_or(Role::Unknown, |config| config.machine_type());
        ctx.modify::<MachineType>(MachineType::ID, |spec| spec.machine_type = machine_type)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ichor_resource::config::MachineConfig;
    use ichor_testkit::Harness;

    use super::*;

    async fn published(yaml: &'static str) -> Role {
        let (state, _clock) = ichor_testkit::state();
        if !yaml.is_empty() {
            state.create("config", MachineConfig::ACTIVE, MachineConfig::new(yaml), "").unwrap();
        }
        let mut harness = Harness::new(&state, MachineTypeController).unwrap();
        harness.reconcile().await.unwrap();
        state.get::<MachineType>("config", MachineType::ID).unwrap().machine_type
    }

    #[tokio::test]
    async fn the_role_follows_the_configuration() {
        assert_eq!(published("").await, Role::Unknown);
        assert_eq!(
            published("version: v1alpha1\nmachine:\n  type: controlplane\n").await,
            Role::ControlPlane
        );
        assert_eq!(published("version: v1alpha1\nmachine: {}\n").await, Role::Worker);
    }
}
