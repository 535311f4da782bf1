//! What does not change while the machine is up.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_resource::runtime::{DevicesStatus, KernelCmdline, Version};
use ichor_resource::v1alpha1::Service;

/// Writes `Versions`.
#[derive(Debug)]
pub struct VersionController {
    /// The version this system calls itself.
    pub version: String,
}

impl Controller for VersionController {
    const NAME: &'static str = "runtime.VersionController";

    fn inputs(&self) -> Vec<Input> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<Version>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        ctx.modify::<Version>("version", |spec| spec.version.clone_from(&self.version))?;
        Ok(())
    }
}

/// Writes `KernelCmdlines`.
#[derive(Debug)]
pub struct KernelCmdlineController {
    /// The kernel command line.
    pub cmdline: String,
}

impl Controller for KernelCmdlineController {
    const NAME: &'static str = "runtime.KernelCmdlineController";

    fn inputs(&self) -> Vec<Input> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<KernelCmdline>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let cmdline = self.cmdline.trim();
        ctx.modify::<KernelCmdline>("cmdline", |spec| cmdline.clone_into(&mut spec.cmdline))?;
        Ok(())
    }
}

/// Writes `DevicesStatuses`: ready once the device manager has settled, at once where there is none.
#[derive(Debug)]
pub struct DevicesStatusController {
    /// Whether a device manager runs.
    pub device_manager: bool,
}

impl Controller for DevicesStatusController {
    const NAME: &'static str = "runtime.DevicesStatusController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<Service>().id("udevd")]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<DevicesStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let settled = !self.device_manager
            || ctx.get::<Service>("udevd")?.is_some_and(|service| service.running && service.healthy);
        // Devices that were ready once stay so, whatever becomes of their manager.
        if settled {
            ctx.modify::<DevicesStatus>("devices", |spec| spec.ready = true)?;
        }
        Ok(())
    }
}
